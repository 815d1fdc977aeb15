//! vLLM v1 with speculative decoding: a request owes the drafts on offer too, behind all else.

use super::super::prelude::*;
use super::{VllmV1Policy, VllmV1Scheduler};

/// What the walk through the running came to.
#[derive(Clone, Copy, Debug, Default)]
struct Walked {
    /// Has a running request a row?
    has_rows: bool,
    /// Was one of these rows behind one that did not emit?
    has_prefills: bool,
}

impl<const AHEAD: bool> VllmV1Scheduler<AHEAD> {
    /// Each row differs from the one before it, so a plan is asked for in every iteration, and goes through all requests.
    pub(super) fn plan_with_drafts(&mut self, longest: u64, plan: &mut Plan) -> Result<()> {
        let walked = self.walk_with_drafts(longest, plan)?;
        if !plan.has_preempted() {
            self.admit_with_drafts(longest, walked, plan)?;
        }
        plan.hold(Hold::ONCE);
        Ok(())
    }

    fn walk_with_drafts(&mut self, longest: u64, plan: &mut Plan) -> Result<Walked> {
        let mut walked = Walked::default();
        let mut next = self.lists.running.first();
        'running: while let Some(place) = next.filter(|_| plan.budget_left() > 0) {
            next = self.lists.running.after(place);
            if AHEAD && plan.is_ending(place) {
                continue;
            }
            let context = plan.requests().context(place);
            let owed = plan.requests().owed(place) + plan.offered(place);
            // Drafts in flight count as computed: until they are settled, a request may seem to be at its end.
            let left = plan.longest_request().saturating_sub(context + 1);
            let tokens = owed.min(longest).min(plan.budget_left()).min(left);
            if tokens == 0 {
                continue;
            }
            while plan.new_blocks(place, plan.slots(context + tokens) - context) as i64 > plan.free_blocks() {
                if plan.dismiss_junior(Preemption::Recompute)? {
                    continue;
                }
                let victim = self.victim(plan.requests()).unwrap_or(place);
                self.preempt(victim, plan)?;
                if victim != place {
                    next = self.lists.running.after(place);
                } else if self.policy == VllmV1Policy::Priority {
                    continue 'running;
                } else {
                    break 'running;
                }
            }
            walked.has_rows = true;
            walked.has_prefills |= !plan.last_row_emits(place);
            plan.verify(place, tokens)?;
        }
        Ok(walked)
    }

    /// The head of the queue, while budget and seats last. One that owes a single token, in a batch of decodes, is filled up
    /// with drafts that are never accepted, so that all rows of the batch are alike.
    fn admit_with_drafts(&mut self, longest: u64, walked: Walked, plan: &mut Plan) -> Result<()> {
        let row = 1 + plan.most_drafts();
        while let Some(place) = self.lists.queue.head().filter(|_| plan.budget_left() > 0) {
            plan.look_up(place);
            let context = plan.requests().context(place);
            let owed = plan.requests().owed(place);
            let fills = !walked.has_prefills
                && (walked.has_rows || context > 0)
                && context + row < plan.longest_request()
                && plan.emits_next(place);
            if fills && row > plan.budget_left() {
                break;
            }
            let tokens = if fills { row } else { owed.min(longest).min(plan.budget_left()) };
            let slots = plan.slots(context + tokens);
            let checked = if self.reserve_full_prompt { slots.max(context + owed) } else { slots };
            if !plan.has_room(place, checked, 0) {
                break;
            }
            plan.admit_to_verify(place, tokens, fills)?;
            self.lists.queue.remove(place, plan.requests());
            self.lists.running.push_back(place);
        }
        Ok(())
    }
}
