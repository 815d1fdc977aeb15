//! Scheduling policies: the requests of the next batch.
//!
//! A scheduler is notified of changes and plans a batch when the replica can form one. One policy per file:
//! parameters, validation, random parameters and the plan. A new policy is one file and one line in the list below.

// Building blocks of policies.
mod queue;
mod roster;
mod parameters;

use crate::clock::attoseconds;
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::kinds::kinds;
use crate::kv::{KvBlocks, KvCache};
use crate::plan::{Ahead, Limits, Plan};
use crate::request::{Place, Requests};
use crate::speculation::SpeculationParts;
use crate::timing::Pace;
use crate::workload::{Arrival, Class};

use parameters::SchedulerParameters;
pub use parameters::{PreemptionKind, QueueOrder};
pub use queue::List;
pub(crate) use queue::Queue;

// Deployed policies, then policies of the papers.
kinds! {
    /// A policy and its parameters. The Python classes document them.
    SchedulerConfig: SchedulerParameters {
        sarathi::Sarathi,
        vllm_v1::VllmV1,
        vllm_v0::VllmV0,
        sglang::Sglang,
        orca::Orca,
        faster_transformer::FasterTransformer,
        k_fcfs::KFcfs,
        rad::Rad,
        rad_phased::RadPhased,
        slai::Slai,
        wait::Wait,
        nested_wait::NestedWait,
        slot_greedy::SlotGreedy,
        class_priority::ClassPriority,
    }
}

/// Imports of every policy's file.
mod prelude {
    pub(super) use super::parameters::{SchedulerParameters, class_code, count, limits, sample_watermark};
    pub(super) use super::queue::insert_by_arrival;
    pub(super) use super::roster::{Lists, Roster, answered_by_the_roster};
    pub(super) use super::{List, Notice, PreemptionKind, Queue, QueueOrder, Scheduler, Watermark};
    pub(super) use crate::clock::{Span, attoseconds};
    pub(super) use crate::error::Error;
    pub(super) use crate::kinds::prelude::*;
    pub(super) use crate::kv::{KvBlocks, KvCache, PrefixKind};
    pub(super) use crate::plan::{Ahead, Hold, Limit, Limits, Plan, Preemption};
    pub(super) use crate::request::{Phase, Place, Requests};
    pub(super) use crate::speculation::{Speculation, SpeculationParts};
    pub(super) use crate::workload::{Arrival, Class};
}

impl SchedulerConfig {
    /// Builds the scheduler for a workload with these classes. `None` only checks the parameters.
    pub fn build(&self, classes: Option<&[Class]>) -> Result<Box<dyn Scheduler>> {
        self.parameters().build(classes)
    }
}

/// A change of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It joined the queue.
    Arrived(Place),
    /// All its owed tokens are computed: it can decode.
    Ready(Place),
    /// The plan of another class preempted it: it waits again.
    Preempted(Place),
    /// It left: finished, or abandoned.
    Left(Place),
}

/// A scheduling policy of one replica. The policy proposes, the replica checks (R6).
pub trait Scheduler: Send {
    /// The limits that the replica enforces.
    fn limits(&self) -> Limits;

    /// Why this request can never be in a batch of this policy (R11), if so.
    fn refuses(&self, _arrival: &Arrival, _cache: &KvBlocks) -> Option<&'static str> {
        None
    }

    /// Checks that the policy supports this cache.
    fn check(&self, _cache: &KvCache) -> Result<()> {
        Ok(())
    }

    /// Whether the policy plans rows for a cache with several groups of layers.
    fn supports_layer_groups(&self) -> bool {
        false
    }

    /// Planning ahead, if the policy uses it.
    fn plans_ahead(&self) -> Option<Ahead> {
        None
    }

    /// Speculative decoding, if the policy uses it.
    fn speculates(&self) -> Option<SpeculationParts> {
        None
    }

    /// Whether the policy adds no time of its own and uses the clock only to compare instants. Otherwise the run
    /// counts in attoseconds.
    fn is_timeless(&self) -> bool {
        false
    }

    /// Findings about this policy with this cache.
    fn findings(&self, _cache: &KvCache) -> Vec<Finding> {
        Vec::new()
    }

    /// Whether preemption discards emitted tokens.
    fn restarts(&self) -> bool {
        false
    }

    /// A request changed. One that left is still in the table during the call.
    fn notice(&mut self, notice: Notice, requests: &Requests);

    /// The next batch is planned ahead, and the running one emits the last token of this request. It gets no more
    /// rows. It keeps its sequence slot and blocks until it leaves.
    fn ending(&mut self, _place: Place) {}

    /// Plans the next batch.
    fn plan(&mut self, plan: &mut Plan) -> Result<()>;

    /// The admitted requests, if the policy has a list of them. This avoids a search through all waiting requests.
    fn admitted(&self) -> Option<&List> {
        None
    }

    /// The number of iterations that the last plan holds at this pace. Policies that decide by time implement this;
    /// the others use [`Plan::hold`].
    fn holds(&self, _pace: &Pace) -> u64 {
        u64::MAX
    }
}

/// The share of blocks that an admission leaves free while another request holds blocks (R11).
#[derive(Clone, Copy, Debug)]
struct Watermark {
    /// In units of 1e-18, so that ⌊share · blocks⌋ is the floor of the typed number.
    share: u128,
    /// Blocks of the cache, and the blocks to leave free.
    kept: (u64, u64),
}

impl Watermark {
    /// No block is left free.
    const NONE: Watermark = Watermark { share: 0, kept: (0, 0) };

    fn new(share: f64) -> Result<Watermark> {
        if !(0.0..1.0).contains(&share) {
            return Err(Error::config("watermark", format!("must be at least 0 and below 1, got {share}")));
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
