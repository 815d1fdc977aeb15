//! Orca: new prompts first, the maximum length reserved (Yu et al. 2022; li2025 §3).

use super::roster::Roster;
use super::{Notice, Queue, Scheduler, Watermark};
use crate::error::Result;
use crate::kv::KvBlocks;
use crate::plan::{Hold, Limit, Limits, Plan, Preemption};
use crate::request::Requests;
use crate::workload::Arrival;

/// Unfinished prompts, then new ones, then decodes, each by arrival, while the budget lasts. Whoever is admitted holds
/// the blocks of the longest sequence, so nobody is preempted.
#[derive(Debug)]
pub(super) struct Orca {
    roster: Roster,
    max_model_len: u64,
    chunked: bool,
}

impl Orca {
    pub(super) fn new(limits: Limits, max_model_len: u64, chunked: bool) -> Orca {
        let roster = Roster::new(limits, Watermark::NONE, Preemption::Recompute, Queue::fcfs());
        Orca { roster, max_model_len, chunked }
    }

    /// Computes prompts with all of the budget, as if nobody decoded.
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
            if least > plan.budget_left() || !plan.has_room(place, self.max_model_len, 0) {
                break;
            }
            lists.admit(place, self.max_model_len, owed.min(plan.budget_left()), plan)?;
        }
        Ok(())
    }
}

impl Scheduler for Orca {
    fn limits(&self) -> Limits {
        self.roster.limits
    }

    fn refuses(&self, arrival: &Arrival, cache: &KvBlocks) -> Option<&'static str> {
        let prompt = u64::from(arrival.prompt_tokens);
        if !self.chunked && prompt > self.roster.limits.token_budget {
            return Some("its prompt is longer than the token budget, and prompts are not chunked");
        }
        refuses_length(arrival, self.max_model_len, cache)
    }

    fn notice(&mut self, notice: Notice, requests: &Requests) {
        self.roster.notice(notice, requests);
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        plan.rest_decodes(true);
        self.prefill(plan)?;
        // Who runs keeps its seat and its blocks until it leaves.
        let arrivals_wait = plan.budget_left() == 0 || plan.seats_left() == 0 || plan.refused() == Some(Limit::Blocks);
        plan.rest_decodes(false);
        self.roster.choose_decodes(u64::MAX, plan)?;
        plan.hold(if arrivals_wait { Hold::THROUGH_ARRIVALS } else { Hold::UNTIL_ARRIVAL });
        Ok(())
    }
}

/// Why a policy that reserves `max_model_len` tokens for every request can never admit this one, if that is so.
pub(super) fn refuses_length(arrival: &Arrival, max_model_len: u64, cache: &KvBlocks) -> Option<&'static str> {
    if u64::from(arrival.prompt_tokens) + u64::from(arrival.output_tokens) > max_model_len {
        return Some("its prompt and output together are longer than max_model_len");
    }
    let too_large = cache.need(max_model_len) > cache.capacity();
    too_large
        .then_some("the blocks for max_model_len tokens, which its scheduler reserves, are more than the KV cache has")
}
