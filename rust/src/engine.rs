//! What makes one replica: a scheduler, a KV cache, a timing model.

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::kv::KvCache;
use crate::request::FirstToken;
use crate::scheduler::{Scheduler, SchedulerConfig};
use crate::timing::{HostTime, Overhead, Timing, TimingModel};

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
}

/// A class of the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// Can a request of it come to this engine? In a network not every class goes everywhere.
    pub comes: bool,
}

impl From<&str> for Class {
    fn from(name: &str) -> Class {
        Class { name: name.to_owned(), comes: true }
    }
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
        })
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
