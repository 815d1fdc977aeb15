//! A run: what there is, what comes, and what remains when it is over.
//!
//! Three orders lead through the events, to the same results. One replica goes on alone ([`alone`](super::alone)). Where
//! nothing passes between replicas but requests that arrive, each goes on by itself from one arrival to the next
//! ([`apart`](super::apart)). Otherwise all stand on one calendar ([`together`](super::together)).

use std::collections::BTreeMap;

use super::apart::Lanes;
use super::arrivals::Arrivals;
use super::capacity::{Capacities, Deeds};
use super::options::{Options, Watch};
use super::outcome::Outcome;
use super::sampler::Sampler;
use super::together::Calendar;
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

/// What stands at a pool of the fleet.
pub(super) struct Station {
    /// The first of its replicas among those of all pools.
    first: usize,
    router: Option<Box<dyn Router>>,
    /// The place of its link, if requests go on elsewhere when their prompts are computed.
    pub(super) link: Option<usize>,
}

/// A run under way. The caller hands it the rows of the workload that it knows, which may be a part of all.
pub(super) struct Run {
    pub(super) options: Options,
    /// What all instants and spans of the run are counted in.
    unit: Unit,
    /// That of the options, in units.
    horizon: Option<Instant>,
    pub(super) fleet: Fleet,
    pub(super) stations: Vec<Station>,
    pub(super) order: Order,
    pub(super) lanes: Lanes,
    pub(super) calendar: Calendar,
    /// Where replicas come and go.
    pub(super) capacities: Option<Box<Capacities>>,
    pub(super) results: Recorder,
    pub(super) sampler: Sampler,
    pub(super) arrivals: Arrivals,
    /// Rows that do not belong to this part arrive at this instant at the earliest; `NEVER`: there are none.
    known_until: Instant,
    /// Nothing happens from this instant on without a closer look: more rows are needed, or the run is over.
    pub(super) look_at: Instant,
    pub(super) now: Instant,
    pub(super) in_system_area: u128,
    pub(super) waiting_at_last_arrival: u64,
    stalled: bool,
    /// Requests that wait for a replica, and none will come.
    stranded: u64,
    held_back: usize,
}

/// How the replicas of a pool are made.
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

/// How a run goes through its events.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// One replica alone, from one arrival to the next.
    Alone,
    /// Each replica by itself from one arrival to the next.
    Apart,
    /// All on one calendar.
    Together,
}

/// The sum of two parts of ∫ number in system dt.
#[inline]
pub(super) fn sum_of_areas(left: u128, right: u128) -> Result<u128> {
    left.checked_add(right).ok_or_else(|| Error::overflow("∫ number in system dt"))
}

/// Plans and rejections between two polls: often enough for Ctrl-C, rarely enough to cost nothing.
const POLL_EVERY: u32 = 1 << 10;

/// Asks the watch now and then.
pub(super) struct Polls<'a> {
    watch: &'a mut dyn Watch,
    total: u64,
    countdown: u32,
}

impl Polls<'_> {
    /// Something happens when so many requests have left.
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
    /// A run of which no row is known yet, with the number of its first replica.
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
        let is_apart = links.is_empty() && cluster.control.is_none() && capacities.is_none();
        let order = match (is_apart, &stations[..]) {
            (true, [Station { router: None, .. }]) if fleet.replicas.len() == 1 => Order::Alone,
            (true, _) => Order::Apart,
            (false, _) => Order::Together,
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
            look_at: Instant::ZERO,
            now: Instant::ZERO,
            in_system_area: 0,
            waiting_at_last_arrival: 0,
            stalled: false,
            stranded: 0,
            held_back: 0,
        }
    }

    /// A client takes a request back at an instant that has not come.
    pub(super) fn cancel(&mut self, id: u32, row: u32, at: Instant) -> Result<()> {
        if self.order != Order::Together {
            self.bring_together()?;
        }
        self.results.expect_finishes();
        self.calendar.cancel(id, row, at);
        Ok(())
    }

    /// The rows that come next. Others follow that arrive at `known_until` or later, in attoseconds; `NEVER`: none does.
    pub(super) fn take(&mut self, workload: &Workload, known_until: Instant) -> Result<()> {
        let flow = &workload.flow;
        let rows = if flow.is_empty() { self.options.rows(workload) } else { workload.len() };
        let decides_arrivals = self.options.decides_arrivals(workload);
        if self.order != Order::Together && (decides_arrivals || workload.has_leavers()) {
            self.bring_together()?;
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
        // A row beyond the horizon is the last that a run needs to know.
        self.look_at = if self.arrivals.more_to_come { after_horizon } else { after_horizon.min(known_until) };
        Ok(())
    }

    /// The rows of this part that have arrived.
    pub(super) fn arrived(&self) -> usize {
        self.arrivals.next
    }

    /// The results as far as they are there.
    pub(super) fn recorder(&mut self) -> &mut Recorder {
        &mut self.results
    }

    /// From now on the replicas tell what happens.
    pub(super) fn record_live_events(&mut self) {
        self.results.record_live_events();
        self.fleet.replicas.iter_mut().for_each(Replica::is_listed);
        if let Some(all) = &mut self.capacities {
            all.record_live_events();
        }
    }

    /// The whole run over a workload of which all rows are known.
    pub(super) fn complete(mut self, workload: &Workload, watch: &mut dyn Watch) -> Result<Outcome> {
        self.take(workload, Instant::NEVER)?;
        self.advance(workload, self.arrivals.rows as u64, watch)?;
        if self.options.max_in_flight.is_some() {
            self.held_back = self.held_back(workload);
        }
        self.finish()
    }

    /// Lets happen what the known rows decide; says whether the run is over. `total` requests are to come in all.
    pub(super) fn advance(&mut self, workload: &Workload, total: u64, watch: &mut dyn Watch) -> Result<bool> {
        watch.poll(self.results.left(), total)?;
        let mut polls = Polls { watch, total, countdown: POLL_EVERY };
        loop {
            match self.order {
                Order::Alone => self.advance_alone(workload, &mut polls)?,
                Order::Apart => self.advance_apart(workload, &mut polls)?,
                Order::Together => self.advance_together(workload, &mut polls)?,
            }
            if self.known_until < Instant::NEVER && !self.arrivals.more_to_come {
                return Ok(false);
            }
            if self.next_instant() < Instant::NEVER || self.arrivals.more_to_come || !self.drain()? {
                return Ok(true);
            }
        }
    }

    /// When something happens next.
    pub(super) fn next_instant(&mut self) -> Instant {
        match self.order {
            Order::Alone | Order::Apart => self.next_apart(),
            Order::Together => self.next_together(),
        }
    }

    /// So many requests are in the system until `now`, and were since another instant.
    #[inline]
    pub(super) fn pass(&mut self, since: Instant, now: Instant, requests: u64) -> Result<()> {
        let area = product(now.since(since).0, u128::from(requests))?;
        self.in_system_area = sum_of_areas(self.in_system_area, area)?;
        Ok(())
    }

    /// Requests in all queues.
    pub(super) fn waiting(&self) -> u64 {
        let in_line = self.capacities.as_ref().map_or(0, |all| all.waiting());
        self.fleet.replicas.iter().map(Replica::waiting).sum::<u64>() + self.calendar.waiting() + in_line
    }

    /// The replica of a pool to which a request goes whose content the fleet has been told.
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

    #[cold]
    fn wrong_route(&self, arrival: &Arrival, chosen: usize) -> Error {
        let at_s = self.unit.instant(self.now).seconds().to_string();
        let (answer, replicas) = (chosen.to_string(), self.fleet.len());
        Kind::Route { at_s, request: arrival.id, answer, replicas }.into()
    }

    /// Lets an idle replica form a batch. Says whether an iteration runs now.
    #[inline]
    pub(super) fn form(&mut self, index: usize, drain: bool) -> Result<bool> {
        let replica = &mut self.fleet.replicas[index];
        let runs = replica.is_idle() && !replica.is_empty() && replica.form(self.now, drain)?;
        self.fleet.touch(index);
        let replica = &self.fleet.replicas[index];
        match self.order {
            Order::Alone => {}
            Order::Apart => self.lanes.set_end(index, replica.next_instant()),
            Order::Together => self.calendar.set_end(index, replica.next_instant()),
        }
        Ok(runs)
    }

    /// Nothing is left to happen: a replica that still holds requests is asked once more (rule 5).
    fn drain(&mut self) -> Result<bool> {
        if self.order != Order::Together {
            self.meet()?;
        }
        if self.fleet.replicas.iter().all(Replica::is_empty) {
            self.stalled = self.calendar.waiting() > 0;
            self.stranded = self.capacities.as_ref().map_or(0, |all| all.waiting());
            return Ok(false);
        }
        let is_first = self.results.results.drained.is_empty();
        let mut here: Vec<u32> = Vec::new();
        if is_first {
            here = self.fleet.replicas.iter().flat_map(Replica::ids).collect();
        }
        let is_alone = self.fleet.replicas.iter().filter(|replica| !replica.is_empty()).count() == 1;
        let mut runs = false;
        for replica in 0..self.fleet.replicas.len() {
            self.fleet.replicas[replica].drains_alone(is_alone);
            runs |= self.form(replica, true)?;
        }
        if runs && is_first {
            self.results.results.drained = here;
        }
        self.stalled = !runs && self.fleet.next_instant() == Instant::NEVER;
        Ok(!self.stalled)
    }

    pub(super) fn finish(mut self) -> Result<Outcome> {
        let goes_on = self.next_instant() < Instant::NEVER;
        if self.order != Order::Together {
            self.meet()?;
        }
        let end = match self.horizon {
            Some(horizon) if goes_on => horizon,
            _ => self.now,
        };
        // At the horizon the number in the system falls at the ends of the iterations before it.
        self.sampler.sample_before(end, &self.fleet.replicas, &mut self.results)?;
        let in_system = match self.order {
            Order::Alone | Order::Apart => self.fleet.replicas.iter().map(Replica::requests).sum(),
            Order::Together => self.calendar.in_system,
        };
        self.pass(self.now, end, in_system)?;
        let replicas = &mut self.fleet.replicas;
        let told_end = self.unit.instant(end);
        let last = |replica: &Replica| Ok(Sample { at: told_end, ..replica.sample(end)? });
        let last = replicas.iter().map(last).collect::<Result<_>>()?;
        let before = self.results.left();
        for replica in &mut *replicas {
            replica.stop(end, &mut self.results)?;
        }
        debug_assert_eq!(before, self.results.left(), "a stretch ends with the first completion in it");
        self.calendar.stop(end, &mut self.results);
        for stranded in self.capacities.iter_mut().flat_map(|all| all.empty_line()) {
            stranded.leave(NO_REPLICA, Status::Unfinished, end, &mut self.results);
        }
        self.results.check_instants()?;
        let budget = replicas[0].budget_to_fill();
        let is_common = replicas.iter().all(|replica| replica.budget_to_fill() == budget);
        let mut replica_time = None;
        let deeds = match &mut self.capacities {
            None => Deeds::of(BTreeMap::new(), replicas.iter()),
            Some(all) => {
                replica_time = Some(all.paid_until(end, replicas.len())?);
                self.results.results.fleet_events = all.take_events();
                let is_used = all.is_used(replicas.len());
                self.results.results.timeline.retain(|sample| is_used[sample.replica as usize]);
                let used = replicas.iter().zip(is_used).filter_map(|(replica, is_used)| is_used.then_some(replica));
                Deeds::of(all.take_past(), used)
            }
        };
        self.results.results.block_operations = deeds.operations;
        let mut outcome = Outcome {
            rejections: std::mem::take(&mut self.results.rejections),
            cut: self.results.cut,
            goes_on,
            stalled: self.stalled,
            stranded: self.stranded,
            ignored_events: self.capacities.as_ref().map_or(0, |all| all.missed),
            most_preempted: deeds.most_preempted,
            beyond: deeds.beyond,
            findings: deeds.findings,
            waiting_at_last_arrival: self.waiting_at_last_arrival,
            token_budget: if is_common { budget } else { Limits::NONE },
            replicas: deeds.replicas,
            never_came: self.calendar.never_came(),
            held_back: self.held_back,
            taken_back: self.results.taken_back,
            unused: deeds.unused,
            replica_time,
            last,
            results: std::mem::take(&mut self.results.results),
        };
        let totals = &mut outcome.results.totals;
        totals.end = told_end;
        totals.iterations = deeds.iterations;
        totals.in_system = self.unit.attoseconds(self.in_system_area)?;
        totals.sojourn = self.unit.attoseconds(self.results.sojourn())?;
        Ok(outcome)
    }
}
