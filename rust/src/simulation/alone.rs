//! One replica without a router: from one arrival to the next, and nothing to choose.

use super::apart::Until;
use super::run::{Polls, Run};
use crate::clock::Instant;
use crate::error::Result;
use crate::workload::Workload;

impl Run {
    /// Lets happen what happens before `look_at`, where there is one replica.
    pub(super) fn advance_alone(&mut self, workload: &Workload, polls: &mut Polls) -> Result<()> {
        let Run { lanes, fleet, arrivals, results, sampler, .. } = self;
        let ([lane], [replica]) = (&mut lanes.lanes[..], &mut fleet.replicas[..]) else {
            unreachable!("it is alone");
        };
        loop {
            // Of what happens at its instant a sample sees the end.
            let sampled = Instant(sampler.next.0.saturating_add(1));
            let is_sampled = sampled < self.look_at;
            let instant = if is_sampled { sampled } else { self.look_at };
            loop {
                let is_arrival = arrivals.at < instant;
                let until = if is_arrival { arrivals.at } else { instant };
                lane.go_on(replica, Until { instant: until, is_arrival }, results, polls)?;
                if !is_arrival {
                    break;
                }
                self.now = until;
                lane.at = until;
                while arrivals.at == until {
                    let row = arrivals.pop(workload);
                    let arrival = arrivals.request(row, until, workload);
                    fleet.content.read(&workload.content, row);
                    if let Some(place) = replica.arrive_here(&arrival, &fleet.content, results)? {
                        if !workload.accepted.is_empty() {
                            replica.tell_accepted(place, workload.accepted.of(row));
                        }
                        lane.receive(until);
                        lane.is_touched |= replica.is_idle();
                    } else {
                        polls.count(results.left())?;
                    }
                }
                if arrivals.at == Instant::NEVER {
                    self.waiting_at_last_arrival = replica.waiting();
                }
            }
            let next = replica.next_instant().min(arrivals.at);
            if !is_sampled || next >= self.look_at {
                return Ok(());
            }
            sampler.sample_before(next, std::slice::from_ref(replica), results)?;
        }
    }
}
