//! Options of a run, and the watch that can stop it.

use std::num::{NonZeroU64, NonZeroUsize};

use crate::clock::{Instant, Span};
use crate::error::Result;
use crate::workload::Workload;

/// How a run is done and what of it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The last instant; everything at it still happens. `None`: until all is done.
    pub horizon: Option<Instant>,
    /// Requests that count, by id; the others are in no histogram.
    pub measured: std::ops::Range<u32>,
    /// Time between two samples of the timeline.
    pub timeline: Timeline,
    /// Keep a row for each stretch.
    pub iterations: bool,
    /// Keep the rows of each batch as well.
    pub batches: bool,
    /// A request that is due while so many are in flight is sent when one of them has left, in the order in which they
    /// were due; its arrival is the instant at which it is sent. `None`: each is sent when it is due.
    pub max_in_flight: Option<NonZeroU64>,
    /// Advance one iteration at a time.
    pub stepping: bool,
    /// Count time in attoseconds, and in 128 bits, even where another unit and 64 bits would do. No result depends on it.
    pub in_attoseconds: bool,
    /// Threads that may be used; `None`: one for each core. No result depends on it.
    pub threads: Option<NonZeroUsize>,
}

/// How often the timeline is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeline {
    /// At this interval.
    Every(Span),
    /// About 500 times in the span of the arrivals; half as often whenever twice as many samples were taken.
    Automatic,
}

impl Options {
    /// All requests measured, nothing optional kept, no horizon.
    pub fn all(workload: &Workload) -> Options {
        Options {
            horizon: None,
            measured: 0..workload.len() as u32,
            timeline: Timeline::Automatic,
            iterations: false,
            batches: false,
            max_in_flight: None,
            stepping: false,
            in_attoseconds: false,
            threads: None,
        }
    }

    /// May a request arrive at another instant than its row says?
    pub(super) fn decides_arrivals(&self, workload: &Workload) -> bool {
        self.max_in_flight.is_some() || !workload.flow.is_empty()
    }

    /// The last arrival by the horizon.
    pub(super) fn last_arrival(&self, workload: &Workload) -> Instant {
        self.rows(workload).checked_sub(1).map_or(Instant::ZERO, |last| workload.arrival_at(last))
    }

    /// The rows that arrive by the horizon, unless they wait for others: arrivals are sorted.
    pub(super) fn rows(&self, workload: &Workload) -> usize {
        let Some(horizon) = self.horizon else { return workload.len() };
        let (mut low, mut high) = (0, workload.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if workload.arrival_at(middle) <= horizon { low = middle + 1 } else { high = middle }
        }
        low
    }
}

/// Is told now and then how far the run is, and can stop it with an error.
pub trait Watch {
    /// `left` of `requests` have left.
    fn poll(&mut self, left: u64, requests: u64) -> Result<()>;
}

/// No watch.
impl Watch for () {
    fn poll(&mut self, _left: u64, _requests: u64) -> Result<()> {
        Ok(())
    }
}
