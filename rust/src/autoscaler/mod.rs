//! Autoscaling policies: the number of replicas of a pool.
//!
//! The simulation evaluates the policy periodically. It starts and drains replicas within the limits
//! (`simulation/capacity.rs`). One policy per file.

use serde::Deserialize;

use crate::clock::{Instant, Span, attoseconds};
use crate::engine::EngineParts;
use crate::error::{Error, Result};
use crate::kinds::kinds;

/// The view of a policy. It contains all earlier events, and of the present instant the ends of iterations and the
/// failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// The present instant.
    pub now: Instant,
    /// Replicas that accept requests.
    pub open: usize,
    /// Replicas that are starting, including those under repair.
    pub starting: usize,
    /// Replicas that accept no new requests and finish theirs.
    pub draining: usize,
    /// Requests in the queues of open replicas, and requests without a replica.
    pub waiting: u64,
    /// Requests admitted at open replicas.
    pub running: u64,
    /// Sum of `max_seqs` over the open replicas.
    pub seats: u64,
    /// Blocks held by requests at open replicas.
    pub used_blocks: u64,
    /// All blocks of open replicas.
    pub blocks: u64,
    /// Requests of the pool since the start of the run, including rejected ones.
    pub arrived: u64,
}

/// An autoscaling policy.
pub trait ScalingPolicy: Send {
    /// The target number of open and starting replicas. It is clamped to the limits.
    fn wanted(&mut self, figures: &Figures) -> Result<usize>;

    /// Checks that the policy supports replicas of this kind.
    fn check(&self, _engine: &EngineParts) -> Result<()> {
        Ok(())
    }
}

/// The parameters of a policy; each policy's file implements this.
trait ScalingParameters {
    /// Builds the policy.
    fn build(&self) -> Result<Box<dyn ScalingPolicy>>;
}

/// Imports of every policy's file.
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
    /// Builds the policy.
    pub fn build(&self) -> Result<Box<dyn ScalingPolicy>> {
        self.parameters().build()
    }
}

/// An autoscaler as a user describes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AutoscalerDescription<Policy = ScalingConfig> {
    /// The scaling policy.
    pub policy: Policy,
    /// Minimum number of replicas, at least 1.
    pub min: usize,
    /// Maximum number of replicas.
    pub max: usize,
    /// Seconds from the start of a replica to its first request.
    pub startup_s: f64,
    /// Seconds between two evaluations.
    pub every_s: f64,
    /// Seconds after a change before a replica may be removed.
    pub cooldown_s: f64,
}

/// An autoscaler ready to run.
pub struct Autoscaler {
    /// The scaling policy.
    pub policy: Box<dyn ScalingPolicy>,
    /// Minimum number of replicas.
    pub min: usize,
    /// Maximum number of replicas.
    pub max: usize,
    /// Time from the start of a replica to its first request.
    pub startup: Span,
    /// Time between two evaluations, and before the first.
    pub every: Span,
    /// Time after a change before a replica may be removed.
    pub cooldown: Span,
}

impl<Policy> AutoscalerDescription<Policy> {
    /// Builds the autoscaler with this policy.
    pub fn build(&self, policy: Box<dyn ScalingPolicy>) -> Result<Autoscaler> {
        let AutoscalerDescription { min, max, .. } = *self;
        if min == 0 {
            return Err(Error::config("min", "must be at least 1, got 0"));
        }
        if max < min {
            return Err(Error::config("max", format!("must be at least min ({min}), got {max}")));
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

/// A positive time.
fn seconds_above_0(seconds: f64, field: &str) -> Result<Span> {
    match attoseconds(seconds, field)? {
        0 => Err(Error::config(field, format!("must be above 0, got {seconds}"))),
        some => Ok(Span(some)),
    }
}

/// ⌈amount / each⌉ replicas; saturates for huge amounts.
fn replicas_for(amount: f64, each: f64) -> usize {
    (amount / each).ceil().max(0.0) as usize
}
