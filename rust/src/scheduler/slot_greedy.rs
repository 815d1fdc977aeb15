//! The greedy policy of the KV-memory stability model: nie2026 §3.

use super::queue::{List, insert_by_arrival};
use super::roster::Lists;
use super::{Notice, Queue, Scheduler};
use crate::clock::Span;
use crate::error::Result;
use crate::plan::{Hold, Limits, Plan, Preemption};
use crate::request::{Phase, Requests, Slot};

/// Stepping out of memory, and back, costs nothing.
const STEP_OUT: Preemption = Preemption::Swap { per_token: Span::ZERO, base: Span::ZERO };

/// In order of arrival everybody advances whose next step fits the memory; the others step out of it.
#[derive(Debug)]
pub(super) struct SlotGreedy {
    /// Most prompt tokens of a request in one iteration: ŝ.
    chunk: u64,
    /// The running are all who have started, in memory or out of it; the prefills are in memory.
    lists: Lists,
    /// Who has stepped out, by arrival.
    outside: List,
}

impl SlotGreedy {
    pub(super) fn new(chunk: u64) -> SlotGreedy {
        SlotGreedy { chunk, lists: Lists::new(Queue::fcfs()), outside: List::default() }
    }

    /// The tokens by which a request advances.
    #[inline]
    fn step(&self, slot: Slot, requests: &Requests) -> u64 {
        requests.owed(slot).min(self.chunk)
    }

    /// The blocks that a request holds after its next step.
    #[inline]
    fn blocks(&self, slot: Slot, plan: &Plan) -> i64 {
        let context = plan.requests().context(slot);
        plan.blocks(context + self.step(slot, plan.requests())) as i64
    }

    /// Whoever does not fit beside those before it steps out of memory.
    fn step_out(&mut self, plan: &mut Plan) -> Result<()> {
        let more = |slot| plan.new_blocks(slot, self.step(slot, plan.requests())) as i64;
        let mut left = plan.free_blocks() - self.lists.prefills.iter().map(more).sum::<i64>();
        // Back to the first who is outside, or for whom blocks are short: all before it stay as they are.
        let (mut outside, mut first) = (self.outside.len(), None);
        let mut next = self.lists.running.last();
        while let Some(slot) = next.filter(|_| left < 0 || outside > 0) {
            if plan.requests().at(slot).phase() == Phase::Swapped {
                outside -= 1;
            } else {
                left += self.blocks(slot, plan);
            }
            first = next;
            next = self.lists.running.before(slot);
        }
        while let Some(slot) = first {
            let blocks = self.blocks(slot, plan);
            if blocks <= left {
                left -= blocks;
            } else if plan.requests().at(slot).phase() != Phase::Swapped {
                plan.preempt(slot, STEP_OUT)?;
                self.lists.prefills.remove(slot);
                insert_by_arrival(&mut self.outside, slot, plan.requests());
            }
            first = self.lists.running.after(slot);
        }
        Ok(())
    }

    /// Whoever is out of memory and fits comes back. Once all in memory have their blocks, there is room for just those
    /// that fit beside the ones before them: everybody in memory was found to fit beside them too.
    fn come_back(&mut self, plan: &mut Plan) -> Result<()> {
        let mut next = self.outside.first();
        while let Some(slot) = next {
            next = self.outside.after(slot);
            let step = self.step(slot, plan.requests());
            let tokens = plan.requests().context(slot) + step;
            if !plan.has_room(plan.blocks(tokens), 0) {
                continue;
            }
            plan.swap_in(slot, STEP_OUT, tokens)?;
            self.outside.remove(slot);
            if plan.requests().at(slot).is_ready() {
                plan.decode(slot)?;
            } else {
                plan.chunk(slot, step)?;
                insert_by_arrival(&mut self.lists.prefills, slot, plan.requests());
            }
        }
        Ok(())
    }
}

impl Scheduler for SlotGreedy {
    fn limits(&self) -> Limits {
        Limits { token_budget: Limits::NONE, max_seqs: Limits::NONE, frees_with_batch: false }
    }

    fn notice(&mut self, notice: Notice, requests: &Requests) {
        self.lists.notice(notice, requests);
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        for slot in self.lists.idle.drain(..) {
            plan.decode(slot)?;
        }
        self.step_out(plan)?;
        for slot in self.lists.prefills.iter() {
            plan.chunk(slot, self.step(slot, plan.requests()))?;
        }
        self.come_back(plan)?;
        while let Some(slot) = self.lists.queue.head() {
            let step = self.step(slot, plan.requests());
            let tokens = plan.requests().context(slot) + step;
            if !plan.has_room(plan.blocks(tokens), 0) {
                break;
            }
            self.lists.admit(slot, tokens, step, plan)?;
        }
        // While nobody leaves, memory only fills: who does not fit goes on not fitting, and an arrival waits behind it.
        let arrivals_wait = !self.lists.queue.is_empty();
        plan.hold(if arrivals_wait { Hold::THROUGH_ARRIVALS } else { Hold::UNTIL_ARRIVAL });
        Ok(())
    }
}
