//! What do the schedulers that serve by arrival keep, and how do they make room?

use super::{Notice, Queue, Watermark, queue::List};
use crate::error::Result;
use crate::plan::{Limits, Plan, Preemption};
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
        }
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
        Roster { limits, watermark, preemption, lists: Lists::new(queue), swapped: List::default() }
    }

    /// The first decodes by arrival, as many as the budget carries, are the standing ones.
    #[inline]
    pub(super) fn choose_decodes(&mut self, plan: &mut Plan) -> Result<()> {
        let ready = plan.decodes() + self.lists.idle.len() as u64;
        if ready <= self.limits.token_budget {
            for slot in self.lists.idle.drain(..) {
                plan.decode(slot)?;
            }
            return Ok(());
        }
        if self.lists.idle.is_empty() {
            return Ok(());
        }
        let mut chosen = Vec::new();
        self.lists.idle.clear();
        let mut left = self.limits.token_budget;
        for slot in self.lists.running.iter().filter(|&slot| !self.lists.prefills.contains(slot)) {
            let decodes = plan.requests().at(slot).phase() == Phase::Decoding;
            if left == 0 {
                self.lists.idle.push(slot);
                if decodes {
                    plan.pause(slot)?;
                }
            } else if !decodes {
                chosen.push(slot);
            }
            left = left.saturating_sub(1);
        }
        for slot in chosen {
            plan.decode(slot)?;
        }
        Ok(())
    }

    /// Short of blocks for its decodes, the latest arrival not placed before them goes, a decode itself last.
    #[inline]
    pub(super) fn make_room(&mut self, plan: &mut Plan) -> Result<Vec<Slot>> {
        if plan.free_blocks() < 0 { self.preempt(plan) } else { Ok(Vec::new()) }
    }

    fn preempt(&mut self, plan: &mut Plan) -> Result<Vec<Slot>> {
        let mut victims = Vec::new();
        while plan.free_blocks() < 0 {
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
        for &victim in &victims {
            if self.preemption == Preemption::Recompute {
                self.lists.queue.push_victim(victim, plan.requests());
            } else {
                insert_by_arrival(&mut self.swapped, victim, plan.requests());
            }
        }
        Ok(victims)
    }

    /// The oldest swapped request comes back before any admission (rule 12).
    #[inline]
    pub(super) fn swap_in(&mut self, plan: &mut Plan) -> Result<()> {
        while let Some(slot) = self.swapped.first() {
            let tokens = plan.requests().context(slot) + plan.requests().owed(slot);
            if plan.seats_left() == 0 || !self.watermark.admits(plan.blocks(tokens), plan) {
                break;
            }
            plan.swap_in(slot, self.preemption, tokens)?;
            self.swapped.remove(slot);
            insert_by_arrival(&mut self.lists.running, slot, plan.requests());
            if !plan.requests().is_ready_to_decode(slot) {
                insert_by_arrival(&mut self.lists.prefills, slot, plan.requests());
            } else if plan.budget_left() > 0 {
                plan.decode(slot)?;
            } else {
                self.lists.idle.push(slot);
            }
        }
        Ok(())
    }

    /// Can the head of the queue, with all that is known of it, take its blocks now?
    pub(super) fn has_blocks_for(&mut self, known: u64, plan: &Plan) -> bool {
        self.watermark.admits(plan.blocks(known), plan)
    }

    /// Admits the head of the queue with the blocks for all its known tokens, and computes what the budget carries.
    #[inline]
    pub(super) fn admit(&mut self, slot: Slot, known: u64, plan: &mut Plan) -> Result<()> {
        let tokens = known.min(plan.budget_left());
        plan.admit(slot, known)?;
        plan.chunk(slot, tokens)?;
        self.lists.queue.remove(slot, plan.requests());
        insert_by_arrival(&mut self.lists.running, slot, plan.requests());
        if tokens < known {
            insert_by_arrival(&mut self.lists.prefills, slot, plan.requests());
        }
        Ok(())
    }
}

/// Adds a request to a list that is sorted by arrival.
#[inline]
fn insert_by_arrival(list: &mut List, slot: Slot, requests: &Requests) {
    let order = requests.at(slot).order();
    list.insert_sorted(slot, |other| requests.at(other).order() < order);
}
