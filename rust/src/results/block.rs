//! Column cells of a block of rows.

use std::borrow::Cow;
use std::cell::OnceCell;

use super::columns::NO_REPLICA;
use super::rows::{ADMITTED, FIRST_TOKEN, LEFT, LONGEST_GAP, NEVER, RequestRows};
use super::short::Short;
use super::times::Times;
use crate::clock::{Instant, Span, arrival_nanoseconds_as_doubles};
use crate::workload::Workload;

/// Rows that are converted together, and the workload of their requests.
pub(super) struct Block<'a> {
    rows: &'a RequestRows,
    workload: &'a Workload<'a>,
    first: usize,
    last: usize,
    // Values shared by several columns are computed once.
    nanoseconds: OnceCell<Option<Vec<f64>>>,
    short: OnceCell<Option<Short<'a>>>,
    // Used if times are not short.
    arrivals: OnceCell<Times>,
    admitted: OnceCell<Times>,
    first_token: OnceCell<Times>,
    left: OnceCell<Times>,
    /// Used if not all requests that left have finished.
    finish: OnceCell<Option<Times>>,
}

impl<'a> Block<'a> {
    pub(super) fn new(rows: &'a RequestRows, workload: &'a Workload<'a>, first: usize) -> Block<'a> {
        let last = rows.len().min(first + BLOCK);
        let (nanoseconds, short, arrivals) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        let (admitted, first_token, left, finish) =
            (OnceCell::new(), OnceCell::new(), OnceCell::new(), OnceCell::new());
        Block { rows, workload, first, last, nanoseconds, short, arrivals, admitted, first_token, left, finish }
    }

    /// Returns the arrivals in whole nanoseconds; `None` if they are not those of the workload, or not whole.
    fn nanoseconds(&self) -> Option<&[f64]> {
        let nanoseconds = self.nanoseconds.get_or_init(|| {
            let is_in_workload = self.rows.arrivals(self.first..self.last).is_none();
            is_in_workload
                .then(|| arrival_nanoseconds_as_doubles(&self.workload.arrival_s[self.first..self.last]))
                .flatten()
        });
        nanoseconds.as_deref()
    }

    /// Returns the rows if all of their times are short.
    fn short(&self) -> Option<&Short<'a>> {
        let short = self.short.get_or_init(|| {
            let rows = self.rows.low_parts(self.first..self.last)?;
            Short::of(rows, self.rows.unit(), self.nanoseconds()?)
        });
        short.as_ref()
    }

    fn arrivals(&self) -> &Times {
        self.arrivals.get_or_init(|| {
            if let Some(arrivals) = self.rows.arrivals(self.first..self.last) {
                return Times::of_instants(arrivals.iter().copied());
            }
            match self.nanoseconds() {
                Some(nanoseconds) => Times::of_nanoseconds(nanoseconds),
                None => Times::of_instants((self.first..self.last).map(|row| self.workload.arrival_at(row))),
            }
        })
    }

    fn admitted(&self) -> &Times {
        self.admitted.get_or_init(|| self.rows.times::<ADMITTED>(self.first..self.last))
    }

    fn first_token(&self) -> &Times {
        self.first_token.get_or_init(|| self.rows.times::<FIRST_TOKEN>(self.first..self.last))
    }

    fn left(&self) -> &Times {
        self.left.get_or_init(|| self.rows.times::<LEFT>(self.first..self.last))
    }

    fn finish(&self) -> &Times {
        let finish = self.finish.get_or_init(|| {
            let unfinished = self.rows.not_finished(self.first..self.last)?;
            let mut finish = self.left().clone();
            finish.forget(unfinished);
            Some(finish)
        });
        finish.as_ref().unwrap_or_else(|| self.left())
    }

    pub(super) fn replica(&self, cells: &mut [u32]) -> usize {
        match self.rows.replicas.fill(self.first, cells) {
            Some(every) if every == NO_REPLICA => cells.len(),
            Some(_) => 0,
            None => count_without_replica(cells),
        }
    }

    pub(super) fn status(&self, cells: &mut [u8]) -> usize {
        self.rows.fill_statuses(self.first, cells);
        0
    }

    pub(super) fn arrival_s(&self, cells: &mut [f64]) -> usize {
        let Some(nanoseconds) = self.nanoseconds() else { return self.arrivals().fill_seconds(cells) };
        for (cell, &nanoseconds) in cells.iter_mut().zip(nanoseconds) {
            // Both numbers are exact, so the division rounds only once.
            *cell = nanoseconds / 1e9;
        }
        0
    }

    pub(super) fn admitted_s(&self, cells: &mut [f64]) -> usize {
        if let Some(short) = self.short() {
            return short.fill::<ADMITTED>(cells);
        }
        self.admitted().fill_seconds(cells)
    }

    pub(super) fn first_token_s(&self, cells: &mut [f64]) -> usize {
        if let Some(short) = self.short() {
            return short.fill::<FIRST_TOKEN>(cells);
        }
        self.first_token().fill_seconds(cells)
    }

    pub(super) fn finish_s(&self, cells: &mut [f64]) -> usize {
        if let Some(short) = self.short() {
            return short.fill::<LEFT>(cells);
        }
        self.finish().fill_seconds(cells)
    }

    pub(super) fn left_s(&self, cells: &mut [f64]) -> usize {
        if let Some(short) = self.short() {
            return short.fill::<LEFT>(cells);
        }
        self.left().fill_seconds(cells)
    }

    pub(super) fn queue_s(&self, cells: &mut [f64]) -> usize {
        if let Some(short) = self.short() {
            return short.fill_since_arrival::<ADMITTED>(cells);
        }
        self.admitted().fill_seconds_since(self.arrivals(), cells)
    }

    pub(super) fn ttft_s(&self, cells: &mut [f64]) -> usize {
        if let Some(short) = self.short() {
            return short.fill_since_arrival::<FIRST_TOKEN>(cells);
        }
        self.first_token().fill_seconds_since(self.arrivals(), cells)
    }

    pub(super) fn tpot_s(&self, cells: &mut [f64]) -> usize {
        if let Some(short) = self.short() {
            return short.fill_time_per_token(&self.outputs(), cells);
        }
        let outputs = self.outputs();
        let rows = (self.first..self.last).zip(&*outputs);
        // In most blocks every request has finished.
        let each: Vec<(u64, u64)> = if self.first_token().are_usual() && self.finish().are_usual() {
            let span = |row| self.rows.time(row, LEFT).wrapping_sub(self.rows.time(row, FIRST_TOKEN));
            rows.map(|(row, &output_tokens)| parts(time_per_token(span(row), output_tokens))).collect()
        } else {
            let emitted = |row| self.rows.finish(row).zip(self.rows.first_token(row));
            let span = |row| emitted(row).map(|(last, first_token)| last.since(first_token).0);
            let time = |span, output_tokens| parts(time_per_token(span, output_tokens));
            rows.map(|(row, &output_tokens)| span(row).map_or(parts(NEVER), |span| time(span, output_tokens))).collect()
        };
        Times::of(each.iter().copied()).fill_seconds(cells)
    }

    /// Returns the lengths of the outputs, as emitted or planned.
    fn outputs(&self) -> Cow<'_, [i32]> {
        let all = &self.workload.output_tokens[self.first..self.last];
        if self.rows.none_is_cut() {
            return Cow::Borrowed(all);
        }
        Cow::Owned((self.first..).zip(all).map(|(row, &tokens)| tokens - self.rows.cut_tokens(row)).collect())
    }

    pub(super) fn max_itl_s(&self, cells: &mut [f64]) -> usize {
        if let Some(short) = self.short() {
            return short.fill_longest_gap(cells);
        }
        self.rows.times::<LONGEST_GAP>(self.first..self.last).fill_seconds(cells);
        let absent = cells.iter().filter(|&&gap_s| gap_s == 0.0).count();
        if absent > 0 {
            cells.iter_mut().filter(|gap_s| **gap_s == 0.0).for_each(|gap_s| *gap_s = f64::NAN);
        }
        absent
    }

    pub(super) fn e2e_s(&self, cells: &mut [f64]) -> usize {
        if let Some(short) = self.short() {
            return short.fill_since_arrival::<LEFT>(cells);
        }
        self.finish().fill_seconds_since(self.arrivals(), cells)
    }

    pub(super) fn preemptions(&self, cells: &mut [u32]) -> usize {
        self.rows.preemptions.fill(self.first, cells);
        0
    }

    pub(super) fn cached_tokens(&self, cells: &mut [i32]) -> usize {
        self.rows.cached_tokens.fill(self.first, cells);
        0
    }

    pub(super) fn discarded_tokens(&self, cells: &mut [i64]) -> usize {
        self.rows.discarded_tokens.fill(self.first, cells);
        0
    }

    pub(super) fn drafted_tokens(&self, cells: &mut [i32]) -> usize {
        self.rows.drafted_tokens.fill(self.first, cells);
        0
    }

    pub(super) fn accepted_tokens(&self, cells: &mut [i32]) -> usize {
        self.rows.accepted_tokens.fill(self.first, cells);
        0
    }

    pub(super) fn retries(&self, cells: &mut [u32]) -> usize {
        self.rows.retries.fill(self.first, cells);
        0
    }

    pub(super) fn elapsed_s(&self, cells: &mut [f64]) -> usize {
        self.fill_each(cells, |row| {
            let (last, named) = (self.rows.finish(row)?, self.workload.arrival_at(row));
            (last >= named).then(|| last.since(named))
        })
    }

    pub(super) fn prefill_replica(&self, cells: &mut [u32]) -> usize {
        for (row, cell) in (self.first..).zip(cells.iter_mut()) {
            *cell = self.rows.hand_offs.at(row).from;
        }
        count_without_replica(cells)
    }

    pub(super) fn prefilled_s(&self, cells: &mut [f64]) -> usize {
        self.fill_each(cells, |row| {
            let prefilled = self.rows.hand_offs.at(row).prefilled;
            (prefilled != Instant::NEVER).then_some(Span(prefilled.0))
        })
    }

    pub(super) fn handoff_s(&self, cells: &mut [f64]) -> usize {
        self.fill_each(cells, |row| {
            let hand_off = self.rows.hand_offs.at(row);
            (hand_off.resumed != Instant::NEVER).then(|| hand_off.resumed.since(hand_off.prefilled))
        })
    }

    /// Fills the cells of a rare column with seconds. Returns the number of empty cells.
    fn fill_each(&self, cells: &mut [f64], time: impl Fn(usize) -> Option<Span>) -> usize {
        for (row, cell) in (self.first..).zip(cells.iter_mut()) {
            *cell = time(row).map_or(f64::NAN, Span::seconds);
        }
        cells.iter().filter(|cell| cell.is_nan()).count()
    }
}

fn count_without_replica(cells: &[u32]) -> usize {
    cells.iter().filter(|&&replica| replica == NO_REPLICA).count()
}

/// Splits a time into its low 64 bits and the bits above.
#[inline]
pub(super) fn parts(time: u128) -> (u64, u64) {
    (time as u64, (time >> 64) as u64)
}

/// Returns the time from the first token to the last per token after the first, rounded down; `NEVER` if there are no
/// such tokens.
#[inline]
pub(super) fn time_per_token(span: u128, output_tokens: i32) -> u128 {
    let steps = u64::from(output_tokens as u32 - 1);
    match u64::try_from(span) {
        _ if steps == 0 => NEVER,
        // Most spans fit 64 bits, for which division is much cheaper.
        Ok(short) => u128::from(short / steps),
        Err(_) => span / u128::from(steps),
    }
}

/// Rows per block, so that their data stay in the L1 cache.
pub(super) const BLOCK: usize = 1 << 9;
