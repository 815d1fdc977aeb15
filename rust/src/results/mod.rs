//! Results of a run: requests, classes, timeline.
//!
//! A row is written once, when its request leaves, in whole attoseconds. Columns of seconds are built from the rows
//! on demand: spans are computed in whole attoseconds and rounded once to doubles.

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
mod live_events;
mod work_conservation;

pub use columns::{Column, NO_REPLICA, NamedColumn, RequestColumns};
pub(crate) use columns::{Scatter, columns, take_first};
pub(crate) use findings::{Facts, of_run};
pub use histogram::Histogram;
pub(crate) use live_events::{Emissions, LiveEvents};
pub(crate) use members::Members;
pub(crate) use recorder::{Cut, MAX_SAMPLES, Recorder, Rejections, too_many_samples};
pub use rows::RequestRows;
pub(crate) use work_conservation::Bound;
pub use work_conservation::{Load, Work};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// It emitted its last token.
    Finished = 0,
    /// It can never fit into the KV cache.
    Rejected = 1,
    /// It ran out of patience before its first admission, or its client canceled it.
    Abandoned = 2,
    /// The run ended first.
    Unfinished = 3,
    /// Its replica failed, and it was not sent again.
    Lost = 4,
    /// It waited for other requests and never arrived.
    Awaited = 5,
}

/// A stretch of identical iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IterationRow {
    /// Start of the first iteration.
    pub start: Instant,
    /// Replica.
    pub replica: u32,
    /// Number of iterations.
    pub count: u64,
    /// Duration of each iteration.
    pub pace: Pace,
    /// Prompt tokens per iteration.
    pub prefill_tokens: u64,
    /// Decodes per iteration.
    pub decodes: u64,
    /// Σ contexts of the decodes before the first iteration.
    pub context_tokens: u128,
    /// KV cache tokens in use after the first batch is formed, in whole blocks.
    pub kv_used_tokens: u64,
}

/// A row of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRow {
    /// Index of its row in `iterations`.
    pub iteration: u64,
    /// Request id.
    pub request: u32,
    /// Tokens computed in each iteration of the stretch.
    pub tokens: u64,
    /// Whether it emits output tokens.
    pub emits: bool,
    /// Tokens emitted to the client per iteration.
    pub emitted: u32,
}

/// State of a replica at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Instant.
    pub at: Instant,
    /// Replica.
    pub replica: u32,
    /// Waiting requests.
    pub waiting: u64,
    /// Running requests.
    pub running: u64,
    /// KV cache tokens in use, in whole blocks.
    pub kv_used_tokens: u64,
    /// Prompt tokens not yet computed plus output tokens not yet emitted, over all requests of the replica.
    pub tokens_in_system: u64,
    /// Prompt tokens computed since the start of the run.
    pub prefilled_tokens: u64,
    /// Output tokens emitted since the start of the run.
    pub emitted_tokens: u64,
    /// Tokens hit in the prefix cache at admissions since the start of the run, including admissions after
    /// preemption.
    pub cached_tokens: u64,
}

/// Operations of a replica's prefix cache, in blocks.
///
/// Each counted block was touched once. No other operation of a prefix cache costs time per block, except repeated
/// lookups for a request that could not be admitted. The cached blocks at the end are those inserted minus those
/// evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockOperations {
    /// Replica.
    pub replica: u32,
    /// Blocks hit at admissions, including those after preemption.
    pub hit: u64,
    /// Blocks whose content was inserted.
    pub inserted: u64,
    /// Blocks whose content was evicted.
    pub evicted: u64,
}

/// A change of a replica in runs with autoscaling or failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetEvent {
    /// Instant.
    pub at: Instant,
    /// Replica.
    pub replica: u32,
    /// Change.
    pub change: Change,
    /// Open replicas of its pool after the change.
    pub open: u32,
    /// Starting replicas of its pool, including those under repair.
    pub starting: u32,
    /// Draining replicas of its pool.
    pub draining: u32,
}

/// Changes of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Change {
    /// It was requested.
    Asked = 0,
    /// It accepts requests.
    Ready = 1,
    /// It no longer accepts requests.
    Drains = 2,
    /// It has ended.
    Ended = 3,
    /// It failed.
    Died = 4,
}

/// Integer totals of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The last instant with an event.
    pub end: Instant,
    /// Number of iterations.
    pub iterations: u64,
    /// Number of stretches.
    pub stretches: u64,
    /// Iterations in stretches of two or more.
    pub stretched_iterations: u64,
    /// ∫ number of requests in the system dt, in attoseconds (left side of L9).
    pub in_system: u128,
    /// Σ (left − arrival), where unfinished requests leave at the end, in attoseconds (right side of L9).
    pub sojourn: u128,
    /// Requests by [`Status`].
    pub by_status: [u64; STATUSES],
    /// ∫ number of paid replicas dt, in attoseconds: from the request for a replica to its end.
    pub replica_time: u128,
}

/// Number of statuses of requests that arrived.
pub(crate) const STATUSES: usize = 5;

/// Results of a run, with the rows of requests or the columns built from them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results<Requests = RequestRows> {
    /// One row per request.
    pub requests: Requests,
    /// Gaps between tokens by class.
    pub itl: Vec<Histogram>,
    /// Samples in order of time.
    pub timeline: Vec<Sample>,
    /// Stretches in order of their ends; empty unless requested.
    pub iterations: Vec<IterationRow>,
    /// Rows of batches; empty unless requested.
    pub batches: Vec<BatchRow>,
    /// Tokens per iteration, and the limits that bound them.
    pub work: Work,
    /// Prefix cache operations by replica; only replicas with a prefix cache have a row.
    pub block_operations: Vec<BlockOperations>,
    /// Changes of replicas in order of time; empty without autoscaling and failures.
    pub fleet_events: Vec<FleetEvent>,
    /// Ids of requests that were served incomplete at the end, because no further request could join their batch
    /// (rule R5).
    pub drained: Vec<u32>,
    /// Observations that qualify the numbers.
    pub findings: Vec<Finding>,
    /// Totals.
    pub totals: Totals,
}

impl Results {
    /// Converts the rows to columns, given their workload.
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

/// Returns tokens per second between two samples.
pub fn rate(tokens: u64, span: Span) -> f64 {
    if span == Span::ZERO {
        return 0.0;
    }
    tokens as f64 * SECOND as f64 / span.0 as f64
}
