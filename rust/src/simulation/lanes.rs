//! Lanes: replicas that interact only when a request arrives.
//!
//! This applies if no request moves between replicas, runs out of patience or depends on others. Between two arrivals
//! at one replica, nothing else affects it. So each replica advances alone to the next arrival, in any order. Shared
//! results are sums, disjoint rows, or rows that are sorted at the end. A sample reads all replicas at its instant,
//! so they stop there too. A single replica without a router has its own loop ([`single`](super::single)).

use super::run::{Polls, Run, sum_of_areas};
use crate::clock::{Instant, Long, Short, Width};
use crate::error::Result;
use crate::replica::Replica;
use crate::results::Recorder;
use crate::tournament::Tournament;
use crate::workload::Workload;

/// The state of each replica's lane.
pub(super) struct Lanes {
    pub(super) lanes: Vec<Lane>,
    /// The next event of each replica as [`Instant::sort_key`]; the present instant if it is to form a batch.
    ends: Tournament<u64>,
}

/// The lane of one replica.
#[derive(Clone, Copy, Default)]
pub(super) struct Lane {
    /// The last event here.
    pub(super) at: Instant,
    /// Requests here since then.
    requests: u64,
    /// ∫ number of requests dt by parts: Σ instant · departures − Σ instant · arrivals.
    area: u128,
    /// Whether an event occurred since the replica last formed a batch.
    pub(super) needs_batch: bool,
}

impl Lane {
    /// Counts an arrival.
    pub(super) fn receive<W: Width>(&mut self, now: Instant) {
        // The final value fits for events before 2^95 attoseconds; anything else is an error: see
        // `Recorder::check_instants`.
        self.area = self.area.wrapping_sub(now.within::<W>().0);
        self.requests += 1;
    }

    /// Counts departures; `requests` remain.
    fn keep<W: Width>(&mut self, requests: u64, now: Instant) {
        if requests < self.requests {
            let left = u128::from(self.requests - requests);
            self.area = self.area.wrapping_add(now.within::<W>().0.wrapping_mul(left));
            self.requests = requests;
        }
    }

    /// ∫ number of requests dt since the last call, until `now`; no event may precede it.
    fn take_area(&mut self, now: Instant) -> u128 {
        let of_those_here = now.0.wrapping_mul(u128::from(self.requests));
        self.at = now;
        std::mem::replace(&mut self.area, of_those_here.wrapping_neg()).wrapping_add(of_those_here)
    }

    /// Forms a batch if an event occurred, and advances the replica alone.
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

/// The end of a lane's advance: all events before `instant`. For an arrival, iterations that end then are settled
/// too.
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

    /// Sets the next event of a replica.
    #[inline]
    pub(super) fn set_end(&mut self, replica: usize, end: Instant) {
        self.ends.set(replica, end.sort_key());
    }
}

impl Run {
    /// Runs all events before `stop_at`.
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

    /// Runs all events before `instant`.
    fn advance_lanes_to<W: Width>(&mut self, instant: Instant, workload: &Workload, polls: &mut Polls) -> Result<()> {
        while self.arrivals.at.is_before::<W>(instant) {
            self.advance_each::<W>(Until { instant: self.arrivals.at, is_arrival: true }, polls)?;
            self.arrive_in_lanes::<W>(workload, polls)?;
        }
        self.advance_each::<W>(Until { instant, is_arrival: false }, polls)
    }

    /// The next event.
    pub(super) fn next_in_lanes(&self) -> Instant {
        self.fleet.next_instant().min(self.arrivals.at)
    }

    /// Advances all lanes to the last event.
    pub(super) fn synchronize(&mut self) -> Result<()> {
        self.now = self.lanes.lanes.iter().map(|lane| lane.at).fold(self.now, Instant::max);
        for lane in &mut self.lanes.lanes {
            self.in_system_area = sum_of_areas(self.in_system_area, lane.take_area(self.now))?;
        }
        Ok(())
    }

    /// Advances every replica with an earlier event.
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

    /// Delivers the arrivals of this instant one by one. Replicas form batches when they advance from it.
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
                if workload.describes_drafts() {
                    replica.set_drafts(place, workload.drafts(row)?);
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
