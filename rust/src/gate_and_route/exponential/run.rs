//! The events of a run in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::results::{ExponentialResults, SlotRow, StageSample, StageSampler};
use super::server::{Served, Server};
use super::tally::{Stage, Tally};
use crate::clock::{Instant, Span};
use crate::error::{Error, Result};
use crate::gate_and_route::{BufferPlace, Control, IterationLengths, Patience, QueueKind, Setup, Start, Waiting};
use crate::random::{Source, Stream, exponential_quantile};
use crate::results::{NO_REPLICA, Status};
use crate::simulation::Watch;
use crate::tournament::Tournament;
use crate::workload::Workload;

/// Options of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExponentialOptions {
    /// Seed of all draws.
    pub seed: u64,
    /// End of the run; events at this instant still happen. `None`: until no request is left.
    pub horizon: Option<Instant>,
    /// Start of averages and revenue; events at this instant count.
    pub warmup: Instant,
    /// Time between two samples; `None`: about 500 samples over the span of the arrivals.
    pub timeline: Option<Span>,
}

/// Draw numbers of [`Source::Service`].
const PREFILL: u64 = 0;
const DECODE: u64 = 1;

/// Events between two polls.
const POLL_EVERY: u64 = 1 << 10;

/// Simulates a workload on the slots of a cluster.
pub fn simulate(
    workload: &Workload,
    setup: &Setup,
    options: &ExponentialOptions,
    watch: &mut dyn Watch,
) -> Result<ExponentialResults> {
    workload.check()?;
    let run = SlotRun::new(workload, setup, options)?;
    run.complete(watch)
}

/// Location of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location {
    /// At this place in the queue of its class.
    Queue(u64),
    /// In service, or finished.
    Served,
    /// At this place in the decode buffer.
    Buffer(BufferPlace),
}

#[derive(Clone, Copy, Debug)]
struct SlotRequest {
    row: SlotRow,
    class: u32,
    state: Location,
}

struct SlotRun<'a> {
    workload: &'a Workload<'a>,
    setup: &'a Setup,
    pace: IterationLengths,
    options: &'a ExponentialOptions,
    control: Control,
    servers: Vec<Server>,
    /// Number of decodes by replica, then class.
    decodes: Vec<u32>,
    /// Next event of each replica.
    calendar: Tournament<Instant>,
    /// Requests in the system, by handle.
    requests: Vec<SlotRequest>,
    free_handles: Vec<u32>,
    /// Handles of requests that began to wait at this instant.
    arrived: Vec<u32>,
    /// Ends of patience: instant, id, handle, and whether it waits for a decode.
    patience: BinaryHeap<Reverse<(Instant, u32, u32, bool)>>,
    services: Stream,
    waits_for: Patience,
    /// Mean prefill time of one token, in attoseconds.
    prefill_token: f64,
    tally: Tally,
    sampler: StageSampler,
    results: ExponentialResults,
    rows: usize,
    next_row: usize,
    next_arrival: Instant,
    now: Instant,
    /// Areas at the end of the warm-up.
    at_warmup: Option<super::tally::ByStage<u128>>,
}

impl<'a> SlotRun<'a> {
    fn new(workload: &'a Workload<'a>, setup: &'a Setup, options: &'a ExponentialOptions) -> Result<SlotRun<'a>> {
        let by_horizon = |horizon| {
            let (mut low, mut high) = (0, workload.len());
            while low < high {
                let middle = low + (high - low) / 2;
                if workload.arrival_at(middle) <= horizon { low = middle + 1 } else { high = middle }
            }
            low
        };
        let rows = options.horizon.map_or(workload.len(), by_horizon);
        let instant = |row: usize| if row < rows { workload.arrival_at(row) } else { Instant::NEVER };
        let last = if rows > 0 { instant(rows - 1) } else { Instant::ZERO };
        let replicas = setup.cluster.replicas as usize;
        let pace = setup.cluster.pace;
        Ok(SlotRun {
            workload,
            setup,
            pace,
            options,
            control: setup.control(workload, options.seed)?,
            servers: (0..replicas).map(|_| Server::new()).collect(),
            decodes: vec![0; replicas * workload.class_count],
            calendar: Tournament::new(replicas, Instant::NEVER, Instant::NEVER),
            requests: Vec::new(),
            free_handles: Vec::new(),
            arrived: Vec::new(),
            patience: BinaryHeap::new(),
            services: Stream::new(options.seed, Source::Service),
            waits_for: setup.patience(options.seed),
            prefill_token: pace.mixed as f64 / f64::from(setup.chunk),
            tally: Tally::new(workload.class_count),
            sampler: StageSampler::new(options.timeline, last),
            results: ExponentialResults::new(rows, options.warmup),
            rows,
            next_row: 0,
            next_arrival: instant(0),
            now: Instant::ZERO,
            at_warmup: None,
        })
    }

    fn complete(mut self, watch: &mut dyn Watch) -> Result<ExponentialResults> {
        loop {
            if self.results.events.is_multiple_of(POLL_EVERY) {
                watch.poll(self.results.left(), self.rows as u64)?;
            }
            let instant = self.next_instant();
            if instant == Instant::NEVER || self.options.horizon.is_some_and(|horizon| instant > horizon) {
                break;
            }
            self.advance_to(instant)?;
            self.run_instant(instant)?;
            self.results.events += 1;
        }
        self.finish()
    }

    fn next_instant(&mut self) -> Instant {
        let others = self.calendar.least().min(self.next_arrival);
        // Skip patience of requests that no longer wait.
        while let Some(&Reverse((at, id, handle, decode))) = self.patience.peek() {
            if at >= others || self.waits(id, handle, decode) {
                return others.min(at);
            }
            self.patience.pop();
        }
        others
    }

    fn waits(&self, id: u32, handle: u32, decode: bool) -> bool {
        let request = &self.requests[handle as usize];
        let has_place = if decode {
            matches!(request.state, Location::Buffer(_))
        } else {
            matches!(request.state, Location::Queue(_))
        };
        has_place && request.row.id == id
    }

    /// Advances time to an instant before which no event happens: takes samples and ends the warm-up.
    fn advance_to(&mut self, instant: Instant) -> Result<()> {
        while self.sampler.next < instant {
            let sample = self.sample(self.sampler.next);
            self.sampler.take(sample, &mut self.results.samples)?;
        }
        if self.at_warmup.is_none() && instant >= self.options.warmup {
            self.at_warmup = Some(self.tally.areas(self.options.warmup)?);
            self.results.revenue_before = (self.tally.bundled, self.tally.separate);
        }
        Ok(())
    }

    fn sample(&self, at: Instant) -> StageSample {
        StageSample { at, numbers: self.tally.numbers(), bundled: self.tally.bundled, separate: self.tally.separate }
    }

    /// Runs all events of one instant, in the order of rule R4.
    fn run_instant(&mut self, now: Instant) -> Result<()> {
        debug_assert!(now >= self.now, "L3: the clock never decreases");
        self.now = now;
        while self.calendar.least() == now {
            self.settle(self.calendar.place_of_least())?;
        }
        while let Some(&Reverse((at, id, handle, decode))) = self.patience.peek() {
            if at > now {
                break;
            }
            self.patience.pop();
            if self.waits(id, handle, decode) {
                self.abandon(handle)?;
            }
        }
        while self.next_arrival == now {
            self.arrive()?;
        }
        while let Some(start) = self.control.start() {
            match start {
                Start::Prefill(waiting, replica) => self.start_prefill(waiting, replica)?,
                Start::Decode(waiting, replica) => self.start_decode(waiting, replica)?,
            }
        }
        self.wait()
    }

    /// Ends services of a replica.
    fn settle(&mut self, replica: usize) -> Result<()> {
        if let Some(served) = self.servers[replica].end_prefill(self.now, self.pace)? {
            let request = &mut self.requests[served.handle as usize];
            let class = request.class;
            request.row.prefilled = self.now;
            let place = self.control.prefill_done(served.id, served.handle, class, replica as u32);
            request.state = Location::Buffer(place);
            self.arrived.push(served.handle);
            self.tally.leave(class, Stage::Prefill, 1, self.now)?;
            self.tally.enter(class, Stage::DecodeQueue, 1, self.now)?;
            self.switch(replica, Stage::Mixed, Stage::Solo)?;
            let (prefill, _) = self.revenue(served.id)?;
            self.tally.earn_prefill(prefill)?;
        }
        while let Some(served) = self.servers[replica].end_decode(self.now, self.pace)? {
            let class = self.requests[served.handle as usize].class;
            self.control.decode_done(replica as u32);
            self.decodes[replica * self.workload.class_count + class as usize] -= 1;
            self.tally.leave(class, self.decode_stage(replica), 1, self.now)?;
            let (prefill, decode) = self.revenue(served.id)?;
            self.tally.earn_decode(prefill, decode)?;
            self.leave(served.handle, Status::Finished);
        }
        self.calendar.set(replica, self.servers[replica].next(self.pace)?);
        Ok(())
    }

    fn decode_stage(&self, replica: usize) -> Stage {
        if self.servers[replica].is_mixed() { Stage::Mixed } else { Stage::Solo }
    }

    /// Moves the decodes of a replica from one stage to another.
    fn switch(&mut self, replica: usize, from: Stage, to: Stage) -> Result<()> {
        let classes = self.workload.class_count;
        for class in 0..classes {
            let number = u64::from(self.decodes[replica * classes + class]);
            if number > 0 {
                self.tally.leave(class as u32, from, number, self.now)?;
                self.tally.enter(class as u32, to, number, self.now)?;
            }
        }
        Ok(())
    }

    /// c_p·P and c_d·D of a request.
    fn revenue(&self, id: u32) -> Result<(u128, u128)> {
        let of = |price: u128, tokens: i32| {
            price.checked_mul(tokens as u128).ok_or_else(|| Error::overflow("the revenue of a request"))
        };
        let (prefill, decode) = self.setup.prices;
        let row = id as usize;
        Ok((of(prefill, self.workload.prompt_tokens[row])?, of(decode, self.workload.output_tokens[row])?))
    }

    fn abandon(&mut self, handle: u32) -> Result<()> {
        let SlotRequest { class, state, .. } = self.requests[handle as usize];
        match state {
            Location::Queue(place) => {
                self.control.left_queue(class, place);
                self.tally.leave(class, Stage::PrefillQueue, 1, self.now)?;
            }
            Location::Buffer(place) => {
                self.control.left_buffer(place);
                self.tally.leave(class, Stage::DecodeQueue, 1, self.now)?;
            }
            Location::Served => debug_assert!(false, "only a waiting request abandons"),
        }
        self.leave(handle, Status::Abandoned);
        Ok(())
    }

    fn leave(&mut self, handle: u32, status: Status) {
        let request = &mut self.requests[handle as usize];
        request.row.left = self.now;
        request.state = Location::Served;
        let row = request.row;
        self.results.write(&row, status);
        self.free_handles.push(handle);
    }

    fn arrive(&mut self) -> Result<()> {
        let id = self.next_row as u32;
        let class = self.workload.class.get(self.next_row).copied().unwrap_or(0);
        let handle = self.free_handles.pop().unwrap_or(self.requests.len() as u32);
        let row = SlotRow {
            id,
            arrival: self.now,
            admitted: Instant::NEVER,
            prefilled: Instant::NEVER,
            decodes: Instant::NEVER,
            left: Instant::NEVER,
            prefill_replica: NO_REPLICA,
            replica: NO_REPLICA,
        };
        let state = Location::Queue(self.control.arrived(id, handle, class));
        let request = SlotRequest { row, class, state };
        match self.requests.get_mut(handle as usize) {
            Some(free) => *free = request,
            None => self.requests.push(request),
        }
        self.arrived.push(handle);
        self.tally.enter(class, Stage::PrefillQueue, 1, self.now)?;
        self.next_row += 1;
        self.next_arrival =
            if self.next_row < self.rows { self.workload.arrival_at(self.next_row) } else { Instant::NEVER };
        Ok(())
    }

    fn start_prefill(&mut self, waiting: Waiting, replica: u32) -> Result<()> {
        let Waiting { request: id, handle, class, .. } = waiting;
        let exponential = exponential_quantile(self.services.uniform(u64::from(id), PREFILL));
        let span = exponential * f64::from(self.workload.prompt_tokens[id as usize]) * self.prefill_token;
        let request = &mut self.requests[handle as usize];
        request.state = Location::Served;
        request.row.admitted = self.now;
        request.row.prefill_replica = replica;
        request.row.replica = replica;
        self.tally.leave(class, Stage::PrefillQueue, 1, self.now)?;
        self.tally.enter(class, Stage::Prefill, 1, self.now)?;
        self.switch(replica as usize, Stage::Solo, Stage::Mixed)?;
        let server = &mut self.servers[replica as usize];
        server.start_prefill(self.now, Span(span.round_ties_even() as u128), Served { id, handle }, self.pace)?;
        self.calendar.set(replica as usize, server.next(self.pace)?);
        Ok(())
    }

    fn start_decode(&mut self, waiting: Waiting, replica: u32) -> Result<()> {
        let Waiting { request: id, handle, class, .. } = waiting;
        let exponential = exponential_quantile(self.services.uniform(u64::from(id), DECODE));
        let work = exponential * f64::from(self.workload.output_tokens[id as usize]) * self.pace.solo as f64;
        let request = &mut self.requests[handle as usize];
        request.state = Location::Served;
        request.row.decodes = self.now;
        request.row.replica = replica;
        self.decodes[replica as usize * self.workload.class_count + class as usize] += 1;
        self.tally.leave(class, Stage::DecodeQueue, 1, self.now)?;
        self.tally.enter(class, self.decode_stage(replica as usize), 1, self.now)?;
        let server = &mut self.servers[replica as usize];
        server.start_decode(self.now, work.round_ties_even() as u128, Served { id, handle }, self.pace)?;
        self.calendar.set(replica as usize, server.next(self.pace)?);
        Ok(())
    }

    /// Draws the patience of requests that began to wait at this instant and still wait.
    fn wait(&mut self) -> Result<()> {
        for &handle in &self.arrived {
            let SlotRequest { row, class, state } = self.requests[handle as usize];
            let queue = match state {
                Location::Queue(_) => QueueKind::Prefill,
                Location::Buffer(_) => QueueKind::Decode,
                Location::Served => continue,
            };
            if let Some(span) = self.waits_for.draw(row.id, class, queue) {
                self.patience.push(Reverse((self.now.after(span)?, row.id, handle, queue == QueueKind::Decode)));
            }
        }
        self.arrived.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<ExponentialResults> {
        let is_running = self.rows < self.workload.len() || self.next_instant() < Instant::NEVER;
        let end = match self.options.horizon {
            Some(horizon) if is_running => horizon,
            _ => self.now,
        };
        self.advance_to(end)?;
        let areas = self.tally.areas(end)?;
        let total = areas.iter().flatten().try_fold(0_u128, |sum, &area| sum.checked_add(area));
        self.results.in_system = total.ok_or_else(|| Error::overflow("∫ number in system dt"))?;
        self.results.areas = areas;
        match &self.at_warmup {
            Some(before) => {
                for (area, before) in self.results.areas.iter_mut().flatten().zip(before.iter().flatten()) {
                    *area -= before;
                }
            }
            None => {
                self.results.areas.iter_mut().for_each(|stages| *stages = Default::default());
                self.results.revenue_before = (self.tally.bundled, self.tally.separate);
            }
        }
        let last = self.sample(end);
        self.results.samples.push(last);
        self.results.end = end;
        self.stop(end)?;
        Ok(self.results)
    }

    /// Writes rows for all requests still in the system.
    fn stop(&mut self, end: Instant) -> Result<()> {
        let mut is_present = vec![true; self.requests.len()];
        for &handle in &self.free_handles {
            is_present[handle as usize] = false;
        }
        for (request, _) in self.requests.iter().zip(is_present).filter(|&(_, is_present)| is_present) {
            self.results.write(&request.row, Status::Unfinished);
            let sojourn = self.results.sojourn.checked_add(end.since(request.row.arrival).0);
            self.results.sojourn = sojourn.ok_or_else(|| Error::overflow("the sum of all times in the system"))?;
        }
        Ok(())
    }
}
