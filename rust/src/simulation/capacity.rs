//! Autoscaling and failures.
//!
//! A pool has a place for each replica that it may have. Replicas follow one another at a place: a replica starts,
//! opens, serves, and then drains or fails. The next one has an empty cache and a new scheduler. Requests without a
//! replica wait before the pools. They are routed in order of their ids as soon as a replica is open.
//!
//! At one instant, pool by pool: replicas fail, lowest first; scheduled drains and starts apply; starting replicas
//! open; the autoscaler is evaluated. After all other events, draining replicas without requests end. Replica events
//! alone do not keep a run alive, unless a request waits for a replica.

mod totals;
mod unrouted;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::run::{Make, Run, sum_of_areas};
use crate::autoscaler::{Autoscaler, Figures};
use crate::clock::{Instant, product};
use crate::cluster::{Capacity, Spare};
use crate::error::{Error, Result};
use crate::failures::{Command, Failures};
use crate::replica::Stranded;
use crate::results::{Change, FleetEvent, NO_REPLICA, Status};
use crate::router::Fleet;
pub(super) use totals::{FleetTotals, PlaceTotals};
use unrouted::Unrouted;

/// The pools with autoscaling or failures, and the requests that wait for a replica.
#[derive(Default)]
pub(super) struct Capacities {
    pools: Vec<ScaledPool>,
    unrouted: BTreeMap<u32, Unrouted>,
    /// The next replica event.
    next: Instant,
    events: Vec<FleetEvent>,
    /// ∫ number of paid replicas dt in attoseconds, over ended replicas.
    paid: u128,
    /// Totals of ended replicas, by number of their place.
    past: BTreeMap<u32, PlaceTotals>,
    /// Number of commands that were not applicable.
    pub(super) missed: usize,
}

/// A pool with autoscaling or failures.
struct ScaledPool {
    pool: usize,
    /// Index of its first place among those of all pools.
    first: usize,
    make: Make,
    spare: Spare,
    places: Vec<ReplicaSlot>,
    autoscaler: Option<Autoscaler>,
    next_evaluation: Instant,
    /// The last evaluation that changed anything.
    changed: Option<Instant>,
    failures: Option<Failures>,
    /// Index of the first future command.
    next_command: usize,
    arrived: u64,
}

/// The state of a place.
#[derive(Clone, Copy)]
struct ReplicaSlot {
    phase: Phase,
    /// Start of its paid time.
    since: Instant,
    /// Its random failure.
    fails_at: Instant,
    /// Number of replicas opened here so far.
    openings: u64,
    /// Whether a replica was ever here.
    is_used: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No replica.
    Closed,
    /// Starting; opens at this instant.
    Starting(Instant),
    /// Accepts requests.
    Open,
    /// Finishes its requests.
    Draining,
    /// Failed; restarts at this instant.
    Broken(Instant),
}

impl ReplicaSlot {
    fn closed() -> ReplicaSlot {
        let (phase, since, fails_at) = (Phase::Closed, Instant::ZERO, Instant::NEVER);
        ReplicaSlot { phase, since, fails_at, openings: 0, is_used: false }
    }

    /// The next event of this place.
    fn next(&self) -> Instant {
        match self.phase {
            Phase::Closed => Instant::NEVER,
            Phase::Starting(at) | Phase::Broken(at) => at,
            Phase::Open | Phase::Draining => self.fails_at,
        }
    }
}

impl ScaledPool {
    fn count(&self, is: impl Fn(Phase) -> bool) -> usize {
        self.places.iter().filter(|place| is(place.phase)).count()
    }

    fn starting(&self) -> usize {
        self.count(|phase| matches!(phase, Phase::Starting(_) | Phase::Broken(_)))
    }

    /// The next event of this pool.
    fn next(&self) -> Instant {
        let command = self.commands_to_come().first().map_or(Instant::NEVER, |command| command.0);
        self.places.iter().map(ReplicaSlot::next).fold(self.next_evaluation.min(command), Instant::min)
    }

    /// Future commands.
    fn commands_to_come(&self) -> &[(Instant, Command, usize)] {
        self.failures.as_ref().map_or(&[], |failures| &failures.commands[self.next_command..])
    }

    /// Whether a replica can ever open here again.
    fn can_open(&self) -> bool {
        let has_start = || self.commands_to_come().iter().any(|command| command.1 == Command::Start);
        self.autoscaler.is_some() || self.starting() > 0 || has_start()
    }
}

impl Capacities {
    /// Adds a pool and opens its first replicas.
    pub(super) fn add(&mut self, pool: usize, first: usize, capacity: Capacity, make: Make, fleet: &mut Fleet) {
        let Capacity { open, autoscaler, failures, spare } = capacity;
        let count = fleet.pools[pool].replicas.len();
        fleet.close_all(pool);
        let next_evaluation = autoscaler.as_ref().map_or(Instant::NEVER, |autoscaler| Instant(autoscaler.every.0));
        let (places, changed, next_command, arrived) = (vec![ReplicaSlot::closed(); count], None, 0, 0);
        let pool_state = ScaledPool {
            pool,
            first,
            make,
            spare,
            places,
            autoscaler,
            next_evaluation,
            changed,
            failures,
            next_command,
            arrived,
        };
        self.pools.push(pool_state);
        let at = self.pools.len() - 1;
        for place in 0..open {
            self.open(at, place, Instant::ZERO, fleet);
        }
        self.note_next();
    }

    /// Opens a replica.
    fn open(&mut self, at: usize, place: usize, now: Instant, fleet: &mut Fleet) {
        let pool_state = &mut self.pools[at];
        let replica = pool_state.first + place;
        let slot = &mut pool_state.places[place];
        let fails_at = |failures: &Failures| failures.fails_at(replica as u32, slot.openings, now);
        slot.fails_at = pool_state.failures.as_ref().map_or(Instant::NEVER, fails_at);
        if slot.phase == Phase::Closed {
            slot.since = now;
        }
        slot.phase = Phase::Open;
        slot.openings += 1;
        slot.is_used = true;
        fleet.set_open(replica, true);
        self.note(at, place, Change::Ready, now);
    }

    /// Ends the paid time of a replica.
    fn end(&mut self, at: usize, place: usize, now: Instant) -> Result<()> {
        let since = self.pools[at].places[place].since;
        self.paid = sum_of_areas(self.paid, now.since(since).0)?;
        Ok(())
    }

    fn note(&mut self, at: usize, place: usize, change: Change, now: Instant) {
        let pool_state = &self.pools[at];
        self.events.push(FleetEvent {
            at: now,
            replica: (pool_state.first + place) as u32,
            change,
            open: pool_state.count(|phase| phase == Phase::Open) as u32,
            starting: pool_state.starting() as u32,
            draining: pool_state.count(|phase| phase == Phase::Draining) as u32,
        });
    }

    fn note_next(&mut self) {
        self.next = self.pools.iter().map(ScaledPool::next).min().unwrap_or(Instant::NEVER);
    }

    /// The next event, if `others` is the next event that is not about replicas. Without such an event, and without a
    /// request that waits for a replica, there is none.
    pub(super) fn join(&self, others: Instant) -> Instant {
        if self.next <= others && (others < Instant::NEVER || self.is_awaited()) { self.next } else { others }
    }

    /// Whether a request waits for a replica that may open.
    fn is_awaited(&self) -> bool {
        let is_starting = |request: &Unrouted| {
            self.pools.iter().any(|pool_state| pool_state.pool == request.pool && pool_state.can_open())
        };
        self.unrouted.values().any(is_starting)
    }

    /// Number of requests without a replica.
    pub(super) fn waiting(&self) -> u64 {
        self.unrouted.len() as u64
    }

    /// Number of replica events so far.
    pub(super) fn changes(&self) -> u64 {
        self.events.len() as u64
    }

    /// Whether a request waits here that was never admitted, so that its patience still runs.
    pub(super) fn holds(&self, id: u32) -> bool {
        self.unrouted.get(&id).is_some_and(|request| request.stranded.history.is_new())
    }

    /// Whether each replica's place was ever used.
    pub(super) fn is_used(&self, replicas: usize) -> Vec<bool> {
        let mut is_used = vec![true; replicas];
        for pool_state in &self.pools {
            for (place, slot) in pool_state.places.iter().enumerate() {
                is_used[pool_state.first + place] = slot.is_used;
            }
        }
        is_used
    }

    /// ∫ number of paid replicas dt until the end of the run. Replicas of the other pools are always paid.
    pub(super) fn paid_until(&self, end: Instant, replicas: usize) -> Result<u128> {
        let mut paid = self.paid;
        let mut others = replicas;
        for pool_state in &self.pools {
            others -= pool_state.places.len();
            for slot in &pool_state.places {
                if matches!(slot.phase, Phase::Starting(_) | Phase::Open | Phase::Draining) {
                    paid = sum_of_areas(paid, end.since(slot.since).0)?;
                }
            }
        }
        sum_of_areas(paid, product(end.0, others as u128)?)
    }

    /// The replica events.
    pub(super) fn take_events(&mut self) -> Vec<FleetEvent> {
        std::mem::take(&mut self.events)
    }

    /// The totals of ended replicas.
    pub(super) fn take_past(&mut self) -> BTreeMap<u32, PlaceTotals> {
        std::mem::take(&mut self.past)
    }

    /// The requests that wait for a replica at the end of the run.
    pub(super) fn take_unrouted(&mut self) -> impl Iterator<Item = Stranded> {
        std::mem::take(&mut self.unrouted).into_values().map(|request| request.stranded)
    }

    /// Makes new replicas record their events.
    pub(super) fn record_live_events(&mut self) {
        self.pools.iter_mut().for_each(|pool_state| pool_state.make.is_listed = true);
    }
}

impl Run {
    /// Applies the replica events of this instant.
    pub(super) fn change_replicas(&mut self) -> Result<()> {
        let Some(mut all) = self.capacities.take() else { return Ok(()) };
        if all.next <= self.now {
            for at in 0..all.pools.len() {
                self.apply_commands(&mut all, at)?;
                self.open_due(&mut all, at)?;
                self.evaluate(&mut all, at)?;
            }
            all.note_next();
        }
        self.capacities = Some(all);
        Ok(())
    }

    /// Adds a future command for a replica.
    pub(super) fn add_command(&mut self, replica: usize, at: Instant, what: Command) -> Result<()> {
        let stays = || {
            Error::config(
                "replica",
                format!("must be a replica of a fleet with an autoscaler or failures, got {replica}"),
            )
        };
        let all = self.capacities.as_mut().ok_or_else(stays)?;
        let is_here = |pool_state: &&mut ScaledPool| {
            (pool_state.first..pool_state.first + pool_state.places.len()).contains(&replica)
        };
        let pool_state = all.pools.iter_mut().find(is_here).ok_or_else(stays)?;
        let (passed, place) = (pool_state.next_command, replica - pool_state.first);
        pool_state.failures.as_mut().ok_or_else(stays)?.add_command(passed, at, what, place)?;
        all.note_next();
        Ok(())
    }

    /// Applies random failures and commands.
    fn apply_commands(&mut self, all: &mut Capacities, at: usize) -> Result<()> {
        let pool_state = &mut all.pools[at];
        let now = self.now;
        let mut dying: BTreeSet<usize> = (0..pool_state.places.len())
            .filter(|&place| {
                let slot = pool_state.places[place];
                matches!(slot.phase, Phase::Open | Phase::Draining) && slot.fails_at <= now
            })
            .collect();
        let count = pool_state.commands_to_come().iter().take_while(|command| command.0 <= now).count();
        let commands = pool_state.commands_to_come()[..count].to_vec();
        pool_state.next_command += count;
        for &(_, _, place) in commands.iter().filter(|command| command.1 == Command::Die) {
            if matches!(pool_state.places[place].phase, Phase::Closed | Phase::Broken(_)) {
                all.missed += 1;
            } else {
                dying.insert(place);
            }
        }
        dying.into_iter().try_for_each(|place| self.kill(all, at, place))?;
        for (_, what, place) in commands {
            match (what, all.pools[at].places[place].phase) {
                (Command::Die, _) => {}
                (Command::Drain, Phase::Starting(_) | Phase::Open | Phase::Broken(_)) => {
                    self.withdraw(all, at, place)?
                }
                (Command::Start, Phase::Closed | Phase::Broken(_)) => self.start(all, at, place)?,
                (Command::Drain | Command::Start, _) => all.missed += 1,
            }
        }
        Ok(())
    }

    /// Fails a replica: its requests are retried or lost. It restarts after its repair, unless it was draining.
    fn kill(&mut self, all: &mut Capacities, at: usize, place: usize) -> Result<()> {
        let (pool_state, now) = (&mut all.pools[at], self.now);
        let (replica, pool) = (pool_state.first + place, pool_state.pool);
        let retries = pool_state.failures.as_ref().map_or(0, |failures| failures.retries);
        let is_draining = pool_state.places[place].phase == Phase::Draining;
        let repair = pool_state.failures.as_ref().and_then(|failures| failures.repair).filter(|_| !is_draining);
        let stranded = self.fleet.replicas[replica].kill(now, &mut self.results)?;
        let deadlines = self.calendar.forget_patience(replica as u32);
        for mut stranded in stranded {
            let (id, sent) = (stranded.history.arrival.id, stranded.history.retries());
            let is_taken_back = self.results.ends_canceled(id);
            if is_taken_back || sent == retries {
                let status = if is_taken_back { Status::Abandoned } else { Status::Lost };
                stranded.leave(replica as u32, status, now, &mut self.results);
                self.calendar.in_system -= 1;
                continue;
            }
            let deadline = deadlines.get(&id).copied().filter(|_| stranded.history.is_new());
            if let Some(deadline) = deadline {
                self.calendar.patience.push(Reverse((deadline, id, NO_REPLICA, 0)));
            }
            stranded.history = stranded.history.sent(sent + 1, now);
            all.unrouted.insert(id, Unrouted { pool, stranded, deadline });
        }
        self.renew(all, at, place)?;
        all.end(at, place, now)?;
        let back = repair.map(|repair| now.after(repair)).transpose()?;
        all.pools[at].places[place].phase = back.map_or(Phase::Closed, Phase::Broken);
        all.note(at, place, Change::Died, now);
        Ok(())
    }

    /// Empties a place for a new replica.
    fn renew(&mut self, all: &mut Capacities, at: usize, place: usize) -> Result<()> {
        let pool_state = &mut all.pools[at];
        let replica = pool_state.first + place;
        let engine = (pool_state.spare)(place)?;
        let before = &mut self.fleet.replicas[replica];
        all.past.entry(before.number()).or_default().add(before);
        let mut renewed = pool_state.make.replica(before.number(), engine);
        renewed.replace(before);
        *before = renewed;
        self.fleet.set_open(replica, false);
        self.calendar.set_end(replica, Instant::NEVER);
        Ok(())
    }

    fn open_due(&mut self, all: &mut Capacities, at: usize) -> Result<()> {
        for place in 0..all.pools[at].places.len() {
            let pool_state = &mut all.pools[at];
            if pool_state.places[place].phase == Phase::Broken(self.now) {
                self.start(all, at, place)?;
            } else if pool_state.places[place].phase == Phase::Starting(self.now) {
                all.open(at, place, self.now, &mut self.fleet);
            }
        }
        Ok(())
    }

    /// Starts a replica.
    fn start(&mut self, all: &mut Capacities, at: usize, place: usize) -> Result<()> {
        let pool_state = &mut all.pools[at];
        let startup = pool_state.autoscaler.as_ref().map(|autoscaler| autoscaler.startup);
        let ready = startup.map_or(Ok(self.now), |startup| self.now.after(startup))?;
        let slot = &mut pool_state.places[place];
        (slot.phase, slot.since, slot.is_used) = (Phase::Starting(ready), self.now, true);
        all.note(at, place, Change::Asked, self.now);
        if ready == self.now {
            all.open(at, place, self.now, &mut self.fleet);
        }
        Ok(())
    }

    /// Evaluates the autoscaler if it is due.
    fn evaluate(&mut self, all: &mut Capacities, at: usize) -> Result<()> {
        let pool_state = &all.pools[at];
        if pool_state.next_evaluation > self.now {
            return Ok(());
        }
        let figures = self.figures(all, at)?;
        let pool_state = &mut all.pools[at];
        let Some(autoscaler) = &mut pool_state.autoscaler else { return Ok(()) };
        pool_state.next_evaluation = self.now.after(autoscaler.every)?;
        let target = autoscaler.policy.wanted(&figures)?.clamp(autoscaler.min, autoscaler.max);
        let cooled_at = pool_state.changed.map(|changed| changed.after(autoscaler.cooldown)).transpose()?;
        let may_remove = cooled_at.is_none_or(|cooled_at| cooled_at <= self.now);
        let present = figures.open + figures.starting;
        let places = 0..pool_state.places.len();
        let is = |place: usize, kind: fn(Phase) -> bool| kind(pool_state.places[place].phase);
        if target > present {
            let free: Vec<usize> = places.filter(|&place| is(place, |phase| phase == Phase::Closed)).collect();
            for &place in free.iter().take(target - present) {
                self.start(all, at, place)?;
                all.pools[at].changed = Some(self.now);
            }
        } else if target < present && may_remove {
            let is_starting =
                |&place: &usize| is(place, |phase| matches!(phase, Phase::Starting(_) | Phase::Broken(_)));
            let coming = places.clone().rev().filter(is_starting);
            let open = places.rev().filter(|&place| is(place, |phase| phase == Phase::Open));
            let leaving: Vec<usize> = coming.chain(open).take(present - target).collect();
            for place in leaving {
                self.withdraw(all, at, place)?;
                all.pools[at].changed = Some(self.now);
            }
        }
        Ok(())
    }

    /// Removes a replica: a serving one drains, a starting one is cancelled.
    fn withdraw(&mut self, all: &mut Capacities, at: usize, place: usize) -> Result<()> {
        let slot = &mut all.pools[at].places[place];
        match slot.phase {
            Phase::Open => {
                slot.phase = Phase::Draining;
                self.fleet.set_open(all.pools[at].first + place, false);
                all.note(at, place, Change::Drains, self.now);
            }
            Phase::Starting(_) => {
                slot.phase = Phase::Closed;
                all.end(at, place, self.now)?;
                all.note(at, place, Change::Ended, self.now);
            }
            Phase::Broken(_) => {
                slot.phase = Phase::Closed;
                all.note(at, place, Change::Ended, self.now);
            }
            Phase::Closed | Phase::Draining => {}
        }
        Ok(())
    }

    fn figures(&self, all: &Capacities, at: usize) -> Result<Figures> {
        let pool_state = &all.pools[at];
        let mut figures = Figures {
            now: self.now,
            open: 0,
            starting: pool_state.starting(),
            draining: pool_state.count(|phase| phase == Phase::Draining),
            waiting: all.unrouted.values().filter(|request| request.pool == pool_state.pool).count() as u64,
            running: 0,
            seats: 0,
            used_blocks: 0,
            blocks: 0,
            arrived: pool_state.arrived,
        };
        for (place, slot) in pool_state.places.iter().enumerate() {
            if slot.phase != Phase::Open {
                continue;
            }
            let replica = &self.fleet.replicas[pool_state.first + place];
            let (free, used) = replica.free_and_used_blocks(self.now)?;
            figures.open += 1;
            figures.waiting += replica.waiting();
            figures.running += replica.requests() - replica.waiting();
            figures.seats = figures.seats.saturating_add(replica.max_seqs());
            figures.used_blocks += used;
            figures.blocks = figures.blocks.saturating_add(free.saturating_add(used));
        }
        Ok(figures)
    }

    /// Lets draining replicas form batches that would otherwise wait for more requests, and ends empty ones.
    pub(super) fn end_drains(&mut self) -> Result<()> {
        let Some(mut all) = self.capacities.take() else { return Ok(()) };
        for at in 0..all.pools.len() {
            for place in 0..all.pools[at].places.len() {
                let pool_state = &all.pools[at];
                let index = pool_state.first + place;
                if pool_state.places[place].phase != Phase::Draining || !self.fleet.replicas[index].is_idle() {
                    continue;
                }
                let replica = &self.fleet.replicas[index];
                if !replica.is_empty() {
                    if replica.next_instant() == Instant::NEVER {
                        self.form(index, true)?;
                    }
                    continue;
                }
                self.calendar.forget_patience(index as u32);
                self.renew(&mut all, at, place)?;
                all.end(at, place, self.now)?;
                all.pools[at].places[place].phase = Phase::Closed;
                all.note(at, place, Change::Ended, self.now);
                all.note_next();
            }
        }
        self.capacities = Some(all);
        Ok(())
    }
}
