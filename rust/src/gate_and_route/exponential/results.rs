//! Results: a row per request, averages, samples, revenue.

use super::tally::ByStage;
use crate::clock::{Instant, Span};
use crate::error::{Kind, Result};
use crate::results::{NO_REPLICA, Status, columns};

columns! {
    /// One row per request that arrived by the horizon; seconds, NaN if there is no value.
    ExponentialColumns,
    /// A row of [`ExponentialColumns`].
    ExponentialRow {
        /// Replica of the decode, or of the prefill if there was no decode, or [`NO_REPLICA`].
        replica: u32 = NO_REPLICA,
        /// [`Status`] as a number.
        status: u8 = Status::Unfinished as u8,
        /// Arrival.
        arrival_s: f64 = f64::NAN,
        /// Start of the prefill.
        admitted_s: f64 = f64::NAN,
        /// End of the prefill.
        first_token_s: f64 = f64::NAN,
        /// End of the decode.
        finish_s: f64 = f64::NAN,
        /// Departure, whatever the status.
        left_s: f64 = f64::NAN,
        /// Admitted − arrival.
        queue_s: f64 = f64::NAN,
        /// First token − arrival.
        ttft_s: f64 = f64::NAN,
        /// Finish − arrival.
        e2e_s: f64 = f64::NAN,
        /// Start of the decode − end of the prefill.
        handoff_s: f64 = f64::NAN,
        /// Replica of the prefill, or [`NO_REPLICA`].
        prefill_replica: u32 = NO_REPLICA,
    }
}

/// State of the cluster at an instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageSample {
    /// Instant.
    pub at: Instant,
    /// Requests by class and stage.
    pub numbers: ByStage<u64>,
    /// Revenue from finished requests so far, in units of 10⁻¹⁸.
    pub bundled: u128,
    /// Revenue from completed prefills and decodes so far.
    pub separate: u128,
}

/// Results of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExponentialResults {
    /// One row per request.
    pub requests: ExponentialColumns,
    /// Samples in order of time, each after all events of its instant; the last one is the end of the run.
    pub samples: Vec<StageSample>,
    /// Start of the averages.
    pub warmup: Instant,
    /// End of the run.
    pub end: Instant,
    /// ∫ number dt from the warm-up to the end, in attoseconds; 0 if the run ended first.
    pub areas: ByStage<u128>,
    /// Revenue before the warm-up: bundled and separate.
    pub revenue_before: (u128, u128),
    /// ∫ number of requests in the system dt over the whole run, in attoseconds (left side of L9).
    pub in_system: u128,
    /// Σ (left − arrival), where unfinished requests leave at the end, in attoseconds (right side of L9).
    pub sojourn: u128,
    /// Requests by [`Status`].
    pub by_status: [u64; 4],
    /// Abandoned requests that had completed their prefill.
    pub abandoned_decodes: u64,
    /// Number of instants with an event.
    pub events: u64,
}

/// Times of a request that leaves; `NEVER` for events that did not happen.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotRow {
    pub(super) id: u32,
    pub(super) arrival: Instant,
    pub(super) admitted: Instant,
    pub(super) prefilled: Instant,
    pub(super) decodes: Instant,
    pub(super) left: Instant,
    pub(super) prefill_replica: u32,
    pub(super) replica: u32,
}

impl ExponentialResults {
    pub(super) fn new(rows: usize, warmup: Instant) -> ExponentialResults {
        let requests = ExponentialColumns::new(rows);
        ExponentialResults { requests, warmup, ..ExponentialResults::default() }
    }

    /// Number of requests that have left.
    pub(super) fn left(&self) -> u64 {
        self.by_status.iter().sum()
    }

    /// Writes the row of a request.
    pub(super) fn write(&mut self, row: &SlotRow, status: Status) {
        let at = |instant: Instant| if instant == Instant::NEVER { f64::NAN } else { instant.seconds() };
        let between = |from: Instant, to: Instant| {
            if to == Instant::NEVER { f64::NAN } else { to.since(from).seconds() }
        };
        let finish = if status == Status::Finished { row.left } else { Instant::NEVER };
        let left_s = at(row.left);
        let cells = ExponentialRow {
            replica: row.replica,
            status: status as u8,
            arrival_s: row.arrival.seconds(),
            admitted_s: at(row.admitted),
            first_token_s: at(row.prefilled),
            finish_s: if status == Status::Finished { left_s } else { f64::NAN },
            left_s,
            queue_s: between(row.arrival, row.admitted),
            ttft_s: between(row.arrival, row.prefilled),
            e2e_s: between(row.arrival, finish),
            handoff_s: between(row.prefilled, row.decodes),
            prefill_replica: row.prefill_replica,
        };
        self.requests.write(row.id as usize, cells);
        self.by_status[status as usize] += 1;
        self.abandoned_decodes += u64::from(status == Status::Abandoned && row.prefilled != Instant::NEVER);
        if row.left != Instant::NEVER {
            // The sum fits: it equals the integral of the number in the system, whose overflow is checked.
            self.sojourn = self.sojourn.wrapping_add(row.left.since(row.arrival).0);
        }
    }
}

/// Collects the samples.
pub(super) struct StageSampler {
    pub(super) next: Instant,
    interval: Span,
    automatic: bool,
}

/// Number of samples of an automatic timeline, whose length is taken from the arrivals.
const SAMPLES: u128 = 500;
const MAX_NUMBERS: usize = 50_000_000;

impl StageSampler {
    /// Samples at this interval; `None`: about 500 times before `last`, with the interval doubled when twice as many
    /// were taken.
    pub(super) fn new(interval: Option<Span>, last: Instant) -> StageSampler {
        let automatic = Span((last.0 / SAMPLES).max(crate::clock::NANOSECOND));
        let span = interval.unwrap_or(automatic);
        StageSampler { next: Instant(span.0), interval: span, automatic: interval.is_none() }
    }

    pub(super) fn take(&mut self, sample: StageSample, samples: &mut Vec<StageSample>) -> Result<()> {
        if (samples.len() + 1) * sample.numbers.len() > MAX_NUMBERS {
            let message = format!("timeline_s is too short: the run exceeds {} samples", samples.len());
            return Err(Kind::TooMuch(message).into());
        }
        samples.push(sample);
        if self.automatic && samples.len() as u128 >= 2 * SAMPLES {
            let mut row = 0;
            samples.retain(|_| {
                row += 1;
                row % 2 == 0
            });
            self.interval = self.interval.times(2)?;
        }
        self.next = samples.last().map_or(Instant::ZERO, |sample| sample.at).after(self.interval)?;
        Ok(())
    }
}
