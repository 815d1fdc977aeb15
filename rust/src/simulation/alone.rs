//! One replica without a router: from one arrival to the next, and nothing to choose.

use super::apart::Lane;
use super::run::{Polls, Run};
use crate::clock::Instant;
use crate::error::Result;
use crate::replica::Replica;
use crate::results::Recorder;
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
                go_on(lane, replica, until, is_arrival, results, polls)?;
                if !is_arrival {
                    break;
                }
                polls.count(results.left())?;
                self.now = until;
                lane.come_to(until, replica.requests());
                while arrivals.at == until {
                    let row = arrivals.pop(workload);
                    let arrival = arrivals.request(row, until, workload);
                    workload.content.read(row, &mut fleet.content);
                    let is_here = replica.arrive(&arrival, &fleet.content, results)?.is_some();
                    lane.is_touched |= is_here && replica.is_idle();
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

/// A replica at which something happened forms a batch, and goes on by itself through all that happens before an instant. If
/// that is the instant of an arrival, iterations that end at it are settled as well.
#[inline(always)]
fn go_on(
    lane: &mut Lane,
    replica: &mut Replica,
    until: Instant,
    is_arrival: bool,
    results: &mut Recorder,
    polls: &mut Polls,
) -> Result<()> {
    loop {
        if std::mem::take(&mut lane.is_touched) && replica.is_idle() && !replica.is_empty() {
            replica.form_here(lane.at, false)?;
        }
        let end = replica.next_instant();
        if end > until || (end == until && !is_arrival) {
            return Ok(());
        }
        polls.count(results.left())?;
        lane.come_to(end, replica.requests());
        replica.settle_here(results)?;
        lane.is_touched = true;
        if end == until {
            return Ok(());
        }
    }
}
