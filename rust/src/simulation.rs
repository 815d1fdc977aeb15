//! In which order does everything happen?
//!
//! [`simulate`] is a function: a workload and an engine in, results out. At one instant (rule 4): iterations end, then
//! patience runs out, then requests arrive one by one, then new batches are formed; within a kind, lower request id first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::{Instant, NANOSECOND, Span, product};
use crate::engine::EngineParts;
use crate::error::{Error, Result};
use crate::findings;
use crate::replica::Replica;
use crate::request::Slot;
use crate::results::{Recorder, Results};
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
    /// Advance one iteration at a time.
    pub stepping: bool,
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
            stepping: false,
        }
    }
}

/// Is told now and then how far the run is, and can stop it with an error.
pub trait Watch {
    /// `left` of `requests` have left.
    fn poll(&mut self, left: u64, requests: u64) -> Result<()>;
}

/// Nobody watches.
impl Watch for () {
    fn poll(&mut self, _left: u64, _requests: u64) -> Result<()> {
        Ok(())
    }
}

/// Replays a workload through one replica of an engine.
pub fn simulate(workload: &Workload, engine: EngineParts, options: &Options, watch: &mut dyn Watch) -> Result<Results> {
    workload.check()?;
    let replica = Replica::new(0, engine, workload.class_count, options.measured.clone(), options.stepping);
    Run::new(workload, replica, options)?.complete(watch)
}

struct Run<'a> {
    workload: &'a Workload<'a>,
    options: &'a Options,
    replica: Replica,
    results: Recorder,
    /// Rows that arrive by the horizon.
    rows: usize,
    /// The next row to arrive, and when it does.
    next_row: usize,
    next_arrival: Instant,
    patience: BinaryHeap<Reverse<(Instant, u32, u32)>>,
    now: Instant,
    in_system: u64,
    in_system_area: u128,
    waiting_at_last_arrival: u64,
    stalled: bool,
    sampler: Sampler,
}

/// Events between two polls: often enough for Ctrl-C, rarely enough to cost nothing.
const POLL_EVERY: u32 = 1 << 10;

impl<'a> Run<'a> {
    fn new(workload: &'a Workload<'a>, replica: Replica, options: &'a Options) -> Result<Run<'a>> {
        let by_horizon = |horizon| {
            let mut rows = 0..workload.len();
            let mut size = rows.len();
            // The first row after the horizon: arrivals are sorted.
            while size > 0 {
                let middle = rows.start + size / 2;
                if workload.arrival_at(middle) <= horizon {
                    rows.start = middle + 1;
                    size -= size / 2 + 1;
                } else {
                    size /= 2;
                }
            }
            rows.start
        };
        let rows = options.horizon.map_or(workload.len(), by_horizon);
        let first = if rows > 0 { workload.arrival_at(0) } else { Instant::NEVER };
        Ok(Run {
            workload,
            options,
            replica,
            results: Recorder::new(rows, workload.class_count, options.iterations, options.batches),
            rows,
            next_row: 0,
            next_arrival: first,
            patience: BinaryHeap::new(),
            now: Instant::ZERO,
            in_system: 0,
            in_system_area: 0,
            waiting_at_last_arrival: 0,
            stalled: false,
            sampler: Sampler::new(workload, rows, options)?,
        })
    }

    fn complete(mut self, watch: &mut dyn Watch) -> Result<Results> {
        let mut countdown = 0;
        loop {
            if countdown == 0 {
                countdown = POLL_EVERY;
                watch.poll(self.results.left(), self.rows as u64)?;
            }
            countdown -= 1;
            let instant = self.next_instant();
            if instant == Instant::NEVER {
                // Who arrives after the horizon is still to come.
                if self.rows == self.workload.len() && self.drain()? {
                    continue;
                }
                break;
            }
            if self.options.horizon.is_some_and(|horizon| instant > horizon) {
                break;
            }
            if instant > self.sampler.next {
                self.sampler.sample_before(instant, &self.replica, &mut self.results)?;
            }
            self.happen(instant)?;
        }
        self.finish()
    }

    #[inline]
    fn next_instant(&mut self) -> Instant {
        let others = self.replica.next_instant().min(self.next_arrival);
        // The patience of who has been admitted is no event any more.
        while let Some(&Reverse((at, id, slot))) = self.patience.peek() {
            if at >= others || self.replica.awaits_admission(Slot(slot), id) {
                return others.min(at);
            }
            self.patience.pop();
        }
        others
    }

    /// Everything that happens at one instant, in the order of rule 4.
    #[inline]
    fn happen(&mut self, instant: Instant) -> Result<()> {
        let span = instant.since(self.now);
        let area = product(span.0, u128::from(self.in_system))?;
        self.in_system_area =
            self.in_system_area.checked_add(area).ok_or_else(|| Error::overflow("∫ number in system dt"))?;
        self.now = instant;
        if !self.replica.is_idle() && self.replica.next_instant() == instant {
            let before = self.results.left();
            self.replica.settle(&mut self.results)?;
            self.in_system -= self.results.left() - before;
        }
        if !self.patience.is_empty() {
            self.lose_patience(instant)?;
        }
        while self.next_arrival == instant {
            self.arrive(instant)?;
        }
        if !self.patience.is_empty() {
            // Who arrived without any patience leaves before a batch is formed.
            self.lose_patience(instant)?;
        }
        if self.replica.is_idle() && !self.replica.is_empty() {
            self.replica.form(instant, false)?;
        }
        Ok(())
    }

    fn lose_patience(&mut self, instant: Instant) -> Result<()> {
        while let Some(&Reverse((at, id, slot))) = self.patience.peek() {
            if at > instant {
                break;
            }
            self.patience.pop();
            if self.replica.abandon(Slot(slot), id, instant, &mut self.results)? {
                self.in_system -= 1;
            }
        }
        Ok(())
    }

    #[inline]
    fn arrive(&mut self, instant: Instant) -> Result<()> {
        let arrival = self.workload.request(self.next_row, instant);
        if let Some(slot) = self.replica.arrive(arrival, &mut self.results)? {
            self.in_system += 1;
            if let Some(patience) = self.workload.patience(self.next_row) {
                self.patience.push(Reverse((instant.after(patience)?, arrival.id, slot.0)));
            }
        }
        self.next_row += 1;
        if self.next_row < self.rows {
            self.next_arrival = self.workload.arrival_at(self.next_row);
        } else {
            self.next_arrival = Instant::NEVER;
            self.waiting_at_last_arrival = self.replica.waiting();
        }
        Ok(())
    }

    /// Nothing is left to happen: whoever still holds requests is asked once more (rule 5).
    fn drain(&mut self) -> Result<bool> {
        if self.replica.is_empty() {
            return Ok(false);
        }
        let is_first = self.results.results.drained.is_empty();
        let here = if is_first { self.replica.ids() } else { Vec::new() };
        let runs = self.replica.form(self.now, true)?;
        if runs && is_first {
            self.results.results.drained = here;
        }
        self.stalled = !runs && self.replica.next_instant() == Instant::NEVER;
        Ok(!self.stalled)
    }

    fn finish(mut self) -> Result<Results> {
        let goes_on = self.next_instant() < Instant::NEVER;
        let end = match self.options.horizon {
            Some(horizon) if goes_on => horizon,
            _ => self.now,
        };
        // At the horizon the number in the system falls at the ends of the iterations before it.
        self.sampler.sample_before(end, &self.replica, &mut self.results)?;
        let before = self.results.left();
        self.replica.stop(self.options.horizon, &mut self.results)?;
        debug_assert_eq!(before, self.results.left(), "a stretch ends with the first completion in it");
        let rest = product(end.since(self.now).0, u128::from(self.in_system))?;
        let unfinished = self.unfinished_sojourn(end)?;
        let by_status = self.results.results.totals.by_status;
        self.results.results.findings = findings::of_run(&findings::Facts {
            by_status,
            rejections: &self.results.rejections,
            most_preempted: self.replica.most_preempted(),
            waiting_at_last_arrival: self.waiting_at_last_arrival,
            stalled: self.stalled,
            drained: self.results.results.drained.len(),
            work: &self.results.results.work,
            token_budget: self.replica.token_budget(),
            iterations: self.results.results.totals.iterations,
        });
        let sojourn = self.results.sojourn().checked_add(unfinished);
        let totals = &mut self.results.results.totals;
        totals.end = end;
        totals.in_system =
            self.in_system_area.checked_add(rest).ok_or_else(|| Error::overflow("∫ number in system dt"))?;
        totals.sojourn = sojourn.ok_or_else(|| Error::overflow("the sum of all times in the system"))?;
        Ok(self.results.results)
    }

    /// Σ (end − arrival) over the unfinished.
    fn unfinished_sojourn(&self, end: Instant) -> Result<u128> {
        let status = &self.results.results.requests.status;
        let mut sum = 0_u128;
        for row in (0..self.rows).filter(|&row| status[row] == crate::results::Status::Unfinished as u8) {
            let span = end.since(self.workload.arrival_at(row));
            sum = sum.checked_add(span.0).ok_or_else(|| Error::overflow("the sum of all times in the system"))?;
        }
        Ok(sum)
    }
}

/// Takes the samples of the timeline.
struct Sampler {
    next: Instant,
    interval: Span,
    automatic: bool,
}

/// Samples of an automatic timeline when the span of the arrivals tells the length of the run.
const SAMPLES: u128 = 500;

impl Sampler {
    fn new(workload: &Workload, rows: usize, options: &Options) -> Result<Sampler> {
        let last = if rows > 0 { workload.arrival_at(rows - 1) } else { Instant::ZERO };
        let (interval, automatic) = match options.timeline {
            Timeline::Every(interval) => (interval, false),
            Timeline::Automatic => (Span((last.0 / SAMPLES).max(NANOSECOND)), true),
        };
        Ok(Sampler { next: Instant::ZERO.after(interval)?, interval, automatic })
    }

    /// Takes the samples that are due before `instant`: nothing happens between the last event and then.
    fn sample_before(&mut self, instant: Instant, replica: &Replica, results: &mut Recorder) -> Result<()> {
        while self.next < instant {
            results.sample(replica.sample(self.next)?)?;
            self.next = self.next.after(self.interval)?;
            if self.automatic && results.results.timeline.len() as u128 >= 2 * SAMPLES {
                let mut keep = false;
                results.results.timeline.retain(|_| {
                    keep = !keep;
                    !keep
                });
                self.interval = self.interval.times(2)?;
                self.next =
                    results.results.timeline.last().map_or(Instant::ZERO, |sample| sample.at).after(self.interval)?;
            }
        }
        Ok(())
    }
}
