//! Options of a run, and the watch that can stop it.

use std::num::{NonZeroU64, NonZeroUsize};

use crate::clock::{Instant, Span};
use crate::error::Result;
use crate::workload::Workload;

/// Options of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The last instant; its events still happen. `None`: until no event is left.
    pub horizon: Option<Instant>,
    /// Ids of the measured requests; others are excluded from histograms.
    pub measured: std::ops::Range<u32>,
    /// Sampling of the timeline.
    pub timeline: Timeline,
    /// Gaps between tokens for which the gaps at or below are counted exactly, besides the histogram.
    pub itl_limits: Vec<Span>,
    /// Record a row per stretch.
    pub iterations: bool,
    /// Record the rows of each batch as well.
    pub batches: bool,
    /// Maximum number of requests in flight. Above it, due requests are sent in order as others leave. Their arrival
    /// is the instant at which they are sent. `None`: unlimited.
    pub max_in_flight: Option<NonZeroU64>,
    /// Run every iteration as a stretch of its own.
    pub stepping: bool,
    /// Count time in attoseconds and 128 bits, even if a larger unit and 64 bits suffice. Results do not depend on
    /// it.
    pub in_attoseconds: bool,
    /// Number of threads; `None`: one per core. Results do not depend on it.
    pub threads: Option<NonZeroUsize>,
}

/// Sampling of the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeline {
    /// At this interval.
    Every(Span),
    /// About 500 samples over the span of the arrivals. Whenever there are twice as many, every second one is
    /// dropped.
    Automatic,
}

impl Options {
    /// All requests measured, nothing optional recorded, no horizon.
    pub fn all(workload: &Workload) -> Options {
        Options {
            horizon: None,
            measured: 0..workload.len() as u32,
            timeline: Timeline::Automatic,
            itl_limits: Vec::new(),
            iterations: false,
            batches: false,
            max_in_flight: None,
            stepping: false,
            in_attoseconds: false,
            threads: None,
        }
    }

    /// Whether the arrival of a request may differ from its row.
    pub(super) fn decides_arrivals(&self, workload: &Workload) -> bool {
        self.max_in_flight.is_some() || !workload.flow.is_empty()
    }

    /// The last arrival by the horizon.
    pub(super) fn last_arrival(&self, workload: &Workload) -> Instant {
        self.rows(workload).checked_sub(1).map_or(Instant::ZERO, |last| workload.arrival_at(last))
    }

    /// Number of rows that arrive by the horizon, unless they depend on others. Arrivals are sorted.
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

/// A progress callback that can stop the run with an error.
pub trait Watch {
    /// Reports that `left` of `requests` requests have left.
    fn poll(&mut self, left: u64, requests: u64) -> Result<()>;
}

/// No callback.
impl Watch for () {
    fn poll(&mut self, _left: u64, _requests: u64) -> Result<()> {
        Ok(())
    }
}
