//! Compact results per request: exact times in a row, and rare values separately.

use std::ops::Range;

use super::Status;
use super::columns::{NO_REPLICA, Scatter, take_first};
use super::times::{self, Times};
use crate::clock::{Instant, Long, Unit, Width};
use crate::error::Result;
use crate::request::History;

/// Low 64 bits of four times of a request, in units of the run. All are zero before the request leaves, so that
/// zeroed memory is not touched earlier; all bits are set if an event never happened.
pub(super) type Row = [u64; 4];

/// The next 32 bits, in runs with a time that needs them.
type Above = [u32; 4];

pub(super) const ADMITTED: usize = 0;
pub(super) const FIRST_TOKEN: usize = 1;
pub(super) const LEFT: usize = 2;
pub(super) const LONGEST_GAP: usize = 3;

/// A time that never happened.
pub(super) const NEVER: u128 = (1 << times::BITS) - 1;

/// Bits of an instant in a row: 1,255 years of attoseconds.
pub(super) const INSTANT_BITS: u32 = times::BITS - 1;

/// Results of requests, one row per request that arrived by the horizon. Columns are built from them on demand,
/// together with the workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestRows {
    rows: Vec<Row>,
    above: Rare<Above>,
    unit: Unit,
    /// Statuses of requests that did not finish.
    statuses: Rare<Option<Status>>,
    pub(super) replicas: Rare<u32>,
    pub(super) preemptions: Rare<u32>,
    pub(super) cached_tokens: Rare<i32>,
    pub(super) discarded_tokens: Rare<i64>,
    /// Output tokens cut by the maximum length.
    pub(super) cut_tokens: Rare<i32>,
    keeps_discards: bool,
    pub(super) drafted_tokens: Rare<i32>,
    pub(super) accepted_tokens: Rare<i32>,
    keeps_drafts: bool,
    /// Numbers of retries.
    pub(super) retries: Rare<u32>,
    keeps_retries: bool,
    pub(super) hand_offs: Rare<HandOffRow>,
    keeps_hand_offs: bool,
    /// Arrivals, if they differ from those of the workload.
    arrivals: Option<Vec<Instant>>,
}

/// The hand-off of a request; `NEVER` for events that did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HandOffRow {
    pub(super) from: u32,
    pub(super) prefilled: Instant,
    pub(super) resumed: Instant,
}

impl Default for HandOffRow {
    fn default() -> HandOffRow {
        HandOffRow { from: NO_REPLICA, prefilled: Instant::NEVER, resumed: Instant::NEVER }
    }
}

impl RequestRows {
    /// Builds empty rows with times in this unit.
    pub(crate) fn in_unit(unit: Unit) -> RequestRows {
        RequestRows { unit, ..RequestRows::default() }
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the status of the request of a row.
    pub fn status(&self, row: usize) -> Status {
        let is_awaited = self.rows[row] == Row::default() && self.above.at(row) == Above::default();
        self.statuses.at(row).unwrap_or(if is_awaited { Status::Awaited } else { Status::Finished })
    }

    /// Whether all requests that left have finished, so that they left with their last token.
    pub fn leave_with_last_token(&self) -> bool {
        self.statuses.cells.is_empty()
    }

    /// Fills statuses from row `first` on; `to` has default values.
    pub(super) fn fill_statuses(&self, first: usize, to: &mut [u8]) {
        let rows = &self.rows[first..first + to.len()];
        // In a row without rare values the request left after time 0, and its cell keeps the default.
        const { assert!(Status::Finished as u8 == 0) };
        if self.statuses.cells.is_empty() && rows.iter().all(|row| row[LEFT] != 0) {
            return;
        }
        for (row, to) in (first..).zip(to) {
            *to = self.status(row) as u8;
        }
    }

    /// Returns the rows, relative to the first of them, whose requests left without finishing; `None`: there are
    /// none.
    pub(super) fn not_finished(&self, rows: Range<usize>) -> Option<impl Iterator<Item = usize>> {
        let statuses = self.statuses.cells.get(rows)?;
        let places = statuses.iter().enumerate();
        statuses
            .iter()
            .any(Option::is_some)
            .then(|| places.filter(|(_, status)| status.is_some()).map(|(place, _)| place))
    }

    /// Returns one of the times for each of these rows.
    #[inline]
    pub(super) fn times<const WHICH: usize>(&self, rows: Range<usize>) -> Times {
        if self.unit == Unit::ATTOSECOND && !self.above.cells.is_empty() {
            let above = self.above.cells[rows.clone()].iter();
            return Times::of(self.rows[rows].iter().zip(above).map(|(row, above)| (row[WHICH], above[WHICH].into())));
        }
        Times::of(rows.map(|row| {
            let time = self.time(row, WHICH);
            (time as u64, (time >> 64) as u64)
        }))
    }

    /// Unit of the times.
    pub(super) fn unit(&self) -> Unit {
        self.unit
    }

    /// Returns these rows if none needs higher bits and all of their requests have finished or are still in the
    /// system.
    pub(super) fn low_parts(&self, rows: Range<usize>) -> Option<&[Row]> {
        let is_whole = self.above.cells.is_empty() && self.not_finished(rows.clone()).is_none();
        is_whole.then(|| &self.rows[rows])
    }

    /// Returns one of the times of a row, in attoseconds.
    #[inline]
    pub(super) fn time(&self, row: usize, which: usize) -> u128 {
        let low = self.rows[row][which];
        match self.above.cells.get(row) {
            None if low == u64::MAX => NEVER,
            None => self.unit.short(low),
            Some(above) => self.long_time(low, above[which]),
        }
    }

    #[inline]
    fn long_time(&self, low: u64, above: u32) -> u128 {
        let units = u128::from(above) << 64 | u128::from(low);
        // The run has checked that its times in attoseconds fit a row.
        if units == NEVER { NEVER } else { units.wrapping_mul(self.unit.attoseconds_each()) }
    }

    #[inline]
    fn instant(&self, row: usize, which: usize) -> Option<Instant> {
        let time = self.time(row, which);
        (time >> INSTANT_BITS == 0).then_some(Instant(time))
    }

    /// Returns the last departure of these requests in attoseconds, which may exceed the bits of a row.
    pub(super) fn last_departure(&self) -> Result<u128> {
        let units = |row: usize| {
            let above = self.above.at(row)[LEFT];
            u128::from(above) << 64 | u128::from(self.rows[row][LEFT])
        };
        self.unit.attoseconds((0..self.len()).map(units).filter(|&left| left != NEVER).max().unwrap_or(0))
    }

    /// Returns the arrivals of these rows, if they differ from the workload's.
    pub(super) fn arrivals(&self, rows: Range<usize>) -> Option<&[Instant]> {
        self.arrivals.as_ref().map(|arrivals| &arrivals[rows])
    }

    #[inline]
    pub(super) fn first_token(&self, row: usize) -> Option<Instant> {
        self.instant(row, FIRST_TOKEN)
    }

    /// Departure, whatever the status.
    #[inline]
    pub(super) fn left(&self, row: usize) -> Option<Instant> {
        self.instant(row, LEFT)
    }

    /// Departure, if it finished.
    #[inline]
    pub(super) fn finish(&self, row: usize) -> Option<Instant> {
        if self.statuses.at(row).is_none() { self.left(row) } else { None }
    }

    pub(super) fn keeps_arrivals(&self) -> bool {
        self.arrivals.is_some()
    }

    pub(super) fn keeps_hand_offs(&self) -> bool {
        self.keeps_hand_offs
    }

    /// Stores arrivals of the existing rows.
    pub(super) fn keep_arrivals(&mut self) {
        self.arrivals = Some(vec![Instant::ZERO; self.len()]);
    }

    pub(super) fn keeps_discards(&self) -> bool {
        self.keeps_discards
    }

    /// Stores numbers of discarded tokens.
    pub(crate) fn keep_discards(&mut self) {
        self.keeps_discards = true;
    }

    /// Whether numbers of verified and accepted drafts are stored.
    pub fn keeps_drafts(&self) -> bool {
        self.keeps_drafts
    }

    /// Stores numbers of verified and accepted drafts.
    pub(crate) fn keep_drafts(&mut self) {
        self.keeps_drafts = true;
    }

    /// Records the drafts of a request that leaves.
    pub(super) fn note_drafts(&mut self, row: usize, drafted: u32, accepted: u32) {
        let rows = self.len();
        self.drafted_tokens.set(row, drafted as i32, rows);
        self.accepted_tokens.set(row, accepted as i32, rows);
    }

    pub(super) fn keeps_retries(&self) -> bool {
        self.keeps_retries
    }

    /// Stores numbers of retries.
    pub(crate) fn keep_retries(&mut self) {
        self.keeps_retries = true;
    }

    /// Stores hand-offs.
    pub(crate) fn keep_hand_offs(&mut self) {
        self.keeps_hand_offs = true;
    }

    /// Sets the replica that serves most requests; all other replicas take memory.
    pub(super) fn served_by(&mut self, replica: u32) {
        self.replicas.usual = replica;
    }

    /// Tokens of the workload's output that the request of a row did not emit, because of the maximum length.
    #[inline]
    pub fn cut_tokens(&self, row: usize) -> i32 {
        self.cut_tokens.at(row)
    }

    /// Whether no output was cut.
    pub fn none_is_cut(&self) -> bool {
        self.cut_tokens.cells.is_empty()
    }

    /// Records that the output of a request is cut by `tokens` tokens.
    pub(super) fn cut(&mut self, row: usize, tokens: u32) {
        let rows = self.len();
        self.cut_tokens.set(row, tokens as i32, rows);
    }

    /// Writes the row of a request that leaves at `left`, or never.
    #[inline(always)]
    pub(super) fn leave<W: Width>(
        &mut self,
        row: usize,
        history: &History,
        replica: u32,
        status: Status,
        first_token: Instant,
        left: Instant,
    ) {
        self.write::<W>(row, [history.admitted.0, first_token.0, left.0, history.longest_gap.0]);
        self.replicas.set(row, replica, self.rows.len());
        let is_usual =
            status == Status::Finished && history.preemptions | history.cached_tokens == 0 && history.detour.is_none();
        if !is_usual {
            self.note(row, status);
            self.note_road(row, history);
        }
    }

    /// Writes the row of a request that is rejected immediately.
    pub(super) fn reject(&mut self, row: usize, replica: u32, arrival: Instant) {
        self.write::<Long>(row, [Instant::NEVER.0, Instant::NEVER.0, arrival.0, 0]);
        self.replicas.set(row, replica, self.rows.len());
        self.note(row, Status::Rejected);
    }

    #[inline(always)]
    fn write<W: Width>(&mut self, row: usize, times: [u128; 4]) {
        self.rows[row] = times.map(|time| time as u64);
        // With all lower bits set it would be mistaken for a time that never happened.
        let is_long = |time: u128| time >= u128::from(u64::MAX) && time != Instant::NEVER.0;
        if self.above.cells.is_empty() {
            if W::IS_SHORT || !times.into_iter().any(is_long) {
                return;
            }
            self.begin_above();
        }
        self.above.cells[row] = times.map(|time| (time >> 64) as u32);
    }

    #[cold]
    fn begin_above(&mut self) {
        // So far, only times that never happened have all bits set.
        let of_time = |low: u64| if low == u64::MAX { u32::MAX } else { 0 };
        self.above.cells = self.rows.iter().map(|row| row.map(of_time)).collect();
    }

    fn note(&mut self, row: usize, status: Status) {
        let rows = self.len();
        self.statuses.set(row, Some(status).filter(|&status| status != Status::Finished), rows);
    }

    /// Records the arrival of a request, if it differs from the workload's.
    pub(super) fn note_arrival(&mut self, row: usize, arrival: Instant) {
        if let Some(arrivals) = &mut self.arrivals {
            arrivals[row] = arrival;
        }
    }

    fn note_road(&mut self, row: usize, history: &History) {
        let rows = self.len();
        self.preemptions.set(row, history.preemptions, rows);
        self.cached_tokens.set(row, history.cached_tokens as i32, rows);
        self.discarded_tokens.set(row, history.discarded_tokens as i64, rows);
        self.retries.set(row, history.retries(), rows);
        if let Some(hand_off) = history.hand_off() {
            let of_row = HandOffRow { from: hand_off.from, prefilled: hand_off.prefilled, resumed: hand_off.resumed };
            self.hand_offs.set(row, of_row, rows);
        }
    }

    /// Copies the rows of `part`, in order, to `rows`; row `first` is the first one here.
    pub(crate) fn scatter(&mut self, part: &RequestRows, rows: &[u32], first: u32) {
        // Only the first rows of a part may have arrived by the horizon.
        let to = Scatter { rows: &rows[..part.len()], first };
        self.keeps_discards |= part.keeps_discards;
        self.keeps_drafts |= part.keeps_drafts;
        debug_assert!(self.unit == part.unit, "all replicas of a run use the same unit");
        to.column(&mut self.rows, &part.rows);
        let rows = self.len();
        if !(self.above.cells.is_empty() && part.above.cells.is_empty()) {
            self.scatter_above(part, &to);
        }
        self.statuses.scatter(&part.statuses, &to, rows);
        self.replicas.scatter(&part.replicas, &to, rows);
        self.preemptions.scatter(&part.preemptions, &to, rows);
        self.cached_tokens.scatter(&part.cached_tokens, &to, rows);
        self.discarded_tokens.scatter(&part.discarded_tokens, &to, rows);
        self.cut_tokens.scatter(&part.cut_tokens, &to, rows);
        self.drafted_tokens.scatter(&part.drafted_tokens, &to, rows);
        self.accepted_tokens.scatter(&part.accepted_tokens, &to, rows);
        self.retries.scatter(&part.retries, &to, rows);
        self.hand_offs.scatter(&part.hand_offs, &to, rows);
    }

    fn scatter_above(&mut self, part: &RequestRows, to: &Scatter) {
        for (place, &row) in to.rows.iter().enumerate() {
            let above = part.above.cells.get(place).copied().unwrap_or_default();
            let low = part.rows[place];
            let never = |which: usize| low[which] == u64::MAX && part.above.cells.is_empty();
            let times = std::array::from_fn(|which| {
                let above = if never(which) { u32::MAX } else { above[which] };
                u128::from(above) << 64 | u128::from(low[which])
            });
            self.write::<Long>((row - to.first) as usize, times);
        }
    }

    /// Whether the request of a row has left; unknown rows have not.
    pub(super) fn has_left(&self, row: usize) -> bool {
        row < self.len() && self.status(row) != Status::Awaited
    }

    /// Number of leading rows whose requests have left.
    pub(crate) fn left_first(&self) -> usize {
        let row = (0..self.len()).find(|&row| self.status(row) == Status::Awaited);
        row.unwrap_or(self.len())
    }

    /// Adds rows up to `rows`.
    pub(crate) fn extend_to(&mut self, rows: usize) {
        if self.rows.is_empty() {
            // Zeroed memory need not be touched.
            self.rows = vec![Row::default(); rows];
        } else {
            self.rows.resize(rows, Row::default());
        }
        self.above.resize(rows);
        self.statuses.resize(rows);
        self.replicas.resize(rows);
        self.preemptions.resize(rows);
        self.cached_tokens.resize(rows);
        self.discarded_tokens.resize(rows);
        self.cut_tokens.resize(rows);
        self.drafted_tokens.resize(rows);
        self.accepted_tokens.resize(rows);
        self.retries.resize(rows);
        self.hand_offs.resize(rows);
    }

    /// Removes and returns the first rows.
    pub(crate) fn take_first(&mut self, rows: usize) -> RequestRows {
        RequestRows {
            rows: take_first(&mut self.rows, rows),
            above: self.above.take_first(rows),
            unit: self.unit,
            statuses: self.statuses.take_first(rows),
            replicas: self.replicas.take_first(rows),
            preemptions: self.preemptions.take_first(rows),
            cached_tokens: self.cached_tokens.take_first(rows),
            discarded_tokens: self.discarded_tokens.take_first(rows),
            cut_tokens: self.cut_tokens.take_first(rows),
            keeps_discards: self.keeps_discards,
            drafted_tokens: self.drafted_tokens.take_first(rows),
            accepted_tokens: self.accepted_tokens.take_first(rows),
            keeps_drafts: self.keeps_drafts,
            retries: self.retries.take_first(rows),
            keeps_retries: self.keeps_retries,
            hand_offs: self.hand_offs.take_first(rows),
            keeps_hand_offs: self.keeps_hand_offs,
            arrivals: self.arrivals.as_mut().map(|arrivals| take_first(arrivals, rows)),
        }
    }
}

/// A column that takes no memory while all of its cells have the usual value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rare<T> {
    usual: T,
    cells: Vec<T>,
}

impl<T: Copy + PartialEq> Rare<T> {
    #[inline]
    pub(super) fn at(&self, row: usize) -> T {
        self.cells.get(row).copied().unwrap_or(self.usual)
    }

    /// Writes a cell that had the usual value, in a column of `rows` rows.
    #[inline]
    fn set(&mut self, row: usize, cell: T, rows: usize) {
        if cell == self.usual {
            return;
        }
        if self.cells.is_empty() {
            self.begin(rows);
        }
        self.cells[row] = cell;
    }

    #[cold]
    fn begin(&mut self, rows: usize) {
        self.cells = vec![self.usual; rows];
    }

    fn resize(&mut self, rows: usize) {
        if !self.cells.is_empty() {
            self.cells.resize(rows, self.usual);
        }
    }

    fn scatter(&mut self, part: &Rare<T>, to: &Scatter, rows: usize) {
        if part.cells.is_empty() && part.usual == self.usual {
            return;
        }
        for (place, &row) in to.rows.iter().enumerate() {
            self.set((row - to.first) as usize, part.at(place), rows);
        }
    }

    fn take_first(&mut self, rows: usize) -> Rare<T> {
        let cells = if self.cells.is_empty() { Vec::new() } else { take_first(&mut self.cells, rows) };
        Rare { usual: self.usual, cells }
    }

    /// Fills the cells from row `first` on; `to` has default values. Returns `Some` if all cells have this value.
    pub(super) fn fill(&self, first: usize, to: &mut [T]) -> Option<T>
    where
        T: Default,
    {
        if !self.cells.is_empty() {
            to.copy_from_slice(&self.cells[first..first + to.len()]);
            return None;
        }
        if self.usual != T::default() {
            to.fill(self.usual);
        }
        Some(self.usual)
    }
}
