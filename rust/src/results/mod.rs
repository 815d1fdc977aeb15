//! Results: what came out for each request, each class, each moment.
//!
//! A row is written once, when its request leaves, in whole attoseconds. Columns of seconds are made of the rows when they
//! are asked for: spans are taken in whole attoseconds and rounded once to doubles.

use crate::clock::{Instant, SECOND, Span};
use crate::finding::Finding;
use crate::timing::Pace;
use crate::workload::Workload;

mod block;
pub(crate) mod columns;
mod findings;
mod histogram;
mod members;
mod recorder;
mod rows;
mod short;
pub mod summary;
mod times;
mod told;
mod work_conservation;

pub use columns::{Column, NO_REPLICA, NamedColumn, RequestColumns};
pub(crate) use columns::{Scatter, columns, take_first};
pub(crate) use findings::{Facts, of_run};
pub use histogram::Histogram;
pub(crate) use members::Members;
pub(crate) use recorder::{Cut, MOST_SAMPLES, Recorder, Rejections, too_many_samples};
pub use rows::RequestRows;
pub(crate) use told::{Emissions, Told};
pub(crate) use work_conservation::Bound;
pub use work_conservation::{Load, Work};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// It emitted its last token.
    Finished = 0,
    /// It could never fit.
    Rejected = 1,
    /// It ran out of patience before its first admission, or its client took it back.
    Abandoned = 2,
    /// The run ended first.
    Unfinished = 3,
    /// Its replica died, and it was not sent again.
    Lost = 4,
    /// It waited for others, and never arrived.
    Awaited = 5,
}

/// A stretch of identical iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IterationRow {
    /// Start of the first one.
    pub start: Instant,
    /// Where.
    pub replica: u32,
    /// How many.
    pub count: u64,
    /// How long each takes.
    pub pace: Pace,
    /// Prompt tokens of each.
    pub prefill_tokens: u64,
    /// Decodes of each.
    pub decodes: u64,
    /// Σ contexts of the decodes before the first one.
    pub context_tokens: u128,
    /// Tokens of KV cache taken once the first one's batch is formed, in whole blocks.
    pub kv_used_tokens: u64,
}

/// A row of a batch: which request, how many tokens, does it emit one?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRow {
    /// The row of `iterations` that it belongs to.
    pub iteration: u64,
    /// Request id.
    pub request: u32,
    /// Tokens computed in each iteration of the stretch.
    pub tokens: u64,
    /// Is an output token emitted in each?
    pub emits: bool,
    /// How many the client gets from each.
    pub emitted: u32,
}

/// A replica at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When.
    pub at: Instant,
    /// Where.
    pub replica: u32,
    /// Requests in the queue.
    pub waiting: u64,
    /// Admitted requests.
    pub running: u64,
    /// Tokens of KV cache taken, in whole blocks.
    pub kv_used_tokens: u64,
    /// Prompt tokens not computed and output tokens not emitted, over all requests here.
    pub tokens_in_system: u64,
    /// Prompt tokens computed since the run began.
    pub prefilled_tokens: u64,
    /// Output tokens emitted since the run began.
    pub emitted_tokens: u64,
    /// Tokens that were found in the prefix cache at admissions since the run began, those after a preemption too.
    pub cached_tokens: u64,
}

/// What a replica's prefix cache did, in blocks.
///
/// Each block counted was touched once; nothing else of a prefix cache costs time by the block, but the search for a
/// request that is refused, and so looked up again. What is cached at the end was inserted and not evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockOperations {
    /// Where.
    pub replica: u32,
    /// Blocks that admissions hit, those after a preemption too.
    pub hit: u64,
    /// Blocks whose content was inserted.
    pub inserted: u64,
    /// Blocks whose content was evicted, to be taken by others.
    pub evicted: u64,
}

/// What happened to a replica, where replicas come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetEvent {
    /// When.
    pub at: Instant,
    /// Which.
    pub replica: u32,
    /// What.
    pub change: Change,
    /// Replicas of its pool that take requests, after it.
    pub open: u32,
    /// Replicas of its pool that come, those under repair among them.
    pub starting: u32,
    /// Replicas of its pool that finish what they have.
    pub draining: u32,
}

/// What can happen to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Change {
    /// It was asked for.
    Asked = 0,
    /// It takes requests.
    Ready = 1,
    /// It takes none any more.
    Drains = 2,
    /// It is gone.
    Ended = 3,
    /// It died.
    Died = 4,
}

/// Whole-number totals of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The last instant at which anything happened.
    pub end: Instant,
    /// Iterations run.
    pub iterations: u64,
    /// Stretches that they were advanced in.
    pub stretches: u64,
    /// Iterations that were advanced in stretches of two or more.
    pub stretched_iterations: u64,
    /// ∫ number of requests in the system dt, in attoseconds (law L9, left side).
    pub in_system: u128,
    /// Σ (left − arrival) with the unfinished up to the end, in attoseconds (law L9, right side).
    pub sojourn: u128,
    /// Requests by [`Status`].
    pub by_status: [u64; STATUSES],
    /// ∫ number of replicas that are paid for dt, in attoseconds: from the asking to the end.
    pub replica_time: u128,
}

/// The ways in which a request that arrived can end.
pub(crate) const STATUSES: usize = 5;

/// Everything that a run leaves behind, with the rows of its requests or the columns that were made of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results<Requests = RequestRows> {
    /// One row a request.
    pub requests: Requests,
    /// Token gaps by class.
    pub itl: Vec<Histogram>,
    /// Samples in order of time.
    pub timeline: Vec<Sample>,
    /// Stretches in order of their ends; empty unless asked for.
    pub iterations: Vec<IterationRow>,
    /// Rows of batches; empty unless asked for.
    pub batches: Vec<BatchRow>,
    /// Which loads the iterations had, and what kept them from being larger.
    pub work: Work,
    /// What the prefix caches did, in order of their replicas; a replica without one has no row.
    pub block_operations: Vec<BlockOperations>,
    /// What happened to replicas, in order; empty where none comes or goes.
    pub fleet_events: Vec<FleetEvent>,
    /// Requests that were still here when nothing was left to come, and were served because no other would join
    /// them (rule 5), by id.
    pub drained: Vec<u32>,
    /// Observations that qualify the numbers.
    pub findings: Vec<Finding>,
    /// Totals.
    pub totals: Totals,
}

impl Results {
    /// The same with columns of the requests, which are those of this workload.
    pub fn with_columns(self, workload: &Workload) -> Results<RequestColumns> {
        let Results {
            requests,
            itl,
            timeline,
            iterations,
            batches,
            work,
            block_operations,
            fleet_events,
            drained,
            findings,
            totals,
        } = self;
        let requests = requests.columns(workload, None);
        Results {
            requests,
            itl,
            timeline,
            iterations,
            batches,
            work,
            block_operations,
            fleet_events,
            drained,
            findings,
            totals,
        }
    }
}

/// Tokens in a second between two samples.
pub fn rate(tokens: u64, span: Span) -> f64 {
    if span == Span::ZERO {
        return 0.0;
    }
    tokens as f64 * SECOND as f64 / span.0 as f64
}
