//! Orca: new prompts first, with the maximum length reserved (Yu et al. 2022; li2025 §3).

use super::prelude::*;

/// New prompts first, mixed with decodes; the maximum length is reserved.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Orca {
    pub max_seqs: u64,
    pub max_model_len: u64,
    pub token_budget: Option<u64>,
    pub chunked: bool,
}

impl SchedulerParameters for Orca {
    fn build(&self, _classes: Option<&[Class]>) -> Result<Box<dyn Scheduler>> {
        let Orca { max_seqs, max_model_len, token_budget, chunked } = *self;
        if chunked && token_budget.is_none() {
            return Err(Error::config("token_budget", "must be set with chunked=True, got None"));
        }
        let limits = limits(token_budget.unwrap_or(Limits::NONE), max_seqs)?;
        let roster = Roster::new(limits, Watermark::NONE, Preemption::Recompute, Queue::fcfs());
        let max_model_len = count("max_model_len", max_model_len)?;
        Ok(Box::new(OrcaScheduler { roster, max_model_len, chunked }))
    }

    fn fills_a_budget(&self) -> bool {
        self.chunked
    }
}

impl Sample for Orca {
    fn sample(dice: &mut Dice) -> Orca {
        let chunked = dice.flip();
        let has_budget = chunked || dice.flip();
        Orca {
            max_seqs: dice.scale.max_seqs,
            max_model_len: sample_model_len(dice),
            token_budget: has_budget.then_some(dice.scale.token_budget),
            chunked,
        }
    }
}

/// Unfinished prompts, then new ones, then decodes, each by arrival, within the budget. An admitted request holds the
/// blocks of the maximum length, so no request is preempted.
#[derive(Debug)]
pub(super) struct OrcaScheduler {
    roster: Roster,
    max_model_len: u64,
    chunked: bool,
}

impl OrcaScheduler {
    /// Computes prompts with the whole budget, as if no request decoded.
    fn prefill(&mut self, plan: &mut Plan) -> Result<()> {
        let lists = &mut self.roster.lists;
        for place in lists.prefills.iter() {
            let tokens = plan.requests().owed(place).min(plan.budget_left());
            if tokens == 0 {
                break;
            }
            plan.chunk(place, tokens)?;
        }
        while let Some(place) = lists.queue.head() {
            plan.look_up(place);
            let owed = plan.requests().owed(place);
            let least = if self.chunked { 1 } else { owed };
            let tokens = owed.min(plan.budget_left());
            let all = self.max_model_len;
            if least > tokens || !lists.try_admit(place, all, 0, all, tokens, plan)? {
                break;
            }
        }
        Ok(())
    }
}

impl Scheduler for OrcaScheduler {
    answered_by_the_roster!();

    fn refuses(&self, arrival: &Arrival, cache: &KvBlocks) -> Option<&'static str> {
        let prompt = u64::from(arrival.prompt_tokens);
        if !self.chunked && prompt > self.roster.limits.token_budget {
            return Some("its prompt is longer than the token budget, and prompts are not chunked");
        }
        refuses_length(arrival, self.max_model_len, cache)
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        // A running request keeps its sequence and its blocks until it leaves.
        let mut arrivals_wait = plan.sequences_left() == 0;
        if !self.roster.lists.prefills.is_empty() || !self.roster.lists.queue.is_empty() {
            plan.rest_decodes(true);
            self.prefill(plan)?;
            arrivals_wait =
                plan.budget_left() == 0 || plan.sequences_left() == 0 || plan.refused() == Some(Limit::Blocks);
            plan.rest_decodes(false);
        }
        self.roster.choose_decodes(u64::MAX, plan)?;
        plan.hold(Hold::while_arrivals_wait(arrivals_wait));
        Ok(())
    }
}

/// The maximum length of a scenario, or half of it, which is too short for some requests.
pub(super) fn sample_model_len(dice: &mut Dice) -> u64 {
    let longest = dice.scale.longest;
    dice.one_of(&[longest, longest, longest / 2 + 1])
}

/// Why a policy that reserves `max_model_len` tokens per request can never admit this one, if so.
pub(super) fn refuses_length(arrival: &Arrival, max_model_len: u64, cache: &KvBlocks) -> Option<&'static str> {
    if u64::from(arrival.prompt_tokens) + u64::from(arrival.output_tokens) > max_model_len {
        return Some("its prompt and output together exceed max_model_len");
    }
    let too_large = cache.need(max_model_len) > cache.capacity();
    too_large.then_some("the scheduler reserves max_model_len tokens, which exceed the KV cache")
}
