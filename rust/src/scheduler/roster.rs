//! What do the schedulers that serve by arrival keep, and how do they make room?

use super::{
    Notice, Queue, Watermark,
    queue::{List, insert_by_arrival},
};
use crate::error::Result;
use crate::plan::{Hold, Limit, Limits, Plan, Preemption};
use crate::request::{Phase, Requests, Slot};

/// The queue and the admitted requests, as most schedulers keep them.
#[derive(Debug)]
pub(super) struct Lists {
    pub(super) queue: Queue,
    /// Admitted requests, in the order of the policy.
    pub(super) running: List,
    /// Those of them that cannot decode yet, in the same order.
    pub(super) prefills: List,
    /// Requests that can decode and are not among the standing decodes.
    pub(super) idle: Vec<Slot>,
}

impl Lists {
    pub(super) fn new(queue: Queue) -> Lists {
        Lists { queue, running: List::default(), prefills: List::default(), idle: Vec::new() }
    }

    #[inline]
    pub(super) fn notice(&mut self, notice: Notice, requests: &Requests) {
        match notice {
            Notice::Arrived(slot) => self.queue.push(slot, requests),
            Notice::Ready(slot) => {
                self.prefills.remove(slot);
                self.idle.push(slot);
            }
            Notice::Left(slot) => {
                if !self.running.remove(slot) {
                    self.queue.remove(slot, requests);
                }
                self.prefills.remove(slot);
            }
            Notice::Preempted(victim) => {
                self.take_out(victim);
                self.queue.push_victim(victim, requests);
            }
        }
    }

    /// Admits the head of the queue with the blocks for `reserved` tokens, and computes the first `tokens` that it owes.
    #[inline]
    pub(super) fn admit(&mut self, slot: Slot, reserved: u64, tokens: u64, plan: &mut Plan) -> Result<()> {
        let owed = plan.requests().owed(slot);
        plan.admit(slot, reserved)?;
        plan.chunk(slot, tokens)?;
        self.queue.remove(slot, plan.requests());
        insert_by_arrival(&mut self.running, slot, plan.requests());
        if tokens < owed {
            insert_by_arrival(&mut self.prefills, slot, plan.requests());
        }
        Ok(())
    }

    /// Somebody was preempted: among the admitted no more.
    pub(super) fn take_out(&mut self, victim: Slot) {
        self.running.remove(victim);
        self.prefills.remove(victim);
        self.idle.retain(|&slot| slot != victim);
    }
}

/// The state of a scheduler that decodes by arrival and preempts the latest arrival.
#[derive(Debug)]
pub(super) struct Roster {
    pub(super) limits: Limits,
    watermark: Watermark,
    preemption: Preemption,
    /// The running by arrival.
    pub(super) lists: Lists,
    /// Swapped requests by arrival.
    pub(super) swapped: List,
}

impl Roster {
    pub(super) fn new(limits: Limits, watermark: Watermark, preemption: Preemption, queue: Queue) -> Roster {
        let lists = Lists::new(queue);
        Roster { limits, watermark, preemption, lists, swapped: List::default() }
    }

    #[inline]
    pub(super) fn notice(&mut self, notice: Notice, requests: &Requests) {
        if let Notice::Preempted(victim) = notice {
            self.lists.take_out(victim);
            self.await_again(victim, requests);
        } else {
            self.lists.notice(notice, requests);
        }
    }

    /// The first `most` decodes by arrival, and no more than the budget carries, are the standing ones.
    #[inline]
    pub(super) fn choose_decodes(&mut self, most: u64, plan: &mut Plan) -> Result<()> {
        let most = most.min(plan.budget_for_decodes());
        let ready = plan.decodes() + self.lists.idle.len() as u64;
        if ready <= most {
            for slot in self.lists.idle.drain(..) {
                plan.decode(slot)?;
            }
            return Ok(());
        }
        if most == 0 {
            plan.rest_decodes(true);
            return Ok(());
        }
        // The last by arrival of all who can decode are left out.
        let mut left_out = Vec::new();
        let mut next = self.lists.running.last();
        while let Some(slot) = next.filter(|_| (left_out.len() as u64) < ready - most) {
            if !self.lists.prefills.contains(slot) && !plan.requests().at(slot).is_placed() {
                left_out.push(slot);
                if plan.requests().at(slot).phase() == Phase::Decoding {
                    plan.pause(slot)?;
                }
            }
            next = self.lists.running.before(slot);
        }
        let first = left_out.last().map(|&slot| plan.requests().at(slot).order());
        for slot in std::mem::replace(&mut self.lists.idle, left_out) {
            if Some(plan.requests().at(slot).order()) < first {
                plan.decode(slot)?;
            }
        }
        Ok(())
    }

    /// Short of blocks for its decodes, the latest arrival not placed before them goes, a decode itself last. The decodes
    /// are the first by arrival.
    #[inline]
    pub(super) fn make_room(&mut self, plan: &mut Plan) -> Result<()> {
        if plan.free_blocks() < 0 { self.preempt(plan) } else { Ok(()) }
    }

    fn preempt(&mut self, plan: &mut Plan) -> Result<()> {
        let mut victims = Vec::new();
        while plan.free_blocks() < 0 {
            if plan.dismiss_junior(self.preemption)? {
                continue;
            }
            let Some(latest) = self.lists.running.last() else { break };
            // The last decode may be the only one that finds no block; then unfinished prefills go before it.
            let only_it = plan.free_blocks() == -1
                && plan.requests().at(latest).phase() == Phase::Decoding
                && plan.new_blocks(latest, 1) == 1;
            let victim = if only_it { self.lists.prefills.last().unwrap_or(latest) } else { latest };
            plan.preempt(victim, self.preemption)?;
            self.lists.take_out(victim);
            victims.push(victim);
        }
        for victim in victims {
            self.await_again(victim, plan.requests());
        }
        Ok(())
    }

    /// A victim waits again: in the queue, or swapped out.
    fn await_again(&mut self, victim: Slot, requests: &Requests) {
        if self.preemption == Preemption::Recompute {
            self.lists.queue.push_victim(victim, requests);
        } else {
            insert_by_arrival(&mut self.swapped, victim, requests);
        }
    }

    /// The oldest swapped request comes back before any admission (rule 12), unless somebody has just been preempted.
    #[inline]
    pub(super) fn swap_in(&mut self, plan: &mut Plan) -> Result<()> {
        while let Some(slot) = self.swapped.first().filter(|_| !plan.has_preempted()) {
            let tokens = plan.requests().next_context(slot);
            let spare = self.watermark.spare(plan);
            if !plan.has_room(slot, tokens, spare) {
                break;
            }
            plan.swap_in(slot, self.preemption, tokens)?;
            self.swapped.remove(slot);
            insert_by_arrival(&mut self.lists.running, slot, plan.requests());
            if !plan.requests().at(slot).is_ready() {
                insert_by_arrival(&mut self.lists.prefills, slot, plan.requests());
            } else if plan.budget_left() > 0 {
                plan.decode(slot)?;
            } else {
                self.lists.idle.push(slot);
            }
        }
        Ok(())
    }

    /// Computes at most `most` prompts: unfinished ones, then new ones from the queue, each cut to the budget.
    #[inline]
    pub(super) fn prefill(&mut self, most: u64, plan: &mut Plan) -> Result<()> {
        let mut left = most;
        for slot in self.lists.prefills.iter() {
            let tokens = plan.requests().owed(slot).min(plan.budget_left());
            if tokens == 0 || left == 0 {
                break;
            }
            plan.chunk(slot, tokens)?;
            left -= 1;
        }
        while let Some(slot) = self.lists.queue.head() {
            let may_admit = left > 0 && plan.budget_left() > 0 && self.swapped.is_empty();
            if !may_admit || plan.was_preempted(slot) || !self.has_room_for(slot, plan) {
                break;
            }
            self.admit(slot, plan)?;
            left -= 1;
        }
        Ok(())
    }

    /// Can the head of the queue, with all that is known of it, be admitted now?
    pub(super) fn has_room_for(&mut self, slot: Slot, plan: &mut Plan) -> bool {
        let spare = self.watermark.spare(plan);
        plan.look_up(slot);
        plan.has_room(slot, plan.requests().next_context(slot), spare)
    }

    /// Admits the head of the queue with the blocks for all its known tokens, and computes what the budget carries.
    #[inline]
    pub(super) fn admit(&mut self, slot: Slot, plan: &mut Plan) -> Result<()> {
        let (context, owed) = (plan.requests().next_context(slot), plan.requests().owed(slot));
        self.lists.admit(slot, context, owed.min(plan.budget_left()), plan)
    }

    /// For how long a plan holds that decodes, continues and admits as much as it can: while nobody leaves, blocks only
    /// get fewer, so who lacks them goes on lacking them; an arrival matters only if it could be admitted.
    #[inline]
    pub(super) fn hold(&self, plan: &mut Plan) {
        let arrivals_wait = plan.budget_left() == 0
            || plan.seats_left() == 0
            || !self.swapped.is_empty()
            || (plan.refused() == Some(Limit::Blocks) && !self.lists.queue.may_be_overtaken());
        plan.hold(match (plan.has_preempted(), arrivals_wait) {
            (true, _) => Hold::ONCE,
            (false, true) => Hold::THROUGH_ARRIVALS,
            (false, false) => Hold::UNTIL_ARRIVAL,
        });
    }
}
