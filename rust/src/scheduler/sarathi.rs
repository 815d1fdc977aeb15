//! Sarathi-Serve: stall-free batches (Agrawal et al. 2024; bari2025 Alg. 4).

use super::roster::Roster;
use super::{Notice, Queue, QueueOrder, Scheduler, Watermark};
use crate::error::Result;
use crate::plan::{Hold, Limits, Plan, Preemption};
use crate::request::Requests;

/// Decodes first, by arrival, cut to the budget; then unfinished prefills; then new ones, chunked.
#[derive(Debug)]
pub(super) struct Sarathi {
    roster: Roster,
}

impl Sarathi {
    pub(super) fn new(limits: Limits, order: QueueOrder, watermark: Watermark, preemption: Preemption) -> Sarathi {
        let queue = match order {
            QueueOrder::Fcfs => Queue::fcfs(),
            QueueOrder::Spf => Queue::by(|arrival| i64::from(arrival.prompt_tokens)),
        };
        Sarathi { roster: Roster::new(limits, watermark, preemption, queue) }
    }
}

impl Scheduler for Sarathi {
    fn limits(&self) -> Limits {
        self.roster.limits
    }

    fn notice(&mut self, notice: Notice, requests: &Requests) {
        self.roster.lists.notice(notice, requests);
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        let roster = &mut self.roster;
        roster.choose_decodes(plan)?;
        let victims = roster.make_room(plan)?;
        if victims.is_empty() {
            roster.swap_in(plan)?;
        }
        for slot in roster.lists.prefills.iter() {
            let tokens = plan.requests().owed(slot).min(plan.budget_left());
            if tokens == 0 {
                break;
            }
            plan.chunk(slot, tokens)?;
        }
        let mut lacks_blocks = false;
        while let Some(slot) = roster.lists.queue.head() {
            let may_admit = plan.budget_left() > 0 && plan.seats_left() > 0 && roster.swapped.is_empty();
            if !may_admit || victims.contains(&slot) {
                break;
            }
            let known = plan.requests().known(slot);
            lacks_blocks = !roster.has_blocks_for(known, plan);
            if lacks_blocks {
                break;
            }
            roster.admit(slot, known, plan)?;
        }
        // While nobody leaves, blocks only get fewer, so who lacks them goes on lacking them; an arrival matters only if
        // it could be admitted.
        let arrivals_wait = plan.budget_left() == 0
            || plan.seats_left() == 0
            || !roster.swapped.is_empty()
            || (lacks_blocks && !roster.lists.queue.may_be_overtaken());
        plan.hold(match (victims.is_empty(), arrivals_wait) {
            (false, _) => Hold::ONCE,
            (true, true) => Hold::THROUGH_ARRIVALS,
            (true, false) => Hold::UNTIL_ARRIVAL,
        });
        Ok(())
    }
}
