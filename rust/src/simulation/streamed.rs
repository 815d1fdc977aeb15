//! Streamed runs: neither the workload nor the results are in memory as a whole.
//!
//! Rows arrive in parts, in order of arrival. The rows of a part determine all events before its last arrival. At
//! that instant further rows may arrive, so the run waits for the next part. Rows of requests that have left are
//! emitted in order of ids, as soon as all earlier ones have left. In between, memory holds the requests in the
//! system and those after the oldest of them. The events and their order are those of
//! [`simulate_cluster`](super::simulate_cluster), so the results are the same bit for bit.

use super::independent::{OffsetWatch, combine, run_all, share_out};
use super::options::{Options, Watch};
use super::outcome::Outcome;
use super::run::Run;
use super::sampler::Sampler;
use crate::clock::{Instant, Unit};
use crate::cluster::{Cluster, Pool};
use crate::error::{Error, Result};
use crate::failures::Command;
use crate::results::{Emissions, LiveEvents, RequestColumns, RequestRows, Results, Sample, Scatter, take_first};
use crate::router::Router;
use crate::workload::{Columns, Workload};

/// A source of workload rows.
pub trait WorkloadSource {
    /// The next rows, in order of arrival; `None` after the last.
    fn next(&mut self) -> Result<Option<Columns>>;
}

/// A sink for the rows of requests that have left.
pub trait Sink {
    /// Accepts the next rows, in order of ids. It is called at least once, even if no request arrives.
    fn take(&mut self, rows: Rows) -> Result<()>;
}

/// Result rows of requests, with their workload columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// Id of the first request; the others follow.
    pub first: u32,
    /// The result rows.
    pub requests: RequestRows,
    /// See [`Workload::arrival_s`].
    pub arrival_s: Vec<f64>,
    /// See [`Workload::class`]; never empty.
    pub class: Vec<u32>,
    /// See [`Workload::prompt_tokens`].
    pub prompt_tokens: Vec<i32>,
    /// See [`Workload::output_tokens`].
    pub output_tokens: Vec<i32>,
}

impl Rows {
    /// The result columns.
    pub fn columns(&self) -> RequestColumns {
        let Rows { requests, arrival_s, output_tokens, .. } = self;
        requests.columns(&Workload { arrival_s, output_tokens, ..Workload::default() }, None)
    }
}

/// What a streamed run needs before its first row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outline {
    /// Number of classes, at least 1.
    pub class_count: usize,
    /// Number of requests that arrive by the horizon.
    pub arriving: u64,
    /// The last of their arrivals; 0 without arrivals.
    pub last_arrival: Instant,
}

impl Outline {
    /// The outline of a complete workload.
    pub fn of(workload: &Workload, options: &Options) -> Outline {
        Outline {
            class_count: workload.class_count,
            arriving: options.rows(workload) as u64,
            last_arrival: options.last_arrival(workload),
        }
    }
}

/// Replays a workload through a cluster in parts. The rows of the requests go to `sink` instead of the results.
/// Iterations and batches cannot be recorded, and the cluster cannot have a control.
pub fn simulate_streamed(
    outline: &Outline,
    source: &mut dyn WorkloadSource,
    sink: &mut dyn Sink,
    cluster: Cluster,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Results> {
    cluster.check()?;
    for (name, is_set) in [("iterations", options.iterations), ("batches", options.batches)] {
        if is_set {
            return Err(Error::config(name, "is not supported by streamed runs"));
        }
    }
    if options.max_in_flight.is_some() {
        return Err(Error::config("max_in_flight", "is not supported by streamed runs"));
    }
    if cluster.control.is_some() {
        return Err(Error::config("gate_and_route", "is not supported by streamed runs"));
    }
    let replicas = cluster.pools.iter().map(|pool| pool.engines.len()).sum();
    let sampler = Sampler::new(outline.last_arrival, options, replicas, Unit::ATTOSECOND)?;
    let mut runs = Runs::new(outline, cluster, options, sampler);
    let mut last_s = 0.0;
    let (mut rows, mut arrived) = (0, 0);
    loop {
        let part = source.next()?;
        let mut known_until = Instant::NEVER;
        if let Some(part) = &part {
            let workload = Workload { first: rows, ..part.view(0, outline.class_count) };
            workload.check_after(last_s).map_err(|error| error.further(rows as usize))?;
            if let Some(&last) = part.arrival_s.last() {
                last_s = last;
                known_until = workload.arrival_at(workload.len() - 1);
            } else {
                continue;
            }
            arrived += options.rows(&workload) as u64;
            rows += workload.len() as u32;
            runs.take(&workload)?;
        }
        runs.leaving.extend_to(arrived as usize);
        runs.advance(known_until, watch)?;
        if part.is_none() || runs.is_over() {
            break;
        }
        runs.leaving.emit(sink, false)?;
    }
    let End { mut leaving, outcome } = runs.finish()?;
    leaving.emit(sink, true)?;
    outcome.results(options, Some(arrived))
}

/// One run of all replicas, or one run per independent replica.
pub(super) struct Runs {
    lanes: Vec<Lane>,
    /// Assigns rows to lanes; `None`: there is one lane.
    router: Option<Box<dyn Router>>,
    options: Options,
    sampler: Sampler,
    outline: Outline,
    leaving: Leaving,
}

/// The end of the runs.
pub(super) struct End {
    pub(super) leaving: Leaving,
    pub(super) outcome: Outcome,
}

impl Runs {
    pub(super) fn new(outline: &Outline, mut cluster: Cluster, options: &Options, sampler: Sampler) -> Runs {
        let lane = |first: u32, cluster: Cluster| Lane {
            run: Run::new(first, outline.class_count, cluster, options, sampler),
            columns: Columns::default(),
            ids: Vec::new(),
            first: 0,
            arrived: 0,
            is_over: false,
        };
        let mut leaving = Leaving::default();
        if cluster.pools.iter().any(|pool| pool.hands_to.is_some()) {
            leaving.requests.keep_hand_offs();
        }
        if cluster.restarts() {
            leaving.requests.keep_discards();
        }
        if cluster.speculates() {
            leaving.requests.keep_drafts();
        }
        if cluster.may_retry() {
            leaving.requests.keep_retries();
        }
        let (lanes, router) = match &mut cluster.pools[..] {
            [Pool { engines, router: router @ Some(_), hands_to: None, capacity: None }]
                if router.as_ref().is_some_and(|router| !router.uses_state()) =>
            {
                let engines = std::mem::take(engines).into_iter().zip(0..);
                (engines.map(|(engine, index)| lane(index, Cluster::of_one(engine))).collect(), router.take())
            }
            _ => (vec![lane(0, cluster)], None),
        };
        Runs { lanes, router, options: options.clone(), sampler, outline: *outline, leaving }
    }

    /// Distributes the next rows to the lanes.
    pub(super) fn take(&mut self, workload: &Workload) -> Result<()> {
        let mut shares = vec![Vec::new(); self.lanes.len()];
        match &mut self.router {
            None => shares[0].extend(0..workload.len() as u32),
            Some(router) => share_out(workload, router.as_mut(), &mut shares)?,
        }
        for (lane, rows) in self.lanes.iter_mut().zip(shares) {
            lane.columns.append(workload, &rows);
            lane.ids.extend(rows.into_iter().map(|row| workload.first + row));
        }
        Ok(())
    }

    /// Runs all events that the known rows determine, and collects the requests that have left.
    pub(super) fn advance(&mut self, known_until: Instant, watch: &mut dyn Watch) -> Result<()> {
        let (classes, total) = (self.outline.class_count, self.outline.arriving);
        if let [lane] = &mut self.lanes[..] {
            lane.advance(classes, total, known_until, watch)?;
        } else {
            let before = self.lanes.iter_mut().map(Lane::left).sum();
            let mut watch = OffsetWatch { watch, left: before, total };
            let job = |_, lane: &mut Lane, watch: &mut dyn Watch| {
                let before = lane.left();
                lane.advance(classes, total, known_until, &mut Since { watch, before })?;
                Ok(lane.left() - before)
            };
            let lanes = self.lanes.iter_mut().collect();
            run_all(lanes, total, self.options.threads, &mut watch, job, |_, left| left)?;
        }
        self.lanes.iter_mut().try_for_each(|lane| lane.leave(&mut self.leaving))
    }

    /// Whether further rows have no effect.
    fn is_over(&self) -> bool {
        self.lanes.iter().all(|lane| lane.is_over)
    }

    /// Makes replicas record their events.
    pub(super) fn record_live_events(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.run.record_live_events());
    }

    /// The recorded events.
    pub(super) fn live_events(&mut self) -> impl Iterator<Item = &mut LiveEvents> {
        self.lanes.iter_mut().filter_map(|lane| lane.run.recorder().live_events())
    }

    /// Visits the tokens of the running stretch of each replica, and the replica's number.
    pub(super) fn visit_running(&self, mut visit: impl FnMut(Option<Emissions>, usize)) {
        for replica in self.lanes.iter().flat_map(|lane| &lane.run.fleet.replicas) {
            visit(replica.running_emissions(), replica.number() as usize);
        }
    }

    /// A sample of each replica at `at`. All earlier events have run.
    pub(super) fn samples(&self, at: Instant) -> Result<Vec<Sample>> {
        self.lanes.iter().flat_map(|lane| &lane.run.fleet.replicas).map(|replica| replica.sample(at)).collect()
    }

    /// Cancels a request at a future instant.
    pub(super) fn cancel(&mut self, id: u32, at: Instant) -> Result<()> {
        for lane in &mut self.lanes {
            if let Ok(row) = lane.ids.binary_search(&id) {
                lane.run.cancel(id, lane.first + row as u32, at)?;
            }
        }
        Ok(())
    }

    /// Adds a future command for a replica.
    pub(super) fn add_command(&mut self, replica: usize, at: Instant, what: Command) -> Result<()> {
        match &mut self.lanes[..] {
            [lane] => lane.run.add_command(replica, at, what),
            _ => Err(Error::config(
                "replica",
                format!("must be a replica of a fleet with an autoscaler or failures, got {replica}"),
            )),
        }
    }

    /// The next known event.
    pub(super) fn next_instant(&mut self) -> Instant {
        self.lanes.iter_mut().map(|lane| lane.run.next_instant()).min().unwrap_or(Instant::NEVER)
    }

    /// Allocates the rows below `end`.
    pub(super) fn make_room(&mut self, end: usize) {
        self.leaving.extend_to(end);
    }

    /// Emits the complete rows at the front.
    pub(super) fn emit(&mut self, sink: &mut dyn Sink) -> Result<()> {
        self.leaving.emit(sink, false)
    }

    pub(super) fn finish(self) -> Result<End> {
        let Runs { lanes, router, options: _, sampler, outline, mut leaving } = self;
        let finish = |lane: Lane| lane.finish(&mut leaving);
        let mut outcomes = lanes.into_iter().map(finish).collect::<Result<Vec<Outcome>>>()?;
        let outcome = match (router, outcomes.pop()) {
            (None, Some(outcome)) => outcome,
            (_, last) => {
                outcomes.extend(last);
                combine(outcomes, sampler, outline.class_count)?
            }
        };
        Ok(End { leaving, outcome })
    }
}

/// A run, and its requests from the first live one on.
struct Lane {
    run: Run,
    columns: Columns,
    /// Their ids in the whole workload.
    ids: Vec<u32>,
    /// Number of the first request within this lane.
    first: u32,
    /// Number of arrived requests.
    arrived: usize,
    is_over: bool,
}

impl Lane {
    fn left(&mut self) -> u64 {
        self.run.recorder().left()
    }

    fn advance(&mut self, classes: usize, total: u64, known_until: Instant, watch: &mut dyn Watch) -> Result<()> {
        if self.is_over {
            return Ok(());
        }
        let workload = Workload {
            ids: &self.ids[self.arrived..],
            first: self.first + self.arrived as u32,
            ..self.columns.view(self.arrived, classes)
        };
        self.run.take(&workload, known_until)?;
        self.is_over = self.run.advance(&workload, total, watch)?;
        self.arrived += self.run.arrived();
        Ok(())
    }

    /// Moves the first complete rows to `leaving` once they are half of all, because the remaining rows must be
    /// moved.
    fn leave(&mut self, leaving: &mut Leaving) -> Result<()> {
        let rows = self.run.recorder().left_first();
        if rows == 0 || 2 * rows < self.ids.len() {
            return Ok(());
        }
        let part = self.run.recorder().take_first(rows)?;
        leaving.put(&part, &self.ids[..rows], &self.columns);
        self.columns.forget(rows);
        self.run.fleet.content.forget();
        self.ids.drain(..rows);
        self.first += rows as u32;
        self.arrived -= rows;
        Ok(())
    }

    fn finish(self, leaving: &mut Leaving) -> Result<Outcome> {
        let mut outcome = self.run.finish()?;
        let rest = std::mem::take(&mut outcome.results.requests);
        leaving.put(&rest, &self.ids[..rest.len()], &self.columns);
        Ok(outcome)
    }
}

/// Rows to emit, from the first incomplete one on.
#[derive(Default)]
pub(super) struct Leaving {
    first: u32,
    requests: RequestRows,
    arrival_s: Vec<f64>,
    class: Vec<u32>,
    prompt_tokens: Vec<i32>,
    output_tokens: Vec<i32>,
}

impl Leaving {
    /// Allocates the requests below `end`.
    fn extend_to(&mut self, end: usize) {
        let rows = end - self.first as usize;
        self.requests.extend_to(rows);
        self.arrival_s.resize(rows, 0.0);
        self.class.resize(rows, 0);
        self.prompt_tokens.resize(rows, 0);
        self.output_tokens.resize(rows, 0);
    }

    fn put(&mut self, part: &RequestRows, ids: &[u32], columns: &Columns) {
        self.requests.scatter(part, ids, self.first);
        let put = Scatter { rows: ids, first: self.first };
        put.column(&mut self.arrival_s, &columns.arrival_s);
        put.column(&mut self.class, &columns.class);
        put.column(&mut self.prompt_tokens, &columns.prompt_tokens);
        put.column(&mut self.output_tokens, &columns.output_tokens);
    }

    /// Emits the complete rows at the front once they are half of all, or at the end.
    pub(super) fn emit(&mut self, sink: &mut dyn Sink, is_last: bool) -> Result<()> {
        let rows = self.requests.left_first();
        debug_assert!(!is_last || rows == self.requests.len(), "L1: a request that arrived has one status");
        let is_nothing = rows == 0 && !(is_last && self.first == 0);
        if is_nothing || (!is_last && 2 * rows < self.requests.len()) {
            return Ok(());
        }
        let first = self.first;
        self.first += rows as u32;
        sink.take(Rows {
            first,
            requests: self.requests.take_first(rows),
            arrival_s: take_first(&mut self.arrival_s, rows),
            class: take_first(&mut self.class, rows),
            prompt_tokens: take_first(&mut self.prompt_tokens, rows),
            output_tokens: take_first(&mut self.output_tokens, rows),
        })
    }
}

/// The watch of a lane: reports the requests that left since the call began.
struct Since<'a> {
    watch: &'a mut dyn Watch,
    before: u64,
}

impl Watch for Since<'_> {
    fn poll(&mut self, left: u64, requests: u64) -> Result<()> {
        self.watch.poll(left - self.before, requests)
    }
}
