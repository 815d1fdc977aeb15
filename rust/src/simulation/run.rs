//! A run: its state, its rows, and its end.
//!
//! Three orders of events give the same results. One replica runs alone ([`single`](super::single)). If replicas
//! interact only through arrivals, each advances alone from one arrival to the next ([`lanes`](super::lanes)).
//! Otherwise all replicas share one calendar ([`event_loop`](super::event_loop)).

use std::collections::BTreeMap;

use super::arrivals::Arrivals;
use super::capacity::{Capacities, FleetTotals};
use super::event_loop::Calendar;
use super::lanes::Lanes;
use super::options::{Options, Watch};
use super::outcome::Outcome;
use super::sampler::Sampler;
use crate::clock::{Instant, Span, Unit, product};
use crate::cluster::Cluster;
use crate::engine::EngineParts;
use crate::error::{Error, Kind, Result};
use crate::gate_and_route::Dispatch;
use crate::links::Transfers;
use crate::plan::Limits;
use crate::replica::{Replica, Role};
use crate::results::{NO_REPLICA, Recorder, Sample, Status};
use crate::router::{Fleet, Measure, Router};
use crate::workload::{Arrival, Workload};

/// The router and link of a pool.
pub(super) struct Station {
    /// Index of its first replica.
    first: usize,
    router: Option<Box<dyn Router>>,
    /// Index of its link, if requests continue elsewhere after prefill.
    pub(super) link: Option<usize>,
}

/// A run in progress. The caller passes the known rows of the workload, which may be a part of all rows.
pub(super) struct Run {
    pub(super) options: Options,
    /// The time unit of the run.
    unit: Unit,
    /// The horizon of the options, in units.
    horizon: Option<Instant>,
    pub(super) fleet: Fleet,
    pub(super) stations: Vec<Station>,
    pub(super) order: Order,
    pub(super) lanes: Lanes,
    pub(super) calendar: Calendar,
    /// Set with autoscaling or failures.
    pub(super) capacities: Option<Box<Capacities>>,
    pub(super) results: Recorder,
    pub(super) sampler: Sampler,
    pub(super) arrivals: Arrivals,
    /// Rows of later parts arrive at this instant or later; `NEVER`: there are none.
    known_until: Instant,
    /// Events run only before this instant. Then more rows are needed, or the run is over.
    pub(super) stop_at: Instant,
    pub(super) now: Instant,
    pub(super) in_system_area: u128,
    pub(super) waiting_at_last_arrival: u64,
    /// At the last drain: numbers of requests sent, of requests before the replicas, and of replica events.
    seen_at_drain: [u64; 3],
    stalled: bool,
    /// Requests that wait for a replica when none is to open.
    stranded: u64,
    held_back: usize,
}

/// The configuration of a pool's replicas.
#[derive(Clone)]
pub(super) struct Make {
    role: Role,
    classes: usize,
    measured: std::ops::Range<u32>,
    stepping: bool,
    pub(super) is_listed: bool,
    reports_every: Option<Span>,
    ranks_by_blocks: bool,
    unit: Unit,
    has_long_times: bool,
    may_die: bool,
}

impl Make {
    pub(super) fn replica(&self, index: u32, engine: EngineParts) -> Replica {
        let (measured, unit) = (self.measured.clone(), self.unit);
        let mut replica = Replica::new(index, engine, self.role, self.classes, measured, self.stepping, unit);
        if self.has_long_times {
            replica.has_long_times();
        }
        if self.is_listed {
            replica.is_listed();
        }
        if let Some(every) = self.reports_every {
            replica.report_every(every);
        }
        if self.ranks_by_blocks {
            replica.count_waiting_blocks();
        }
        if self.may_die {
            replica.may_die();
        }
        replica
    }
}

/// The order of events.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// A single replica, from one arrival to the next.
    Single,
    /// Each replica alone from one arrival to the next.
    Lanes,
    /// All replicas on one calendar.
    EventLoop,
}

/// The sum of two parts of ∫ number in system dt.
#[inline]
pub(super) fn sum_of_areas(left: u128, right: u128) -> Result<u128> {
    left.checked_add(right).ok_or_else(|| Error::overflow("∫ number in system dt"))
}

/// Plans and rejections between two polls: often enough for Ctrl-C, rarely enough to be free.
const POLL_EVERY: u32 = 1 << 10;

/// Polls the watch periodically.
pub(super) struct Polls<'a> {
    watch: &'a mut dyn Watch,
    total: u64,
    countdown: u32,
}

impl Polls<'_> {
    /// Counts an event; `left` requests have left.
    #[inline]
    pub(super) fn count(&mut self, left: u64) -> Result<()> {
        if self.countdown == 0 {
            self.countdown = POLL_EVERY;
            self.watch.poll(left, self.total)?;
        }
        self.countdown -= 1;
        Ok(())
    }
}

impl Run {
    /// A run without rows; `first` is the number of its first replica.
    pub(super) fn new(first: u32, class_count: usize, cluster: Cluster, options: &Options, sampler: Sampler) -> Run {
        let (mut stations, mut fleet, mut links) = (Vec::new(), Fleet::default(), Vec::new());
        let apis = cluster.pools.iter().flat_map(|pool| pool.engines.iter().map(|engine| engine.api)).collect();
        let (restarts, speculates) = (cluster.restarts(), cluster.speculates());
        let (mut capacities, mut keeps_retries) = (None, false);
        for pool in cluster.pools {
            let role = match (&cluster.control, &pool.hands_to) {
                (Some(_), _) => Role::Slots,
                (None, Some(_)) => Role::Prefill,
                (None, None) => Role::Whole,
            };
            let link = pool.hands_to.map(|hands_to| {
                links.push(Transfers::new(hands_to.link, hands_to.pool));
                links.len() - 1
            });
            let measure = pool.router.as_ref().and_then(|router| router.ranks());
            let make = Make {
                role,
                classes: class_count,
                measured: options.measured.clone(),
                stepping: options.stepping,
                is_listed: options.iterations || options.batches,
                reports_every: pool.router.as_ref().and_then(|router| router.reports_every()),
                ranks_by_blocks: matches!(measure, Some(Measure::Blocks | Measure::BlockTokens)),
                unit: sampler.unit,
                has_long_times: options.in_attoseconds,
                may_die: pool.capacity.as_ref().is_some_and(|capacity| capacity.failures.is_some()),
            };
            let before = fleet.replicas.len();
            let numbered = pool.engines.into_iter().zip(first + before as u32..);
            let replicas = numbered.map(|(engine, index)| make.replica(index, engine));
            fleet.add_pool(replicas.collect(), pool.router.as_deref());
            if let Some(capacity) = pool.capacity {
                keeps_retries |= make.may_die;
                let all: &mut Box<Capacities> = capacities.get_or_insert_default();
                all.add(stations.len(), before, capacity, make, &mut fleet);
            }
            stations.push(Station { first: before, router: pool.router, link });
        }
        let unit = sampler.unit;
        let horizon = options.horizon.map(|horizon| unit.count_until(horizon));
        let mut results = Recorder::new(class_count, options.iterations, options.batches, unit);
        results.limit_gaps(&options.itl_limits);
        results.served_by(first);
        results.set_apis(first, apis);
        if !links.is_empty() || cluster.control.is_some() {
            results.keep_hand_offs();
        }
        if restarts {
            results.keep_discards();
        }
        if speculates {
            results.keep_drafts();
        }
        if cluster.control.is_some() {
            results.expect_finishes();
        }
        if keeps_retries {
            results.keep_retries();
        }
        let is_independent = links.is_empty() && cluster.control.is_none() && capacities.is_none();
        let order = match (is_independent, &stations[..]) {
            (true, [Station { router: None, .. }]) if fleet.replicas.len() == 1 => Order::Single,
            (true, _) => Order::Lanes,
            (false, _) => Order::EventLoop,
        };
        let dispatch = cluster.control.map(|(control, patience)| Dispatch::new(control, patience));
        Run {
            options: options.clone(),
            unit,
            horizon,
            order,
            lanes: Lanes::new(fleet.replicas.len()),
            calendar: Calendar::new(fleet.replicas.len(), links, dispatch, options.max_in_flight),
            capacities,
            fleet,
            stations,
            results,
            sampler,
            arrivals: Arrivals::new(horizon, unit),
            known_until: Instant::ZERO,
            stop_at: Instant::ZERO,
            now: Instant::ZERO,
            in_system_area: 0,
            waiting_at_last_arrival: 0,
            seen_at_drain: [0; 3],
            stalled: false,
            stranded: 0,
            held_back: 0,
        }
    }

    /// Cancels a request at a future instant.
    pub(super) fn cancel(&mut self, id: u32, row: u32, at: Instant) -> Result<()> {
        if self.order != Order::EventLoop {
            self.move_to_event_loop()?;
        }
        self.results.expect_finishes();
        self.calendar.cancel(id, row, at);
        Ok(())
    }

    /// Adds the next rows. Later rows arrive at `known_until` or later, in attoseconds; `NEVER`: there are none.
    pub(super) fn take(&mut self, workload: &Workload, known_until: Instant) -> Result<()> {
        let flow = &workload.flow;
        let rows = if flow.is_empty() { self.options.rows(workload) } else { workload.len() };
        let decides_arrivals = self.options.decides_arrivals(workload);
        if self.order != Order::EventLoop && (decides_arrivals || workload.has_leavers()) {
            self.move_to_event_loop()?;
        }
        self.arrivals.take(workload, rows);
        let known_until = self.unit.count_until(known_until);
        self.known_until = known_until;
        self.results.extend_to(workload.first as usize + rows);
        self.every_hand_off_fits(workload)?;
        if decides_arrivals {
            self.results.keep_arrivals();
        }
        if !flow.is_empty() {
            self.take_flow(workload)?;
        }
        let after_horizon = self.horizon.map_or(Ok(Instant::NEVER), |horizon| horizon.after(Span(1)))?;
        // No row after the first one beyond the horizon is needed.
        self.stop_at = if self.arrivals.more_to_come { after_horizon } else { after_horizon.min(known_until) };
        Ok(())
    }

    /// Number of rows of this part that have arrived.
    pub(super) fn arrived(&self) -> usize {
        self.arrivals.next
    }

    /// The results so far.
    pub(super) fn recorder(&mut self) -> &mut Recorder {
        &mut self.results
    }

    /// Makes replicas record their events.
    pub(super) fn record_live_events(&mut self) {
        self.results.record_live_events();
        self.fleet.replicas.iter_mut().for_each(Replica::is_listed);
        if let Some(all) = &mut self.capacities {
            all.record_live_events();
        }
    }

    /// Completes the run over a workload with all rows known.
    pub(super) fn complete(mut self, workload: &Workload, watch: &mut dyn Watch) -> Result<Outcome> {
        self.take(workload, Instant::NEVER)?;
        self.advance(workload, self.arrivals.rows as u64, watch)?;
        if self.options.max_in_flight.is_some() {
            self.held_back = self.held_back(workload);
        }
        self.finish()
    }

    /// Runs all events that the known rows determine. Returns whether the run is over. `total` is the total number of
    /// requests.
    pub(super) fn advance(&mut self, workload: &Workload, total: u64, watch: &mut dyn Watch) -> Result<bool> {
        watch.poll(self.results.left(), total)?;
        let mut polls = Polls { watch, total, countdown: POLL_EVERY };
        loop {
            match self.order {
                Order::Single => self.advance_single(workload, &mut polls)?,
                Order::Lanes => self.advance_lanes(workload, &mut polls)?,
                Order::EventLoop => self.advance_event_loop(workload, &mut polls)?,
            }
            if self.known_until < Instant::NEVER && !self.arrivals.more_to_come {
                return Ok(false);
            }
            let may_arrive = self.arrivals.more_to_come && !self.calendar.is_at_limit();
            if self.next_instant() < Instant::NEVER || may_arrive || !self.drain()? {
                return Ok(true);
            }
        }
    }

    /// The next event.
    pub(super) fn next_instant(&mut self) -> Instant {
        match self.order {
            Order::Single | Order::Lanes => self.next_in_lanes(),
            Order::EventLoop => self.next_in_event_loop(),
        }
    }

    /// Adds `requests` in the system from `since` to `now` to the integral.
    #[inline]
    pub(super) fn pass(&mut self, since: Instant, now: Instant, requests: u64) -> Result<()> {
        let area = product(now.since(since).0, u128::from(requests))?;
        self.in_system_area = sum_of_areas(self.in_system_area, area)?;
        Ok(())
    }

    /// Requests in all queues.
    pub(super) fn waiting(&self) -> u64 {
        let unrouted = self.capacities.as_ref().map_or(0, |all| all.waiting());
        self.fleet.replicas.iter().map(Replica::waiting).sum::<u64>() + self.calendar.waiting() + unrouted
    }

    /// The replica of a pool that a request is routed to. The fleet already has its content.
    #[inline]
    pub(super) fn route(&mut self, pool: usize, arrival: &Arrival, is_handed_off: bool) -> Result<usize> {
        let station = &mut self.stations[pool];
        let Some(router) = &mut station.router else { return Ok(station.first) };
        self.fleet.pool = pool;
        self.fleet.now = self.now;
        self.fleet.prompt_tokens = arrival.prompt_tokens;
        self.fleet.is_handed_off = is_handed_off;
        let chosen = router.route(arrival, &mut self.fleet)?;
        if !self.fleet.is_open(chosen) {
            return Err(self.wrong_route(arrival, chosen));
        }
        Ok(station.first + chosen)
    }

    fn wrong_route(&self, arrival: &Arrival, chosen: usize) -> Error {
        let at_s = self.unit.instant(self.now).seconds().to_string();
        let (answer, replicas) = (chosen.to_string(), self.fleet.len());
        Kind::Route { at_s, request: arrival.id, answer, replicas }.into()
    }

    /// Lets an idle replica form a batch. Returns whether an iteration runs now.
    #[inline]
    pub(super) fn form(&mut self, index: usize, drain: bool) -> Result<bool> {
        let replica = &mut self.fleet.replicas[index];
        let runs = replica.is_idle() && !replica.is_empty() && replica.form(self.now, drain)?;
        self.fleet.touch(index);
        let replica = &self.fleet.replicas[index];
        match self.order {
            Order::Single => {}
            Order::Lanes => self.lanes.set_end(index, replica.next_instant()),
            Order::EventLoop => self.calendar.set_end(index, replica.next_instant()),
        }
        Ok(runs)
    }

    /// No event is left: every replica with requests plans once more (R5).
    fn drain(&mut self) -> Result<bool> {
        if self.order != Order::EventLoop {
            self.synchronize()?;
        }
        if self.fleet.replicas.iter().all(Replica::is_empty) {
            self.stalled = self.calendar.waiting() > 0;
            self.stranded = self.capacities.as_ref().map_or(0, |all| all.waiting());
            return Ok(false);
        }
        let has_new = self.has_new_since_drain();
        let mut here: Vec<u32> = Vec::new();
        if has_new {
            here = self.fleet.replicas.iter().flat_map(Replica::ids).collect();
        }
        let is_last = self.fleet.replicas.iter().filter(|replica| !replica.is_empty()).count() == 1;
        let mut runs = false;
        for replica in 0..self.fleet.replicas.len() {
            self.fleet.replicas[replica].drains_last(is_last);
            runs |= self.form(replica, true)?;
        }
        if runs {
            self.results.results.drained.extend(here);
        }
        self.stalled = !runs && self.fleet.next_instant() == Instant::NEVER;
        Ok(!self.stalled)
    }

    /// Whether the replicas may have requests that they did not have at the last drain, which are not listed yet.
    fn has_new_since_drain(&mut self) -> bool {
        let present = match self.order {
            Order::EventLoop => self.calendar.in_system,
            Order::Single | Order::Lanes => self.fleet.replicas.iter().map(Replica::requests).sum(),
        };
        let (unrouted, changes) = self.capacities.as_ref().map_or((0, 0), |all| (all.waiting(), all.changes()));
        let seen = [self.results.left() + present, self.calendar.waiting() + unrouted, changes];
        std::mem::replace(&mut self.seen_at_drain, seen) != seen
    }

    pub(super) fn finish(mut self) -> Result<Outcome> {
        let has_more_events = self.next_instant() < Instant::NEVER;
        if self.order != Order::EventLoop {
            self.synchronize()?;
        }
        let end = match self.horizon {
            Some(horizon) if has_more_events => horizon,
            _ => self.now,
        };
        // Up to the horizon, the number in the system decreases at the ends of iterations.
        self.sampler.sample_before(end, &self.fleet.replicas, &mut self.results)?;
        let in_system = match self.order {
            Order::Single | Order::Lanes => self.fleet.replicas.iter().map(Replica::requests).sum(),
            Order::EventLoop => self.calendar.in_system,
        };
        self.pass(self.now, end, in_system)?;
        let replicas = &mut self.fleet.replicas;
        let end_in_attoseconds = self.unit.instant(end);
        let last = |replica: &Replica| Ok(Sample { at: end_in_attoseconds, ..replica.sample(end)? });
        let last = replicas.iter().map(last).collect::<Result<_>>()?;
        let before = self.results.left();
        for replica in &mut *replicas {
            replica.stop(end, &mut self.results)?;
        }
        debug_assert_eq!(before, self.results.left(), "a stretch ends at its first completion");
        self.calendar.stop(end, &mut self.results);
        for stranded in self.capacities.iter_mut().flat_map(|all| all.take_unrouted()) {
            stranded.leave(NO_REPLICA, Status::Unfinished, end, &mut self.results);
        }
        self.results.check_instants()?;
        let budget = replicas[0].budget_to_fill();
        let is_common = replicas.iter().all(|replica| replica.budget_to_fill() == budget);
        let mut replica_time = None;
        let fleet_totals = match &mut self.capacities {
            None => FleetTotals::of(BTreeMap::new(), replicas.iter()),
            Some(all) => {
                replica_time = Some(all.paid_until(end, replicas.len())?);
                self.results.results.fleet_events = all.take_events();
                let is_used = all.is_used(replicas.len());
                self.results.results.timeline.retain(|sample| is_used[sample.replica as usize]);
                let used = replicas.iter().zip(is_used).filter_map(|(replica, is_used)| is_used.then_some(replica));
                FleetTotals::of(all.take_past(), used)
            }
        };
        self.results.results.block_operations = fleet_totals.operations;
        let mut outcome = Outcome {
            rejections: std::mem::take(&mut self.results.rejections),
            cut: self.results.cut,
            has_more_events,
            stalled: self.stalled,
            stranded: self.stranded,
            ignored_events: self.capacities.as_ref().map_or(0, |all| all.missed),
            most_preempted: fleet_totals.most_preempted,
            beyond: fleet_totals.beyond,
            findings: fleet_totals.findings,
            waiting_at_last_arrival: self.waiting_at_last_arrival,
            token_budget: if is_common { budget } else { Limits::NONE },
            replicas: fleet_totals.replicas,
            never_came: self.calendar.never_came(),
            held_back: self.held_back,
            taken_back: self.results.taken_back,
            unused: fleet_totals.unused,
            replica_time,
            last,
            results: self.results.take_results(),
        };
        let totals = &mut outcome.results.totals;
        totals.end = end_in_attoseconds;
        totals.iterations = fleet_totals.iterations;
        totals.in_system = self.unit.attoseconds(self.in_system_area)?;
        totals.sojourn = self.unit.attoseconds(self.results.sojourn())?;
        Ok(outcome)
    }
}
