//! vLLM v1: every request owes tokens, prompt or output (engine: vLLM 0.33, `vllm/v1/core/sched/scheduler.py`).

mod drafts;
mod layer_groups;

use super::prelude::*;
use crate::finding::{Finding, Kind, Value};

/// vLLM v1's scheduling policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum VllmV1Policy {
    /// First come, first served; victims from the tail of the running list.
    Fcfs,
    /// By (priority, arrival); victims are last in this order.
    Priority,
}

/// Every request owes tokens, prompt or output.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct VllmV1 {
    pub token_budget: u64,
    pub max_seqs: u64,
    pub long_prefill_threshold: u64,
    pub policy: VllmV1Policy,
    pub reserve_full_prompt: bool,
    pub async_scheduling: bool,
    /// `None`: vLLM's default.
    pub pause_s: Option<f64>,
    #[serde(default)]
    pub speculation: Option<Speculation>,
}

/// Pause of vLLM's loop after an empty step, in seconds.
const VLLM_PAUSE_S: f64 = 0.001;

impl SchedulerParameters for VllmV1 {
    fn build(&self, _classes: Option<&[Class]>) -> Result<Box<dyn Scheduler>> {
        if let Some(pause) = self.pause_s.filter(|&pause| pause != 0.0 && !self.async_scheduling) {
            let what = format!("must be 0 without async_scheduling, got {pause}");
            return Err(Error::config("pause_s", what));
        }
        if self.async_scheduling { self.scheduler::<true>() } else { self.scheduler::<false>() }
    }

    fn fills_a_budget(&self) -> bool {
        !self.async_scheduling && self.speculation.is_none()
    }
}

impl VllmV1 {
    fn speculation(&self) -> Result<Option<SpeculationParts>> {
        let build = |speculation: &Speculation| speculation.build().map_err(|error| error.within("speculation"));
        self.speculation.as_ref().map(build).transpose()
    }

    fn scheduler<const AHEAD: bool>(&self) -> Result<Box<dyn Scheduler>> {
        let queue = match self.policy {
            VllmV1Policy::Fcfs => Queue::fcfs(),
            VllmV1Policy::Priority => Queue::by(|arrival| arrival.priority, None),
        };
        Ok(Box::new(VllmV1Scheduler::<AHEAD> {
            limits: limits(self.token_budget, self.max_seqs)?,
            long_prefill_threshold: self.long_prefill_threshold,
            policy: self.policy,
            reserve_full_prompt: self.reserve_full_prompt,
            pause: Span(attoseconds(self.pause_s.unwrap_or(VLLM_PAUSE_S), "pause_s")?),
            speculation: self.speculation()?,
            lists: Lists::new(queue),
        }))
    }
}

impl Sample for VllmV1 {
    fn sample(dice: &mut Dice) -> VllmV1 {
        VllmV1 {
            token_budget: dice.scale.token_budget,
            max_seqs: dice.scale.max_seqs,
            long_prefill_threshold: if dice.flip() { 0 } else { dice.below(20) },
            policy: dice.one_of(&[VllmV1Policy::Fcfs, VllmV1Policy::Priority]),
            reserve_full_prompt: dice.flip(),
            async_scheduling: dice.flip(),
            pause_s: Some(0.0),
            speculation: (dice.below(4) == 3).then(|| Speculation::sample(dice)),
        }
    }
}

/// Schedules running requests in order of admission within the budget, then, without a preemption, the queue.
/// `AHEAD`: async scheduling.
struct VllmV1Scheduler<const AHEAD: bool> {
    limits: Limits,
    long_prefill_threshold: u64,
    policy: VllmV1Policy,
    reserve_full_prompt: bool,
    pause: Span,
    speculation: Option<SpeculationParts>,
    /// Running requests are in order of admission.
    lists: Lists,
}

/// A row chosen by the walk through the running requests.
struct RunningRow {
    place: Place,
    tokens: u64,
    blocks: u64,
}

impl<const AHEAD: bool> VllmV1Scheduler<AHEAD> {
    /// Places the running requests without a walk, if all decodes fit the budget, prefills are at the tail, and
    /// victims come from the tail. Returns false otherwise, after joining decodes only.
    fn place_at_once(&mut self, longest: u64, plan: &mut Plan) -> Result<bool> {
        let decodes = plan.decodes() + self.lists.idle.len() as u64;
        if decodes > plan.budget_for_decodes() || !self.prefills_come_last() {
            return Ok(false);
        }
        for index in 0..self.lists.idle.len() {
            plan.decode(self.lists.idle[index])?;
        }
        self.lists.idle.clear();
        if self.policy == VllmV1Policy::Priority && self.lacks_blocks(longest, plan) {
            return Ok(false);
        }
        while plan.lacks_blocks() {
            if plan.preempt_lower_ranked(Preemption::Recompute)? {
                continue;
            }
            let Some(last) = self.lists.running.last() else { break };
            self.preempt(last, plan)?;
        }
        let mut next = self.lists.prefills.first();
        while let Some(place) = next {
            let tokens = plan.requests().owed(place).min(longest).min(plan.budget_left());
            if tokens == 0 {
                break;
            }
            while plan.new_blocks(place, tokens) as i64 > plan.free_blocks() {
                if plan.preempt_lower_ranked(Preemption::Recompute)? {
                    continue;
                }
                let last = self.lists.running.last().unwrap_or(place);
                self.preempt(last, plan)?;
                if last == place {
                    return Ok(true);
                }
            }
            plan.chunk(place, tokens)?;
            next = self.lists.prefills.after(place);
        }
        Ok(true)
    }

    /// Whether all requests in prefill are at the tail of the running list.
    #[inline]
    fn prefills_come_last(&self) -> bool {
        self.lists.prefills.is_empty() || self.prefills_are_the_tail()
    }

    fn prefills_are_the_tail(&self) -> bool {
        let mut last = self.lists.running.last();
        for _ in 0..self.lists.prefills.len() {
            match last {
                Some(place) if self.lists.prefills.contains(place) => last = self.lists.running.before(place),
                _ => return false,
            }
        }
        true
    }

    /// Whether the steady decodes and the prefills need more blocks than are free.
    fn lacks_blocks(&self, longest: u64, plan: &Plan) -> bool {
        let (mut budget, mut free) = (plan.budget_left(), plan.free_blocks());
        for place in self.lists.prefills.iter() {
            let tokens = plan.requests().owed(place).min(longest).min(budget);
            budget -= tokens;
            free -= plan.new_blocks(place, tokens) as i64;
        }
        free < 0
    }

    /// Walks through the running requests like the engine, and preempts when blocks are short.
    fn walk(&mut self, longest: u64, plan: &mut Plan) -> Result<()> {
        let mut rows: Vec<RunningRow> = Vec::new();
        let mut budget = plan.budget_for_decodes();
        let mut reserved = 0;
        let mut next = self.lists.running.first();
        'running: while let Some(place) = next.filter(|_| budget > 0) {
            if AHEAD && plan.is_ending(place) {
                next = self.lists.running.after(place);
                continue;
            }
            let tokens = plan.requests().owed(place).min(longest).min(budget);
            let blocks = plan.new_blocks(place, tokens);
            while reserved + blocks > plan.free_blocks_before_decodes() {
                if plan.preempt_lower_ranked(Preemption::Recompute)? {
                    continue;
                }
                let victim = self.victim(plan.requests()).unwrap_or(place);
                // At this point the rows have taken blocks, and the steady decodes have not.
                plan.rest_decodes(true);
                plan.reserve(reserved);
                if let Some(index) = rows.iter().position(|row| row.place == victim) {
                    // The tokens of its row return to the budget.
                    let row = rows.remove(index);
                    budget += row.tokens;
                    reserved -= row.blocks;
                    plan.pass(victim, row.tokens);
                }
                next = self.lists.running.after(place);
                self.preempt(victim, plan)?;
                plan.rest_decodes(false);
                if victim == place && self.policy == VllmV1Policy::Priority {
                    continue 'running;
                }
                if victim == place {
                    break 'running;
                }
            }
            rows.push(RunningRow { place, tokens, blocks });
            budget -= tokens;
            reserved += blocks;
            next = self.lists.running.after(place);
        }
        self.index(&rows, plan)
    }

    /// Forms the batch of these rows, which are in order of admission.
    fn index(&mut self, rows: &[RunningRow], plan: &mut Plan) -> Result<()> {
        let mut placed = rows.iter().map(|row| row.place).peekable();
        self.lists.idle.clear();
        for place in self.lists.running.iter() {
            let has_ended = AHEAD && plan.is_ending(place);
            if placed.next_if_eq(&place).is_none() && !self.lists.prefills.contains(place) && !has_ended {
                self.lists.idle.push(place);
                if plan.requests().at(place).phase() == Phase::Decoding {
                    plan.pause(place)?;
                }
            }
        }
        let (prefills, decodes): (Vec<&RunningRow>, Vec<&RunningRow>) =
            rows.iter().partition(|row| self.lists.prefills.contains(row.place));
        for row in decodes {
            if plan.requests().at(row.place).phase() != Phase::Decoding {
                plan.decode(row.place)?;
            }
        }
        for row in prefills {
            plan.chunk(row.place, row.tokens)?;
        }
        Ok(())
    }

    /// The next victim: the last admitted request, or the last by (priority, arrival, id).
    fn victim(&self, requests: &Requests) -> Option<Place> {
        let worst = |place: &Place| (requests.arrival(*place).priority, requests.order(*place));
        match self.policy {
            VllmV1Policy::Fcfs => self.lists.running.last(),
            VllmV1Policy::Priority => self.lists.running.iter().max_by_key(worst),
        }
    }

    /// Holds the plan until something changes. `is_single`: a second request activates the threshold. `is_full`: an
    /// arrival could not be admitted.
    #[inline(always)]
    fn hold(&self, is_single: bool, is_full: bool, plan: &mut Plan) {
        let arrivals_wait = !is_single && is_full;
        plan.hold(Hold::while_arrivals_wait(arrivals_wait));
        if AHEAD && !arrivals_wait && self.long_prefill_threshold == 0 && self.lists.queue.is_empty() {
            plan.hold_as_requests_leave();
        }
    }

    fn preempt(&mut self, victim: Place, plan: &mut Plan) -> Result<()> {
        plan.preempt(victim, Preemption::Recompute)?;
        self.lists.take_out(victim, plan.requests());
        self.lists.queue.push_victim(victim, plan.requests());
        Ok(())
    }
}

impl<const AHEAD: bool> Scheduler for VllmV1Scheduler<AHEAD> {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn is_timeless(&self) -> bool {
        true
    }

    fn plans_ahead(&self) -> Option<Ahead> {
        AHEAD.then_some(Ahead { pause: self.pause, drops: false })
    }

    fn speculates(&self) -> Option<SpeculationParts> {
        self.speculation.clone()
    }

    fn check(&self, cache: &KvCache) -> Result<()> {
        if self.speculation.is_some() && cache.prefix_cache == Some(PrefixKind::Radix) {
            return Err(Error::config(
                "kv.prefix_cache",
                "must be \"blocks\" or None for VllmV1 with speculation, got \"radix\"",
            ));
        }
        Ok(())
    }

    fn supports_layer_groups(&self) -> bool {
        self.speculation.is_none()
    }

    fn findings(&self, _cache: &KvCache) -> Vec<Finding> {
        let row = |parts: &SpeculationParts| 1 + parts.drafts;
        match &self.speculation {
            Some(parts) if row(parts) > self.limits.token_budget => {
                let (row, budget) = (row(parts), self.limits.token_budget);
                vec![Finding::new(
                    Kind::DraftsOverBudget,
                    "one row with all its drafts exceeds token_budget, and a request with one token left may never be \
                     admitted; raise token_budget or reduce the number of drafts",
                    [("row_tokens", Value::Count(row)), ("token_budget", Value::Count(budget))],
                )]
            }
            _ => Vec::new(),
        }
    }

    fn notice(&mut self, notice: Notice, requests: &Requests) {
        self.lists.notice(notice, requests);
        if AHEAD
            && !self.lists.idle.is_empty()
            && let Notice::Left(left) = notice
        {
            self.lists.idle.retain(|&place| place != left);
        }
    }

    fn admitted(&self) -> Option<&List> {
        Some(&self.lists.running)
    }

    fn ending(&mut self, place: Place) {
        self.lists.prefills.remove(place);
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        let has_threshold = self.long_prefill_threshold > 0;
        let is_single = has_threshold && self.lists.running.len() + self.lists.queue.len() <= 1;
        let longest = if has_threshold && !is_single { self.long_prefill_threshold } else { self.limits.token_budget };
        if self.speculation.is_some() {
            return self.plan_with_drafts(longest, plan);
        }
        if plan.has_layer_groups() {
            return self.plan_with_layer_groups(longest, is_single, plan);
        }
        if !self.place_at_once(longest, plan)? {
            self.walk(longest, plan)?;
        }
        if plan.has_preempted() {
            // A step with a preemption admits no request.
            return Ok(());
        }
        while let Some(place) = self.lists.queue.head() {
            if plan.budget_left() == 0 {
                break;
            }
            plan.look_up(place);
            let requests = plan.requests();
            let owed = requests.owed(place);
            let tokens = owed.min(longest).min(plan.budget_left());
            let taken = requests.context(place) + tokens;
            let checked = if self.reserve_full_prompt { requests.next_context(place) } else { taken };
            if !plan.try_admit(place, checked, 0, taken, tokens)? {
                break;
            }
            self.lists.queue.remove(place, plan.requests());
            self.lists.running.push_back(place);
            // Unless planned ahead, the next plan sees a request with a complete prompt as ready to decode.
            if AHEAD || tokens < owed {
                self.lists.prefills.push_back(place);
            }
        }
        let is_full = plan.budget_left() == 0
            || plan.sequences_left() == 0
            || (plan.refused() == Some(Limit::Blocks) && !self.lists.queue.may_be_overtaken());
        self.hold(is_single, is_full, plan);
        Ok(())
    }
}
