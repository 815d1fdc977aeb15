//! RAD in two phases: all prompts of a cycle, then its decodes (bari2025 Alg. 2).
//!
//! A slip of the paper is mended: the last chunk of a prompt holds what is left of it.

use super::queue::List;
use super::{Notice, Queue, Scheduler, rad::Tiles};
use crate::error::Result;
use crate::plan::{Hold, Limits, Plan, Preemption};
use crate::request::{Requests, Slot};

/// Prompts one after another, each alone, while any can be admitted and the cycle may have more of them. Then decodes, as
/// many at once as a tile has columns, until nobody of the cycle is left.
///
/// Prompts are begun by arrival, and a victim waits for the next cycle. So within a cycle requests become ready, and are
/// made active, by arrival too.
#[derive(Debug)]
pub(super) struct RadPhased {
    tiles: Tiles,
    requests_per_cycle: u64,
    queue: Queue,
    /// The prompt under way.
    prompt: Option<Slot>,
    /// D: their prompts are complete, and they wait for a column.
    ready: List,
    /// The standing decodes.
    active: List,
    /// Prompts that this cycle may still begin: none once it decodes.
    left: u64,
    /// How long the replica had been without work by the last plan.
    idle: u128,
}

impl RadPhased {
    pub(super) fn new(tiles: Tiles, requests_per_cycle: u64) -> RadPhased {
        RadPhased {
            tiles,
            requests_per_cycle,
            queue: Queue::fcfs(),
            prompt: None,
            ready: List::default(),
            active: List::default(),
            left: requests_per_cycle,
            idle: 0,
        }
    }

    /// A victim waits for the next cycle.
    fn await_again(&mut self, victim: Slot, requests: &Requests) {
        self.leave(victim);
        self.queue.push_victim(victim, requests);
    }

    /// Takes a request out of the admitted, if it is one of them.
    fn leave(&mut self, slot: Slot) -> bool {
        self.prompt.take_if(|prompt| *prompt == slot).is_some() || self.active.remove(slot) || self.ready.remove(slot)
    }
}

impl Scheduler for RadPhased {
    fn limits(&self) -> Limits {
        Limits { token_budget: Limits::NONE, max_seqs: self.requests_per_cycle, frees_with_batch: false }
    }

    fn notice(&mut self, notice: Notice, requests: &Requests) {
        match notice {
            Notice::Arrived(slot) => self.queue.push(slot, requests),
            Notice::Ready(slot) => {
                self.prompt = None;
                self.ready.push_back(slot);
            }
            Notice::Left(slot) => {
                if !self.leave(slot) {
                    self.queue.remove(slot, requests);
                }
            }
            Notice::Preempted(victim) => self.await_again(victim, requests),
        }
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        // Decodes at rest take no block from the prompt that is admitted beside them.
        plan.rest_decodes(true);
        if let Some(slot) = self.prompt {
            return self.tiles.compute(slot, plan).map(|_| ());
        }
        // Without decodes, because all outputs had length 1, a cycle ends when the replica stands empty.
        let idle = plan.now().0 - plan.busy().0;
        let stood_empty = std::mem::replace(&mut self.idle, idle) < idle;
        if plan.running() == 0 && (self.left == 0 || stood_empty) {
            self.left = self.requests_per_cycle;
        }
        if let Some(slot) = self.queue.head().filter(|_| self.left > 0) {
            plan.look_up(slot);
            let context = plan.requests().next_context(slot);
            if plan.has_room(slot, context, 0) {
                plan.admit(slot, context)?;
                self.queue.remove(slot, plan.requests());
                self.prompt = Some(slot);
                self.left -= 1;
                return self.tiles.compute(slot, plan).map(|_| ());
            }
        }
        self.left = 0;
        plan.rest_decodes(false);
        while let Some(slot) = self.ready.first().filter(|_| plan.decodes() < self.tiles.columns) {
            self.ready.remove(slot);
            self.active.push_back(slot);
            plan.decode(slot)?;
        }
        while plan.free_blocks() < 0 {
            // All orders are that of arrival: the latest of those who do not decode goes first, then the latest decode.
            let Some(latest) = self.ready.last().or(self.active.last()) else { break };
            plan.preempt(latest, Preemption::Recompute)?;
            self.await_again(latest, plan.requests());
        }
        // What kept the head of the queue out is noted by the plan that asked, and by no later one.
        let changes = plan.has_preempted() || plan.refused().is_some();
        plan.hold(if changes { Hold::ONCE } else { Hold::THROUGH_ARRIVALS });
        Ok(())
    }
}
