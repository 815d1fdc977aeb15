//! Replicas that meet only when a request arrives.
//!
//! Where no request goes from one replica to another, runs out of patience or waits for others, what happens between
//! two arrivals at one replica is nothing to the others: each goes on by itself to the next arrival, in any order. What
//! they write down together are sums, rows that are apart, and rows that are sorted at the end. A sample sees all
//! replicas at its instant, so they wait for one another there too. One replica without a router has a loop of its own
//! ([`single`](super::single)).

use super::run::{Polls, Run, sum_of_areas};
use crate::clock::{Instant, Long, Short, Width};
use crate::error::Result;
use crate::replica::Replica;
use crate::results::Recorder;
use crate::tournament::Tournament;
use crate::workload::Workload;

/// Where each replica is on its way.
pub(super) struct Lanes {
    pub(super) lanes: Vec<Lane>,
    /// When something happens at each replica next, by [`Instant::sort_key`]: at once, where it is to form a batch.
    ends: Tournament<u64>,
}

/// A replica on its way.
#[derive(Clone, Copy, Default)]
pub(super) struct Lane {
    /// The last instant at which something happened here.
    pub(super) at: Instant,
    /// Requests here since then.
    requests: u64,
    /// ∫ number of requests here dt by parts: Σ instant · number over those that left, less that over those that came.
    area: u128,
    /// Has something happened here since the replica was asked to form a batch?
    pub(super) needs_batch: bool,
}

impl Lane {
    /// A request comes.
    #[inline(always)]
    pub(super) fn receive<W: Width>(&mut self, now: Instant) {
        // What is left in the end of all that happens before 2^95 attoseconds fits, and nothing else remains without an error:
        // see `Recorder::check_instants`.
        self.area = self.area.wrapping_sub(now.within::<W>().0);
        self.requests += 1;
    }

    /// Requests may have left: so many are here.
    #[inline(always)]
    fn keep<W: Width>(&mut self, requests: u64, now: Instant) {
        if requests < self.requests {
            let left = u128::from(self.requests - requests);
            self.area = self.area.wrapping_add(now.within::<W>().0.wrapping_mul(left));
            self.requests = requests;
        }
    }

    /// ∫ number of requests here dt since this was asked last, until an instant before which nothing will happen.
    fn take_area(&mut self, now: Instant) -> u128 {
        let of_those_here = now.0.wrapping_mul(u128::from(self.requests));
        self.at = now;
        std::mem::replace(&mut self.area, of_those_here.wrapping_neg()).wrapping_add(of_those_here)
    }

    /// The replica, if something has happened there, forms a batch, and goes on by itself.
    #[inline(always)]
    pub(super) fn advance<W: Width>(
        &mut self,
        replica: &mut Replica,
        until: Until,
        results: &mut Recorder,
        polls: &mut Polls,
    ) -> Result<()> {
        let mut needs_batch = std::mem::take(&mut self.needs_batch);
        loop {
            if needs_batch && replica.is_idle() && !replica.is_empty() {
                polls.count(results.left())?;
                replica.form_here::<W>(self.at, false)?;
            }
            let (end, instant) = (replica.next_instant(), until.instant);
            let order = end.cmp_within::<W>(instant);
            let is_last = order.is_ge();
            if is_last && !(until.is_arrival && order.is_eq()) {
                return Ok(());
            }
            replica.settle_here::<W>(results)?;
            self.at = end;
            self.keep::<W>(replica.requests(), end);
            if is_last {
                self.needs_batch = true;
                return Ok(());
            }
            needs_batch = true;
        }
    }
}

/// How far a replica goes on by itself: through all that happens before an instant. If it is that of an arrival,
/// iterations that end there are settled as well.
#[derive(Clone, Copy)]
pub(super) struct Until {
    pub(super) instant: Instant,
    pub(super) is_arrival: bool,
}

impl Lanes {
    pub(super) fn new(replicas: usize) -> Lanes {
        let ends = Tournament::new(replicas, u64::MAX, u64::MAX);
        Lanes { lanes: vec![Lane::default(); replicas], ends }
    }

    /// Something happens at a replica at `end` next.
    #[inline]
    pub(super) fn set_end(&mut self, replica: usize, end: Instant) {
        self.ends.set(replica, end.sort_key());
    }
}

impl Run {
    /// Lets happen what happens before `stop_at`.
    pub(super) fn advance_lanes(&mut self, workload: &Workload, polls: &mut Polls) -> Result<()> {
        loop {
            let sampled = self.sampler.seen;
            let is_sampled = sampled < self.stop_at;
            let instant = if is_sampled { sampled } else { self.stop_at };
            if self.arrivals.are_short && instant.is_short() && self.fleet.replicas[0].is_short() {
                self.advance_lanes_to::<Short>(instant, workload, polls)?;
            } else {
                self.advance_lanes_to::<Long>(instant, workload, polls)?;
            }
            if !is_sampled || self.next_in_lanes() >= self.stop_at {
                return Ok(());
            }
            self.sampler.sample_before(self.next_in_lanes(), &self.fleet.replicas, &mut self.results)?;
        }
    }

    /// Lets happen what happens before an instant.
    #[inline(never)]
    fn advance_lanes_to<W: Width>(&mut self, instant: Instant, workload: &Workload, polls: &mut Polls) -> Result<()> {
        while self.arrivals.at.is_before::<W>(instant) {
            self.advance_each::<W>(Until { instant: self.arrivals.at, is_arrival: true }, polls)?;
            self.arrive_in_lanes::<W>(workload, polls)?;
        }
        self.advance_each::<W>(Until { instant, is_arrival: false }, polls)
    }

    /// When something happens next.
    pub(super) fn next_in_lanes(&self) -> Instant {
        self.fleet.next_instant().min(self.arrivals.at)
    }

    /// All replicas come to the last instant at which anything happened.
    pub(super) fn synchronize(&mut self) -> Result<()> {
        self.now = self.lanes.lanes.iter().map(|lane| lane.at).fold(self.now, Instant::max);
        for lane in &mut self.lanes.lanes {
            self.in_system_area = sum_of_areas(self.in_system_area, lane.take_area(self.now))?;
        }
        Ok(())
    }

    /// Every replica that has something to do goes on.
    #[inline(never)]
    fn advance_each<W: Width>(&mut self, until: Until, polls: &mut Polls) -> Result<()> {
        let (Lanes { lanes, ends }, fleet) = (&mut self.lanes, &mut self.fleet);
        let results = &mut self.results;
        ends.replace_up_to(until.instant.sort_key_within::<W>().min(Instant::LAST_SORT_KEY), |index| {
            let (replica, lane) = (&mut fleet.replicas[index], &mut lanes[index]);
            lane.advance::<W>(replica, until, results, polls)?;
            let next =
                if lane.needs_batch { until.instant.sort_key_within::<W>() } else { replica.next_instant().sort_key() };
            fleet.count_requests(index);
            Ok(next)
        })
    }

    /// Requests arrive one by one. Batches are formed at this instant when replicas go on from it.
    #[inline]
    fn arrive_in_lanes<W: Width>(&mut self, workload: &Workload, polls: &mut Polls) -> Result<()> {
        self.now = self.arrivals.at;
        while self.arrivals.at.is::<W>(self.now) {
            let row = self.arrivals.pop(workload);
            let arrival = self.arrivals.request(row, self.now, workload);
            self.fleet.content.read(&workload.content, row);
            let index = self.route(workload.pool(row), &arrival, false)?;
            let (replica, lane) = (&mut self.fleet.replicas[index], &mut self.lanes.lanes[index]);
            lane.at = self.now;
            if let Some(place) = replica.arrive_here(&arrival, &self.fleet.content, &mut self.results)? {
                if !workload.accepted.is_empty() {
                    replica.set_accepted(place, workload.accepted.of(row));
                }
                lane.receive::<W>(self.now);
                lane.needs_batch |= replica.is_idle();
                let next =
                    if lane.needs_batch { self.now.sort_key_within::<W>() } else { replica.next_instant().sort_key() };
                self.lanes.ends.set(index, next);
                self.fleet.count_requests(index);
            } else {
                polls.count(self.results.left())?;
            }
            if self.arrivals.at.is_never::<W>() {
                self.waiting_at_last_arrival = self.waiting();
            }
        }
        Ok(())
    }
}
