//! Results: what came out for each request, each class, each moment.
//!
//! A row is written once, when its request leaves, in whole attoseconds. Columns of seconds are made of the rows when they
//! are asked for: spans are taken in whole attoseconds and rounded once to doubles.

use std::collections::BTreeSet;

use crate::clock::{Instant, SECOND, Span};
use crate::error::{Error, Kind, Result};
use crate::request::History;
use crate::timing::Pace;
use crate::workload::{Arrival, Workload};

pub(crate) mod columns;
mod findings;
mod histogram;
mod members;
mod rows;
pub mod summary;
mod times;
mod told;
mod work_conservation;

pub use columns::{Column, NO_REPLICA, NamedColumn, RequestColumns};
pub(crate) use columns::{Scatter, columns, take_first};
pub(crate) use findings::{Facts, of_run};
pub use histogram::Histogram;
pub(crate) use members::Members;
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
pub const STATUSES: usize = 5;

/// Everything that a run leaves behind, with the rows of its requests or the columns that were made of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results<Requests = RequestRows> {
    /// One row a request.
    pub requests: Requests,
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
    /// What happened to replicas, in order; empty where none comes or goes.
    pub fleet_events: Vec<FleetEvent>,
    /// Requests that were still here when nothing was left to come, and were served because no other would join
    /// them (rule 5), by id.
    pub drained: Vec<u32>,
    /// What a reader of the numbers should know first, in plain words.
    pub findings: Vec<String>,
    /// Totals.
    pub totals: Totals,
}

impl Results {
    /// The same with columns of the requests, which are those of this workload.
    pub fn with_columns(self, workload: &Workload) -> Results<RequestColumns> {
        let Results {
            requests,
            tbt,
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
            tbt,
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

/// Results as they grow.
pub struct Recorder {
    pub(crate) results: Results,
    /// The request whose row is the first here: those before it have been taken.
    first_row: usize,
    keep_iterations: bool,
    keep_batches: bool,
    /// Where the run is followed as it goes on.
    told: Option<Box<Told>>,
    sojourn: u128,
    left: u64,
    /// The high words of all instants in the rows, one over the other.
    high_words: u64,
    /// Requests that finished since this was read last; `None` where none waits for that.
    pub(crate) finished: Option<Vec<u32>>,
    /// Requests whose next token is the last because their clients took them back.
    cancelled: BTreeSet<u32>,
    /// Requests that left because of that.
    pub(crate) taken_back: u64,
    pub(crate) rejections: Vec<Rejections>,
    /// Requests whose outputs were cut to the longest length.
    pub(crate) cut: Cut,
    /// From a client to each replica and back, from the first replica here on; empty: no time at all.
    apis: Vec<Span>,
    first_replica: u32,
}

/// The requests whose outputs were cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) count: u64,
    /// The first of them.
    pub(crate) first: u32,
}

impl Default for Cut {
    fn default() -> Cut {
        Cut { count: 0, first: u32::MAX }
    }
}

impl Cut {
    /// Both together.
    pub(crate) fn and(self, other: Cut) -> Cut {
        Cut { count: self.count + other.count, first: self.first.min(other.first) }
    }
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
            told: None,
            sojourn: 0,
            left: 0,
            high_words: 0,
            finished: None,
            cancelled: BTreeSet::new(),
            taken_back: 0,
            rejections: Vec::new(),
            cut: Cut::default(),
            apis: Vec::new(),
            first_replica: 0,
        }
    }

    /// How long it takes from a client to each replica, of which `first` is the first, and back.
    pub(crate) fn behind(&mut self, first: u32, apis: Vec<Span>) {
        self.first_replica = first;
        self.apis = if apis.iter().any(|&api| api != Span::ZERO) { apis } else { Vec::new() };
    }

    /// From a client to a replica, by its place in the fleet, and back.
    #[inline]
    pub(crate) fn api(&self, place: usize) -> Span {
        self.apis.get(place).copied().unwrap_or(Span::ZERO)
    }

    /// Does it take time from a client to some replica?
    #[inline]
    pub(crate) fn has_api(&self) -> bool {
        !self.apis.is_empty()
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
    pub(crate) fn take_first(&mut self, rows: usize) -> Result<RequestRows> {
        self.check_instants()?;
        self.first_row += rows;
        Ok(self.results.requests.take_first(rows))
    }

    /// Tests whether all instants so far fit the rows.
    pub(crate) fn check_instants(&self) -> Result<()> {
        let is_beyond = self.high_words >> (rows::INSTANT_BITS - 64) != 0;
        if is_beyond { Err(Error::overflow("the clock")) } else { Ok(()) }
    }

    /// Keeps the arrivals, which are not the workload's.
    pub(crate) fn keep_arrivals(&mut self) {
        self.results.requests.keep_arrivals();
    }

    /// Says which replica serves most requests.
    pub(crate) fn served_by(&mut self, replica: u32) {
        self.results.requests.served_by(replica);
    }

    /// Keeps how many tokens were thrown away.
    pub(crate) fn keep_discards(&mut self) {
        self.results.requests.keep_discards();
    }

    /// Keeps how many drafts were verified and accepted.
    pub(crate) fn keep_drafts(&mut self) {
        self.results.requests.keep_drafts();
    }

    /// Keeps how often requests were sent again.
    pub(crate) fn keep_retries(&mut self) {
        self.results.requests.keep_retries();
    }

    /// Keeps what becomes of hand-offs.
    pub(crate) fn keep_hand_offs(&mut self) {
        self.results.requests.keep_hand_offs();
    }

    /// Has the request of a row left?
    pub(crate) fn has_left(&self, row: u32) -> bool {
        let row = row as usize;
        row < self.first_row || self.results.requests.has_left(row - self.first_row)
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
    pub(crate) fn gaps(&mut self, members: &Members, first: Span, growth: i128, count: u64) -> Result<()> {
        if let [histogram] = &mut self.results.tbt[..] {
            let members = members.first;
            return if members > 0 { histogram.add_progression(first, growth, count, members) } else { Ok(()) };
        }
        self.gaps_of_classes(members, first, growth, count)
    }

    #[inline(never)]
    fn gaps_of_classes(&mut self, members: &Members, first: Span, growth: i128, count: u64) -> Result<()> {
        for &(class, members) in &members.listed {
            if members > 0 {
                self.results.tbt[class as usize].add_progression(first, growth, count, members)?;
            }
        }
        let by_code = std::iter::once(&members.first).chain(&members.further);
        for (histogram, &members) in self.results.tbt.iter_mut().zip(by_code) {
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

    /// So many tokens came at the instant of the one before them.
    pub(crate) fn no_gaps(&mut self, class: u32, count: u64) -> Result<()> {
        if count > 0 { self.results.tbt[class as usize].add(Span::ZERO, count) } else { Ok(()) }
    }

    /// Drafts that a request which is about to leave verified, and those of them that became tokens of its output.
    pub(crate) fn drafts(&mut self, arrival: &Arrival, drafted: u32, accepted: u32) {
        self.results.requests.note_drafts(arrival.row as usize - self.first_row, drafted, accepted);
    }

    #[inline]
    pub(crate) fn count_stretch(&mut self, iterations: u64) {
        self.results.totals.stretches += 1;
        if iterations > 1 {
            self.count_stretched(iterations);
        }
    }

    // Most stretches are of one iteration.
    #[inline(never)]
    fn count_stretched(&mut self, iterations: u64) {
        self.results.totals.stretched_iterations += iterations;
    }

    #[inline]
    pub(crate) fn work(&mut self, tokens: u64, bound: Bound, iterations: u64) {
        self.results.work.note(tokens, bound, iterations);
    }

    /// Is each stretch looked at when it is over?
    pub(crate) fn wants_iterations(&self) -> bool {
        self.keep_iterations || self.told.is_some()
    }

    pub(crate) fn keeps_iterations(&self) -> bool {
        self.keep_iterations
    }

    /// From now on it is told what happens.
    pub(crate) fn begin_to_tell(&mut self) {
        self.told.get_or_insert_default();
    }

    /// What happened since this was asked last, where it is told.
    pub(crate) fn told(&mut self) -> Option<&mut Told> {
        self.told.as_deref_mut()
    }

    pub(crate) fn iteration(&mut self, row: IterationRow) {
        self.results.iterations.push(row);
    }

    pub(crate) fn batch_row(&mut self, request: u32, tokens: u64, emits: bool, emitted: u32) {
        self.results.batches.push(BatchRow {
            iteration: self.results.iterations.len() as u64 - 1,
            request,
            tokens,
            emits,
            emitted,
        });
    }

    pub(crate) fn reject(&mut self, arrival: &Arrival, replica: u32, reason: &'static str) {
        Rejections { reason, first: arrival.id, count: 1 }.add_to(&mut self.rejections);
        self.tell_left(arrival.id, Status::Rejected);
        self.high_words |= (arrival.at.0 >> 64) as u64;
        self.results.requests.reject(arrival.row as usize - self.first_row, replica, arrival.at);
        self.results.totals.by_status[Status::Rejected as usize] += 1;
        self.left += 1;
    }

    /// Why a request that has been in the system since its arrival is about to leave rejected.
    #[cold]
    pub(crate) fn refuse(&mut self, arrival: &Arrival, reason: &'static str) {
        Rejections { reason, first: arrival.id, count: 1 }.add_to(&mut self.rejections);
    }

    /// The output of a request that has arrived ends so many tokens before the workload says.
    #[cold]
    pub(crate) fn cut(&mut self, arrival: &Arrival, tokens: u32) {
        self.cut = self.cut.and(Cut { count: 1, first: arrival.id });
        if let Some(told) = &mut self.told {
            told.cut.push((arrival.id, tokens));
        }
        self.results.requests.cut(arrival.row as usize - self.first_row, tokens);
    }

    /// When a client has the first token of a request and its last, or the news that there is none.
    #[cold]
    fn at_client(&mut self, request: &History, replica: u32, status: Status, left: Instant) -> (Instant, Instant) {
        let api = self.api(replica.wrapping_sub(self.first_replica) as usize);
        let later = |at: Instant| if at == Instant::NEVER { at } else { Instant(at.0.saturating_add(api.0)) };
        let left = if status == Status::Finished { later(left) } else { left };
        self.high_words |= if left == Instant::NEVER { 0 } else { (left.0 >> 64) as u64 };
        (later(request.first_token), left)
    }

    /// Writes a request's row. A request that is unfinished does not leave at `left`: the run ends.
    #[inline(always)]
    pub(crate) fn leave(&mut self, request: &History, replica: u32, status: Status, left: Instant) {
        if status == Status::Finished && self.finished.is_some() && self.ends_cancelled(request, replica, left) {
            return;
        }
        // Σ fits: it is the integral of the number in system, whose overflow is caught where it is summed.
        self.sojourn = self.sojourn.wrapping_add(left.since(request.arrival.at).0);
        self.high_words |= (left.0 >> 64) as u64;
        let left = if status == Status::Unfinished { Instant::NEVER } else { left };
        let row = request.arrival.row as usize - self.first_row;
        let (first_token, left) =
            if self.has_api() { self.at_client(request, replica, status, left) } else { (request.first_token, left) };
        self.results.requests.leave(row, request, replica, status, first_token, left);
        self.results.totals.by_status[status as usize] += 1;
        self.left += u64::from(status != Status::Unfinished);
        if !matches!(status, Status::Finished | Status::Unfinished) {
            self.tell_left(request.arrival.id, status);
        }
    }

    /// Clients may take requests back.
    pub(crate) fn expect_cancels(&mut self) {
        self.finished.get_or_insert_default();
    }

    /// The client of a request takes it back: what ends it is no finish.
    pub(crate) fn cancel(&mut self, id: u32) {
        self.expect_cancels();
        self.cancelled.insert(id);
    }

    /// Was a request that is about to leave taken back?
    pub(crate) fn ends_taken_back(&mut self, id: u32) -> bool {
        let is_cancelled = self.cancelled.remove(&id);
        self.taken_back += u64::from(is_cancelled);
        is_cancelled
    }

    /// A request has its last token. Was it taken back, so that it has left without an answer?
    #[cold]
    fn ends_cancelled(&mut self, request: &History, replica: u32, left: Instant) -> bool {
        let is_cancelled = self.ends_taken_back(request.arrival.id);
        if is_cancelled {
            self.leave(request, replica, Status::Abandoned, left);
        } else if let Some(finished) = &mut self.finished {
            finished.push(request.arrival.id);
        }
        is_cancelled
    }

    #[cold]
    fn tell_left(&mut self, id: u32, status: Status) {
        if let Some(told) = &mut self.told {
            told.left.push((id, status));
        }
    }

    /// Makes room for so many samples more.
    pub(crate) fn make_room_for_samples(&mut self, samples: usize) -> Result<()> {
        let timeline = &mut self.results.timeline;
        if timeline.len() + samples > MOST_SAMPLES {
            return Err(too_many_samples());
        }
        timeline.reserve(samples);
        Ok(())
    }
}

/// Samples of a timeline, over all replicas.
pub(crate) const MOST_SAMPLES: usize = 5_000_000;

pub(crate) fn too_many_samples() -> Error {
    Kind::TooMuch(format!("timeline_s is too short: {MOST_SAMPLES} samples and more to come")).into()
}

/// Tokens in a second between two samples.
pub fn rate(tokens: u64, span: Span) -> f64 {
    if span == Span::ZERO {
        return 0.0;
    }
    tokens as f64 * SECOND as f64 / span.0 as f64
}
