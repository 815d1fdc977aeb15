//! Replicas that come and go.
//!
//! A pool has a place for each replica that it may have. At a place one replica after the other can stand: one that is
//! asked for starts and opens, takes requests, drains or dies; the next one there is another machine, whose cache is empty
//! and whose scheduler remembers nothing. Requests that have no replica stand in a line before the pools, and are routed in
//! the order of their ids as soon as one is open.
//!
//! At one instant, pool by pool: replicas die, the lowest first; others begin to drain or to start, as they are told; those
//! whose time has come open; the autoscaler looks. When all else has happened, those that have nothing left to do end their
//! drain. What happens to replicas alone keeps no run going, unless a request waits for it.

mod deeds;
mod line;

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
pub(super) use deeds::{Deeds, Past};
use line::InLine;

/// The pools whose replicas come and go, and the requests that wait for one.
#[derive(Default)]
pub(super) struct Capacities {
    pools: Vec<Shifting>,
    line: BTreeMap<u32, InLine>,
    /// When something happens to a replica next.
    next: Instant,
    events: Vec<FleetEvent>,
    /// ∫ number of replicas paid for dt, in attoseconds, of those that have ended.
    paid: u128,
    /// What replicas did that are no more, by the number of their place.
    past: BTreeMap<u32, Past>,
    /// What was told of replicas that could not do it.
    pub(super) missed: usize,
}

/// A pool whose replicas come and go.
struct Shifting {
    pool: usize,
    /// The first of its places among those of all pools.
    first: usize,
    make: Make,
    spare: Spare,
    places: Vec<Standing>,
    autoscaler: Option<Autoscaler>,
    next_look: Instant,
    /// The last look that changed anything.
    changed: Option<Instant>,
    failures: Option<Failures>,
    /// The first of what replicas are told that has not come.
    next_command: usize,
    arrived: u64,
}

/// What stands at a place.
#[derive(Clone, Copy)]
struct Standing {
    phase: Phase,
    /// Since when it is paid for, while it is.
    since: Instant,
    /// When it dies by a draw.
    dies: Instant,
    /// How many replicas have opened here.
    lives: u64,
    /// Did one ever stand here?
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

impl Standing {
    fn closed() -> Standing {
        let (phase, since, dies) = (Phase::Closed, Instant::ZERO, Instant::NEVER);
        Standing { phase, since, dies, lives: 0, is_used: false }
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

impl Shifting {
    fn count(&self, is: impl Fn(Phase) -> bool) -> usize {
        self.places.iter().filter(|place| is(place.phase)).count()
    }

    fn starting(&self) -> usize {
        self.count(|phase| matches!(phase, Phase::Starting(_) | Phase::Broken(_)))
    }

    /// When something happens here next by itself.
    fn next(&self) -> Instant {
        let told = self.commands_to_come().first().map_or(Instant::NEVER, |command| command.0);
        self.places.iter().map(Standing::next).fold(self.next_look.min(told), Instant::min)
    }

    /// What replicas are told that has not come.
    fn commands_to_come(&self) -> &[(Instant, Command, usize)] {
        self.failures.as_ref().map_or(&[], |failures| &failures.commands[self.next_command..])
    }

    /// Can a replica ever open here again?
    fn can_open(&self) -> bool {
        let is_told = || self.commands_to_come().iter().any(|command| command.1 == Command::Start);
        self.autoscaler.is_some() || self.starting() > 0 || is_told()
    }
}

impl Capacities {
    /// A pool more; its replicas are there, and the first ones are open.
    pub(super) fn add(&mut self, pool: usize, first: usize, capacity: Capacity, make: Make, fleet: &mut Fleet) {
        let Capacity { open, autoscaler, failures, spare } = capacity;
        let count = fleet.pools[pool].replicas.len();
        fleet.close_all(pool);
        let next_look = autoscaler.as_ref().map_or(Instant::NEVER, |autoscaler| Instant(autoscaler.every.0));
        let (places, changed, next_command, arrived) = (vec![Standing::closed(); count], None, 0, 0);
        let shifting = Shifting {
            pool,
            first,
            make,
            spare,
            places,
            autoscaler,
            next_look,
            changed,
            failures,
            next_command,
            arrived,
        };
        self.pools.push(shifting);
        let at = self.pools.len() - 1;
        for place in 0..open {
            self.open(at, place, Instant::ZERO, fleet);
        }
        self.note_next();
    }

    /// A replica takes requests from now on.
    fn open(&mut self, at: usize, place: usize, now: Instant, fleet: &mut Fleet) {
        let shifting = &mut self.pools[at];
        let replica = shifting.first + place;
        let standing = &mut shifting.places[place];
        let dies = |failures: &Failures| failures.dies(replica as u32, standing.lives, now);
        standing.dies = shifting.failures.as_ref().map_or(Instant::NEVER, dies);
        if standing.phase == Phase::Closed {
            standing.since = now;
        }
        standing.phase = Phase::Open;
        standing.lives += 1;
        standing.is_used = true;
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
        let shifting = &self.pools[at];
        self.events.push(FleetEvent {
            at: now,
            replica: (shifting.first + place) as u32,
            change,
            open: shifting.count(|phase| phase == Phase::Open) as u32,
            starting: shifting.starting() as u32,
            draining: shifting.count(|phase| phase == Phase::Draining) as u32,
        });
    }

    fn note_next(&mut self) {
        self.next = self.pools.iter().map(Shifting::next).min().unwrap_or(Instant::NEVER);
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
        let comes = |one: &InLine| self.pools.iter().any(|shifting| shifting.pool == one.pool && shifting.can_open());
        self.line.values().any(comes)
    }

    /// Requests that have no replica.
    pub(super) fn waiting(&self) -> u64 {
        self.line.len() as u64
    }

    /// Does a request wait here that was never admitted, so that its patience goes on?
    pub(super) fn holds(&self, id: u32) -> bool {
        self.line.get(&id).is_some_and(|one| one.stranded.history.is_new())
    }

    /// Of each replica, did one ever stand at its place?
    pub(super) fn is_used(&self, replicas: usize) -> Vec<bool> {
        let mut is_used = vec![true; replicas];
        for shifting in &self.pools {
            for (place, standing) in shifting.places.iter().enumerate() {
                is_used[shifting.first + place] = standing.is_used;
            }
        }
        is_used
    }

    /// ∫ number of replicas paid for dt until the end of the run; of the `replicas` of all pools those of others always are.
    pub(super) fn paid_until(&self, end: Instant, replicas: usize) -> Result<u128> {
        let mut paid = self.paid;
        let mut others = replicas;
        for shifting in &self.pools {
            others -= shifting.places.len();
            for standing in &shifting.places {
                if matches!(standing.phase, Phase::Starting(_) | Phase::Open | Phase::Draining) {
                    paid = sum_of_areas(paid, end.since(standing.since).0)?;
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
    pub(super) fn take_past(&mut self) -> BTreeMap<u32, Past> {
        std::mem::take(&mut self.past)
    }

    /// The requests that still wait for a replica when the run ends.
    pub(super) fn empty_line(&mut self) -> impl Iterator<Item = Stranded> {
        std::mem::take(&mut self.line).into_values().map(|one| one.stranded)
    }

    /// From now on the replicas that come tell what happens.
    pub(super) fn record_live_events(&mut self) {
        self.pools.iter_mut().for_each(|shifting| shifting.make.is_listed = true);
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
                self.obey(&mut all, at)?;
                self.let_open(&mut all, at)?;
                self.look(&mut all, at)?;
            }
            all.note_next();
        }
        self.capacities = Some(all);
        Ok(())
    }

    /// A replica is told something at an instant that has not come.
    pub(super) fn tell(&mut self, replica: usize, at: Instant, what: Command) -> Result<()> {
        let stays = || Error::config("replica", format!("{replica} stays: its fleet is of a fixed size"));
        let all = self.capacities.as_mut().ok_or_else(stays)?;
        let is_here =
            |shifting: &&mut Shifting| (shifting.first..shifting.first + shifting.places.len()).contains(&replica);
        let shifting = all.pools.iter_mut().find(is_here).ok_or_else(stays)?;
        let (passed, place) = (shifting.next_command, replica - shifting.first);
        shifting.failures.as_mut().ok_or_else(stays)?.tell(passed, at, what, place)?;
        all.note_next();
        Ok(())
    }

    /// Replicas die by draws, and do what they are told.
    fn obey(&mut self, all: &mut Capacities, at: usize) -> Result<()> {
        let shifting = &mut all.pools[at];
        let now = self.now;
        let mut dying: BTreeSet<usize> = (0..shifting.places.len())
            .filter(|&place| {
                let standing = shifting.places[place];
                matches!(standing.phase, Phase::Open | Phase::Draining) && standing.dies <= now
            })
            .collect();
        let count = shifting.commands_to_come().iter().take_while(|command| command.0 <= now).count();
        let commands = shifting.commands_to_come()[..count].to_vec();
        shifting.next_command += count;
        for &(_, _, place) in commands.iter().filter(|command| command.1 == Command::Die) {
            if matches!(shifting.places[place].phase, Phase::Closed | Phase::Broken(_)) {
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
        let (shifting, now) = (&mut all.pools[at], self.now);
        let (replica, pool) = (shifting.first + place, shifting.pool);
        let retries = shifting.failures.as_ref().map_or(0, |failures| failures.retries);
        let repair = shifting.failures.as_ref().and_then(|failures| failures.repair);
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
            all.line.insert(id, InLine { pool, stranded, deadline });
        }
        self.renew(all, at, place)?;
        all.end(at, place, now)?;
        let back = repair.map(|repair| now.after(repair)).transpose()?;
        all.pools[at].places[place].phase = back.map_or(Phase::Closed, Phase::Broken);
        all.note(at, place, Change::Died, now);
        Ok(())
    }

    /// Nothing stands at a place any more: what comes there next is a replica that was never used.
    fn renew(&mut self, all: &mut Capacities, at: usize, place: usize) -> Result<()> {
        let shifting = &mut all.pools[at];
        let replica = shifting.first + place;
        let engine = (shifting.spare)(place)?;
        let before = &mut self.fleet.replicas[replica];
        all.past.entry(before.number()).or_default().add(before);
        let mut renewed = shifting.make.replica(before.number(), engine);
        renewed.replace(before);
        *before = renewed;
        self.fleet.set_open(replica, false);
        self.calendar.set_end(replica, Instant::NEVER);
        Ok(())
    }

    fn let_open(&mut self, all: &mut Capacities, at: usize) -> Result<()> {
        for place in 0..all.pools[at].places.len() {
            let shifting = &mut all.pools[at];
            if shifting.places[place].phase == Phase::Broken(self.now) {
                self.start(all, at, place)?;
            } else if shifting.places[place].phase == Phase::Starting(self.now) {
                all.open(at, place, self.now, &mut self.fleet);
            }
        }
        Ok(())
    }

    /// A replica is asked for.
    fn start(&mut self, all: &mut Capacities, at: usize, place: usize) -> Result<()> {
        let shifting = &mut all.pools[at];
        let startup = shifting.autoscaler.as_ref().map(|autoscaler| autoscaler.startup);
        let ready = startup.map_or(Ok(self.now), |startup| self.now.after(startup))?;
        let standing = &mut shifting.places[place];
        (standing.phase, standing.since, standing.is_used) = (Phase::Starting(ready), self.now, true);
        all.note(at, place, Change::Asked, self.now);
        if ready == self.now {
            all.open(at, place, self.now, &mut self.fleet);
        }
        Ok(())
    }

    /// The autoscaler looks, if it is time.
    fn look(&mut self, all: &mut Capacities, at: usize) -> Result<()> {
        let shifting = &all.pools[at];
        if shifting.next_look > self.now {
            return Ok(());
        }
        let figures = self.figures(all, at)?;
        let shifting = &mut all.pools[at];
        let Some(autoscaler) = &mut shifting.autoscaler else { return Ok(()) };
        shifting.next_look = self.now.after(autoscaler.every)?;
        let wanted = autoscaler.policy.wanted(&figures)?.clamp(autoscaler.min, autoscaler.max);
        let cooled = shifting.changed.map(|changed| changed.after(autoscaler.cooldown)).transpose()?;
        let is_cool = cooled.is_none_or(|cooled| cooled <= self.now);
        let there = figures.open + figures.starting;
        let places = 0..shifting.places.len();
        let is = |place: usize, kind: fn(Phase) -> bool| kind(shifting.places[place].phase);
        if wanted > there {
            let free: Vec<usize> = places.filter(|&place| is(place, |phase| phase == Phase::Closed)).collect();
            for &place in free.iter().take(wanted - there) {
                self.start(all, at, place)?;
                all.pools[at].changed = Some(self.now);
            }
        } else if wanted < there && is_cool {
            let comes = |&place: &usize| is(place, |phase| matches!(phase, Phase::Starting(_) | Phase::Broken(_)));
            let coming = places.clone().rev().filter(comes);
            let open = places.rev().filter(|&place| is(place, |phase| phase == Phase::Open));
            let leaving: Vec<usize> = coming.chain(open).take(there - wanted).collect();
            for place in leaving {
                self.withdraw(all, at, place)?;
                all.pools[at].changed = Some(self.now);
            }
        }
        Ok(())
    }

    /// A replica is wanted no more: one that serves drains, one that only comes does not come.
    fn withdraw(&mut self, all: &mut Capacities, at: usize, place: usize) -> Result<()> {
        let standing = &mut all.pools[at].places[place];
        match standing.phase {
            Phase::Open => {
                standing.phase = Phase::Draining;
                self.fleet.set_open(all.pools[at].first + place, false);
                all.note(at, place, Change::Drains, self.now);
            }
            Phase::Starting(_) => {
                standing.phase = Phase::Closed;
                all.end(at, place, self.now)?;
                all.note(at, place, Change::Ended, self.now);
            }
            Phase::Broken(_) => {
                standing.phase = Phase::Closed;
                all.note(at, place, Change::Ended, self.now);
            }
            Phase::Closed | Phase::Draining => {}
        }
        Ok(())
    }

    fn figures(&self, all: &Capacities, at: usize) -> Result<Figures> {
        let shifting = &all.pools[at];
        let mut figures = Figures {
            now: self.now,
            open: 0,
            starting: shifting.starting(),
            draining: shifting.count(|phase| phase == Phase::Draining),
            waiting: all.line.values().filter(|one| one.pool == shifting.pool).count() as u64,
            running: 0,
            seats: 0,
            used_blocks: 0,
            blocks: 0,
            arrived: shifting.arrived,
        };
        for (place, standing) in shifting.places.iter().enumerate() {
            if standing.phase != Phase::Open {
                continue;
            }
            let replica = &self.fleet.replicas[shifting.first + place];
            let (free, used) = replica.free_and_used_blocks(self.now)?;
            figures.open += 1;
            figures.waiting += replica.waiting();
            figures.running += replica.requests() - replica.waiting();
            figures.seats = figures.seats.saturating_add(replica.seats());
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
                let shifting = &all.pools[at];
                let index = shifting.first + place;
                if shifting.places[place].phase != Phase::Draining || !self.fleet.replicas[index].is_idle() {
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
