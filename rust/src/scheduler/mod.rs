//! Which requests are in the next batch?
//!
//! A scheduler is told what happens, and asks for a batch when the replica can form one. One policy, one file; to add
//! one, add its description to [`SchedulerConfig`], its file, and nothing else.

// What policies are built from.
mod queue;
mod roster;
mod policy;

// The policies: deployed ones, then those of the papers.
mod sarathi;
mod vllm_v1;
mod vllm_v0;
mod sglang;
mod orca;
mod faster_transformer;
mod k_fcfs;
mod rad;
mod rad_phased;
mod slai;
mod wait;
mod nested_wait;
mod slot_greedy;
mod class_priority;

use crate::clock::attoseconds;
use crate::error::{Error, Result};
use crate::kv::{KvBlocks, KvCache};
use crate::plan::{Limits, Plan};
use crate::request::{Place, Requests};
use crate::timing::Pace;
use crate::workload::Arrival;

pub use policy::{
    DynamicOffset, Free, Offset, PreemptionKind, QueueOrder, SchedulerConfig, SglangPolicy, Thresholds, VllmV1Policy,
};
pub use queue::{List, Queue};

/// What happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It joined the queue.
    Arrived(Place),
    /// Everything it owed is computed: from now on it can decode.
    Ready(Place),
    /// Somebody else's plan took its blocks: it waits again.
    Preempted(Place),
    /// It left: finished, or tired of waiting.
    Left(Place),
}

/// A scheduling policy of one replica. It asks, the replica checks (rule 6).
pub trait Scheduler: Send {
    /// What the replica enforces for this policy.
    fn limits(&self) -> Limits;

    /// Why this request can never be in a batch of this policy, if that is so (rule 11).
    fn refuses(&self, _arrival: &Arrival, _cache: &KvBlocks) -> Option<&'static str> {
        None
    }

    /// Tests the cache that it is to work with.
    fn check(&self, _cache: &KvCache) -> Result<()> {
        Ok(())
    }

    /// What a reader of the results should know of it with this cache.
    fn findings(&self, _cache: &KvCache) -> Vec<&'static str> {
        Vec::new()
    }

    /// Does the prefix cache hear of the rows of a batch in their order, of those who are over and of those who go on, and
    /// at last of those whose prompt is cut? Otherwise those who are over come last.
    fn publishes_in_row_order(&self) -> bool {
        false
    }

    /// Something happened to a request. One that left is still in the table during the call.
    fn notice(&mut self, notice: Notice, requests: &Requests);

    /// Asks for the next batch.
    fn plan(&mut self, plan: &mut Plan) -> Result<()>;

    /// For how many iterations the plan just made holds, now that the pace is known. Policies that decide by time
    /// answer here; the others have said it with [`Plan::hold`].
    fn holds(&self, _pace: &Pace) -> u64 {
        u64::MAX
    }
}

/// The share of the blocks that an admission must leave free while anybody else holds blocks (rule 11).
#[derive(Clone, Copy, Debug)]
struct Watermark {
    /// The share in units of 1e-18, so that ⌊share · blocks⌋ is the floor of what was typed.
    share: u128,
    /// The blocks of the cache, and the share of them that is kept.
    kept: (u64, u64),
}

impl Watermark {
    /// Nothing is left free.
    const NONE: Watermark = Watermark { share: 0, kept: (0, 0) };

    fn new(share: f64) -> Result<Watermark> {
        if !(0.0..1.0).contains(&share) {
            return Err(Error::config("watermark", format!("{share}: a share is at least 0 and below 1")));
        }
        Ok(Watermark { share: attoseconds(share, "watermark")?, kept: (0, 0) })
    }

    /// The blocks that an admission leaves free.
    #[inline]
    fn spare(&mut self, plan: &Plan) -> u64 {
        if self.kept.0 != plan.all_blocks() {
            // A share is below 1e18 and blocks are below 2^62, so the product fits.
            let kept = self.share * u128::from(plan.all_blocks()) / crate::clock::SECOND;
            self.kept = (plan.all_blocks(), kept as u64);
        }
        self.kept.1
    }
}
