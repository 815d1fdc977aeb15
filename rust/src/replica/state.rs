//! What a replica holds between one event and the next.
//!
//! [`State`] is the one truth that plans move and that settling moves on: requests, blocks, standing decodes, the batch.

use std::cell::Cell;

use super::batch::{Batch, Chunk};
use super::groups::Groups;
use super::in_flight::{Drafts, InFlight};
use super::standing::Decodes;
use crate::clock::{Instant, Long, Short, Span, Unit};
use crate::error::{Error, Kind};
use crate::features::{Features, Full, Plain, Variant};
use crate::kv::{DetachedBlocks, KvBlocks};
use crate::plan::Limits;
use crate::request::{NOT_ODD, Phase, Place, Request, Requests};
use crate::timing::{ChunkShape, Pace, PiecewiseLinear, Shape};

/// Rows are counted up from here, or down, by requests that go before all others.
pub(crate) const FIRST_ROW: u64 = 1 << 63;

/// The requests that are in histograms, by their ids.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    first: u32,
    count: u32,
}

impl Measured {
    pub(crate) fn new(ids: std::ops::Range<u32>) -> Measured {
        Measured { first: ids.start, count: ids.end.saturating_sub(ids.start) }
    }

    #[inline(always)]
    pub(crate) fn contains(self, id: u32) -> bool {
        id.wrapping_sub(self.first) < self.count
    }
}

/// All of a replica that its scheduler's plan may move.
#[derive(Debug)]
pub(crate) struct State {
    /// The hottest code that suits the run.
    pub(crate) variant: Variant,
    /// What all instants and spans are counted in.
    pub(crate) unit: Unit,
    pub(crate) requests: Requests,
    pub(crate) blocks: KvBlocks,
    /// Those of the timing model.
    pub(crate) moduli: Vec<u64>,
    /// The standing decodes; there is always a first group.
    pub(crate) groups: Groups<Decodes>,
    /// Those of them that take part in the batch.
    pub(crate) standing: u64,
    /// Blocks that all groups but the first take when the batch is formed, if that was asked since one of them changed. A plan
    /// may ask for each class that waits, and there may be a group for each class.
    pub(crate) further_growth: Cell<Option<u64>>,
    /// May a group sit the batch out?
    pub(crate) is_resting: bool,
    /// If nothing is left to happen, is no request at any other replica?
    pub(crate) drains_alone: bool,
    pub(crate) limits: Limits,
    pub(crate) caches_in_row_order: bool,
    pub(crate) batch: Batch,
    /// Admitted requests: decoding, computing or paused.
    pub(crate) running: u64,
    /// Requests in the queue, preempted and swapped ones included.
    pub(crate) waiting: u64,
    /// The places of the first row and of the last one, as far as there are any.
    pub(crate) first_row: u64,
    pub(crate) last_row: u64,
    /// Prompt tokens computed and output tokens emitted since the run began.
    pub(crate) prefilled_tokens: u64,
    pub(crate) emitted_tokens: u64,
    /// Tokens that came with requests, less those that are counted neither as prefilled nor as emitted and are not ahead.
    pub(crate) brought_tokens: u64,
    /// Blocks of the prompts in the queue, where a router may look at them.
    pub(crate) waiting_blocks: Option<u64>,
    /// Blocks of requests that are done, kept until their batch ends.
    pub(crate) kept: DetachedBlocks,
    /// Blocks of requests that went to another replica, kept until their keys and values are there.
    pub(crate) sent_blocks: u64,
    /// Tokens that admissions found in the prefix cache.
    pub(crate) cached_tokens: u64,
    /// Preemptions since the last token.
    pub(crate) fruitless_preemptions: u64,
    /// Iterations run.
    pub(crate) iterations: u64,
    /// When the last one ended, and for how long none ran before it.
    pub(crate) last_end: Instant,
    pub(crate) idle: Span,
    /// Time that swapping added, owed to the next iteration.
    pub(crate) swap_charge: Span,
    /// Most preemptions of one request so far.
    pub(crate) most_preempted: u32,
    pub(crate) measured: Measured,
    /// Where requests decode by drafts.
    pub(crate) drafts: Option<Box<Drafts>>,
    /// Where batches are planned ahead.
    pub(crate) ahead: Option<Box<InFlight>>,
}

impl State {
    /// From now on the run has some feature that few runs have.
    pub(crate) fn needs_all_features(&mut self) {
        self.variant = self.variant.full();
    }

    /// Has the run no feature beyond these?
    #[inline(always)]
    pub(crate) fn has_no_more_than<F: Features>(&self) -> bool {
        F::ANY || if F::GROUPS { self.variant.has_only_groups() } else { self.variant.is_plain() }
    }

    /// A plan broke a rule.
    #[cold]
    pub(crate) fn broken(&self, now: Instant, rule: &'static str, what: String) -> Error {
        Kind::Rule { at_s: self.unit.instant(now).seconds().to_string(), rule, what }.into()
    }

    /// A request with this prompt joins the queue.
    #[inline(always)]
    pub(crate) fn comes_to_wait(&mut self, prompt_tokens: u32) {
        if let Some(blocks) = &mut self.waiting_blocks {
            *blocks += self.blocks.need(u64::from(prompt_tokens));
        }
    }

    /// Blocks of the prompts in the queue.
    pub(crate) fn blocks_of_queue(&self) -> u64 {
        let waits = |request: &&Request| request.phase() == Phase::Waiting;
        let blocks = |request: &Request| self.blocks.need(u64::from(request.prompt_tokens));
        let counted = || self.live().map(|place| self.requests.at(place)).filter(waits).map(blocks).sum();
        self.waiting_blocks.unwrap_or_else(counted)
    }

    /// A request with this prompt leaves the queue.
    #[inline(always)]
    pub(crate) fn waits_no_more(&mut self, prompt_tokens: u32) {
        if let Some(blocks) = &mut self.waiting_blocks {
            *blocks -= self.blocks.need(u64::from(prompt_tokens));
        }
    }

    /// Prompt tokens not computed and output tokens not emitted, over all requests.
    #[inline]
    pub(crate) fn tokens_ahead(&self) -> u64 {
        self.brought_tokens - self.prefilled_tokens - self.emitted_tokens
    }

    /// Blocks that the standing decodes take when the batch is formed.
    #[inline(always)]
    pub(crate) fn standing_growth(&self) -> u64 {
        let first = self.groups[0].next_growth();
        if self.groups.only().is_some() { first } else { first + self.growth_of_further_groups() }
    }

    #[inline(never)]
    fn growth_of_further_groups(&self) -> u64 {
        let sum = || self.groups.iter().skip(1).map(Decodes::next_growth).sum();
        let growth = self.further_growth.get().unwrap_or_else(sum);
        debug_assert_eq!(growth, sum(), "no group has changed since that was asked");
        self.further_growth.set(Some(growth));
        growth
    }

    /// No more blocks than this are taken in `count` iterations of the batch.
    #[inline(always)]
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

    /// Iterations of the batch until a standing decode has to be looked at, and the blocks that they take for the first one.
    #[inline(always)]
    pub(crate) fn until_due_and_growth<F: Features>(&self) -> (u64, u64) {
        let first = self.until_due_and_growth_of(0);
        if !F::GROUPS {
            return first;
        }
        (1..self.groups.len())
            .map(|index| self.until_due_and_growth_of(index))
            .fold(first, |(due, growth), (due_here, growth_here)| (due.min(due_here), growth + growth_here))
    }

    #[inline(always)]
    fn until_due_and_growth_of(&self, index: usize) -> (u64, u64) {
        let group = &self.groups[index];
        debug_assert!(group.count == 0 || group.due.next() < u64::MAX, "every decode has a last token");
        // Without a member the wheel answers `u64::MAX`, which binds nothing.
        let due = |group: &Decodes| group.due.next() - self.requests.ticks[index];
        if group.rests { (u64::MAX, 0) } else { (due(group), group.growth.next_growth()) }
    }

    /// An empty group of standing decodes more.
    pub(crate) fn add_group(&mut self) {
        self.variant = self.variant.with_groups();
        let measured = self.groups[0].measured.empty_like();
        self.groups.push(Decodes::new(self.blocks.block_tokens(), measured, &self.moduli));
        self.requests.ticks.push(0);
    }

    /// Makes the batch empty, with every group of the standing decodes in it.
    pub(crate) fn clear_batch<F: Features>(&mut self) {
        self.batch.clear::<F>();
        if std::mem::take(&mut self.is_resting) {
            self.groups.iter_mut().for_each(|group| group.rests = false);
            self.standing = self.groups.iter().map(|group| group.count).sum();
            self.further_growth.take();
        }
    }

    /// Are so many blocks free beside those that the standing decodes take? A decode takes one block at most, so that
    /// most answers need no count of them.
    #[inline(always)]
    pub(crate) fn has_free(&self, blocks: u64) -> bool {
        let free = self.blocks.free();
        let fits = || self.standing_growth().saturating_add(blocks) <= free;
        let is_certain = self.standing.saturating_add(blocks) <= free;
        debug_assert!(!is_certain || fits(), "a standing decode takes one block at most");
        is_certain || fits()
    }

    /// When no request is admitted any more, the blocks that were kept until then are free (`free="batch"`).
    #[inline]
    pub(crate) fn end_batch<F: Features>(&mut self) {
        if F::ANY && self.running == 0 && self.limits.frees_with_batch {
            self.blocks.release_detached(std::mem::take(&mut self.kept));
        }
        debug_assert!(
            !self.requests.is_empty()
                || (self.blocks.used() <= self.sent_blocks
                    && self.tokens_ahead() == 0
                    && self.waiting_blocks.unwrap_or(0) == 0),
            "L4: nothing is held after the last request"
        );
    }

    /// The pace of the batch on a line, if 64 bits hold it and no chunk is priced as a decode.
    #[inline(always)]
    pub(crate) fn pace_on<F: Features>(&self, line: &PiecewiseLinear<u64>) -> Option<Pace> {
        let (dropped, contexts) = match self.batch.single_decodes {
            0 => (0, 0),
            _ if F::AHEAD => self.dropped_alone()?,
            _ => return None,
        };
        let context = if F::GROUPS && self.groups.only().is_none() {
            self.context_of_groups()
        } else if self.groups[0].rests {
            0
        } else {
            self.groups[0].context(self.requests.ticks[0])
        };
        line.pace(&self.batch.sums, self.standing + dropped, context + contexts)
    }

    /// The rows whose outcome is dropped, and Σ contexts of them, if no other row is priced as a decode by itself.
    #[inline(always)]
    fn dropped_alone(&self) -> Option<(u64, u64)> {
        let (rows, contexts) = self.ahead.as_ref()?.dropped_sums();
        (rows == self.batch.single_decodes).then_some((rows, contexts))
    }

    /// Σ contexts of the standing decodes that take part, where they come in groups.
    #[inline(never)]
    fn context_of_groups(&self) -> u64 {
        let of_group = |index: usize| {
            let group = &self.groups[index];
            if group.rests { 0 } else { group.context(self.requests.ticks[index]) }
        };
        (0..self.groups.len()).map(of_group).sum()
    }

    /// The shape that the timing model prices, with these chunks in it; all sums are right without them.
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

    /// Adds the rows that are priced as decodes and are not among the standing ones.
    #[inline(never)]
    fn add_single_decodes(&self, shape: &mut Shape) {
        for chunk in self.batch.chunks.iter().filter(|chunk| chunk.is_decode) {
            shape.add_decode(chunk.context, chunk.tokens, &self.moduli);
        }
        if let Some(ahead) = &self.ahead {
            ahead.add_dropped_to(shape, &self.moduli);
        }
    }

    /// The next token of a request is its last. If it decodes it is the one that comes with the end of the stretch that
    /// runs, of so many iterations.
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

    /// A request begins to decode in every iteration of its group.
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
        if F::GROUPS {
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
            // Blocks taken ahead last for a while; from then on it grows like the others.
            let held = request.blocks * self.blocks.block_tokens();
            due = if held < request.longest_context(first_token) { due.min(tick + (held - context)) } else { due };
        }
        if decodes.count == 0 && request.emitted > 0 {
            decodes.last_end = history.last_token;
        }
        if request.emitted > 0 && history.last_token.is::<F::Width>(decodes.last_end) {
            let class = if F::ANY { request.class } else { 0 };
            decodes.measured.add(class, u64::from(self.measured.contains(request.id)));
        } else {
            history.odd = decodes.odd.len() as u32;
            decodes.odd.push(place);
        }
        decodes.join::<F>(context, tick);
        self.standing += u64::from(!decodes.rests);
        decodes.due.insert(place, due);
    }

    /// A request decodes no more; what the ticks gave it is written to the request itself.
    pub(crate) fn leave_decodes(&mut self, place: Place) {
        self.leave_ended::<Full>(place);
    }

    /// The same for one that may have its last token, and keeps its row in a batch that is planned ahead: the wheel has let
    /// it go then.
    #[inline(always)]
    pub(crate) fn leave_ended<F: Features>(&mut self, place: Place) {
        let group = if F::GROUPS { self.requests.at(place).group as usize } else { 0 };
        let due = &mut self.groups[group].due;
        if due.holds(place) {
            due.remove(place);
        }
        self.left_decodes::<F>(place);
    }

    /// The same for a member whose time has come: the wheel has let it go already.
    #[inline(always)]
    pub(crate) fn left_decodes<F: Features>(&mut self, place: Place) {
        let group = if F::GROUPS { self.requests.at(place).group as usize } else { 0 };
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
            let class = if F::ANY { request.class } else { 0 };
            decodes.measured.take(class, u64::from(self.measured.contains(request.id)));
        }
        if request.grows {
            request.blocks = self.blocks.need(context);
            decodes.growth.leave(context);
        }
        decodes.leave::<F>(context, tick);
        if F::GROUPS {
            self.further_growth.take();
        }
        self.standing -= u64::from(!decodes.rests);
        if is_odd {
            self.leave_odd(place, odd);
        }
    }

    /// A request is no more among those of its group whose next gap is their own.
    #[inline(never)]
    fn leave_odd(&mut self, place: Place, at: u32) {
        let decodes = &mut self.groups[self.requests.at(place).group as usize];
        decodes.odd.swap_remove(at as usize);
        if let Some(&moved) = decodes.odd.get(at as usize) {
            self.requests.history_mut(moved).odd = at;
        }
    }

    /// Blocks that `count` iterations of the batch take in all, those of the standing decodes' first included.
    pub(crate) fn more_blocks(&self, count: u64) -> u64 {
        let growth = |group: &Decodes| if group.rests { 0 } else { group.growth.growth(count) };
        let of_chunk = |chunk: &Chunk| {
            let held = self.requests.at(chunk.place).blocks;
            self.blocks.need(chunk.context + chunk.tokens * count).saturating_sub(held)
        };
        self.groups.iter().map(growth).sum::<u64>() + self.batch.chunks.iter().map(of_chunk).sum::<u64>()
    }

    /// How many of `count` iterations may run at once without the cache noticing.
    #[inline(never)]
    pub(crate) fn iterations_that_cache_alike(&self, count: u64) -> u64 {
        if count > 1 && self.order_matters() { 1 } else { count }
    }

    /// How many of `count` iterations find blocks enough, of which the standing decodes took `growth` for the first one; and is
    /// a block known to be free in each of them?
    #[inline(never)]
    pub(crate) fn iterations_that_fit(&self, count: u64, growth: u64) -> (u64, bool) {
        let room = if self.blocks.has_cache() { self.room() } else { Some(self.blocks.free()) };
        let Some(room) = room else { return (1, false) };
        let more = |count: u64| self.more_blocks(count) - growth;
        let of_all = more(count);
        if of_all <= room {
            return (count, of_all < self.blocks.free());
        }
        // Blocks only grow with the number of iterations: the last number that fits lies between.
        let (mut least, mut most) = (1, count);
        while most - least > 1 {
            let middle = least + (most - least) / 2;
            if more(middle) <= room { least = middle } else { most = middle }
        }
        (least, false)
    }

    /// The places that hold a request.
    pub(crate) fn live(&self) -> impl Iterator<Item = Place> {
        let mut vacant = vec![false; self.requests.places().count()];
        for place in self.requests.vacant() {
            vacant[place.index()] = true;
        }
        self.requests.places().filter(move |place| !vacant[place.index()])
    }

    /// Tokens of a request in the cache now, and the blocks that it holds.
    #[inline]
    pub(crate) fn context_and_blocks(&self, place: Place) -> (u64, u64) {
        let (request, context) = (self.requests.at(place), self.requests.context(place));
        let grows = request.phase == Phase::Decoding && request.grows;
        (context, if grows { self.blocks.need(context) } else { request.blocks })
    }

    /// Blocks that a request holds now.
    #[inline]
    pub(crate) fn blocks_of(&self, place: Place) -> u64 {
        self.context_and_blocks(place).1
    }
}
