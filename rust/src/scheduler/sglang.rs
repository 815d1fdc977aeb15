//! SGLang: prompts first, as far as the estimated outputs leave memory (engine: SGLang 0.5.23,
//! `managers/scheduler.py`).

mod reserved;
mod pass;
mod order;

use std::cmp::Reverse;

use super::prelude::*;
use crate::dice::Scale;
use crate::finding::{Finding, Kind};
use crate::kv::{KvCache, PrefixKind};
use pass::{Pass, Picked};
use reserved::{MOST_RESERVED, Outstanding};

/// SGLang's queue orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SglangPolicy {
    /// First come, first served; retracted requests go to the tail.
    Fcfs,
    /// Longest prefix cache hit first.
    Lpm,
}

/// Prompts first, as far as the expected output lengths leave memory; otherwise decodes.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Sglang {
    pub policy: SglangPolicy,
    pub chunk_tokens: Option<u64>,
    pub max_prefill_tokens: u64,
    pub max_seqs: u64,
    pub mixed: bool,
    pub conservativeness: f64,
    pub ignore_eos: bool,
    pub overlap: bool,
}

impl SchedulerParameters for Sglang {
    fn build(&self, _classes: Option<&[Class]>) -> Result<Box<dyn Scheduler>> {
        let chunk_tokens = self.chunk_tokens.filter(|&tokens| tokens > 0);
        let settings = Sglang {
            chunk_tokens: chunk_tokens.map(|tokens| count("chunk_tokens", tokens)).transpose()?,
            max_prefill_tokens: count("max_prefill_tokens", self.max_prefill_tokens)?,
            max_seqs: count("max_seqs", self.max_seqs)?,
            ..*self
        };
        let Sglang { chunk_tokens, max_seqs, conservativeness, .. } = settings;
        if let Some(chunk) = chunk_tokens.filter(|&chunk| settings.mixed && chunk <= max_seqs) {
            let what = format!("must be larger than max_seqs ({max_seqs}) with mixed=True, got {chunk}");
            return Err(Error::config("chunk_tokens", what));
        }
        if !(conservativeness.is_finite() && conservativeness >= 0.0) {
            let what = format!("must be finite and non-negative, got {conservativeness}");
            return Err(Error::config("conservativeness", what));
        }
        Ok(Box::new(SglangScheduler {
            settings,
            ratio: Ratio::new(conservativeness),
            queue: List::default(),
            running: List::default(),
            idle: Vec::new(),
            fresh: Vec::new(),
            decodes_at: None,
            outstanding: Outstanding::default(),
            last: Vec::new(),
            last_was_mixed: false,
            partial: None,
            closed: None,
            decodes_since: None,
            passes: 0,
            is_empty_since_left: false,
            pool: 0,
            pass: None,
        }))
    }
}

impl Sample for Sglang {
    fn sample(dice: &mut Dice) -> Sglang {
        let Scale { token_budget, max_seqs, block, .. } = dice.scale;
        let is_cut = dice.below(6) > 0;
        let mixed = is_cut && dice.flip();
        let chunk = token_budget.max(block).max(if mixed { max_seqs + 1 } else { 0 });
        Sglang {
            policy: dice.one_of(&[SglangPolicy::Fcfs, SglangPolicy::Lpm]),
            chunk_tokens: is_cut.then_some(chunk),
            max_prefill_tokens: dice.one_of(&[1, 16, 64, 16_384]),
            max_seqs,
            mixed,
            conservativeness: dice.one_of(&[0.0, 0.05, 0.3, 1.0, 1.3]),
            ignore_eos: dice.below(3) == 0,
            overlap: dice.flip(),
        }
    }
}

/// A step computes prompts if any can be admitted. Otherwise all running requests decode, or some are retracted.
#[derive(Debug)]
pub(super) struct SglangScheduler {
    settings: Sglang,
    ratio: Ratio,
    queue: List,
    /// Decoding requests, in the order of their rows.
    running: List,
    /// Running requests that are not steady decodes yet.
    idle: Vec<Place>,
    /// Running requests whose prompts the last step completed.
    fresh: Vec<Place>,
    outstanding: Outstanding,
    /// Requests whose prompts the last step completed. They run from the next step on.
    last: Vec<Place>,
    /// Whether the last step also contained decodes.
    last_was_mixed: bool,
    /// The request with a partial prefill.
    partial: Option<Place>,
    /// The limit that prevents admissions until a request leaves, if any.
    closed: Option<Limit>,
    /// With overlap: the tick at the plan of the last step, if all running requests were to decode in it.
    decodes_at: Option<u64>,
    /// The iteration count at the start of the decode steps.
    decodes_since: Option<u64>,
    /// Number of passes in order of arrival with a prefix cache.
    passes: u64,
    /// Whether the last request left an empty queue.
    is_empty_since_left: bool,
    /// Capacity of the cache in tokens.
    pool: u64,
    /// The last pass, kept to reuse its memory.
    pass: Option<Box<Pass>>,
}

/// The reserved share of future output. It decreases with every decode step.
#[derive(Clone, Copy, Debug)]
struct Ratio {
    now: f64,
    high: f64,
    low: f64,
    decay: f64,
}

impl Ratio {
    fn new(conservativeness: f64) -> Ratio {
        let high = (0.7 * conservativeness).min(1.0);
        let low = (0.14 * high).min(1.0);
        Ratio { now: high, high, low, decay: (high - low) / 600.0 }
    }

    /// Applies `steps` decode steps. Each subtraction is rounded like the engine's.
    fn after(&mut self, steps: u64) {
        for _ in 0..steps {
            let next = (self.now - self.decay).max(self.low);
            if next == self.now {
                break;
            }
            self.now = next;
        }
    }
}

/// Number of steps that a retraction frees memory for.
const STEPS_AFTER_RETRACTION: u64 = 20;

/// The maximum output of a request: the client's limit, at most what the cache and the maximum length leave.
fn limit(requests: &Requests, place: Place, cache_tokens: u64) -> u64 {
    let request = requests.at(place);
    let room = cache_tokens.saturating_sub(u64::from(request.prompt_tokens) + 2);
    let room = room.min(u64::from(requests.max_model_len.saturating_sub(request.prompt_tokens)));
    let most = u64::from(requests.arrival(place).max_output_tokens).min(room);
    most.max(u64::from(request.output_tokens))
}

/// Emitted tokens that the engine has processed: without the one in flight.
fn emitted(plan: &Plan, place: Place) -> u64 {
    plan.requests().emitted(place) - plan.tokens_in_flight(place)
}

/// Tokens that a request may still emit, from the engine's view.
fn to_emit(plan: &Plan, place: Place) -> u64 {
    limit(plan.requests(), place, plan.all_tokens()) - emitted(plan, place)
}

impl SglangScheduler {
    /// The reserved share of future output.
    fn share(&self) -> f64 {
        if self.settings.ignore_eos { 1.0 } else { self.ratio.now }
    }

    /// Whether a step can mix prompts and decodes.
    fn mixes(&self) -> bool {
        self.settings.mixed && self.settings.chunk_tokens.is_some()
    }

    /// Applies the last step: its requests run now, and the reserved share decreases.
    fn catch_up(&mut self, plan: &Plan) {
        if let Some(since) = self.decodes_since.take() {
            self.ratio.after(plan.iterations() - since);
        }
        if self.is_empty_since_left && plan.now() >= plan.last_end() {
            self.is_empty_since_left = false;
            if plan.now() > plan.last_end() {
                self.ratio.now = self.ratio.high;
            }
        }
        if self.partial.is_some() || self.last_was_mixed || self.running.is_empty() {
            self.closed = None;
        }
        self.pool = plan.all_tokens();
        let tick = self.tick_settled(plan.requests());
        let was_mixed = std::mem::take(&mut self.last_was_mixed);
        if was_mixed {
            self.last.reverse();
        }
        for index in 0..self.last.len() {
            let place = self.last[index];
            if was_mixed {
                self.running.push_front(place);
            } else {
                self.running.push_back(place);
            }
            self.outstanding.join(place, self.end_of(place, plan.requests()), tick);
            self.idle.push(place);
        }
        std::mem::swap(&mut self.fresh, &mut self.last);
        self.last.clear();
    }

    /// The tick up to which the engine has processed all decodes.
    fn tick_settled(&self, requests: &Requests) -> u64 {
        let tick = requests.ticks(0);
        tick - u64::from(self.decodes_at.is_some_and(|at| at < tick))
    }

    /// Tokens that running requests may still emit, from the engine's view.
    fn outstanding(&mut self, plan: &Plan) -> u64 {
        let settled = self.tick_settled(plan.requests());
        let tokens = self.outstanding.tokens(settled);
        if settled < plan.requests().ticks(0) {
            return tokens;
        }
        let flies = |&&place: &&Place| plan.tokens_in_flight(place) > 0 && to_emit(plan, place) <= MOST_RESERVED;
        tokens + self.fresh.iter().filter(flies).count() as u64
    }

    /// Removes running requests whose last token is in flight: they get no further row. Returns whether there were
    /// any.
    fn take_off_ending(&mut self, plan: &Plan) -> bool {
        !plan.ending().is_empty() && self.take_off(plan)
    }

    fn take_off(&mut self, plan: &Plan) -> bool {
        let mut were_any = false;
        for &place in plan.ending() {
            if self.running.remove(place) {
                self.outstanding.leave(place);
                self.idle.retain(|&other| other != place);
                were_any = true;
            }
        }
        if were_any {
            self.closed = None;
        }
        were_any
    }

    /// Forms a batch of prompts if possible.
    fn prefill(&mut self, plan: &mut Plan) -> Result<bool> {
        let running = self.running.len() as u64;
        if self.partial.is_none() {
            if self.closed.is_some() || self.queue.is_empty() {
                return Ok(false);
            }
            if running >= self.settings.max_seqs {
                self.closed = Some(Limit::MaxSeqs);
                return Ok(false);
            }
        }
        // Resting decodes take no blocks from the prompts admitted here.
        plan.rest_decodes(true);
        if self.admits_all(plan)? {
            return Ok(true);
        }
        self.order_queue(plan);
        let mut pass = self.pass.take().unwrap_or_default();
        self.attempt(&mut pass, plan)?;
        let is_formed = !pass.picked.is_empty();
        if is_formed {
            self.place(&pass, plan)?;
        }
        self.pass = Some(pass);
        Ok(is_formed)
    }

    /// Forms a batch of the picked prompts, and of the running decodes if steps are mixed and they have room.
    fn place(&mut self, pass: &Pass, plan: &mut Plan) -> Result<()> {
        if plan.shares_blocks() {
            let tokens: u64 = pass.picked.iter().map(|row| row.tokens).sum();
            let page = plan.block_tokens();
            let spare = if page > 1 { page * pass.picked.len() as u64 } else { 0 };
            plan.reserve(plan.blocks(tokens + spare));
        }
        self.partial = None;
        for &Picked { place, tokens, has_context } in &pass.picked {
            if tokens < plan.requests().owed(place) {
                self.partial = Some(place);
            } else {
                self.last.push(place);
            }
            if has_context {
                plan.chunk(place, tokens)?;
            } else {
                plan.prefill(place, tokens)?;
            }
        }
        if self.mixes() {
            self.take_off_ending(plan);
        }
        if self.mixes() && !self.running.is_empty() {
            self.join_decodes(plan)?;
            if self.decodes_fit(plan) {
                plan.reserve(self.running.len() as u64);
                plan.rest_decodes(false);
                // Decodes follow the prompts in the batch, and in `running` afterwards.
                pass.picked.iter().rev().for_each(|row| plan.move_first(row.place));
                self.last_was_mixed = true;
            }
        }
        Ok(())
    }

    fn join_decodes(&mut self, plan: &mut Plan) -> Result<()> {
        for index in 0..self.idle.len() {
            plan.decode(self.idle[index])?;
        }
        self.idle.clear();
        Ok(())
    }

    /// Whether a page is free for every request that needs one for its next token. Cached content is evicted for it.
    fn decodes_fit(&self, plan: &mut Plan) -> bool {
        let growth = plan.decode_growth();
        plan.reserve(growth);
        growth as i64 <= plan.free_blocks()
    }

    /// All running requests decode. If memory is short, requests are retracted, unless ending requests free memory.
    /// Returns whether any request decodes.
    fn decode(&mut self, plan: &mut Plan) -> Result<bool> {
        let frees_memory = self.take_off_ending(plan);
        if self.running.is_empty() {
            plan.rest_decodes(true);
            return Ok(false);
        }
        plan.rest_decodes(false);
        self.join_decodes(plan)?;
        plan.reserve(0);
        let fits = !plan.lacks_blocks();
        if !fits {
            plan.rest_decodes(true);
            if frees_memory || !self.retract(plan)? {
                return Ok(false);
            }
            plan.rest_decodes(false);
        }
        let rows = self.running.len() as u64;
        plan.reserve(rows.saturating_sub(plan.decode_growth()));
        plan.reserve_each(rows);
        if fits {
            self.decodes_since = Some(plan.iterations());
            let waits = self.partial.is_some() || (self.closed.is_none() && !self.queue.is_empty());
            // The next arrival makes the batch full again if it was.
            plan.hold(match (waits, self.closed) {
                (true, _) => Hold::ONCE,
                (false, None) => Hold::UNTIL_ARRIVAL,
                (false, Some(_)) => Hold::THROUGH_ARRIVALS,
            });
        }
        Ok(true)
    }

    /// Retracts the running requests with the fewest emitted tokens, longest prompts first, until the rest has room
    /// for a step. If the last one has no room, the partial prefill is preempted (the engine would stop). Returns
    /// whether there is room.
    fn retract(&mut self, plan: &mut Plan) -> Result<bool> {
        let mut rows: Vec<Place> = self.running.iter().collect();
        rows.sort_by_key(|&place| Reverse((emitted(plan, place), Reverse(plan.requests().at(place).prompt_tokens))));
        let mut fits = false;
        while !fits && rows.len() > 1 {
            let victim = rows[rows.len() - 1];
            rows.pop();
            self.outstanding.leave(victim);
            self.running.remove(victim);
            self.send_back(victim, plan)?;
            plan.reserve(plan.blocks(STEPS_AFTER_RETRACTION * rows.len() as u64));
            fits = self.decodes_fit(plan);
        }
        if !fits && let Some(place) = self.partial.take() {
            self.send_back(place, plan)?;
            fits = self.decodes_fit(plan);
        }
        for &place in &rows {
            self.running.remove(place);
            self.running.push_back(place);
            plan.move_last(place);
        }
        let emitted: u64 = rows.iter().map(|&place| emitted(plan, place)).sum();
        let limits: u64 = rows.iter().map(|&place| limit(plan.requests(), place, self.pool)).sum();
        let ahead = STEPS_AFTER_RETRACTION * rows.len() as u64;
        self.ratio.now = ((emitted + ahead) as f64 / (limits + 1) as f64).min(1.0);
        self.closed = None;
        Ok(fits)
    }

    /// Preempts a request and puts it at the tail of the queue.
    fn send_back(&mut self, place: Place, plan: &mut Plan) -> Result<()> {
        plan.preempt(place, Preemption::Recompute)?;
        self.queue.push_back(place);
        Ok(())
    }

    /// Removes a request whose prompt the last step completed. Returns whether it was one.
    fn leave_last(&mut self, place: Place) -> bool {
        let at = self.last.iter().position(|&other| other == place);
        at.map(|at| self.last.remove(at)).is_some()
    }

    /// The tick at which a running request ends.
    fn end_of(&self, place: Place, requests: &Requests) -> u64 {
        requests.ticks(0) + limit(requests, place, self.pool) - requests.emitted(place)
    }
}

impl Scheduler for SglangScheduler {
    fn limits(&self) -> Limits {
        Limits { token_budget: Limits::NONE, max_seqs: self.settings.max_seqs, frees_with_batch: false }
    }

    fn is_timeless(&self) -> bool {
        true
    }

    fn plans_ahead(&self) -> Option<Ahead> {
        self.settings.overlap.then_some(Ahead { pause: Span::ZERO, drops: true })
    }

    fn check(&self, cache: &KvCache) -> Result<()> {
        let page = u64::from(cache.block);
        if cache.prefix_cache == Some(PrefixKind::Blocks) {
            return Err(Error::config("kv.prefix_cache", "must be \"radix\" or None for Sglang, got \"blocks\""));
        }
        if let Some(tokens) = cache.tokens.filter(|tokens| tokens % page != 0) {
            let what = format!("must divide the {tokens} tokens of the cache, got {page}");
            return Err(Error::config("kv.block", what));
        }
        if let Some(chunk) = self.settings.chunk_tokens.filter(|&chunk| chunk < page) {
            let what = format!("must be at least the page size ({page}), got {chunk}");
            return Err(Error::config("scheduler.chunk_tokens", what));
        }
        Ok(())
    }

    fn findings(&self, cache: &KvCache) -> Vec<Finding> {
        let mut findings = Vec::new();
        if self.settings.policy == SglangPolicy::Lpm && cache.prefix_cache.is_none() {
            findings.push(Finding::new(
                Kind::LpmWithoutCache,
                "policy 'lpm' orders requests as 'fcfs' because there is no prefix cache; set prefix_cache='radix'",
                [],
            ));
        }
        if self.settings.mixed && self.settings.chunk_tokens.is_none() {
            findings.push(Finding::new(
                Kind::MixedWithoutChunks,
                "mixed=True has no effect because chunk_tokens is not set; set it to mix prompts and decodes",
                [],
            ));
        }
        findings
    }

    /// SGLang admits a request into an empty cache only if this many tokens are free. A request that leaves fewer
    /// than two tokens would have its output cut.
    fn refuses(&self, arrival: &Arrival, cache: &KvBlocks) -> Option<&'static str> {
        let page = cache.block_tokens();
        let (prompt, output) = (u64::from(arrival.prompt_tokens), u64::from(arrival.output_tokens));
        let least = if self.settings.ignore_eos && !cache.has_cache() {
            cache.need(prompt) * page + output + page + 1
        } else {
            prompt + output.min(MOST_RESERVED) + page
        };
        let fits = u128::from(least.max(prompt + output + 1)) < u128::from(cache.capacity()) * u128::from(page);
        (!fits).then_some("its prompt, its output and the page that SGLang keeps free exceed the KV cache")
    }

    fn notice(&mut self, notice: Notice, requests: &Requests) {
        match notice {
            Notice::Arrived(place) => self.queue.push_back(place),
            Notice::Left(place) => {
                let has_run = self.running.remove(place);
                if has_run {
                    self.idle.retain(|&other| other != place);
                    self.outstanding.leave(place);
                }
                if has_run || self.leave_last(place) {
                    self.closed = None;
                } else {
                    self.queue.remove(place);
                }
                self.is_empty_since_left = requests.len() == 1;
            }
            // No nested policy preempts its requests. Ready requests were in the last batch.
            Notice::Ready(_) | Notice::Preempted(_) => {}
        }
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        plan.cache_in_row_order();
        self.catch_up(plan);
        let decodes = if self.prefill(plan)? { self.last_was_mixed } else { self.decode(plan)? };
        self.decodes_at = (decodes && self.settings.overlap).then(|| plan.requests().ticks(0));
        plan.set_refused(self.closed);
        Ok(())
    }
}
