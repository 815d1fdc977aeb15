//! Replicas that die, and those that are told to drain or to start.

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
    /// When which replica is told to take no further request, in seconds.
    #[serde(default)]
    pub drains: Vec<(f64, usize)>,
    /// When a replica is told to start where there is none, in seconds.
    #[serde(default)]
    pub starts: Vec<(f64, usize)>,
    /// The mean time for which a replica serves before it dies; `None`: it dies at no other time.
    #[serde(default)]
    pub mtbf_s: Option<f64>,
    /// How long it takes until a dead replica is started again; `None`: it never is.
    #[serde(default)]
    pub repair_s: Option<f64>,
    /// How often a request is sent again.
    pub retries: u32,
}

/// What a replica is told to do. At one instant these come in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Command {
    /// It dies.
    Die,
    /// It takes no further request and ends with its last.
    Drain,
    /// One comes where there is none.
    Start,
}

/// Failures ready to run.
#[derive(Clone, Debug)]
pub struct Failures {
    /// When which replica of the pool is told what, in order.
    pub(crate) commands: Vec<(Instant, Command, usize)>,
    /// The mean time for which a replica serves before it dies, in attoseconds.
    mean: Option<f64>,
    pub(crate) repair: Option<Span>,
    pub(crate) retries: u32,
    draws: Stream,
}

impl FailuresDescription {
    /// Tests that anything happens.
    pub fn check(&self) -> Result<()> {
        if self.at.is_empty() && self.mtbf_s.is_none() && self.drains.is_empty() && self.starts.is_empty() {
            return Err(Error::config("", "nothing dies: give at or mtbf_s, or drains or starts"));
        }
        Ok(())
    }

    /// The failures themselves, of a pool of so many replicas.
    pub fn build(&self, seed: u64, replicas: usize) -> Result<Failures> {
        let mut commands = Vec::new();
        let lists = [("at", Command::Die, &self.at), ("drains", Command::Drain, &self.drains)];
        for (name, what, list) in lists.into_iter().chain([("starts", Command::Start, &self.starts)]) {
            for (place, &(seconds, replica)) in list.iter().enumerate() {
                let field = format!("{name}[{place}]");
                if replica >= replicas {
                    return Err(Error::config(field, format!("replica {replica}: there are {replicas}, from 0 on")));
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
                return Err(Error::config("mtbf_s", format!("{seconds}: must be above 0")));
            }
            mean => mean.map(|seconds| seconds * SECOND as f64),
        };
        let repair = self.repair_s.map(|seconds| attoseconds(seconds, "repair_s").map(Span)).transpose()?;
        Ok(Failures { commands, mean, repair, retries: self.retries, draws: Stream::new(seed, Source::Failures) })
    }
}

impl Command {
    fn twice(self, replica: usize, at: Instant) -> Error {
        let (field, does) = match self {
            Command::Die => ("at", "dies"),
            Command::Drain => ("drains", "drains"),
            Command::Start => ("starts", "starts"),
        };
        Error::config(field, format!("replica {replica} {does} twice at {} s", at.seconds()))
    }
}

impl Failures {
    /// A replica is told something that has not come; `passed` of all that it was told have.
    pub(crate) fn tell(&mut self, passed: usize, at: Instant, what: Command, replica: usize) -> Result<()> {
        match self.commands[passed..].binary_search(&(at, what, replica)) {
            Ok(_) => Err(what.twice(replica, at)),
            Err(place) => {
                self.commands.insert(passed + place, (at, what, replica));
                Ok(())
            }
        }
    }

    /// When a replica dies that opens for the `life`-th time: exponential, by a draw of its own. `NEVER`: by no draw.
    pub(crate) fn dies(&self, replica: u32, life: u64, opened: Instant) -> Instant {
        let Some(mean) = self.mean else { return Instant::NEVER };
        let units = exponential_quantile(self.draws.uniform(u64::from(replica), life));
        opened.after(Span((units * mean).round_ties_even() as u128)).unwrap_or(Instant::NEVER)
    }
}
