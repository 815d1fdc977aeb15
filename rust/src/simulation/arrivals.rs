//! The rows of a workload, in the order in which they arrive.

use crate::clock::{Instant, Unit, all_arrival_nanoseconds};
use crate::workload::{Arrival, Workload};

/// The rows that are still to arrive and wait for no other.
pub(super) struct Arrivals {
    horizon: Option<Instant>,
    /// What the run counts its instants in, and how many of it are a nanosecond.
    unit: Unit,
    nanosecond: u64,
    /// Rows of this part that arrive by the horizon, or may.
    pub(super) rows: usize,
    /// The next of them, and when it arrives.
    pub(super) next: usize,
    pub(super) at: Instant,
    /// Does one arrive after the horizon?
    pub(super) more_to_come: bool,
    /// Do 64 bits hold when each row of this part arrives?
    pub(super) are_short: bool,
    /// Do the rows have only what every row has?
    are_plain: bool,
    /// The arrivals of the block of rows that the next one belongs to, in nanoseconds; where none waits for another.
    block: [u64; BLOCK],
}

/// Arrivals that are read at once.
const BLOCK: usize = 64;

impl Arrivals {
    /// No row is known yet.
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

    /// The first `rows` of a workload come next. If none waits for another, they all arrive by the horizon.
    pub(super) fn take(&mut self, workload: &Workload, rows: usize) {
        self.rows = rows;
        self.more_to_come |= rows < workload.len();
        self.next = 0;
        self.are_plain = !workload.has_options();
        let last = rows.checked_sub(1).map_or(Instant::ZERO, |last| workload.arrival_at(last));
        self.are_short = workload.flow.is_empty() && self.unit.count_until(last).is_short();
        self.find(workload);
    }

    /// The request of a row, which arrives at an instant.
    #[inline(always)]
    pub(super) fn request(&self, row: usize, at: Instant, workload: &Workload) -> Arrival {
        if self.are_plain { workload.plain_request(row, at) } else { workload.request(row, at) }
    }

    /// The row that arrives now.
    #[inline(always)]
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

    #[inline(never)]
    fn read_block(&mut self, workload: &Workload) {
        let end = self.rows.min(self.next + BLOCK);
        all_arrival_nanoseconds(&workload.arrival_s[self.next..end], &mut self.block);
    }

    /// Passes over rows that come later.
    #[inline(never)]
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
