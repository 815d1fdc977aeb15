//! Replicas that die.

use serde::Deserialize;

use crate::clock::{Instant, SECOND, Span, attoseconds};
use crate::error::{Error, Result};
use crate::random::{Source, Stream, exponential_quantile};

/// Failures as a user describes them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailuresDescription {
    /// When which replica dies, in seconds.
    #[serde(default)]
    pub at: Vec<(f64, usize)>,
    /// The mean time for which a replica serves before it dies; `None`: it dies at no other time.
    #[serde(default)]
    pub mtbf_s: Option<f64>,
    /// How long it takes until a dead replica is started again; `None`: it never is.
    #[serde(default)]
    pub repair_s: Option<f64>,
    /// How often a request is sent again.
    pub retries: u32,
}

/// Failures ready to run.
#[derive(Clone, Debug)]
pub struct Failures {
    /// When which replica of the pool dies, in order.
    pub(crate) at: Vec<(Instant, usize)>,
    /// The mean time for which a replica serves before it dies, in attoseconds.
    mean: Option<f64>,
    pub(crate) repair: Option<Span>,
    pub(crate) retries: u32,
    draws: Stream,
}

impl FailuresDescription {
    /// The failures themselves, of a pool of so many replicas.
    pub fn build(&self, seed: u64, replicas: usize) -> Result<Failures> {
        if self.at.is_empty() && self.mtbf_s.is_none() {
            return Err(Error::config("", "nothing dies: give at or mtbf_s"));
        }
        let mut at = Vec::new();
        for (place, &(seconds, replica)) in self.at.iter().enumerate() {
            let field = format!("at[{place}]");
            if replica >= replicas {
                return Err(Error::config(field, format!("replica {replica}: there are {replicas}, from 0 on")));
            }
            at.push((Instant(attoseconds(seconds, &field)?), replica));
        }
        at.sort_unstable();
        if let Some(twice) = at.windows(2).find(|pair| pair[0] == pair[1]) {
            let what = format!("replica {} dies twice at {} s", twice[0].1, twice[0].0.seconds());
            return Err(Error::config("at", what));
        }
        let mean = match self.mtbf_s {
            Some(seconds) if attoseconds(seconds, "mtbf_s")? == 0 => {
                return Err(Error::config("mtbf_s", format!("{seconds}: must be above 0")));
            }
            mean => mean.map(|seconds| seconds * SECOND as f64),
        };
        let repair = self.repair_s.map(|seconds| attoseconds(seconds, "repair_s").map(Span)).transpose()?;
        Ok(Failures { at, mean, repair, retries: self.retries, draws: Stream::new(seed, Source::Failures) })
    }
}

impl Failures {
    /// When a replica dies that opens for the `life`-th time: exponential, by a draw of its own. `NEVER`: by no draw.
    pub(crate) fn dies(&self, replica: u32, life: u64, opened: Instant) -> Instant {
        let Some(mean) = self.mean else { return Instant::NEVER };
        let units = exponential_quantile(self.draws.uniform(u64::from(replica), life));
        opened.after(Span((units * mean).round_ties_even() as u128)).unwrap_or(Instant::NEVER)
    }
}
