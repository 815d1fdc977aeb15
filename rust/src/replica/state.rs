//! The state of a replica between two events.
//!
//! Plans and settling both modify [`State`]: requests, blocks, steady decodes and the batch.

use std::cell::Cell;

use super::batch::{Batch, Chunk};
use super::groups::Groups;
use super::in_flight::{Drafts, InFlight};
use super::recorded_drafts::RecordedDrafts;
use super::steady::Decodes;
use crate::clock::{Instant, Long, Short, Span, Unit};
use crate::error::{Error, Kind};
use crate::features::{Features, Full, Plain, Variant};
use crate::kv::{DetachedBlocks, KvBlocks};
use crate::plan::Limits;
use crate::request::{NOT_ODD, Phase, Place, Request, Requests};
use crate::timing::{ChunkShape, Pace, PiecewiseLinear, Shape};

/// First row number. Rows count up; rows moved to the front count down.
pub(crate) const FIRST_ROW: u64 = 1 << 63;

/// Ids of the requests that histograms include.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    first: u32,
    count: u32,
}

impl Measured {
    pub(crate) fn new(ids: std::ops::Range<u32>) -> Measured {
        Measured { first: ids.start, count: ids.end.saturating_sub(ids.start) }
    }

    pub(crate) fn contains(self, id: u32) -> bool {
        id.wrapping_sub(self.first) < self.count
    }
}

/// The part of a replica that its scheduler's plan may modify.
#[derive(Debug)]
pub(crate) struct State {
    /// The compiled variant that the run needs.
    pub(crate) variant: Variant,
    /// The unit of all instants and spans.
    pub(crate) unit: Unit,
    pub(crate) requests: Requests,
    pub(crate) blocks: KvBlocks,
    /// Moduli of the timing model.
    pub(crate) moduli: Vec<u64>,
    /// The groups of steady decodes; the first always exists.
    pub(crate) groups: Groups<Decodes>,
    /// Number of steady decodes in the batch.
    pub(crate) steady: u64,
    /// Blocks that all groups except the first take for the batch, cached until a group changes. A plan may query
    /// them once per waiting class, and there may be a group per class.
    pub(crate) further_growth: Cell<Option<u64>>,
    /// Whether a group may be excluded from the batch.
    pub(crate) is_resting: bool,
    /// During a drain: whether no other replica has requests.
    pub(crate) drains_last: bool,
    pub(crate) limits: Limits,
    pub(crate) caches_in_row_order: bool,
    pub(crate) batch: Batch,
    /// Admitted requests: decoding, in prefill, or paused.
    pub(crate) running: u64,
    /// Requests in the queue, including preempted and swapped ones.
    pub(crate) waiting: u64,
    /// The first and the last row number in use.
    pub(crate) first_row: u64,
    pub(crate) last_row: u64,
    /// Prompt tokens computed and output tokens emitted since the start of the run.
    pub(crate) prefilled_tokens: u64,
    pub(crate) emitted_tokens: u64,
    /// Tokens of arrived requests, without those that are neither prefilled, emitted nor still to come.
    pub(crate) brought_tokens: u64,
    /// Blocks of queued prompts, if a router reads them.
    pub(crate) waiting_blocks: Option<u64>,
    /// Blocks of finished requests, kept until their batch ends.
    pub(crate) kept: DetachedBlocks,
    /// Blocks of requests in transfer to another replica.
    pub(crate) sent_blocks: u64,
    /// Prefix cache hits of admissions, in tokens.
    pub(crate) cached_tokens: u64,
    /// Preemptions since the last token.
    pub(crate) preemptions_since_token: u64,
    /// Iterations run.
    pub(crate) iterations: u64,
    /// End of the last iteration, and the idle time before it.
    pub(crate) last_end: Instant,
    pub(crate) idle: Span,
    /// Swap time, charged to the next iteration.
    pub(crate) swap_charge: Span,
    /// Maximum number of preemptions of one request.
    pub(crate) most_preempted: u32,
    pub(crate) measured: Measured,
    /// Drafts of requests as the workload describes them.
    pub(super) recorded_drafts: RecordedDrafts,
    /// Set with speculative decoding.
    pub(crate) drafts: Option<Box<Drafts>>,
    /// Set with planning ahead.
    pub(crate) ahead: Option<Box<InFlight>>,
}

impl State {
    /// Switches to the variant with all features.
    pub(crate) fn needs_all_features(&mut self) {
        self.variant = self.variant.full();
    }

    /// Whether the run needs no feature beyond `F`.
    pub(crate) fn is_covered_by<F: Features>(&self) -> bool {
        F::FULL || self.variant.is_plain()
    }

    /// The error of a plan that violates a rule.
    #[cold]
    pub(crate) fn broken(&self, now: Instant, rule: &'static str, what: String) -> Error {
        Kind::Rule { at_s: self.unit.instant(now).seconds().to_string(), rule, what }.into()
    }

    /// Counts the blocks of a prompt that joins the queue.
    pub(crate) fn add_waiting_blocks(&mut self, prompt_tokens: u32) {
        if let Some(blocks) = &mut self.waiting_blocks {
            *blocks += self.blocks.need(u64::from(prompt_tokens));
        }
    }

    /// Blocks of queued prompts.
    pub(crate) fn blocks_of_queue(&self) -> u64 {
        let waits = |request: &&Request| request.phase() == Phase::Waiting;
        let blocks = |request: &Request| self.blocks.need(u64::from(request.prompt_tokens));
        let counted = || self.live().map(|place| self.requests.at(place)).filter(waits).map(blocks).sum();
        self.waiting_blocks.unwrap_or_else(counted)
    }

    /// Subtracts the blocks of a prompt that leaves the queue.
    pub(crate) fn remove_waiting_blocks(&mut self, prompt_tokens: u32) {
        if let Some(blocks) = &mut self.waiting_blocks {
            *blocks -= self.blocks.need(u64::from(prompt_tokens));
        }
    }

    /// Prompt tokens not computed and output tokens not emitted, over all requests.
    #[inline]
    pub(crate) fn tokens_ahead(&self) -> u64 {
        self.brought_tokens - self.prefilled_tokens - self.emitted_tokens
    }

    /// Blocks that the steady decodes take for the batch.
    pub(crate) fn steady_growth(&self) -> u64 {
        let first = self.groups[0].next_growth();
        if self.groups.only().is_some() { first } else { first + self.growth_of_further_groups() }
    }

    fn growth_of_further_groups(&self) -> u64 {
        let sum = || self.groups.iter().skip(1).map(Decodes::next_growth).sum();
        let growth = self.further_growth.get().unwrap_or_else(sum);
        debug_assert_eq!(growth, sum(), "no group changed since the value was cached");
        self.further_growth.set(Some(growth));
        growth
    }

    /// Upper bound of the blocks taken by `count` iterations of the batch.
    pub(crate) fn most_more_blocks(&self, count: u64) -> u64 {
        let of_chunks = self.batch.chunk_tokens.saturating_mul(count);
        match self.groups.only() {
            Some(all) => all.growth.growth_at_most(count).saturating_add(of_chunks),
            None => {
                let growths = self.groups.iter().map(|group| group.growth.growth_at_most(count));
                growths.fold(of_chunks, u64::saturating_add)
            }
        }
    }

    /// Number of iterations until a steady decode changes, and the blocks that the steady decodes take for the first
    /// one.
    pub(crate) fn until_due_and_growth<F: Features>(&self) -> (u64, u64) {
        let first = self.until_due_and_growth_of(0);
        if !F::FULL {
            return first;
        }
        (1..self.groups.len())
            .map(|index| self.until_due_and_growth_of(index))
            .fold(first, |(due, growth), (due_here, growth_here)| (due.min(due_here), growth + growth_here))
    }

    fn until_due_and_growth_of(&self, index: usize) -> (u64, u64) {
        let group = &self.groups[index];
        debug_assert!(group.count == 0 || group.due.next() < u64::MAX, "every decode has a due tick");
        // An empty wheel returns `u64::MAX`, which has no effect.
        let due = |group: &Decodes| group.due.next() - self.requests.ticks[index];
        if group.rests { (u64::MAX, 0) } else { (due(group), group.growth.next_growth()) }
    }

    /// Adds an empty group of steady decodes.
    pub(crate) fn add_group(&mut self) {
        self.variant = self.variant.full();
        let measured = self.groups[0].measured.empty_like();
        self.groups.push(Decodes::new(self.blocks.block_tokens(), measured, &self.moduli));
        self.requests.ticks.push(0);
    }

    /// Clears the batch and includes all groups of steady decodes.
    pub(crate) fn clear_batch<F: Features>(&mut self) {
        self.batch.clear::<F>();
        if std::mem::take(&mut self.is_resting) {
            self.groups.iter_mut().for_each(|group| group.rests = false);
            self.steady = self.groups.iter().map(|group| group.count).sum();
            self.further_growth.take();
        }
    }

    /// Whether `blocks` blocks are free in addition to those of the steady decodes. A decode takes at most one block,
    /// so most calls need no count.
    #[inline(always)]
    pub(crate) fn has_free(&self, blocks: u64) -> bool {
        let free = self.blocks.free();
        let fits = || self.steady_growth().saturating_add(blocks) <= free;
        let is_certain = self.steady.saturating_add(blocks) <= free;
        debug_assert!(!is_certain || fits(), "a steady decode takes at most one block");
        is_certain || fits()
    }

    /// With `free="batch"`: frees the kept blocks once no request is admitted.
    #[inline]
    pub(crate) fn end_batch<F: Features>(&mut self) {
        if F::FULL && self.running == 0 && self.limits.frees_with_batch {
            self.blocks.release_detached(std::mem::take(&mut self.kept));
        }
        debug_assert!(
            !self.requests.is_empty()
                || (self.blocks.used() <= self.sent_blocks
                    && self.tokens_ahead() == 0
                    && self.waiting_blocks.unwrap_or(0) == 0),
            "L4: no block is held after the last request"
        );
    }

    /// The pace of the batch on a line, if it fits 64 bits and no chunk is priced as a decode.
    #[inline(always)]
    pub(crate) fn pace_on<F: Features>(&self, line: &PiecewiseLinear<u64>) -> Option<Pace> {
        let (dropped, contexts) = match self.batch.single_decodes {
            0 => (0, 0),
            _ if F::AHEAD => self.dropped_alone()?,
            _ => return None,
        };
        let context = if F::FULL && self.groups.only().is_none() {
            self.context_of_groups()
        } else if self.groups[0].rests {
            0
        } else {
            self.groups[0].context(self.requests.ticks[0])
        };
        line.pace(&self.batch.sums, self.steady + dropped, context + contexts)
    }

    /// The number of dropped rows and Σ of their contexts, if no other single row is priced as a decode.
    fn dropped_alone(&self) -> Option<(u64, u64)> {
        let (rows, contexts) = self.ahead.as_ref()?.dropped_sums();
        (rows == self.batch.single_decodes).then_some((rows, contexts))
    }

    /// Σ contexts of the active steady decodes, with several groups.
    fn context_of_groups(&self) -> u64 {
        let of_group = |index: usize| {
            let group = &self.groups[index];
            if group.rests { 0 } else { group.context(self.requests.ticks[index]) }
        };
        (0..self.groups.len()).map(of_group).sum()
    }

    /// The shape that the timing model prices, with these chunks. The sums do not depend on them.
    #[inline(always)]
    pub(crate) fn shape<'a>(&self, chunks: &'a [ChunkShape]) -> Shape<'a> {
        let mut shape = Shape::summed(chunks, &self.batch.sums);
        if self.batch.single_decodes > 0 {
            self.add_single_decodes(&mut shape);
        }
        for (group, &tick) in self.groups.iter().zip(self.requests.ticks.iter()) {
            group.add_to(&mut shape, tick);
        }
        shape
    }

    /// Adds the rows that are priced as decodes but are not steady decodes.
    fn add_single_decodes(&self, shape: &mut Shape) {
        for chunk in self.batch.chunks.iter().filter(|chunk| chunk.is_decode) {
            shape.add_decode(chunk.context, chunk.tokens, &self.moduli);
        }
        if let Some(ahead) = &self.ahead {
            ahead.add_dropped_to(shape, &self.moduli);
        }
    }

    /// Makes the next token of a request its last. For a steady decode this is the token at the end of the running
    /// stretch of `running` iterations.
    pub(crate) fn end_soon(&mut self, place: Place, running: u64) {
        let emitted = self.requests.emitted(place) as u32;
        let request = self.requests.at(place);
        let mut tokens = 1;
        if request.phase() == Phase::Decoding {
            let group = request.group as usize;
            let tick = self.requests.ticks[group];
            tokens = if self.groups[group].rests { 1 } else { running.max(1) };
            self.groups[group].due.remove(place);
            self.groups[group].due.insert(place, tick + tokens);
        }
        let request = self.requests.at_mut(place);
        let output = request.output_tokens.min(emitted + tokens as u32);
        self.brought_tokens -= u64::from(request.output_tokens - output);
        request.output_tokens = output;
    }

    /// Adds a request to a group of steady decodes.
    #[inline(always)]
    pub(crate) fn join_decodes(&mut self, place: Place, group: usize) {
        match self.variant {
            Variant::Plain => self.join::<Plain<Short>>(place, 0),
            Variant::PlainLong => self.join::<Plain<Long>>(place, 0),
            _ => self.join::<Full<Long>>(place, group),
        }
    }

    #[inline(always)]
    fn join<F: Features>(&mut self, place: Place, group: usize) {
        let tick = self.requests.ticks[group];
        let first_token = self.requests.first_token;
        let (request, history) = self.requests.both_mut(place);
        let decodes = &mut self.groups[group];
        request.phase = Phase::Decoding;
        if F::FULL {
            request.group = group as u32;
            self.further_growth.take();
        }
        request.joined = tick;
        history.gaps_known = tick;
        let context = u64::from(request.computed);
        let mut due = tick + u64::from(request.output_tokens - request.emitted);
        request.grows = request.blocks == self.blocks.need(context);
        if request.grows {
            decodes.growth.join(context);
        } else {
            // Blocks taken ahead last for a while. After that the request grows like the others.
            let held = request.blocks * self.blocks.block_tokens();
            due = if held < request.longest_context(first_token) { due.min(tick + (held - context)) } else { due };
        }
        if decodes.count == 0 && request.emitted > 0 {
            decodes.last_end = history.last_token;
        }
        if request.emitted > 0 && history.last_token.is::<F::Width>(decodes.last_end) {
            let class = if F::FULL { request.class } else { 0 };
            decodes.measured.add(class, u64::from(self.measured.contains(request.id)));
        } else {
            history.odd = decodes.odd.len() as u32;
            decodes.odd.push(place);
        }
        decodes.join::<F>(context, tick);
        self.steady += u64::from(!decodes.rests);
        decodes.due.insert(place, due);
    }

    /// Removes a steady decode. Its ticks are added to the request.
    pub(crate) fn leave_decodes(&mut self, place: Place) {
        self.leave_ended::<Full>(place);
    }

    /// Removes a steady decode that may have its last token and keeps its row in a batch planned ahead; the wheel has
    /// already removed it then.
    pub(crate) fn leave_ended<F: Features>(&mut self, place: Place) {
        let group = if F::FULL { self.requests.at(place).group as usize } else { 0 };
        let due = &mut self.groups[group].due;
        if due.holds(place) {
            due.remove(place);
        }
        self.finish_decoding::<F>(place);
    }

    /// Removes a steady decode that the wheel has already removed.
    #[inline(always)]
    pub(crate) fn finish_decoding<F: Features>(&mut self, place: Place) {
        let group = if F::FULL { self.requests.at(place).group as usize } else { 0 };
        let tick = self.requests.ticks[group];
        let (request, history) = self.requests.both_mut(place);
        let decodes = &mut self.groups[group];
        let ticks = (tick - request.joined) as u32;
        request.computed += ticks;
        request.emitted += ticks;
        request.phase = Phase::Started;
        let context = u64::from(request.computed);
        let odd = std::mem::replace(&mut history.odd, NOT_ODD);
        let is_odd = odd != NOT_ODD;
        if !is_odd {
            history.last_token = decodes.last_end;
            let since = decodes.longest_gap_since::<F::Width>(history.gaps_known);
            history.longest_gap = history.longest_gap.within::<F::Width>().max(since);
            let class = if F::FULL { request.class } else { 0 };
            decodes.measured.take(class, u64::from(self.measured.contains(request.id)));
        }
        if request.grows {
            request.blocks = self.blocks.need(context);
            decodes.growth.leave(context);
        }
        decodes.leave::<F>(context, tick);
        if F::FULL {
            self.further_growth.take();
        }
        self.steady -= u64::from(!decodes.rests);
        if is_odd {
            self.leave_odd(place, odd);
        }
    }

    /// Removes a request from the members with a first gap of their own.
    fn leave_odd(&mut self, place: Place, at: u32) {
        let decodes = &mut self.groups[self.requests.at(place).group as usize];
        decodes.odd.swap_remove(at as usize);
        if let Some(&moved) = decodes.odd.get(at as usize) {
            self.requests.history_mut(moved).odd = at;
        }
    }

    /// Blocks that `count` iterations of the batch take, including the steady decodes' blocks for the first one.
    pub(crate) fn more_blocks(&self, count: u64) -> u64 {
        let growth = |group: &Decodes| if group.rests { 0 } else { group.growth.growth(count) };
        let of_chunk = |chunk: &Chunk| {
            let held = self.requests.at(chunk.place).blocks;
            self.blocks.need(chunk.context + chunk.tokens * count).saturating_sub(held)
        };
        self.groups.iter().map(growth).sum::<u64>() + self.batch.chunks.iter().map(of_chunk).sum::<u64>()
    }

    /// How many of `count` iterations can run at once without a difference for the cache.
    pub(crate) fn iterations_that_cache_alike(&self, count: u64) -> u64 {
        if count > 1 && self.order_matters() { 1 } else { count }
    }

    /// How many of `count` iterations have enough blocks, if the steady decodes took `growth` for the first one, and
    /// whether a block is known to be free in each of them.
    pub(crate) fn iterations_that_fit(&self, count: u64, growth: u64) -> (u64, bool) {
        let room = if self.blocks.has_cache() { self.room() } else { Some(self.blocks.free()) };
        let Some(room) = room else { return (1, false) };
        let more = |count: u64| self.more_blocks(count) - growth;
        let of_all = more(count);
        if of_all <= room {
            return (count, of_all < self.blocks.free());
        }
        // Blocks only grow with the number of iterations, so bisection finds the last number that fits.
        let (mut least, mut most) = (1, count);
        while most - least > 1 {
            let middle = least + (most - least) / 2;
            if more(middle) <= room { least = middle } else { most = middle }
        }
        (least, false)
    }

    /// The places of live requests.
    pub(crate) fn live(&self) -> impl Iterator<Item = Place> {
        let mut vacant = vec![false; self.requests.places().count()];
        for place in self.requests.vacant() {
            vacant[place.index()] = true;
        }
        self.requests.places().filter(move |place| !vacant[place.index()])
    }

    /// Tokens of a request in the cache, and the blocks that it holds.
    #[inline]
    pub(crate) fn context_and_blocks(&self, place: Place) -> (u64, u64) {
        let (request, context) = (self.requests.at(place), self.requests.context(place));
        let grows = request.phase == Phase::Decoding && request.grows;
        (context, if grows { self.blocks.need(context) } else { request.blocks })
    }

    /// Blocks that a request holds.
    #[inline]
    pub(crate) fn blocks_of(&self, place: Place) -> u64 {
        self.context_and_blocks(place).1
    }
}
