//! In which order does everything happen?
//!
//! [`simulate`] is a function: a workload and an engine in, results out; [`simulate_fleet`] takes several engines and a
//! router. At one instant (rule 4): iterations end, then patience runs out, then requests arrive one by one, then new
//! batches are formed; within a kind, lower replica first, then lower request id.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::calendar::Calendar;
use crate::clock::{Instant, NANOSECOND, Span, product};
use crate::engine::EngineParts;
use crate::error::{Error, Result};
use crate::findings;
use crate::plan::Limits;
use crate::replica::Replica;
use crate::request::Slot;
use crate::results::{Recorder, Results};
use crate::router::{Fleet, Router};
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
    run(workload, vec![engine], None, options, watch)
}

/// Replays a workload through a fleet: one engine for each replica, and a router before them.
pub fn simulate_fleet(
    workload: &Workload,
    engines: Vec<EngineParts>,
    router: Box<dyn Router>,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Results> {
    if engines.is_empty() {
        return Err(Error::config("replicas", "0: a fleet has at least one"));
    }
    run(workload, engines, Some(router), options, watch)
}

fn run(
    workload: &Workload,
    engines: Vec<EngineParts>,
    router: Option<Box<dyn Router>>,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Results> {
    workload.check()?;
    let replica =
        |(index, engine)| Replica::new(index, engine, workload.class_count, options.measured.clone(), options.stepping);
    let replicas = (0..).zip(engines).map(replica).collect();
    Run::new(workload, replicas, router, options)?.complete(watch)
}

struct Run<'a> {
    workload: &'a Workload<'a>,
    options: &'a Options,
    replicas: Vec<Replica>,
    /// `None`: there is one replica.
    router: Option<Box<dyn Router>>,
    calendar: Calendar,
    /// Replicas at which something happened at this instant.
    touched: Vec<u32>,
    results: Recorder,
    /// Rows that arrive by the horizon.
    rows: usize,
    /// The next row to arrive, and when it does.
    next_row: usize,
    next_arrival: Instant,
    patience: BinaryHeap<Reverse<Patience>>,
    now: Instant,
    in_system: u64,
    in_system_area: u128,
    waiting_at_last_arrival: u64,
    stalled: bool,
    sampler: Sampler,
}

/// When a request loses patience, its id, its replica and its place there.
type Patience = (Instant, u32, u32, u32);

/// Events between two polls: often enough for Ctrl-C, rarely enough to cost nothing.
const POLL_EVERY: u32 = 1 << 10;

impl<'a> Run<'a> {
    fn new(
        workload: &'a Workload<'a>,
        replicas: Vec<Replica>,
        router: Option<Box<dyn Router>>,
        options: &'a Options,
    ) -> Result<Run<'a>> {
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
            calendar: Calendar::new(replicas.len()),
            replicas,
            router,
            touched: Vec::new(),
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
                self.sampler.sample_before(instant, &self.replicas, &mut self.results)?;
            }
            self.happen(instant)?;
        }
        self.finish()
    }

    #[inline]
    fn next_instant(&mut self) -> Instant {
        let others = self.calendar.first().min(self.next_arrival);
        // The patience of who has been admitted is no event any more.
        while let Some(&Reverse((at, id, replica, slot))) = self.patience.peek() {
            if at >= others || self.replicas[replica as usize].awaits_admission(Slot(slot), id) {
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
        while self.calendar.first() == instant {
            let replica = self.calendar.lowest();
            let before = self.results.left();
            self.replicas[replica].settle(&mut self.results)?;
            self.in_system -= self.results.left() - before;
            self.touch(replica);
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
        if self.touched.len() > 1 {
            self.touched.sort_unstable();
        }
        for place in 0..self.touched.len() {
            self.form(self.touched[place] as usize, false)?;
        }
        self.touched.clear();
        Ok(())
    }

    /// Something happened at a replica: if it is idle, it forms a batch once all has happened that does at this instant.
    #[inline]
    fn touch(&mut self, replica: usize) {
        let next =
            if self.replicas[replica].is_idle() { Instant::NEVER } else { self.replicas[replica].next_instant() };
        self.calendar.set(replica, next);
        if !self.touched.contains(&(replica as u32)) {
            self.touched.push(replica as u32);
        }
    }

    /// Lets an idle replica form a batch. Says whether an iteration runs now.
    #[inline]
    fn form(&mut self, index: usize, drain: bool) -> Result<bool> {
        let replica = &mut self.replicas[index];
        let runs = replica.is_idle() && !replica.is_empty() && replica.form(self.now, drain)?;
        self.calendar.set(index, replica.next_instant());
        Ok(runs)
    }

    fn lose_patience(&mut self, instant: Instant) -> Result<()> {
        while let Some(&Reverse((at, id, replica, slot))) = self.patience.peek() {
            if at > instant {
                break;
            }
            self.patience.pop();
            if self.replicas[replica as usize].abandon(Slot(slot), id, instant, &mut self.results)? {
                self.in_system -= 1;
                self.touch(replica as usize);
            }
        }
        Ok(())
    }

    #[inline]
    fn arrive(&mut self, instant: Instant) -> Result<()> {
        let arrival = self.workload.request(self.next_row, instant);
        let replica = match &mut self.router {
            Some(router) => router.route(&arrival, &Fleet { replicas: &self.replicas, now: instant })?,
            None => 0,
        };
        if replica >= self.replicas.len() {
            return Err(Error::config("router", format!("replica {replica} of {}", self.replicas.len())));
        }
        if let Some(slot) = self.replicas[replica].arrive(arrival, &mut self.results)? {
            self.in_system += 1;
            if let Some(patience) = self.workload.patience(self.next_row) {
                self.patience.push(Reverse((instant.after(patience)?, arrival.id, replica as u32, slot.0)));
            }
            self.touch(replica);
        }
        self.next_row += 1;
        if self.next_row < self.rows {
            self.next_arrival = self.workload.arrival_at(self.next_row);
        } else {
            self.next_arrival = Instant::NEVER;
            self.waiting_at_last_arrival = self.replicas.iter().map(Replica::waiting).sum();
        }
        Ok(())
    }

    /// Nothing is left to happen: whoever still holds requests is asked once more (rule 5).
    fn drain(&mut self) -> Result<bool> {
        if self.replicas.iter().all(Replica::is_empty) {
            return Ok(false);
        }
        let is_first = self.results.results.drained.is_empty();
        let mut here: Vec<u32> = Vec::new();
        if is_first {
            here = self.replicas.iter().flat_map(Replica::ids).collect();
            here.sort_unstable();
        }
        let mut runs = false;
        for replica in 0..self.replicas.len() {
            runs |= self.form(replica, true)?;
        }
        if runs && is_first {
            self.results.results.drained = here;
        }
        self.stalled = !runs && self.calendar.first() == Instant::NEVER;
        Ok(!self.stalled)
    }

    fn finish(mut self) -> Result<Results> {
        let goes_on = self.next_instant() < Instant::NEVER;
        let end = match self.options.horizon {
            Some(horizon) if goes_on => horizon,
            _ => self.now,
        };
        // At the horizon the number in the system falls at the ends of the iterations before it.
        self.sampler.sample_before(end, &self.replicas, &mut self.results)?;
        let before = self.results.left();
        for replica in &mut self.replicas {
            replica.stop(self.options.horizon, &mut self.results)?;
        }
        debug_assert_eq!(before, self.results.left(), "a stretch ends with the first completion in it");
        let rest = product(end.since(self.now).0, u128::from(self.in_system))?;
        let unfinished = self.unfinished_sojourn(end)?;
        let by_status = self.results.results.totals.by_status;
        self.results.results.findings = findings::of_run(&findings::Facts {
            by_status,
            rejections: &self.results.rejections,
            most_preempted: self.replicas.iter().map(Replica::most_preempted).max().unwrap_or(0),
            waiting_at_last_arrival: self.waiting_at_last_arrival,
            stalled: self.stalled,
            drained: self.results.results.drained.len(),
            work: &self.results.results.work,
            token_budget: self.token_budget(),
            replicas: self.replicas.len(),
            unused: self.replicas.iter().filter(|replica| replica.is_unused()).count(),
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

    /// The budget that every replica has; none if they differ.
    fn token_budget(&self) -> u64 {
        let budget = self.replicas[0].token_budget();
        let is_common = self.replicas.iter().all(|replica| replica.token_budget() == budget);
        if is_common { budget } else { Limits::NONE }
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
    fn sample_before(&mut self, instant: Instant, replicas: &[Replica], results: &mut Recorder) -> Result<()> {
        while self.next < instant {
            for replica in replicas {
                results.sample(replica.sample(self.next)?)?;
            }
            self.next = self.next.after(self.interval)?;
            let timeline = &mut results.results.timeline;
            if self.automatic && (timeline.len() / replicas.len()) as u128 >= 2 * SAMPLES {
                let mut row = 0;
                timeline.retain(|_| {
                    row += 1;
                    (row - 1) / replicas.len() % 2 == 1
                });
                self.interval = self.interval.times(2)?;
                self.next = timeline.last().map_or(Instant::ZERO, |sample| sample.at).after(self.interval)?;
            }
        }
        Ok(())
    }
}
