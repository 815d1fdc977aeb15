//! vLLM v1 with several groups of layers: a row frees what left its request's windows before it takes blocks.

use super::super::prelude::*;
use super::{RunningRow, VllmV1Policy, VllmV1Scheduler};

impl<const AHEAD: bool> VllmV1Scheduler<AHEAD> {
    /// Every running request takes its row in order. A head of the queue that lacks blocks may be admitted once any
    /// block has left a window.
    #[cold]
    pub(super) fn plan_with_layer_groups(&mut self, longest: u64, is_single: bool, plan: &mut Plan) -> Result<()> {
        plan.begin_rows();
        let rows = self.walk_with_layer_groups(longest, plan)?;
        self.index(&rows, plan)?;
        if plan.has_preempted() {
            return Ok(());
        }
        self.admit_with_layer_groups(longest, plan)?;
        let is_full = plan.budget_left() == 0 || plan.sequences_left() == 0;
        if is_full || self.lists.queue.is_empty() {
            self.hold(is_single, is_full, plan);
        }
        Ok(())
    }

    /// The most tokens of a row in any batch.
    fn longest_row(&self) -> u64 {
        match self.long_prefill_threshold {
            0 => self.limits.token_budget,
            threshold => threshold.min(self.limits.token_budget),
        }
    }

    fn walk_with_layer_groups(&mut self, longest: u64, plan: &mut Plan) -> Result<Vec<RunningRow>> {
        let mut rows: Vec<RunningRow> = Vec::new();
        let mut budget = plan.budget_for_decodes();
        let mut next = self.lists.running.first();
        'running: while let Some(place) = next.filter(|_| budget > 0) {
            next = self.lists.running.after(place);
            if AHEAD && plan.is_ending(place) {
                continue;
            }
            let tokens = plan.requests().owed(place).min(longest).min(budget);
            let tokens = plan.cut_row(place, tokens, self.longest_row());
            if tokens == 0 {
                continue;
            }
            while plan.blocks_of_row(place, tokens) as i64 > plan.free_blocks() {
                let victim = self.victim(plan.requests()).unwrap_or(place);
                if let Some(index) = rows.iter().position(|row| row.place == victim) {
                    // The tokens of its row return to the budget.
                    budget += rows.remove(index).tokens;
                }
                self.preempt(victim, plan)?;
                if victim != place {
                    next = self.lists.running.after(place);
                } else if self.policy == VllmV1Policy::Priority {
                    continue 'running;
                } else {
                    break 'running;
                }
            }
            plan.take_row(place, tokens)?;
            rows.push(RunningRow { place, tokens, blocks: 0 });
            budget -= tokens;
        }
        Ok(rows)
    }

    fn admit_with_layer_groups(&mut self, longest: u64, plan: &mut Plan) -> Result<()> {
        while let Some(place) = self.lists.queue.head().filter(|_| plan.budget_left() > 0) {
            plan.look_up_row(place);
            let owed = plan.requests().owed(place);
            let tokens = plan.cut_row(place, owed.min(longest).min(plan.budget_left()), self.longest_row());
            if tokens == 0 || !plan.try_admit_row(place, tokens, self.reserve_full_prompt)? {
                break;
            }
            self.lists.queue.remove(place, plan.requests());
            self.lists.running.push_back(place);
            if AHEAD || tokens < owed {
                self.lists.prefills.push_back(place);
            }
        }
        Ok(())
    }
}
