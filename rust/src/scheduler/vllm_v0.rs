//! vLLM v0 without chunking, "vanilla vLLM": prefill-only iterations first (li2025 §3; engine: vLLM before v1).

use super::prelude::*;

/// Prefill-only iterations first, without chunking.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct VllmV0 {
    pub token_budget: u64,
    pub max_seqs: u64,
    pub watermark: f64,
    pub preemption: PreemptionKind,
}

impl SchedulerParameters for VllmV0 {
    fn build(&self, _classes: Option<&[Class]>) -> Result<Box<dyn Scheduler>> {
        let limits = limits(self.token_budget, self.max_seqs)?;
        let (watermark, preemption) = (Watermark::new(self.watermark)?, self.preemption.build()?);
        Ok(Box::new(VllmV0Scheduler { roster: Roster::new(limits, watermark, preemption, Queue::fcfs()) }))
    }
}

impl Sample for VllmV0 {
    fn sample(dice: &mut Dice) -> VllmV0 {
        VllmV0 {
            token_budget: dice.scale.token_budget,
            max_seqs: dice.scale.max_seqs,
            watermark: sample_watermark(dice),
            preemption: PreemptionKind::sample(dice),
        }
    }
}

/// An iteration computes whole prompts and no decodes whenever a request can be admitted. Otherwise all requests
/// decode.
#[derive(Debug)]
pub(super) struct VllmV0Scheduler {
    roster: Roster,
}

impl VllmV0Scheduler {
    /// Admits requests from the queue. Returns whether one was admitted.
    fn prefill(&mut self, plan: &mut Plan) -> Result<bool> {
        let roster = &mut self.roster;
        let mut admitted = false;
        while let Some(place) = roster.lists.queue.head() {
            plan.look_up(place);
            let owed = plan.requests().owed(place);
            // A resumed input longer than the budget is computed alone, in consecutive iterations.
            let alone = owed > roster.limits.token_budget;
            let too_long = if alone { admitted } else { owed > plan.budget_left() };
            if too_long || !roster.swapped.is_empty() || !roster.try_admit(place, plan)? {
                break;
            }
            admitted = true;
            if alone {
                break;
            }
        }
        Ok(admitted)
    }
}

impl Scheduler for VllmV0Scheduler {
    answered_by_the_roster!();

    fn refuses(&self, arrival: &Arrival, _cache: &KvBlocks) -> Option<&'static str> {
        let too_long = u64::from(arrival.prompt_tokens) > self.roster.limits.token_budget;
        too_long.then_some("its prompt is longer than the token budget, and prompts are not chunked")
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        if let Some(place) = self.roster.lists.prefills.first() {
            plan.rest_decodes(true);
            let tokens = plan.requests().owed(place).min(plan.budget_left());
            plan.chunk(place, tokens)?;
            plan.hold(Hold::THROUGH_ARRIVALS);
            return Ok(());
        }
        if !self.roster.lists.queue.is_empty() {
            plan.rest_decodes(true);
            if self.prefill(plan)? {
                plan.hold(Hold::THROUGH_ARRIVALS);
                return Ok(());
            }
            plan.rest_decodes(false);
        }
        self.roster.choose_decodes(u64::MAX, plan)?;
        self.roster.make_room(plan)?;
        let was_swapped = !self.roster.swapped.is_empty();
        self.roster.swap_in(plan)?;
        // Swapped requests block admission. Once the last one is back, the head of the queue may be admitted.
        let queue_opens = was_swapped && self.roster.swapped.is_empty();
        // Otherwise a waiting request was refused, and stays refused while no request leaves.
        let arrivals_wait = plan.waiting() > 0 || plan.sequences_left() == 0;
        let holds_once = plan.has_preempted() || queue_opens;
        plan.hold(if holds_once { Hold::ONCE } else { Hold::while_arrivals_wait(arrivals_wait) });
        Ok(())
    }
}
