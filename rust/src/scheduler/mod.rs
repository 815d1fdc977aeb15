//! Which requests are in the next batch?
//!
//! A scheduler is told what happens, and asks for a batch when the replica can form one. One policy, one file: its
//! parameters, how they are tested and drawn, and what it asks for. A new one is that file and a line in the list below.

// What policies are built from.
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

// Deployed policies, then those of the papers.
kinds! {
    /// A policy and its parameters. The documentation of each stands with its Python class.
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

/// What a policy's file speaks of.
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
    /// The scheduler itself, for a workload with these classes; `None` only tests the parameters.
    pub fn build(&self, classes: Option<&[Class]>) -> Result<Box<dyn Scheduler>> {
        self.parameters().build(classes)
    }
}

/// What happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It joined the queue.
    Arrived(Place),
    /// Everything it owed is computed: from now on it can decode.
    Ready(Place),
    /// Another class's plan took its blocks: it waits again.
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

    /// Does it plan each batch while the one before it runs?
    fn plans_ahead(&self) -> Option<Ahead> {
        None
    }

    /// Do its requests decode by drafts that are verified?
    fn speculates(&self) -> Option<SpeculationParts> {
        None
    }

    /// Does it neither add time of its own nor look at the clock but to tell earlier from later? Only then a run may count
    /// time in another unit than attoseconds.
    fn is_timeless(&self) -> bool {
        false
    }

    /// Findings about its settings with this cache.
    fn findings(&self, _cache: &KvCache) -> Vec<Finding> {
        Vec::new()
    }

    /// Does it throw away what its victims have emitted?
    fn restarts(&self) -> bool {
        false
    }

    /// Something happened to a request. One that left is still in the table during the call.
    fn notice(&mut self, notice: Notice, requests: &Requests);

    /// The next batch is planned ahead, and this request's last token is certain to come with the one that runs: it gets no
    /// more rows, and holds its seat and its blocks until it leaves.
    fn ending(&mut self, _place: Place) {}

    /// Asks for the next batch.
    fn plan(&mut self, plan: &mut Plan) -> Result<()>;

    /// The admitted requests, where it has them in a list: then one of them is found without a look at all that wait.
    fn admitted(&self) -> Option<&List> {
        None
    }

    /// For how many iterations the plan just made holds, now that the pace is known. Policies that decide by time
    /// answer here; the others have said it with [`Plan::hold`].
    fn holds(&self, _pace: &Pace) -> u64 {
        u64::MAX
    }
}

/// The share of the blocks that an admission must leave free while another request holds blocks (rule 11).
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
