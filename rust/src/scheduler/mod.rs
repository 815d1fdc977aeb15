//! Which requests are in the next batch?
//!
//! A scheduler is told what happens, and asks for a batch when the replica can form one. One policy, one file; to add
//! one, add its description to [`Policy`], its file, and nothing else.

mod queue;
mod roster;
mod sarathi;
mod vllm_v0;
mod vllm_v1;

use serde::Deserialize;

use crate::clock::{Span, attoseconds};
use crate::error::{Error, Result};
use crate::plan::{Limits, Plan, Preemption};
use crate::request::{Requests, Slot};
use crate::timing::Pace;
use crate::workload::Arrival;

pub use queue::{List, Queue};

/// What happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It joined the queue.
    Arrived(Slot),
    /// Everything it owed is computed: from now on it can decode.
    Ready(Slot),
    /// It left: finished, or tired of waiting.
    Left(Slot),
}

/// A scheduling policy of one replica. It asks, the replica checks (rule 6).
pub trait Scheduler: Send {
    /// What the replica enforces for this policy.
    fn limits(&self) -> Limits;

    /// Why this request can never be in a batch of this policy, if that is so (rule 11).
    fn refuses(&self, _arrival: &Arrival) -> Option<&'static str> {
        None
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

/// A scheduler as a user describes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", deny_unknown_fields)]
pub enum Policy {
    /// Sarathi-Serve: decodes first, chunked prefills fill the budget.
    Sarathi {
        /// Tokens of an iteration.
        token_budget: u64,
        /// Admitted requests.
        max_seqs: u64,
        /// Order of the queue.
        order: QueueOrder,
        /// Share of the blocks that an admission leaves free.
        watermark: f64,
        /// How victims give up their blocks.
        preemption: PreemptionKind,
    },
    /// vLLM v1.
    VllmV1 {
        /// Tokens of an iteration.
        token_budget: u64,
        /// Admitted requests.
        max_seqs: u64,
        /// Longest chunk while anybody else is there; 0: no limit.
        long_prefill_threshold: u64,
        /// Order of the queue, and of victims.
        policy: VllmV1Policy,
        /// Admit only who fits with the whole known input.
        reserve_full_prompt: bool,
    },
    /// vLLM v0 without chunking: prefill-only iterations first.
    VllmV0 {
        /// Tokens of an iteration.
        token_budget: u64,
        /// Admitted requests.
        max_seqs: u64,
        /// Share of the blocks that an admission leaves free.
        watermark: f64,
        /// How victims give up their blocks.
        preemption: PreemptionKind,
    },
}

/// The order in which waiting requests are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueOrder {
    /// First come, first served.
    Fcfs,
    /// Shortest prompt first.
    Spf,
}

/// vLLM v1's two scheduling policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VllmV1Policy {
    /// First come, first served; victims from the tail of the running list.
    Fcfs,
    /// By (priority, arrival); victims are the worst by it.
    Priority,
}

/// Rule 12's preemptions as a user describes them; times in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", deny_unknown_fields)]
pub enum PreemptionKind {
    /// Forget the context, compute it again.
    Recompute {},
    /// Keep the context on the host.
    Swap {
        /// Per token of context, each way.
        per_token: f64,
        /// For each move.
        base: f64,
    },
}

impl PreemptionKind {
    fn build(self) -> Result<Preemption> {
        Ok(match self {
            PreemptionKind::Recompute {} => Preemption::Recompute,
            PreemptionKind::Swap { per_token, base } => Preemption::Swap {
                per_token: Span(attoseconds(per_token, "preemption.per_token")?),
                base: Span(attoseconds(base, "preemption.base")?),
            },
        })
    }
}

impl Policy {
    /// The scheduler itself.
    pub fn build(&self) -> Result<Box<dyn Scheduler>> {
        let limits = |token_budget, max_seqs| {
            for (name, value) in [("token_budget", token_budget), ("max_seqs", max_seqs)] {
                if !(1..=1 << 40).contains(&value) {
                    return Err(Error::config(name, format!("{value}: it must be at least 1 and at most 2^40")));
                }
            }
            Ok(Limits { token_budget, max_seqs })
        };
        Ok(match *self {
            Policy::Sarathi { token_budget, max_seqs, order, watermark, preemption } => {
                Box::new(sarathi::Sarathi::new(
                    limits(token_budget, max_seqs)?,
                    order,
                    Watermark::new(watermark)?,
                    preemption.build()?,
                ))
            }
            Policy::VllmV1 { token_budget, max_seqs, long_prefill_threshold, policy, reserve_full_prompt } => {
                Box::new(vllm_v1::VllmV1::new(
                    limits(token_budget, max_seqs)?,
                    long_prefill_threshold,
                    policy,
                    reserve_full_prompt,
                ))
            }
            Policy::VllmV0 { token_budget, max_seqs, watermark, preemption } => Box::new(vllm_v0::VllmV0::new(
                limits(token_budget, max_seqs)?,
                Watermark::new(watermark)?,
                preemption.build()?,
            )),
        })
    }
}

/// The share of the blocks that an admission must leave free while anybody else holds blocks (rule 11).
#[derive(Clone, Copy, Debug)]
struct Watermark {
    /// The share in units of 1e-18, so that ⌊share · blocks⌋ is the floor of what was typed.
    share: u128,
    /// The blocks of the cache, and the share of them that is kept.
    kept: (u64, i64),
}

impl Watermark {
    fn new(share: f64) -> Result<Watermark> {
        if !(0.0..1.0).contains(&share) {
            return Err(Error::config("watermark", format!("{share}: a share is at least 0 and below 1")));
        }
        Ok(Watermark { share: attoseconds(share, "watermark")?, kept: (0, 0) })
    }

    /// Can somebody take so many blocks?
    #[inline]
    fn admits(&mut self, blocks: u64, plan: &Plan) -> bool {
        if self.kept.0 != plan.all_blocks() {
            // A share is below 1e18 and blocks are below 2^62, so the product fits.
            let kept = self.share * u128::from(plan.all_blocks()) / crate::clock::SECOND;
            self.kept = (plan.all_blocks(), kept as i64);
        }
        let left = plan.free_blocks() - blocks as i64;
        left >= self.kept.1 || (left >= 0 && plan.cache_is_empty())
    }
}
