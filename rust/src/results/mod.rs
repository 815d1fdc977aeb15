//! Results: what came out for each request, each class, each moment.
//!
//! A row is written once, when its request leaves: spans are taken in whole attoseconds and rounded once to doubles.

use crate::clock::{Instant, SECOND, Span};
use crate::error::{Error, Kind, Result};
use crate::request::History;
use crate::timing::Pace;
use crate::workload::Arrival;

pub(crate) mod columns;
mod findings;
mod histogram;
pub mod summary;
mod work_conservation;

pub use columns::{Column, HandOffColumns, NO_REPLICA, RequestColumns};
use columns::{RequestRow, Row};
pub(crate) use columns::{Scatter, columns, take_first};
pub(crate) use findings::{Facts, of_run};
pub use histogram::Histogram;
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
    /// It ran out of patience before its first admission.
    Abandoned = 2,
    /// The run ended first.
    Unfinished = 3,
    /// It waited for others, and never arrived.
    Awaited = 4,
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
    pub by_status: [u64; 4],
}

/// Everything that a run leaves behind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// One row a request.
    pub requests: RequestColumns,
    /// Token gaps by class.
    pub tbt: Vec<Histogram>,
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
    /// Requests that were still here when nothing was left to come, and were served because no other would join
    /// them (rule 5), by id.
    pub drained: Vec<u32>,
    /// What a reader of the numbers should know first, in plain words.
    pub findings: Vec<String>,
    /// Totals.
    pub totals: Totals,
}

/// Results as they grow.
pub struct Recorder {
    pub(crate) results: Results,
    /// The request whose row is the first here: those before it have been taken.
    first_row: usize,
    keep_iterations: bool,
    keep_batches: bool,
    sojourn: u128,
    left: u64,
    /// The workload's `arrival_s` of each row, where `elapsed_s` is kept.
    named_arrivals: Vec<Instant>,
    /// Requests that finished since this was read last; `None` where none waits for that.
    pub(crate) finished: Option<Vec<u32>>,
    pub(crate) rejections: Vec<Rejections>,
}

/// The requests that were rejected for one reason.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rejections {
    pub(crate) reason: &'static str,
    /// The first of them.
    pub(crate) first: u32,
    pub(crate) count: u64,
}

impl Rejections {
    /// Adds them to those for the same reason.
    pub(crate) fn add_to(self, all: &mut Vec<Rejections>) {
        match all.iter_mut().find(|other| other.reason == self.reason) {
            Some(other) => {
                other.count += self.count;
                other.first = other.first.min(self.first);
            }
            None => all.push(self),
        }
    }
}

impl Recorder {
    /// Room for no request as yet.
    pub fn new(classes: usize, keep_iterations: bool, keep_batches: bool) -> Recorder {
        Recorder {
            results: Results { tbt: vec![Histogram::default(); classes], ..Results::default() },
            first_row: 0,
            keep_iterations: keep_iterations || keep_batches,
            keep_batches,
            sojourn: 0,
            left: 0,
            named_arrivals: Vec::new(),
            finished: None,
            rejections: Vec::new(),
        }
    }

    /// Makes room for the requests up to row `end`.
    pub(crate) fn extend_to(&mut self, end: usize) {
        self.results.requests.extend_to(end - self.first_row);
    }

    /// The number of rows at the beginning whose requests have left.
    pub(crate) fn left_first(&self) -> usize {
        self.results.requests.left_first()
    }

    /// Takes the first rows out.
    pub(crate) fn take_first(&mut self, rows: usize) -> RequestColumns {
        self.first_row += rows;
        self.results.requests.take_first(rows)
    }

    /// Keeps the time since the arrivals that the workload names.
    pub(crate) fn keep_elapsed(&mut self, named_arrivals: Vec<Instant>) {
        self.results.requests.elapsed_s = Some(vec![f64::NAN; named_arrivals.len()]);
        self.named_arrivals = named_arrivals;
    }

    /// Keeps what becomes of hand-offs.
    pub(crate) fn keep_hand_offs(&mut self) {
        self.results.requests.keep_hand_offs();
    }

    /// Requests that have left.
    #[inline]
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Σ (left − arrival) so far.
    pub(crate) fn sojourn(&self) -> u128 {
        self.sojourn
    }

    pub(crate) fn wants_batches(&self) -> bool {
        self.keep_batches
    }

    /// `count` gaps that begin with `first` and grow, for each of `members` by class.
    #[inline(always)]
    pub(crate) fn gaps(&mut self, members: &[u64], first: Span, growth: i128, count: u64) -> Result<()> {
        if let ([histogram], &[members]) = (&mut self.results.tbt[..], members) {
            return if members > 0 { histogram.add_progression(first, growth, count, members) } else { Ok(()) };
        }
        self.gaps_of_classes(members, first, growth, count)
    }

    #[inline(never)]
    fn gaps_of_classes(&mut self, members: &[u64], first: Span, growth: i128, count: u64) -> Result<()> {
        for (histogram, &members) in self.results.tbt.iter_mut().zip(members) {
            if members > 0 {
                histogram.add_progression(first, growth, count, members)?;
            }
        }
        Ok(())
    }

    /// One gap.
    pub(crate) fn gap(&mut self, class: u32, gap: Span) -> Result<()> {
        self.results.tbt[class as usize].add(gap, 1)
    }

    #[inline]
    pub(crate) fn count_stretch(&mut self, iterations: u64) {
        self.results.totals.iterations += iterations;
        self.results.totals.stretches += 1;
        self.results.totals.stretched_iterations += if iterations > 1 { iterations } else { 0 };
    }

    #[inline]
    pub(crate) fn work(&mut self, tokens: u64, bound: Bound, iterations: u64) {
        self.results.work.note(tokens, bound, iterations);
    }

    pub(crate) fn wants_iterations(&self) -> bool {
        self.keep_iterations
    }

    pub(crate) fn iteration(&mut self, row: IterationRow) {
        self.results.iterations.push(row);
    }

    pub(crate) fn batch_row(&mut self, request: u32, tokens: u64, emits: bool) {
        self.results.batches.push(BatchRow {
            iteration: self.results.iterations.len() as u64 - 1,
            request,
            tokens,
            emits,
        });
    }

    pub(crate) fn reject(&mut self, arrival: &Arrival, replica: u32, reason: &'static str) {
        Rejections { reason, first: arrival.id, count: 1 }.add_to(&mut self.rejections);
        let at = arrival.at.seconds();
        let row =
            RequestRow { replica, status: Status::Rejected as u8, arrival_s: at, left_s: at, ..RequestRow::ABSENT };
        self.results.requests.write(arrival.row as usize - self.first_row, row);
        self.results.totals.by_status[Status::Rejected as usize] += 1;
        self.left += 1;
    }

    /// Writes a request's row. A request that is unfinished does not leave at `left`: the run ends.
    #[inline]
    pub(crate) fn leave(&mut self, request: &History, replica: u32, status: Status, left: Instant) {
        // Σ fits: it is the integral of the number in system, whose overflow is caught where it is summed.
        self.sojourn = self.sojourn.wrapping_add(left.since(request.arrival.at).0);
        let left = if status == Status::Unfinished { Instant::NEVER } else { left };
        let row = request.arrival.row as usize - self.first_row;
        let arrival = request.arrival.at;
        let columns = &mut self.results.requests;
        let at = |instant: Instant| if instant == Instant::NEVER { f64::NAN } else { instant.seconds() };
        let since =
            |instant: Instant| if instant == Instant::NEVER { f64::NAN } else { instant.since(arrival).seconds() };
        let finish = if status == Status::Finished { left } else { Instant::NEVER };
        let (left_s, first) = (at(left), request.first_token);
        let steps = request.arrival.output_tokens - 1;
        let tpot_s = if steps > 0 && finish != Instant::NEVER {
            quotient(finish.since(first), steps).seconds()
        } else {
            f64::NAN
        };
        let gap_s = if request.longest_gap > Span::ZERO { request.longest_gap.seconds() } else { f64::NAN };
        let cells = RequestRow {
            replica,
            status: status as u8,
            arrival_s: arrival.seconds(),
            admitted_s: at(request.admitted),
            first_token_s: at(first),
            finish_s: if finish == left { left_s } else { f64::NAN },
            left_s,
            queue_s: since(request.admitted),
            ttft_s: since(first),
            tpot_s,
            max_tbt_s: gap_s,
            e2e_s: since(finish),
            preemptions: request.preemptions,
            cached_tokens: request.cached_tokens as i32,
        };
        columns.write(row, cells);
        self.results.totals.by_status[status as usize] += 1;
        self.left += u64::from(left != Instant::NEVER);
        if let (Some(columns), Some(hand_off)) = (&mut columns.hand_off, &request.hand_off) {
            columns.note(row, hand_off);
        }
        if let (Some(elapsed_s), Status::Finished) = (&mut columns.elapsed_s, status)
            && left >= self.named_arrivals[row]
        {
            elapsed_s[row] = left.since(self.named_arrivals[row]).seconds();
        }
        if let (Some(finished), Status::Finished) = (&mut self.finished, status) {
            finished.push(request.arrival.id);
        }
    }

    pub(crate) fn sample(&mut self, sample: Sample) -> Result<()> {
        if self.results.timeline.len() == MOST_SAMPLES {
            return Err(too_many_samples());
        }
        self.results.timeline.push(sample);
        Ok(())
    }
}

/// Samples of a timeline, over all replicas.
pub(crate) const MOST_SAMPLES: usize = 5_000_000;

pub(crate) fn too_many_samples() -> Error {
    Kind::TooMuch(format!("timeline_s is too short: {MOST_SAMPLES} samples and more to come")).into()
}

/// A span over a count, rounded down.
#[inline]
fn quotient(span: Span, count: u32) -> Span {
    // Most spans fit 64 bits, where division is many times cheaper.
    match u64::try_from(span.0) {
        Ok(short) => Span(u128::from(short / u64::from(count))),
        Err(_) => Span(span.0 / u128::from(count)),
    }
}

/// Tokens in a second between two samples.
pub fn rate(tokens: u64, span: Span) -> f64 {
    if span == Span::ZERO {
        return 0.0;
    }
    tokens as f64 * SECOND as f64 / span.0 as f64
}
