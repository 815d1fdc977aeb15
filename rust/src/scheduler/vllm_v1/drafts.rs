//! vLLM v1 with speculative decoding: a request owes the offered drafts too, after all other tokens.

use super::super::prelude::*;
use super::{VllmV1Policy, VllmV1Scheduler};

/// The result of the walk through the running requests.
#[derive(Clone, Copy, Debug, Default)]
struct Walked {
    /// Whether any running request has a row.
    has_rows: bool,
    /// Whether any of these requests did not emit in its previous row.
    has_prefills: bool,
}

impl<const AHEAD: bool> VllmV1Scheduler<AHEAD> {
    /// Rows differ from iteration to iteration, so every iteration is planned and visits all requests.
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
            // Drafts in flight count as computed, so a request may seem to be complete until they are settled.
            let left = plan.longest_request().saturating_sub(context + 1);
            let tokens = owed.min(longest).min(plan.budget_left()).min(left);
            if tokens == 0 {
                continue;
            }
            while plan.new_blocks(place, plan.slots(context + tokens) - context) as i64 > plan.free_blocks() {
                if plan.preempt_lower_ranked(Preemption::Recompute)? {
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

    /// Admits from the queue within budget and sequences. In a batch of decodes, a request that owes one token is
    /// padded with drafts that are never accepted, so that all rows have the same length.
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
