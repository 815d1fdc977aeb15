//! The loop for a single replica without a router, from one arrival to the next.

use super::lanes::Until;
use super::run::{Polls, Run};
use crate::clock::{Instant, Long, Short, Width};
use crate::error::Result;
use crate::workload::Workload;

impl Run {
    /// Runs all events before `stop_at` with a single replica.
    pub(super) fn advance_single(&mut self, workload: &Workload, polls: &mut Polls) -> Result<()> {
        loop {
            let sampled = self.sampler.seen;
            let is_sampled = sampled < self.stop_at;
            let instant = if is_sampled { sampled } else { self.stop_at };
            if self.arrivals.are_short && instant.is_short() && self.fleet.replicas[0].is_short() {
                self.advance_single_to::<Short>(instant, workload, polls)?;
            } else {
                self.advance_single_long(instant, workload, polls)?;
            }
            let next = self.next_in_lanes();
            if !is_sampled || next >= self.stop_at {
                return Ok(());
            }
            self.sampler.sample_before(next, &self.fleet.replicas, &mut self.results)?;
        }
    }

    fn advance_single_long(&mut self, instant: Instant, workload: &Workload, polls: &mut Polls) -> Result<()> {
        self.advance_single_to::<Long>(instant, workload, polls)
    }

    /// Runs all events before `instant`.
    fn advance_single_to<W: Width>(&mut self, instant: Instant, workload: &Workload, polls: &mut Polls) -> Result<()> {
        let Run { lanes, fleet, arrivals, results, .. } = self;
        let ([lane], [replica]) = (&mut lanes.lanes[..], &mut fleet.replicas[..]) else {
            unreachable!("it is alone");
        };
        loop {
            let is_arrival = arrivals.at.is_before::<W>(instant);
            let until = if is_arrival { arrivals.at } else { instant };
            lane.advance::<W>(replica, Until { instant: until, is_arrival }, results, polls)?;
            if !is_arrival {
                return Ok(());
            }
            self.now = until;
            lane.at = until;
            while arrivals.at.is::<W>(until) {
                let row = arrivals.pop(workload);
                let arrival = arrivals.request(row, until, workload);
                fleet.content.read(&workload.content, row);
                if let Some(place) = replica.arrive_here(&arrival, &fleet.content, results)? {
                    if workload.describes_drafts() {
                        replica.set_drafts(place, workload.drafts(row)?);
                    }
                    lane.receive::<W>(until);
                    lane.needs_batch |= replica.is_idle();
                } else {
                    polls.count(results.left())?;
                }
            }
            if arrivals.at.is_never::<W>() {
                self.waiting_at_last_arrival = replica.waiting();
            }
        }
    }
}
