//! Recording of results: each row is written once, when its request leaves.

use std::collections::BTreeSet;

use super::{BatchRow, Bound, Histogram, IterationRow, LiveEvents, Members, RequestRows, Results, Status, rows};
use crate::clock::{Instant, Long, Span, Unit, Width};
use crate::error::{Error, Kind, Result};
use crate::request::History;
use crate::workload::Arrival;

/// Results recorded so far.
pub(crate) struct Recorder {
    pub(crate) results: Results,
    /// Request of the first stored row: earlier rows have been taken.
    first_row: usize,
    keep_iterations: bool,
    keep_batches: bool,
    /// Events for a live run, if the run is live.
    live_events: Option<Box<LiveEvents>>,
    sojourn: u128,
    left: u64,
    /// Bitwise or of the high words of all instants in the rows.
    high_words: u64,
    /// Whether requests leave without special cases: no API time, no cancellation, no request waits for a finish, and
    /// arrivals are those of the workload.
    is_simple: bool,
    /// Unit of instants and spans.
    unit: Unit,
    /// Requests that finished since the last read; `None` if no request waits for a finish.
    pub(crate) finished: Option<Vec<u32>>,
    /// Canceled requests, which leave with their next token.
    canceled: BTreeSet<u32>,
    /// Number of requests that left because they were canceled.
    pub(crate) taken_back: u64,
    pub(crate) rejections: Vec<Rejections>,
    /// Requests whose outputs were cut to the maximum length.
    pub(crate) cut: Cut,
    /// API time of each replica, from the first replica of this recorder on; empty: zero.
    apis: Vec<Span>,
    first_replica: u32,
    /// The histograms in place of those of the results, if gaps are counted against limits.
    limited: Vec<Histogram>,
}

/// Requests whose outputs were cut.
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
    /// Combines two parts.
    pub(crate) fn and(self, other: Cut) -> Cut {
        Cut { count: self.count + other.count, first: self.first.min(other.first) }
    }
}

/// Requests rejected for one reason.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rejections {
    pub(crate) reason: &'static str,
    /// The first of them.
    pub(crate) first: u32,
    pub(crate) count: u64,
}

impl Rejections {
    /// Adds them to the rejections with the same reason.
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
    /// Builds an empty recorder.
    pub(crate) fn new(classes: usize, keep_iterations: bool, keep_batches: bool, unit: Unit) -> Recorder {
        let (requests, itl) = (RequestRows::in_unit(unit), vec![Histogram::default(); classes]);
        Recorder {
            results: Results { requests, itl, ..Results::default() },
            first_row: 0,
            keep_iterations: keep_iterations || keep_batches,
            keep_batches,
            live_events: None,
            sojourn: 0,
            left: 0,
            high_words: 0,
            is_simple: true,
            unit,
            finished: None,
            canceled: BTreeSet::new(),
            taken_back: 0,
            rejections: Vec::new(),
            cut: Cut::default(),
            apis: Vec::new(),
            first_replica: 0,
            limited: Vec::new(),
        }
    }

    /// Sets the API time of each replica, from replica `first` on.
    pub(crate) fn set_apis(&mut self, first: u32, apis: Vec<Span>) {
        self.first_replica = first;
        self.apis = if apis.iter().any(|&api| api != Span::ZERO) { apis } else { Vec::new() };
        self.is_simple &= self.apis.is_empty();
    }

    /// API time of a replica, by its place in the fleet.
    #[inline]
    pub(crate) fn api(&self, place: usize) -> Span {
        self.apis.get(place).copied().unwrap_or(Span::ZERO)
    }

    /// Whether any replica has an API time.
    #[inline]
    pub(crate) fn has_api(&self) -> bool {
        !self.apis.is_empty()
    }

    /// Adds rows up to row `end`.
    pub(crate) fn extend_to(&mut self, end: usize) {
        self.results.requests.extend_to(end - self.first_row);
    }

    /// Number of leading rows whose requests have left.
    pub(crate) fn left_first(&self) -> usize {
        self.results.requests.left_first()
    }

    /// Removes and returns the first rows.
    pub(crate) fn take_first(&mut self, rows: usize) -> Result<RequestRows> {
        self.check_instants()?;
        self.first_row += rows;
        Ok(self.results.requests.take_first(rows))
    }

    /// Checks whether all instants so far fit the rows, in attoseconds.
    pub(crate) fn check_instants(&self) -> Result<()> {
        let is_beyond = match self.unit {
            Unit::ATTOSECOND => self.high_words >> (rows::INSTANT_BITS - 64) != 0,
            // 64 bits of a unit of up to a nanosecond fit.
            _ => self.high_words != 0 && self.results.requests.last_departure()? >> rows::INSTANT_BITS != 0,
        };
        if is_beyond { Err(Error::overflow("the clock")) } else { Ok(()) }
    }

    /// Stores arrivals, which differ from those of the workload.
    pub(crate) fn keep_arrivals(&mut self) {
        self.results.requests.keep_arrivals();
        self.is_simple = false;
    }

    /// Sets the replica that serves most requests.
    pub(crate) fn served_by(&mut self, replica: u32) {
        self.results.requests.served_by(replica);
    }

    /// Stores numbers of discarded tokens.
    pub(crate) fn keep_discards(&mut self) {
        self.results.requests.keep_discards();
    }

    /// Stores numbers of verified and accepted drafts.
    pub(crate) fn keep_drafts(&mut self) {
        self.results.requests.keep_drafts();
    }

    /// Stores numbers of retries.
    pub(crate) fn keep_retries(&mut self) {
        self.results.requests.keep_retries();
    }

    /// Stores hand-offs.
    pub(crate) fn keep_hand_offs(&mut self) {
        self.results.requests.keep_hand_offs();
    }

    /// Whether the request of a row has left.
    pub(crate) fn has_left(&self, row: u32) -> bool {
        let row = row as usize;
        row < self.first_row || self.results.requests.has_left(row - self.first_row)
    }

    /// Number of requests that have left.
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

    /// Counts `count` gaps, starting with `first` and growing by `growth`, for each of `members`.
    #[inline(always)]
    pub(crate) fn gaps<W: Width>(&mut self, members: &Members, first: Span, growth: i128, count: u64) -> Result<()> {
        let (first, growth) = (self.unit.span::<W>(first)?, self.growth::<W>(growth)?);
        if let [histogram] = &mut self.results.itl[..] {
            let members = members.first;
            return if members > 0 { histogram.add_progression(first, growth, count, members) } else { Ok(()) };
        }
        if self.results.itl.is_empty() {
            return self.gaps_with_limits(members, first, growth, count);
        }
        self.gaps_of_classes(members, first, growth, count)
    }

    /// Also counts the gaps at or below each of these limits, in attoseconds, in rarely compiled code: without limits
    /// this costs nothing.
    pub(crate) fn limit_gaps(&mut self, limits: &[Span]) {
        if !limits.is_empty() {
            self.limited = vec![Histogram::with_limits(limits); std::mem::take(&mut self.results.itl).len()];
        }
    }

    /// The results, complete.
    pub(crate) fn take_results(&mut self) -> Results {
        if !self.limited.is_empty() {
            self.results.itl = std::mem::take(&mut self.limited);
        }
        std::mem::take(&mut self.results)
    }

    fn gaps_with_limits(&mut self, members: &Members, first: Span, growth: i128, count: u64) -> Result<()> {
        let by_code = std::iter::once(&members.first).chain(&members.further).copied();
        let by_code =
            by_code.enumerate().chain(members.listed.iter().map(|&(class, members)| (class as usize, members)));
        for (class, members) in by_code.filter(|&(_, members)| members > 0) {
            self.limited[class].add_with_limits(first, growth, count, members)?;
        }
        Ok(())
    }

    fn gap_with_limits(&mut self, class: u32, gap: Span, count: u64) -> Result<()> {
        self.limited[class as usize].add_with_limits(gap, 0, 1, count)
    }

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

    /// Counts one gap.
    pub(crate) fn gap<W: Width>(&mut self, class: u32, gap: Span) -> Result<()> {
        let gap = self.unit.span::<W>(gap)?;
        match self.results.itl.get_mut(class as usize) {
            Some(histogram) => histogram.add(gap, 1),
            None => self.gap_with_limits(class, gap, 1),
        }
    }

    /// Converts the growth of gaps to attoseconds.
    fn growth<W: Width>(&self, growth: i128) -> Result<i128> {
        match self.unit {
            unit if W::IS_SHORT => Ok(unit.short(growth as u64) as i128),
            Unit::ATTOSECOND => Ok(growth),
            unit => growth.checked_mul(unit.attoseconds_each() as i128).ok_or_else(|| Error::overflow("a gap")),
        }
    }

    /// Counts tokens emitted at the same instant as the previous one.
    pub(crate) fn zero_gaps(&mut self, class: u32, count: u64) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        match self.results.itl.get_mut(class as usize) {
            Some(histogram) => histogram.add(Span::ZERO, count),
            None => self.gap_with_limits(class, Span::ZERO, count),
        }
    }

    /// Records verified and accepted drafts of a request that is about to leave.
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

    // Most stretches have one iteration.
    fn count_stretched(&mut self, iterations: u64) {
        self.results.totals.stretched_iterations += iterations;
    }

    #[inline]
    pub(crate) fn work(&mut self, tokens: u64, bound: Bound, iterations: u64) {
        self.results.work.note(tokens, bound, iterations);
    }

    /// Whether stretches are recorded when they end.
    pub(crate) fn wants_iterations(&self) -> bool {
        self.keep_iterations || self.live_events.is_some()
    }

    pub(crate) fn keeps_iterations(&self) -> bool {
        self.keep_iterations
    }

    /// Starts to collect events for a live run.
    pub(crate) fn record_live_events(&mut self) {
        self.live_events.get_or_insert_default();
    }

    /// Returns the events since the last read, in a live run.
    pub(crate) fn live_events(&mut self) -> Option<&mut LiveEvents> {
        self.live_events.as_deref_mut()
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
        self.record_left(arrival.id, Status::Rejected);
        self.high_words |= (arrival.at.0 >> 64) as u64;
        let row = arrival.row as usize - self.first_row;
        self.results.requests.reject(row, replica, arrival.at);
        self.results.requests.note_arrival(row, arrival.at);
        self.results.totals.by_status[Status::Rejected as usize] += 1;
        self.left += 1;
    }

    /// Records why a request that has been in the system since its arrival is rejected.
    pub(crate) fn refuse(&mut self, arrival: &Arrival, reason: &'static str) {
        Rejections { reason, first: arrival.id, count: 1 }.add_to(&mut self.rejections);
    }

    /// Records that the output of an arrived request is cut by `tokens` tokens.
    pub(crate) fn cut(&mut self, arrival: &Arrival, tokens: u32) {
        self.cut = self.cut.and(Cut { count: 1, first: arrival.id });
        if let Some(events) = &mut self.live_events {
            events.cut.push((arrival.id, tokens));
        }
        self.results.requests.cut(arrival.row as usize - self.first_row, tokens);
    }

    /// Returns when the client receives the first and the last token of a request, or the notice that there is none.
    fn at_client(&mut self, request: &History, replica: u32, status: Status, left: Instant) -> (Instant, Instant) {
        let api = self.api(replica.wrapping_sub(self.first_replica) as usize);
        let later = |at: Instant| if at == Instant::NEVER { at } else { Instant(at.0.saturating_add(api.0)) };
        let left = if status == Status::Finished { later(left) } else { left };
        self.high_words |= (left.0 >> 64) as u64;
        (later(request.first_token), left)
    }

    /// Writes the row of a request. An unfinished request leaves at `left`, the end of the run.
    #[inline(always)]
    pub(crate) fn leave<W: Width>(&mut self, request: &History, replica: u32, status: Status, left: Instant) {
        if self.is_simple {
            self.write::<W>(request, replica, status, left, (request.first_token, left));
        } else {
            self.leave_further(request, replica, status, left);
        }
    }

    fn leave_further(&mut self, request: &History, replica: u32, status: Status, left: Instant) {
        if status == Status::Finished
            && self.finished.is_some()
            && self.ends_canceled_and_leaves(request, replica, left)
        {
            return;
        }
        let mut at_client = (request.first_token, left);
        if self.has_api() {
            at_client = self.at_client(request, replica, status, left);
        }
        self.write::<Long>(request, replica, status, left, at_client);
        self.results.requests.note_arrival(request.arrival.row as usize - self.first_row, request.arrival.at);
    }

    /// Writes the row with the times at which the client receives the first and the last token.
    #[inline(always)]
    fn write<W: Width>(
        &mut self,
        request: &History,
        replica: u32,
        status: Status,
        left: Instant,
        (first_token, last_token): (Instant, Instant),
    ) {
        // The sum fits: it equals the integral of the number in the system, whose overflow is checked.
        let sojourn = left.within::<W>().since(request.arrival.at.within::<W>()).within::<W>();
        self.sojourn = self.sojourn.wrapping_add(sojourn.0);
        self.high_words |= if W::IS_SHORT { 0 } else { (left.0 >> 64) as u64 };
        let last_token = if status == Status::Unfinished { Instant::NEVER } else { last_token };
        let row = request.arrival.row as usize - self.first_row;
        self.results.requests.leave::<W>(row, request, replica, status, first_token, last_token);
        self.results.totals.by_status[status as usize] += 1;
        self.left += u64::from(status != Status::Unfinished);
        if !matches!(status, Status::Finished | Status::Unfinished) {
            self.record_left(request.arrival.id, status);
        }
    }

    /// Collects finishes, for requests that follow them or clients that may cancel.
    pub(crate) fn expect_finishes(&mut self) {
        self.finished.get_or_insert_default();
        self.is_simple = false;
    }

    /// Cancels a request: it leaves without finishing.
    pub(crate) fn cancel(&mut self, id: u32) {
        self.expect_finishes();
        self.canceled.insert(id);
    }

    /// Returns whether a request that is about to leave was canceled.
    pub(crate) fn ends_canceled(&mut self, id: u32) -> bool {
        let is_canceled = self.canceled.remove(&id);
        self.taken_back += u64::from(is_canceled);
        is_canceled
    }

    /// Handles the last token of a request. Returns whether it was canceled and has left without an answer.
    fn ends_canceled_and_leaves(&mut self, request: &History, replica: u32, left: Instant) -> bool {
        let is_canceled = self.ends_canceled(request.arrival.id);
        if is_canceled {
            self.leave::<Long>(request, replica, Status::Abandoned, left);
        } else if let Some(finished) = &mut self.finished {
            finished.push(request.arrival.id);
        }
        is_canceled
    }

    fn record_left(&mut self, id: u32, status: Status) {
        if let Some(events) = &mut self.live_events {
            events.left.push((id, status));
        }
    }

    /// Reserves room for further samples.
    pub(crate) fn make_room_for_samples(&mut self, samples: usize) -> Result<()> {
        let timeline = &mut self.results.timeline;
        if timeline.len() + samples > MAX_SAMPLES {
            return Err(too_many_samples());
        }
        timeline.reserve(samples);
        Ok(())
    }
}

/// Maximum number of samples of a timeline, over all replicas.
pub(crate) const MAX_SAMPLES: usize = 5_000_000;

pub(crate) fn too_many_samples() -> Error {
    Kind::TooMuch(format!("timeline_s is too short: the run exceeds {MAX_SAMPLES} samples")).into()
}
