//! Replicas that come and go.
//!
//! A pool has a place for each replica that it may have. At a place request replica after the other can stand: request that is
//! asked for starts and opens, takes requests, drains or dies; the next request there is another machine, whose cache is empty
//! and whose scheduler remembers nothing. Requests that have no replica stand in a line before the pools, and are routed in
//! the order of their ids as soon as request is open.
//!
//! At request instant, pool by pool: replicas die, the lowest first; others begin to drain or to start, as they are told; those
//! whose time has come open; the autoscaler looks. When all else has happened, those that have nothing left to do end their
//! drain. What happens to replicas alone keeps no run going, unless a request waits for it.

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

/// The pools whose replicas come and go, and the requests that wait for request.
#[derive(Default)]
pub(super) struct Capacities {
    pools: Vec<ScaledPool>,
    unrouted: BTreeMap<u32, Unrouted>,
    /// When something happens to a replica next.
    next: Instant,
    events: Vec<FleetEvent>,
    /// ∫ number of replicas paid for dt, in attoseconds, of those that have ended.
    paid: u128,
    /// What replicas did that are no more, by the number of their place.
    past: BTreeMap<u32, PlaceTotals>,
    /// What was told of replicas that could not do it.
    pub(super) missed: usize,
}

/// A pool whose replicas come and go.
struct ScaledPool {
    pool: usize,
    /// The first of its places among those of all pools.
    first: usize,
    make: Make,
    spare: Spare,
    places: Vec<ReplicaSlot>,
    autoscaler: Option<Autoscaler>,
    next_evaluation: Instant,
    /// The last look that changed anything.
    changed: Option<Instant>,
    failures: Option<Failures>,
    /// The first of what replicas are told that has not come.
    next_command: usize,
    arrived: u64,
}

/// What stands at a place.
#[derive(Clone, Copy)]
struct ReplicaSlot {
    phase: Phase,
    /// Since when it is paid for, while it is.
    since: Instant,
    /// When it dies by a draw.
    dies: Instant,
    /// How many replicas have opened here.
    lives: u64,
    /// Did request ever stand here?
    is_used: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There is none.
    Closed,
    /// Asked for; it opens then.
    Starting(Instant),
    /// It takes requests.
    Open,
    /// It finishes those that it has.
    Draining,
    /// It has died and is started again then.
    Broken(Instant),
}

impl ReplicaSlot {
    fn closed() -> ReplicaSlot {
        let (phase, since, dies) = (Phase::Closed, Instant::ZERO, Instant::NEVER);
        ReplicaSlot { phase, since, dies, lives: 0, is_used: false }
    }

    /// When something happens to it next by itself.
    fn next(&self) -> Instant {
        match self.phase {
            Phase::Closed => Instant::NEVER,
            Phase::Starting(at) | Phase::Broken(at) => at,
            Phase::Open | Phase::Draining => self.dies,
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

    /// When something happens here next by itself.
    fn next(&self) -> Instant {
        let command = self.commands_to_come().first().map_or(Instant::NEVER, |command| command.0);
        self.places.iter().map(ReplicaSlot::next).fold(self.next_evaluation.min(command), Instant::min)
    }

    /// What replicas are told that has not come.
    fn commands_to_come(&self) -> &[(Instant, Command, usize)] {
        self.failures.as_ref().map_or(&[], |failures| &failures.commands[self.next_command..])
    }

    /// Can a replica ever open here again?
    fn can_open(&self) -> bool {
        let has_start = || self.commands_to_come().iter().any(|command| command.1 == Command::Start);
        self.autoscaler.is_some() || self.starting() > 0 || has_start()
    }
}

impl Capacities {
    /// A pool more; its replicas are there, and the first ones are open.
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

    /// A replica takes requests from now on.
    fn open(&mut self, at: usize, place: usize, now: Instant, fleet: &mut Fleet) {
        let pool_state = &mut self.pools[at];
        let replica = pool_state.first + place;
        let slot = &mut pool_state.places[place];
        let dies = |failures: &Failures| failures.dies(replica as u32, slot.lives, now);
        slot.dies = pool_state.failures.as_ref().map_or(Instant::NEVER, dies);
        if slot.phase == Phase::Closed {
            slot.since = now;
        }
        slot.phase = Phase::Open;
        slot.lives += 1;
        slot.is_used = true;
        fleet.set_open(replica, true);
        self.note(at, place, Change::Ready, now);
    }

    /// A replica is no more paid for.
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

    /// When something happens to replicas, if `others` is when anything else happens: without that, and without a request
    /// that waits for a replica, nothing does.
    #[cold]
    #[inline(never)]
    pub(super) fn join(&self, others: Instant) -> Instant {
        if self.next <= others && (others < Instant::NEVER || self.is_awaited()) { self.next } else { others }
    }

    /// Does a request wait for a replica that may come?
    fn is_awaited(&self) -> bool {
        let is_starting = |request: &Unrouted| {
            self.pools.iter().any(|pool_state| pool_state.pool == request.pool && pool_state.can_open())
        };
        self.unrouted.values().any(is_starting)
    }

    /// Requests that have no replica.
    pub(super) fn waiting(&self) -> u64 {
        self.unrouted.len() as u64
    }

    /// Does a request wait here that was never admitted, so that its patience goes on?
    pub(super) fn holds(&self, id: u32) -> bool {
        self.unrouted.get(&id).is_some_and(|request| request.stranded.history.is_new())
    }

    /// Of each replica, did request ever stand at its place?
    pub(super) fn is_used(&self, replicas: usize) -> Vec<bool> {
        let mut is_used = vec![true; replicas];
        for pool_state in &self.pools {
            for (place, slot) in pool_state.places.iter().enumerate() {
                is_used[pool_state.first + place] = slot.is_used;
            }
        }
        is_used
    }

    /// ∫ number of replicas paid for dt until the end of the run; of the `replicas` of all pools those of others always are.
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

    /// What happened to replicas.
    pub(super) fn take_events(&mut self) -> Vec<FleetEvent> {
        std::mem::take(&mut self.events)
    }

    /// What the replicas did that are no more.
    pub(super) fn take_past(&mut self) -> BTreeMap<u32, PlaceTotals> {
        std::mem::take(&mut self.past)
    }

    /// The requests that still wait for a replica when the run ends.
    pub(super) fn take_unrouted(&mut self) -> impl Iterator<Item = Stranded> {
        std::mem::take(&mut self.unrouted).into_values().map(|request| request.stranded)
    }

    /// From now on the replicas that come tell what happens.
    pub(super) fn record_events(&mut self) {
        self.pools.iter_mut().for_each(|pool_state| pool_state.make.is_listed = true);
    }
}

impl Run {
    /// What happens to replicas at this instant.
    #[cold]
    #[inline(never)]
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

    /// A replica is told something at an instant that has not come.
    pub(super) fn add_command(&mut self, replica: usize, at: Instant, what: Command) -> Result<()> {
        let stays = || Error::config("replica", format!("{replica} stays: its fleet is of a fixed size"));
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

    /// Replicas die by draws, and do what they are told.
    fn apply_commands(&mut self, all: &mut Capacities, at: usize) -> Result<()> {
        let pool_state = &mut all.pools[at];
        let now = self.now;
        let mut dying: BTreeSet<usize> = (0..pool_state.places.len())
            .filter(|&place| {
                let slot = pool_state.places[place];
                matches!(slot.phase, Phase::Open | Phase::Draining) && slot.dies <= now
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

    /// A replica dies, wherever it stands: its requests are sent again, or lost.
    fn kill(&mut self, all: &mut Capacities, at: usize, place: usize) -> Result<()> {
        let (pool_state, now) = (&mut all.pools[at], self.now);
        let (replica, pool) = (pool_state.first + place, pool_state.pool);
        let retries = pool_state.failures.as_ref().map_or(0, |failures| failures.retries);
        let repair = pool_state.failures.as_ref().and_then(|failures| failures.repair);
        let stranded = self.fleet.replicas[replica].kill(now, &mut self.results)?;
        let deadlines = self.calendar.forget_patience(replica as u32);
        for mut stranded in stranded {
            let (id, sent) = (stranded.history.arrival.id, stranded.history.retries());
            let is_taken_back = self.results.ends_taken_back(id);
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

    /// Nothing stands at a place any more: what is_starting there next is a replica that was never used.
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

    /// A replica is asked for.
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

    /// The autoscaler looks, if it is time.
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

    /// A replica is wanted no more: request that serves drains, request that only is_starting does not come.
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

    /// Replicas that drain form no batch with others to come any more, and end when they have nothing left to do.
    #[cold]
    #[inline(never)]
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
