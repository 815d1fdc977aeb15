//! Results as they grow: each row is written once, when its request leaves.

use std::collections::BTreeSet;

use super::{BatchRow, Bound, Histogram, IterationRow, Members, RequestRows, Results, Status, Told, rows};
use crate::clock::{Instant, Long, Span, Unit, Width};
use crate::error::{Error, Kind, Result};
use crate::request::History;
use crate::workload::Arrival;

/// Results as they grow.
pub(crate) struct Recorder {
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
    /// Is nothing asked at a leave but what every run asks? No client is far away or takes requests back, none waits for what
    /// finishes, and arrivals are the workload's.
    is_simple: bool,
    /// What instants and spans are counted in.
    unit: Unit,
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
    pub(crate) fn new(classes: usize, keep_iterations: bool, keep_batches: bool, unit: Unit) -> Recorder {
        let (requests, itl) = (RequestRows::in_unit(unit), vec![Histogram::default(); classes]);
        Recorder {
            results: Results { requests, itl, ..Results::default() },
            first_row: 0,
            keep_iterations: keep_iterations || keep_batches,
            keep_batches,
            told: None,
            sojourn: 0,
            left: 0,
            high_words: 0,
            is_simple: true,
            unit,
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
        self.is_simple &= self.apis.is_empty();
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

    /// Tests whether all instants so far fit the rows, in attoseconds.
    pub(crate) fn check_instants(&self) -> Result<()> {
        let is_beyond = match self.unit {
            Unit::ATTOSECOND => self.high_words >> (rows::INSTANT_BITS - 64) != 0,
            // 64 bits of a unit up to a nanosecond fit.
            _ => self.high_words != 0 && self.results.requests.last_departure()? >> rows::INSTANT_BITS != 0,
        };
        if is_beyond { Err(Error::overflow("the clock")) } else { Ok(()) }
    }

    /// Keeps the arrivals, which are not the workload's.
    pub(crate) fn keep_arrivals(&mut self) {
        self.results.requests.keep_arrivals();
        self.is_simple = false;
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
    pub(crate) fn gaps<W: Width>(&mut self, members: &Members, first: Span, growth: i128, count: u64) -> Result<()> {
        let (first, growth) = (self.unit.span::<W>(first)?, self.growth::<W>(growth)?);
        if let [histogram] = &mut self.results.itl[..] {
            let members = members.first;
            return if members > 0 { histogram.add_progression(first, growth, count, members) } else { Ok(()) };
        }
        self.gaps_of_classes(members, first, growth, count)
    }

    #[inline(never)]
    fn gaps_of_classes(&mut self, members: &Members, first: Span, growth: i128, count: u64) -> Result<()> {
        for &(class, members) in &members.listed {
            if members > 0 {
                self.results.itl[class as usize].add_progression(first, growth, count, members)?;
            }
        }
        let by_code = std::iter::once(&members.first).chain(&members.further);
        for (histogram, &members) in self.results.itl.iter_mut().zip(by_code) {
            if members > 0 {
                histogram.add_progression(first, growth, count, members)?;
            }
        }
        Ok(())
    }

    /// One gap.
    pub(crate) fn gap<W: Width>(&mut self, class: u32, gap: Span) -> Result<()> {
        let gap = self.unit.span::<W>(gap)?;
        self.results.itl[class as usize].add(gap, 1)
    }

    /// How much gaps grow, in attoseconds.
    #[inline(always)]
    fn growth<W: Width>(&self, growth: i128) -> Result<i128> {
        match self.unit {
            unit if W::IS_SHORT => Ok(unit.short(growth as u64) as i128),
            Unit::ATTOSECOND => Ok(growth),
            unit => growth.checked_mul(unit.attoseconds_each() as i128).ok_or_else(|| Error::overflow("a gap")),
        }
    }

    /// So many tokens came at the instant of the one before them.
    pub(crate) fn no_gaps(&mut self, class: u32, count: u64) -> Result<()> {
        if count > 0 { self.results.itl[class as usize].add(Span::ZERO, count) } else { Ok(()) }
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
        let row = arrival.row as usize - self.first_row;
        self.results.requests.reject(row, replica, arrival.at);
        self.results.requests.note_arrival(row, arrival.at);
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
        self.high_words |= (left.0 >> 64) as u64;
        (later(request.first_token), left)
    }

    /// Writes a request's row. A request that is unfinished does not leave at `left`: the run ends.
    #[inline(always)]
    pub(crate) fn leave<W: Width>(&mut self, request: &History, replica: u32, status: Status, left: Instant) {
        if self.is_simple {
            self.write::<W>(request, replica, status, left, (request.first_token, left));
        } else {
            self.leave_further(request, replica, status, left);
        }
    }

    #[inline(never)]
    fn leave_further(&mut self, request: &History, replica: u32, status: Status, left: Instant) {
        if status == Status::Finished && self.finished.is_some() && self.ends_cancelled(request, replica, left) {
            return;
        }
        let mut at_client = (request.first_token, left);
        if self.has_api() {
            at_client = self.at_client(request, replica, status, left);
        }
        self.write::<Long>(request, replica, status, left, at_client);
        self.results.requests.note_arrival(request.arrival.row as usize - self.first_row, request.arrival.at);
    }

    /// Writes it for one whose client has its first token and its last at these instants.
    #[inline(always)]
    fn write<W: Width>(
        &mut self,
        request: &History,
        replica: u32,
        status: Status,
        left: Instant,
        (first_token, last_token): (Instant, Instant),
    ) {
        // Σ fits: it is the integral of the number in system, whose overflow is caught where it is summed.
        let sojourn = left.within::<W>().since(request.arrival.at.within::<W>()).within::<W>();
        self.sojourn = self.sojourn.wrapping_add(sojourn.0);
        self.high_words |= if W::IS_SHORT { 0 } else { (left.0 >> 64) as u64 };
        let last_token = if status == Status::Unfinished { Instant::NEVER } else { last_token };
        let row = request.arrival.row as usize - self.first_row;
        self.results.requests.leave::<W>(row, request, replica, status, first_token, last_token);
        self.results.totals.by_status[status as usize] += 1;
        self.left += u64::from(status != Status::Unfinished);
        if !matches!(status, Status::Finished | Status::Unfinished) {
            self.tell_left(request.arrival.id, status);
        }
    }

    /// Something waits for requests that finish: others that follow them, or clients that may take them back.
    pub(crate) fn expect_finishes(&mut self) {
        self.finished.get_or_insert_default();
        self.is_simple = false;
    }

    /// The client of a request takes it back: what ends it is no finish.
    pub(crate) fn cancel(&mut self, id: u32) {
        self.expect_finishes();
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
            self.leave::<Long>(request, replica, Status::Abandoned, left);
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
