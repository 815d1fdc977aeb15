//! The work-conserving (Kp, Kd)-FCFS family: li2025 §2.3.

use super::prelude::*;

/// The oldest decodes, then the oldest prompts.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct KFcfs {
    pub token_budget: u64,
    pub k_prefill: u64,
    pub k_decode: u64,
}

impl SchedulerParameters for KFcfs {
    fn build(&self, _classes: Option<&[Class]>) -> Result<Box<dyn Scheduler>> {
        let limits = limits(self.token_budget, Limits::NONE)?;
        let (k_prefill, k_decode) = (count("k_prefill", self.k_prefill)?, count("k_decode", self.k_decode)?);
        let roster = Roster::new(limits, Watermark::NONE, Preemption::Recompute, Queue::fcfs());
        Ok(Box::new(KFcfsScheduler { roster, k_prefill, k_decode }))
    }

    fn fills_a_budget(&self) -> bool {
        true
    }
}

impl Sample for KFcfs {
    fn sample(dice: &mut Dice) -> KFcfs {
        let token_budget = dice.scale.token_budget;
        let few_or_all = [1, 2, 3, token_budget, token_budget];
        KFcfs { token_budget, k_prefill: dice.one_of(&few_or_all), k_decode: dice.one_of(&few_or_all) }
    }
}

/// The oldest decodes, then the oldest prompts, at most K of each, until the budget is full.
#[derive(Debug)]
pub(super) struct KFcfsScheduler {
    roster: Roster,
    k_prefill: u64,
    k_decode: u64,
}

impl Scheduler for KFcfsScheduler {
    answered_by_the_roster!();

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        self.roster.choose_decodes(self.k_decode, plan)?;
        self.roster.make_room(plan)?;
        self.roster.prefill(self.k_prefill, plan)?;
        self.roster.hold(plan);
        Ok(())
    }
}
