//! How many replicas should there be?
//!
//! A policy is asked at every look how many replicas it wants. The mechanism (`simulation/capacity.rs`) starts and drains
//! them, within limits. One policy, one file.

use serde::Deserialize;

use crate::clock::{Instant, Span, attoseconds};
use crate::engine::EngineParts;
use crate::error::{Error, Result};
use crate::kinds::kinds;

/// What a policy sees of its pool at a look: everything before this instant has happened, and of what happens at it the
/// ends of iterations and the deaths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// The instant of the look.
    pub now: Instant,
    /// Replicas that take requests.
    pub open: usize,
    /// Replicas that have been asked for and are not open yet, those under repair among them.
    pub starting: usize,
    /// Replicas that take no requests any more and finish theirs.
    pub draining: usize,
    /// Requests in the queues of open replicas, and those that have none.
    pub waiting: u64,
    /// Requests admitted at open replicas.
    pub running: u64,
    /// Requests that the open replicas admit at most.
    pub seats: u64,
    /// Blocks that requests hold at open replicas.
    pub used_blocks: u64,
    /// All blocks of open replicas.
    pub blocks: u64,
    /// Requests that have come to the pool since the run began, those rejected at once among them.
    pub arrived: u64,
}

/// A policy of an autoscaler.
pub trait ScalingPolicy: Send {
    /// How many replicas it wants, open and starting together. What lies beyond the limits is brought to the nearest.
    fn wanted(&mut self, figures: &Figures) -> Result<usize>;

    /// Tests whether it can work with replicas of this kind.
    fn check(&self, _engine: &EngineParts) -> Result<()> {
        Ok(())
    }
}

/// The parameters of a policy, as a user describes them: each policy's file implements this for its own.
trait ScalingParameters {
    /// The policy itself.
    fn build(&self) -> Result<Box<dyn ScalingPolicy>>;
}

/// What a policy's file speaks of.
mod prelude {
    pub(super) use super::{Figures, ScalingParameters, ScalingPolicy, replicas_for, seconds_above_0};
    pub(super) use crate::clock::{Instant, Span, attoseconds};
    pub(super) use crate::engine::EngineParts;
    pub(super) use crate::kinds::prelude::*;
}

kinds! {
    /// A scaling policy and its parameters.
    ScalingConfig: ScalingParameters {
        by_queue::ByQueue,
        by_utilization::ByUtilization,
        by_forecast::ByForecast,
        by_schedule::BySchedule,
    }
}

impl ScalingConfig {
    /// The policy itself.
    pub fn build(&self) -> Result<Box<dyn ScalingPolicy>> {
        self.parameters().build()
    }
}

/// An autoscaler as a user describes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AutoscalerDescription<Policy = ScalingConfig> {
    /// How many replicas there should be.
    pub policy: Policy,
    /// The fewest replicas that are wanted, 1 or above.
    pub min: usize,
    /// The most.
    pub max: usize,
    /// Seconds from the asking for a replica to its first request.
    pub startup_s: f64,
    /// Seconds between two looks.
    pub every_s: f64,
    /// Seconds after a change before which no replica is taken away.
    pub cooldown_s: f64,
}

/// An autoscaler ready to run.
pub struct Autoscaler {
    /// How many replicas there should be.
    pub policy: Box<dyn ScalingPolicy>,
    /// The fewest replicas that are wanted.
    pub min: usize,
    /// The most.
    pub max: usize,
    /// From the asking for a replica to its first request.
    pub startup: Span,
    /// Between two looks, the first of which comes as long after the beginning.
    pub every: Span,
    /// After a change, before which no replica is taken away.
    pub cooldown: Span,
}

impl<Policy> AutoscalerDescription<Policy> {
    /// The autoscaler itself, with a policy of this one.
    pub fn build(&self, policy: Box<dyn ScalingPolicy>) -> Result<Autoscaler> {
        let AutoscalerDescription { min, max, .. } = *self;
        if min == 0 {
            return Err(Error::config("min", "0: a request needs a replica to go to, so there is at least 1"));
        }
        if max < min {
            return Err(Error::config("max", format!("{max}: must not be below min, which is {min}")));
        }
        Ok(Autoscaler {
            policy,
            min,
            max,
            startup: Span(attoseconds(self.startup_s, "startup_s")?),
            every: seconds_above_0(self.every_s, "every_s")?,
            cooldown: Span(attoseconds(self.cooldown_s, "cooldown_s")?),
        })
    }
}

/// A time that is longer than none.
fn seconds_above_0(seconds: f64, field: &str) -> Result<Span> {
    match attoseconds(seconds, field)? {
        0 => Err(Error::config(field, format!("{seconds}: must be above 0"))),
        some => Ok(Span(some)),
    }
}

/// How many replicas an amount needs of which one takes so much: rounded up, and as many as there can be where it is huge.
fn replicas_for(amount: f64, each: f64) -> usize {
    (amount / each).ceil().max(0.0) as usize
}
