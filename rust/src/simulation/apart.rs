//! Replicas that meet only when a request arrives.
//!
//! Where no request goes from one replica to another, runs out of patience or waits for others, what happens between two
//! arrivals at one replica is nothing to the others: each goes on by itself to the next arrival, in any order. What they
//! write down together are sums, rows that are apart, and rows that are sorted at the end. A sample sees all replicas at
//! its instant, so they wait for one another there too.

use super::run::{Polls, Run};
use crate::clock::{Instant, Span};
use crate::error::Result;
use crate::tournament::Tournament;
use crate::workload::Workload;

/// Where each replica is on its way.
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    /// When something happens at each replica next, by [`hour`]; `None`: there is only one.
    ends: Option<Tournament<u64>>,
    /// Idle replicas at which something happened at this instant.
    touched: Vec<u32>,
}

#[derive(Clone, Copy, Default)]
struct Lane {
    /// The last instant at which something happened here.
    at: Instant,
    is_touched: bool,
}

/// The part of an instant by which replicas are told from those that have nothing to do yet: whole 2^30 attoseconds, a
/// nanosecond, in 64 bits. A later instant never has an earlier hour.
#[inline]
fn hour(at: Instant) -> u64 {
    u64::try_from(at.0 >> 30).unwrap_or(LAST_HOUR)
}

/// That of instants which do not fit. Only `NEVER` comes after it.
const LAST_HOUR: u64 = u64::MAX - 1;

impl Lanes {
    pub(super) fn new(replicas: usize) -> Lanes {
        let ends = (replicas > 1).then(|| Tournament::new(replicas, u64::MAX, u64::MAX));
        Lanes { lanes: vec![Lane::default(); replicas], ends, touched: Vec::new() }
    }

    /// Something happens at a replica at `end` next.
    #[inline]
    pub(super) fn set_end(&mut self, replica: usize, end: Instant) {
        if let Some(ends) = &mut self.ends {
            ends.set(replica, if end == Instant::NEVER { u64::MAX } else { hour(end) });
        }
    }

    /// An idle replica forms a batch once all has happened that does at this instant.
    #[inline]
    fn touch(&mut self, replica: usize) {
        let lane = &mut self.lanes[replica];
        if !lane.is_touched {
            lane.is_touched = true;
            self.touched.push(replica as u32);
        }
    }
}

/// How far a replica goes on by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// Through all that happens before an instant.
    Before(Instant),
    /// To an arrival: its iterations that end there are settled as well.
    Arrival(Instant),
}

impl Run<'_> {
    /// Lets happen what happens before `look_at`.
    pub(super) fn advance_apart(&mut self, workload: &Workload, polls: &mut Polls) -> Result<()> {
        loop {
            let arrival = self.arrivals.at;
            if self.sampler.next < arrival.min(self.look_at) {
                // Of what happens at its instant a sample sees the end.
                self.go_on(Until::Before(self.sampler.next.after(Span(1))?), polls)?;
                let next = self.next_apart();
                if next >= self.look_at {
                    return Ok(());
                }
                self.sampler.sample_before(next, &self.fleet.replicas, &mut self.results)?;
            } else if arrival < self.look_at {
                self.go_on(Until::Arrival(arrival), polls)?;
                polls.count(self.results.left())?;
                self.arrive_apart(workload)?;
            } else {
                return self.go_on(Until::Before(self.look_at), polls);
            }
        }
    }

    /// When something happens next.
    pub(super) fn next_apart(&self) -> Instant {
        self.fleet.next_instant().min(self.arrivals.at)
    }

    /// All replicas come to the last instant at which anything happened.
    pub(super) fn meet(&mut self) -> Result<()> {
        self.now = self.lanes.lanes.iter().map(|lane| lane.at).fold(self.now, Instant::max);
        for replica in 0..self.lanes.lanes.len() {
            self.come_to(replica, self.now)?;
        }
        Ok(())
    }

    /// Something happens at a replica: until now it had the requests that it has.
    #[inline]
    fn come_to(&mut self, replica: usize, now: Instant) -> Result<()> {
        let before = std::mem::replace(&mut self.lanes.lanes[replica].at, now);
        self.pass(before, now, self.fleet.replicas[replica].requests())
    }

    /// Every replica that has something to do goes on.
    #[inline]
    fn go_on(&mut self, until: Until, polls: &mut Polls) -> Result<()> {
        let (Until::Before(instant) | Until::Arrival(instant)) = until;
        let Some(ends) = &self.lanes.ends else { return self.go_on_with(0, until, polls) };
        let last = hour(instant).min(LAST_HOUR);
        let mut due = ends.first_up_to(last);
        while let Some(replica) = due {
            self.go_on_with(replica, until, polls)?;
            due = self.lanes.ends.as_ref().and_then(|ends| ends.next_up_to(last, replica));
        }
        Ok(())
    }

    #[inline]
    fn go_on_with(&mut self, index: usize, until: Until, polls: &mut Polls) -> Result<()> {
        let (Until::Before(instant) | Until::Arrival(instant)) = until;
        let mut end = self.fleet.replicas[index].next_instant();
        while end < instant {
            polls.count(self.results.left())?;
            self.settle_apart(index, end)?;
            let replica = &mut self.fleet.replicas[index];
            if !replica.is_empty() {
                replica.form(end, false)?;
            }
            end = replica.next_instant();
        }
        if until == Until::Arrival(end) {
            self.settle_apart(index, end)?;
            self.lanes.touch(index);
        } else {
            self.lanes.set_end(index, end);
        }
        self.fleet.count_requests(index);
        Ok(())
    }

    /// Settles the iterations of a replica that end at an instant.
    #[inline]
    fn settle_apart(&mut self, index: usize, end: Instant) -> Result<()> {
        self.come_to(index, end)?;
        self.fleet.replicas[index].settle(&mut self.results)
    }

    /// Requests arrive one by one, then batches are formed.
    #[inline]
    fn arrive_apart(&mut self, workload: &Workload) -> Result<()> {
        self.now = self.arrivals.at;
        while self.arrivals.at == self.now {
            let row = self.arrivals.pop(workload);
            let arrival = workload.request(row, self.now);
            workload.content.read(row, &mut self.fleet.content);
            let index = self.route(workload.pool(row), &arrival, false)?;
            self.come_to(index, self.now)?;
            let replica = &mut self.fleet.replicas[index];
            if replica.arrive(arrival, &self.fleet.content, &mut self.results)?.is_some() {
                if replica.is_idle() {
                    self.lanes.touch(index);
                } else {
                    let end = replica.next_instant();
                    self.lanes.set_end(index, end);
                }
                self.fleet.count_requests(index);
            }
            if self.arrivals.at == Instant::NEVER {
                self.waiting_at_last_arrival = self.waiting();
            }
        }
        self.lanes.touched.sort_unstable();
        for place in 0..self.lanes.touched.len() {
            let index = self.lanes.touched[place] as usize;
            self.lanes.lanes[index].is_touched = false;
            self.form(index, false)?;
        }
        self.lanes.touched.clear();
        Ok(())
    }
}
