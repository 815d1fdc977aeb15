//! Sarathi-Serve: stall-free batches (Agrawal et al. 2024; bari2025 Alg. 4).

use super::prelude::*;

/// Decodes first, chunked prefills fill the budget.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Sarathi {
    pub token_budget: u64,
    pub max_seqs: u64,
    pub order: QueueOrder,
    pub watermark: f64,
    pub preemption: PreemptionKind,
}

impl SchedulerParameters for Sarathi {
    fn build(&self, _classes: Option<&[Class]>) -> Result<Box<dyn Scheduler>> {
        let limits = limits(self.token_budget, self.max_seqs)?;
        let (watermark, preemption) = (Watermark::new(self.watermark)?, self.preemption.build()?);
        Ok(Box::new(SarathiScheduler { roster: Roster::new(limits, watermark, preemption, self.order.queue(None)) }))
    }

    fn fills_a_budget(&self) -> bool {
        true
    }

    fn swaps(&self) -> bool {
        matches!(self.preemption, PreemptionKind::Swap { .. })
    }
}

impl Sample for Sarathi {
    fn sample(dice: &mut Dice) -> Sarathi {
        Sarathi {
            token_budget: dice.scale.token_budget,
            max_seqs: dice.scale.max_seqs,
            order: QueueOrder::sample(dice),
            watermark: sample_watermark(dice),
            preemption: PreemptionKind::sample(dice),
        }
    }
}

/// Decodes first, by arrival, cut to the budget; then unfinished prefills; then new ones, chunked.
#[derive(Debug)]
pub(super) struct SarathiScheduler {
    roster: Roster,
}

impl Scheduler for SarathiScheduler {
    answered_by_the_roster!();

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        let roster = &mut self.roster;
        roster.choose_decodes(u64::MAX, plan)?;
        roster.make_room(plan)?;
        roster.swap_in(plan)?;
        roster.prefill(u64::MAX, plan)?;
        roster.hold(plan);
        Ok(())
    }
}
