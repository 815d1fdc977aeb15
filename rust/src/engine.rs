//! Engines: the scheduler, KV cache and timing model of one replica.

use serde::Deserialize;

use crate::clock::{Span, Unit, attoseconds, greatest_common_divisor};
use crate::error::{Error, Result};
use crate::kv::KvCache;
use crate::request::FirstToken;
use crate::scheduler::{Scheduler, SchedulerConfig};
use crate::timing::{HostTime, Overhead, Timing, TimingModel};
use crate::workload::Class;

/// An engine as a user describes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Engine {
    /// The timing model of iterations.
    pub timing: TimingModel,
    /// The scheduling policy.
    pub scheduler: SchedulerConfig,
    /// The KV cache.
    pub kv: KvCache,
    /// The iteration that emits the first token.
    pub first_token: FirstToken,
    /// Host time in addition to GPU time.
    #[serde(default)]
    pub overhead: Overhead,
    /// Maximum length of a request in tokens. A prompt that leaves no room for output is rejected. A longer output is
    /// cut. `None`: unlimited.
    #[serde(default)]
    pub max_model_len: Option<u32>,
    /// Time from the client to the engine and back, in seconds: HTTP, tokenization and token delivery.
    #[serde(default)]
    pub api_s: f64,
}

/// An engine ready to run.
pub struct EngineParts {
    /// The scheduler.
    pub scheduler: Box<dyn Scheduler>,
    /// The timing model of iterations.
    pub timing: Box<dyn Timing>,
    /// The KV cache.
    pub kv: KvCache,
    /// The iteration that emits the first token.
    pub first_token: FirstToken,
    /// Host time in addition to GPU time.
    pub host: HostTime,
    /// Maximum length of a request in tokens; `u32::MAX`: unlimited.
    pub max_model_len: u32,
    /// Time from the client to the engine and back.
    pub api: Span,
}

impl Engine {
    /// Builds the parts of one replica for a workload with these classes. `None` only checks the fields. The error
    /// names the first invalid field.
    pub fn build(&self, classes: Option<&[Class]>) -> Result<EngineParts> {
        self.kv.check().map_err(|error| error.within("kv"))?;
        let scheduler = self.scheduler.build(classes).map_err(|error| error.within("scheduler"))?;
        scheduler.check(&self.kv)?;
        if self.kv.has_layer_groups() {
            if !scheduler.supports_layer_groups() {
                let what = "is supported by the scheduler VllmV1 without speculation only; set groups to None";
                return Err(Error::config("kv.groups", what));
            }
            if self.first_token != FirstToken::Prefill {
                let what = "must be \"prefill\" for a cache with groups, as in vLLM; got \"decode\"";
                return Err(Error::config("first_token", what));
            }
        }
        Ok(EngineParts {
            scheduler,
            timing: self.timing.build().map_err(|error| error.within("timing"))?,
            kv: self.kv.clone(),
            first_token: self.first_token,
            host: self.overhead.build().map_err(|error| error.within("overhead"))?,
            max_model_len: longest_request(self.max_model_len)?,
            api: Span(attoseconds(self.api_s, "api_s")?),
        })
    }
}

impl EngineParts {
    /// A number of attoseconds that divides all times of the engine; 0: all are 0.
    pub(crate) fn unit(&self) -> u128 {
        if !self.scheduler.is_timeless() || self.scheduler.speculates().is_some() || self.api != Span::ZERO {
            return 1;
        }
        let pause = self.scheduler.plans_ahead().map_or(0, |ahead| ahead.pause.0);
        greatest_common_divisor(greatest_common_divisor(self.timing.unit(), self.host.unit()), pause)
    }

    /// Switches to a unit that divides [`EngineParts::unit`].
    pub(crate) fn count_in(&mut self, unit: Unit) {
        self.timing.count_in(unit.attoseconds_each());
        self.host.count_in(unit.attoseconds_each());
    }
}

/// Maximum length of a request in tokens; `u32::MAX`: unlimited.
pub fn longest_request(max_model_len: Option<u32>) -> Result<u32> {
    match max_model_len {
        Some(tokens) if tokens < 2 => Err(Error::config(
            "max_model_len",
            format!("must be at least 2 (one prompt and one output token), got {tokens}"),
        )),
        _ => Ok(max_model_len.unwrap_or(u32::MAX)),
    }
}

/// Parses a description from JSON. The error contains the path of the field.
pub fn parse<'de, T: Deserialize<'de>>(json: &'de str) -> Result<T> {
    let reader = &mut serde_json::Deserializer::from_str(json);
    serde_path_to_error::deserialize(reader).map_err(|error| {
        let path = error.path().to_string();
        let path = if path == "." { String::new() } else { path };
        let inner = error.into_inner().to_string();
        // Line and column of the JSON are meaningless to users of Python and TOML.
        let message = inner.rsplit_once(" at line ").map_or(inner.as_str(), |(message, _)| message);
        Error::config(path, message)
    })
}
