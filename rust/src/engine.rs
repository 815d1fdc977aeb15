//! What makes one replica: a scheduler, a KV cache, a timing model.

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
    /// How long iterations take.
    pub timing: TimingModel,
    /// What is in the next batch.
    pub scheduler: SchedulerConfig,
    /// The KV cache.
    pub kv: KvCache,
    /// Which iteration emits the first token.
    pub first_token: FirstToken,
    /// What the host takes beside the GPU.
    #[serde(default)]
    pub overhead: Overhead,
    /// Tokens of the longest request: a prompt that leaves no room for an output is refused, a longer output ends with
    /// them. `None`: any.
    #[serde(default)]
    pub max_model_len: Option<u32>,
    /// From the client to the engine and back, in seconds: HTTP, tokenising, the delivery of a token.
    #[serde(default)]
    pub api_s: f64,
}

/// An engine ready to run.
pub struct EngineParts {
    /// What is in the next batch.
    pub scheduler: Box<dyn Scheduler>,
    /// How long iterations take.
    pub timing: Box<dyn Timing>,
    /// The KV cache.
    pub kv: KvCache,
    /// Which iteration emits the first token.
    pub first_token: FirstToken,
    /// What the host takes beside the GPU.
    pub host: HostTime,
    /// Tokens of the longest request; `u32::MAX`: any.
    pub max_model_len: u32,
    /// From the client to the engine and back.
    pub api: Span,
}

impl Engine {
    /// The parts of one replica, for a workload with these classes; `None` only tests the fields. The first wrong one is
    /// the error.
    pub fn build(&self, classes: Option<&[Class]>) -> Result<EngineParts> {
        self.kv.check().map_err(|error| error.within("kv"))?;
        let scheduler = self.scheduler.build(classes).map_err(|error| error.within("scheduler"))?;
        scheduler.check(&self.kv)?;
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
    /// A number of attoseconds that divides all times that can come up in it; 0: all are 0.
    pub(crate) fn unit(&self) -> u128 {
        if !self.scheduler.is_timeless() || self.scheduler.speculates().is_some() || self.api != Span::ZERO {
            return 1;
        }
        let pause = self.scheduler.plans_ahead().map_or(0, |ahead| ahead.pause.0);
        greatest_common_divisor(greatest_common_divisor(self.timing.unit(), self.host.unit()), pause)
    }

    /// From now on it counts in a unit that divides [`EngineParts::unit`].
    pub(crate) fn count_in(&mut self, unit: Unit) {
        self.timing.count_in(unit.attoseconds_each());
        self.host.count_in(unit.attoseconds_each());
    }
}

/// Tokens of the longest request; `u32::MAX`: any.
pub fn longest_request(max_model_len: Option<u32>) -> Result<u32> {
    match max_model_len {
        Some(tokens) if tokens < 2 => {
            Err(Error::config("max_model_len", format!("{tokens}: a prompt and an output need 2 tokens")))
        }
        _ => Ok(max_model_len.unwrap_or(u32::MAX)),
    }
}

/// Reads a description from JSON; the error names the path of the field.
pub fn parse<'de, T: Deserialize<'de>>(json: &'de str) -> Result<T> {
    let reader = &mut serde_json::Deserializer::from_str(json);
    serde_path_to_error::deserialize(reader).map_err(|error| {
        let path = error.path().to_string();
        let path = if path == "." { String::new() } else { path };
        let inner = error.into_inner().to_string();
        // Line and column of the JSON mean nothing to a user of Python or TOML.
        let message = inner.rsplit_once(" at line ").map_or(inner.as_str(), |(message, _)| message);
        Error::config(path, message)
    })
}
