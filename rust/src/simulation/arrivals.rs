//! The rows of a workload, in order of arrival.

use crate::clock::{Instant, Unit, all_arrival_nanoseconds};
use crate::workload::{Arrival, Workload};

/// The rows that have not arrived yet and do not depend on others.
pub(super) struct Arrivals {
    horizon: Option<Instant>,
    /// The time unit of the run, and its number of units per nanosecond.
    unit: Unit,
    nanosecond: u64,
    /// Number of rows of this part that may arrive by the horizon.
    pub(super) rows: usize,
    /// The next row, and its arrival.
    pub(super) next: usize,
    pub(super) at: Instant,
    /// Whether any row arrives after the horizon.
    pub(super) more_to_come: bool,
    /// Whether every arrival of this part fits 64 bits.
    pub(super) are_short: bool,
    /// Whether the rows have no optional columns.
    are_plain: bool,
    /// Arrivals of the present block of rows, in nanoseconds; unused if rows depend on others.
    block: [u64; BLOCK],
}

/// Number of arrivals that are read at once.
const BLOCK: usize = 64;

impl Arrivals {
    /// No rows are known yet.
    pub(super) fn new(horizon: Option<Instant>, unit: Unit) -> Arrivals {
        Arrivals {
            horizon,
            unit,
            nanosecond: unit.nanosecond(),
            rows: 0,
            next: 0,
            at: Instant::NEVER,
            more_to_come: false,
            are_short: false,
            are_plain: false,
            block: [0; BLOCK],
        }
    }

    /// Sets the next `rows` rows of a workload. Unless rows depend on others, all of them arrive by the horizon.
    pub(super) fn take(&mut self, workload: &Workload, rows: usize) {
        self.rows = rows;
        self.more_to_come |= rows < workload.len();
        self.next = 0;
        self.are_plain = !workload.has_options();
        let last = rows.checked_sub(1).map_or(Instant::ZERO, |last| workload.arrival_at(last));
        self.are_short = workload.flow.is_empty() && self.unit.count_until(last).is_short();
        self.find(workload);
    }

    /// The request of a row that arrives at `at`.
    pub(super) fn request(&self, row: usize, at: Instant, workload: &Workload) -> Arrival {
        if self.are_plain { workload.plain_request(row, at) } else { workload.request(row, at) }
    }

    /// Removes and returns the row that arrives now.
    pub(super) fn pop(&mut self, workload: &Workload) -> usize {
        let row = self.next;
        self.next += 1;
        self.find(workload);
        row
    }

    #[inline(always)]
    fn find(&mut self, workload: &Workload) {
        if !workload.flow.is_empty() {
            self.find_in_flow(workload);
        } else if self.next < self.rows {
            if self.next.is_multiple_of(BLOCK) {
                self.read_block(workload);
            }
            self.at = Instant(u128::from(self.block[self.next % BLOCK]) * u128::from(self.nanosecond));
        } else {
            self.at = Instant::NEVER;
        }
    }

    fn read_block(&mut self, workload: &Workload) {
        let end = self.rows.min(self.next + BLOCK);
        all_arrival_nanoseconds(&workload.arrival_s[self.next..end], &mut self.block);
    }

    /// Skips rows that arrive later.
    fn find_in_flow(&mut self, workload: &Workload) {
        while workload.flow.is_delayed(self.next) {
            self.next += 1;
        }
        self.at = if self.next < self.rows { workload.arrival_at(self.next) } else { Instant::NEVER };
        if self.at < Instant::NEVER && self.horizon.is_some_and(|horizon| self.at > horizon) {
            self.more_to_come = true;
            self.at = Instant::NEVER;
        }
    }
}
