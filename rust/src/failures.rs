//! Replica failures, and scheduled drains and starts.

use serde::Deserialize;

use crate::clock::{Instant, SECOND, Span, attoseconds};
use crate::error::{Error, Result};
use crate::random::{Source, Stream, exponential_quantile};

/// Failures as a user describes them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailuresDescription {
    /// Scheduled failures: time in seconds and replica.
    #[serde(default)]
    pub at: Vec<(f64, usize)>,
    /// Scheduled drains: time in seconds and replica. A draining replica accepts no new requests.
    #[serde(default)]
    pub drains: Vec<(f64, usize)>,
    /// Scheduled starts: time in seconds and replica.
    #[serde(default)]
    pub starts: Vec<(f64, usize)>,
    /// Mean time between failures of a serving replica, in seconds. `None`: no random failures.
    #[serde(default)]
    pub mtbf_s: Option<f64>,
    /// Time until a failed replica restarts, in seconds. `None`: it does not restart. A replica that fails while it
    /// drains does not restart.
    #[serde(default)]
    pub repair_s: Option<f64>,
    /// Maximum number of retries per request.
    pub retries: u32,
}

/// A scheduled change of a replica. At one instant, commands apply in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Command {
    /// The replica fails.
    Die,
    /// The replica accepts no new requests and ends when it is empty.
    Drain,
    /// A replica starts at an empty place.
    Start,
}

/// Failures ready to run.
#[derive(Clone, Debug)]
pub struct Failures {
    /// Scheduled commands of the pool's replicas, in order.
    pub(crate) commands: Vec<(Instant, Command, usize)>,
    /// Mean time between failures of a serving replica, in attoseconds.
    mean: Option<f64>,
    pub(crate) repair: Option<Span>,
    pub(crate) retries: u32,
    draws: Stream,
}

impl FailuresDescription {
    /// Checks that the failures contain any event.
    pub fn check(&self) -> Result<()> {
        if self.at.is_empty() && self.mtbf_s.is_none() && self.drains.is_empty() && self.starts.is_empty() {
            return Err(Error::config("", "must have at, mtbf_s, drains or starts, got none"));
        }
        Ok(())
    }

    /// Builds the failures of a pool of `replicas` replicas.
    pub fn build(&self, seed: u64, replicas: usize) -> Result<Failures> {
        let mut commands = Vec::new();
        let lists = [("at", Command::Die, &self.at), ("drains", Command::Drain, &self.drains)];
        for (name, what, list) in lists.into_iter().chain([("starts", Command::Start, &self.starts)]) {
            for (place, &(seconds, replica)) in list.iter().enumerate() {
                let field = format!("{name}[{place}]");
                if replica >= replicas {
                    return Err(Error::config(field, format!("must be a replica below {replicas}, got {replica}")));
                }
                commands.push((Instant(attoseconds(seconds, &field)?), what, replica));
            }
        }
        commands.sort_unstable();
        if let Some(twice) = commands.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(twice[0].1.twice(twice[0].2, twice[0].0));
        }
        let mean = match self.mtbf_s {
            Some(seconds) if attoseconds(seconds, "mtbf_s")? == 0 => {
                return Err(Error::config("mtbf_s", format!("must be above 0, got {seconds}")));
            }
            mean => mean.map(|seconds| seconds * SECOND as f64),
        };
        let repair = self.repair_s.map(|seconds| attoseconds(seconds, "repair_s").map(Span)).transpose()?;
        Ok(Failures { commands, mean, repair, retries: self.retries, draws: Stream::new(seed, Source::Failures) })
    }
}

impl Command {
    fn twice(self, replica: usize, at: Instant) -> Error {
        let (field, verb) = match self {
            Command::Die => ("at", "fail"),
            Command::Drain => ("drains", "drain"),
            Command::Start => ("starts", "start"),
        };
        Error::config(field, format!("replica {replica} must not {verb} twice at {} s", at.seconds()))
    }
}

impl Failures {
    /// Adds a future command; the first `passed` commands are in the past.
    pub(crate) fn add_command(&mut self, passed: usize, at: Instant, what: Command, replica: usize) -> Result<()> {
        match self.commands[passed..].binary_search(&(at, what, replica)) {
            Ok(_) => Err(what.twice(replica, at)),
            Err(place) => {
                self.commands.insert(passed + place, (at, what, replica));
                Ok(())
            }
        }
    }

    /// When a replica that opens for the `opening`-th time fails: an exponential draw of its own. `NEVER`: no random
    /// failures.
    pub(crate) fn fails_at(&self, replica: u32, opening: u64, opened: Instant) -> Instant {
        let Some(mean) = self.mean else { return Instant::NEVER };
        let units = exponential_quantile(self.draws.uniform(u64::from(replica), opening));
        opened.after(Span((units * mean).round_ties_even() as u128)).unwrap_or(Instant::NEVER)
    }
}
