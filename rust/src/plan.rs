//! What may a scheduler ask, and what does the replica answer?
//!
//! A [`Plan`] edits the batch of one replica: the standing decodes stay as they are unless the scheduler says otherwise,
//! chunks are asked anew each time. Every question is answered from, and every request is checked against, the one state
//! that the replica itself runs on (rule 6): budget, sequences and blocks are enforced here and nowhere else. What goes
//! beyond the rules is an error that names the rule.

use crate::clock::{Instant, Span};
use crate::decodes::Decodes;
use crate::error::{Error, Kind, Result};
use crate::kv::BlockPool;
use crate::request::{Phase, Requests, Slot};
use crate::timing::{ChunkShape, Shape};

/// What a replica enforces for its scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens that one iteration may load.
    pub token_budget: u64,
    /// Requests that may be admitted at once.
    pub max_seqs: u64,
    /// Are the blocks of who is done freed only when nobody is admitted any more (rule 10, `free="batch"`)?
    pub frees_with_batch: bool,
}

impl Limits {
    /// More tokens, and more requests, than any batch has: no limit.
    pub const NONE: u64 = 1 << 40;
}

/// What kept the next request in the queue from being admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Every seat is taken.
    Seats,
    /// Too few blocks are free, as the policy counts them at admission (rule 11).
    Blocks,
}

/// How a preempted request gives up its blocks (rule 12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preemption {
    /// The context is lost, the emitted tokens are kept, and both are prefilled again.
    Recompute,
    /// The context moves to the host, and back later; each way costs its time: li2025 (A.3).
    Swap {
        /// Time for each token of context.
        per_token: Span,
        /// Time for each move.
        base: Span,
    },
}

/// For how long a scheduler would ask the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Iterations, unless something happens before: a completion, a shortage of blocks, an event.
    pub iterations: u64,
    /// Would it ask the same if requests arrived meanwhile?
    pub through_arrivals: bool,
}

impl Hold {
    /// Ask again after every iteration: right for any policy, and the slowest.
    pub const ONCE: Hold = Hold { iterations: 1, through_arrivals: false };
    /// The same until something changes, an arrival included.
    pub const UNTIL_ARRIVAL: Hold = Hold { iterations: u64::MAX, through_arrivals: false };
    /// The same until something other than an arrival changes.
    pub const THROUGH_ARRIVALS: Hold = Hold { iterations: u64::MAX, through_arrivals: true };
}

/// A row of the batch that is asked for by the iteration: a prefill chunk, or the one-token tail of a recomputation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub(crate) slot: Slot,
    pub(crate) tokens: u64,
    pub(crate) context: u64,
    pub(crate) owed: u64,
    /// Priced and reported as a decode (rule 6).
    pub(crate) is_decode: bool,
}

/// The part of the batch that each plan makes anew.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) chunks: Vec<Chunk>,
    /// Those of them that are no decodes, as the timing model prices them.
    pub(crate) priced: Vec<ChunkShape>,
    pub(crate) chunk_tokens: u64,
    pub(crate) admitted: Vec<Slot>,
    pub(crate) refused: Option<Limit>,
    /// Admitted requests that give up their blocks before anybody of the policy that plans now, the last one first.
    pub(crate) juniors: Vec<Slot>,
    /// Juniors that did.
    pub(crate) dismissed: Vec<Slot>,
    pub(crate) preempted: Vec<Slot>,
    pub(crate) hold: Hold,
    pub(crate) wake_at: Option<Instant>,
}

/// All of a replica that its scheduler's plan may move.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) requests: Requests,
    pub(crate) pool: BlockPool,
    /// Those of the timing model.
    pub(crate) moduli: Vec<u64>,
    /// The standing decodes; there is always a first group.
    pub(crate) groups: Vec<Decodes>,
    /// Those of them that take part in the batch.
    pub(crate) standing: u64,
    pub(crate) limits: Limits,
    pub(crate) batch: Batch,
    /// Admitted requests: decoding, computing or paused.
    pub(crate) running: u64,
    /// Requests in the queue, preempted and swapped ones included.
    pub(crate) waiting: u64,
    pub(crate) admissions: u64,
    /// Blocks of those who are done, kept until their batch ends.
    pub(crate) kept_blocks: u64,
    /// Preemptions since the last token.
    pub(crate) fruitless_preemptions: u64,
    /// Iterations run, and the sum of their lengths.
    pub(crate) iterations: u64,
    pub(crate) busy: Span,
    /// Time that swapping added, owed to the next iteration.
    pub(crate) swap_charge: Span,
    /// Most preemptions of one request so far.
    pub(crate) most_preempted: u32,
    pub(crate) measured: std::ops::Range<u32>,
}

impl State {
    /// Blocks that the standing decodes take when the batch is formed.
    #[inline]
    pub(crate) fn standing_growth(&self) -> u64 {
        self.groups.iter().map(Decodes::next_growth).sum()
    }

    /// An empty group of standing decodes more.
    fn add_group(&mut self) {
        let classes = self.groups[0].measured.len();
        self.groups.push(Decodes::new(self.pool.block_tokens(), classes, &self.moduli));
        self.requests.ticks.push(0);
    }

    /// Makes the batch empty, with every group of the standing decodes in it.
    pub(crate) fn clear_batch(&mut self) {
        self.batch.clear();
        self.standing = 0;
        for group in &mut self.groups {
            group.rests = false;
            self.standing += group.count;
        }
    }

    /// The shape that the timing model prices.
    #[inline]
    pub(crate) fn shape(&self) -> Shape<'_> {
        let mut shape = Shape::of(&self.batch.priced);
        if self.batch.priced.len() < self.batch.chunks.len() {
            for chunk in self.batch.chunks.iter().filter(|chunk| chunk.is_decode) {
                shape.add_decodes(1, u128::from(chunk.context));
                for (ceiling, modulus) in shape.ceilings.iter_mut().zip(&self.moduli) {
                    *ceiling += u128::from((chunk.context + 1).div_ceil(*modulus));
                }
            }
        }
        for (group, &tick) in self.groups.iter().zip(&self.requests.ticks) {
            group.add_to(&mut shape, tick);
        }
        shape
    }

    /// A request begins to decode in every iteration of its group.
    fn join_decodes(&mut self, slot: Slot, group: usize) {
        let tick = self.requests.ticks[group];
        let first_token = self.requests.first_token;
        let decodes = &mut self.groups[group];
        let alone = decodes.count == 0;
        let block = self.pool.block_tokens();
        let request = self.requests.at_mut(slot);
        let measured = self.measured.contains(&request.arrival.id);
        request.phase = Phase::Decoding;
        request.group = group as u32;
        request.joined = tick;
        request.gaps_known = tick;
        let context = u64::from(request.computed);
        decodes.join(context, tick);
        self.standing += u64::from(!decodes.rests);
        let mut due = tick + u64::from(request.arrival.output_tokens - request.emitted);
        request.grows = request.blocks == self.pool.need(context);
        if !request.grows && request.blocks * block < request.longest_context(first_token) {
            // Blocks taken ahead last for a while; from then on it grows like everybody else.
            due = due.min(tick + (request.blocks * block - context));
        }
        if request.grows {
            decodes.growth.join(context);
        }
        if alone && request.emitted > 0 {
            decodes.last_end = request.last_token;
        }
        if request.emitted > 0 && request.last_token == decodes.last_end {
            if measured {
                decodes.measured[request.arrival.class as usize] += 1;
            }
        } else {
            decodes.odd.push(slot);
        }
        decodes.due.insert(slot, due);
    }

    /// A request decodes no more; what the ticks gave it is written to the request itself.
    pub(crate) fn leave_decodes(&mut self, slot: Slot) {
        let group = self.requests.at(slot).group as usize;
        self.groups[group].due.remove(slot);
        self.left_decodes(slot);
    }

    /// The same for a member whose time has come: the wheel has let it go already.
    pub(crate) fn left_decodes(&mut self, slot: Slot) {
        let tick = self.requests.tick(self.requests.at(slot));
        let context = self.requests.context(slot);
        let request = self.requests.at_mut(slot);
        let decodes = &mut self.groups[request.group as usize];
        let measured = self.measured.contains(&request.arrival.id);
        let ticks = (tick - request.joined) as u32;
        request.computed += ticks;
        request.emitted += ticks;
        let is_odd = !decodes.odd.is_empty() && decodes.odd.contains(&slot);
        if is_odd {
            decodes.odd.retain(|&odd| odd != slot);
        } else {
            request.last_token = decodes.last_end;
            request.longest_gap = request.longest_gap.max(decodes.longest_gap_since(request.gaps_known));
            if measured {
                decodes.measured[request.arrival.class as usize] -= 1;
            }
        }
        if request.grows {
            request.blocks = self.pool.need(context);
            decodes.growth.leave(context);
        }
        request.phase = Phase::Started;
        decodes.leave(context, tick);
        self.standing -= u64::from(!decodes.rests);
    }

    /// Blocks that `count` iterations of the batch take in all, those of the standing decodes' first included.
    pub(crate) fn more_blocks(&self, count: u64) -> u64 {
        let growth = |group: &Decodes| if group.rests { 0 } else { group.growth.growth(count) };
        let of_chunk = |chunk: &Chunk| {
            let held = self.requests.at(chunk.slot).blocks;
            self.pool.need(chunk.context + chunk.tokens * count).saturating_sub(held)
        };
        self.groups.iter().map(growth).sum::<u64>() + self.batch.chunks.iter().map(of_chunk).sum::<u64>()
    }

    /// The places that hold a request.
    pub(crate) fn live(&self) -> impl Iterator<Item = Slot> {
        let mut vacant = vec![false; self.requests.slots().count()];
        for slot in self.requests.vacant() {
            vacant[slot.index()] = true;
        }
        self.requests.slots().filter(move |slot| !vacant[slot.index()])
    }

    /// Blocks that a request holds now.
    #[inline]
    pub(crate) fn blocks_of(&self, slot: Slot) -> u64 {
        let request = self.requests.at(slot);
        if request.phase == Phase::Decoding && request.grows {
            self.pool.need(self.requests.context(slot))
        } else {
            request.blocks
        }
    }
}

/// The batch that one replica is about to run, open to its scheduler.
#[derive(Debug)]
pub struct Plan<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) now: Instant,
    pub(crate) drain: bool,
    /// The group of standing decodes that is talked about.
    group: usize,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(state: &'a mut State, now: Instant, drain: bool) -> Plan<'a> {
        Plan { state, now, drain, group: 0 }
    }
}

/// What a scheduler may look at.
impl Plan<'_> {
    /// The instant at which the batch is formed.
    #[inline]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Is nothing more to come, so that a policy that waits for company should stop waiting (rule 5)?
    #[inline]
    pub fn drain(&self) -> bool {
        self.drain
    }

    /// The requests that the replica holds.
    #[inline]
    pub fn requests(&self) -> &Requests {
        &self.state.requests
    }

    /// Tokens that this iteration can still load.
    #[inline]
    pub fn budget_left(&self) -> u64 {
        self.state.limits.token_budget.saturating_sub(self.state.batch.chunk_tokens + self.state.standing)
    }

    /// Tokens that the decodes of the group can load: what neither chunks nor other groups take.
    #[inline]
    pub fn budget_for_decodes(&self) -> u64 {
        let others = self.state.standing - self.state.groups[self.group].active();
        self.state.limits.token_budget.saturating_sub(self.state.batch.chunk_tokens + others)
    }

    /// Requests that can still be admitted.
    #[inline]
    pub fn seats_left(&self) -> u64 {
        self.state.limits.max_seqs - self.state.running
    }

    /// Requests that are admitted.
    #[inline]
    pub fn running(&self) -> u64 {
        self.state.running
    }

    /// Requests in the queue, preempted and swapped ones included.
    #[inline]
    pub fn waiting(&self) -> u64 {
        self.state.waiting
    }

    /// Members of the group of standing decodes that is talked about.
    #[inline]
    pub fn decodes(&self) -> u64 {
        self.state.groups[self.group].count
    }

    /// Has this plan preempted anybody?
    #[inline]
    pub fn has_preempted(&self) -> bool {
        !self.state.batch.preempted.is_empty()
    }

    /// Has this plan preempted this request?
    #[inline]
    pub fn was_preempted(&self, slot: Slot) -> bool {
        self.state.batch.preempted.contains(&slot)
    }

    /// Whom this plan has admitted, in order.
    #[inline]
    pub fn admitted(&self) -> &[Slot] {
        &self.state.batch.admitted
    }

    /// For how long this plan is to hold, as far as it was said.
    pub fn held(&self) -> Hold {
        self.state.batch.hold
    }

    /// What kept somebody in the queue from being admitted, if the policy asked and was refused.
    #[inline]
    pub fn refused(&self) -> Option<Limit> {
        self.state.batch.refused
    }

    /// Iterations that the replica has run.
    #[inline]
    pub fn iterations(&self) -> u64 {
        self.state.iterations
    }

    /// The sum of their lengths.
    #[inline]
    pub fn busy(&self) -> Span {
        self.state.busy
    }

    /// Free blocks, less those that this batch takes. Below 0 the standing decodes lack blocks, and somebody must be
    /// preempted or paused.
    #[inline]
    pub fn free_blocks(&self) -> i64 {
        self.state.pool.free() as i64 - self.state.standing_growth() as i64
    }

    /// Free blocks before the standing decodes of the group take theirs.
    #[inline]
    pub fn free_blocks_before_decodes(&self) -> u64 {
        let others = self.state.standing_growth() - self.state.groups[self.group].next_growth();
        self.state.pool.free().saturating_sub(others)
    }

    /// Is no block held by anybody?
    #[inline]
    pub fn cache_is_empty(&self) -> bool {
        self.state.pool.used() == 0 && self.state.standing_growth() == 0
    }

    /// All blocks of the cache.
    #[inline]
    pub fn all_blocks(&self) -> u64 {
        self.state.pool.capacity()
    }

    /// Blocks that hold so many tokens.
    #[inline]
    pub fn blocks(&self, tokens: u64) -> u64 {
        self.state.pool.need(tokens)
    }

    /// Blocks that a request must take to compute so many more tokens.
    #[inline]
    pub fn new_blocks(&self, slot: Slot, tokens: u64) -> u64 {
        let context = self.state.requests.context(slot);
        self.state.pool.need(context + tokens).saturating_sub(self.state.blocks_of(slot))
    }
}

/// What a scheduler may ask.
impl Plan<'_> {
    /// Can the next request in the queue be admitted with so many blocks, leaving `spare` free while anybody else holds
    /// blocks (rule 11)? What stands in its way is noted for the audit of work conservation.
    #[inline]
    pub fn has_room(&mut self, blocks: u64, spare: u64) -> bool {
        let left = self.free_blocks() - blocks as i64;
        let fits = left >= spare as i64 || (left >= 0 && self.cache_is_empty());
        if self.seats_left() == 0 {
            self.state.batch.refused = Some(Limit::Seats);
        } else if !fits {
            self.state.batch.refused = Some(Limit::Blocks);
        } else {
            return true;
        }
        false
    }

    /// Talks about another group of the standing decodes from here on: [`Plan::decode`] adds to it, [`Plan::decodes`]
    /// counts it, [`Plan::rest_decodes`] rests it. A plan begins with group 0 and with no group at rest.
    pub fn talk_about(&mut self, group: usize) {
        while self.state.groups.len() <= group {
            self.state.add_group();
        }
        self.group = group;
    }

    /// Lets a request emit a token in every iteration from this one on.
    #[inline]
    pub fn decode(&mut self, slot: Slot) -> Result<()> {
        let request = self.state.requests.at(slot);
        if request.phase == Phase::Decoding {
            return Err(self.broken("a request decodes once in an iteration", slot));
        }
        if request.phase != Phase::Started || request.placed {
            return Err(self.broken("only an admitted request that has no chunk in this batch can decode", slot));
        }
        if !request.ready {
            return Err(self.broken("no decode before the prompt is complete", slot));
        }
        if self.budget_left() == 0 && !self.state.groups[self.group].rests {
            return Err(self.broken("no iteration loads more tokens than the budget", slot));
        }
        self.state.join_decodes(slot, self.group);
        Ok(())
    }

    /// Takes a request out of the standing decodes; it keeps its blocks.
    pub fn pause(&mut self, slot: Slot) -> Result<()> {
        if self.state.requests.at(slot).phase != Phase::Decoding {
            return Err(self.broken("only a decoding request can be paused", slot));
        }
        self.state.leave_decodes(slot);
        Ok(())
    }

    /// Lets the group of standing decodes sit this iteration out, or take part again.
    pub fn rest_decodes(&mut self, rest: bool) {
        let group = &mut self.state.groups[self.group];
        self.state.standing -= group.active();
        group.rests = rest;
        self.state.standing += group.active();
    }

    /// Computes the next `tokens` tokens that a request owes.
    #[inline]
    pub fn chunk(&mut self, slot: Slot, tokens: u64) -> Result<()> {
        let request = self.state.requests.at(slot);
        if request.phase != Phase::Started || request.placed {
            return Err(self.broken("only an admitted request, and only once, can have a chunk in a batch", slot));
        }
        let owed = self.state.requests.owed(slot);
        if tokens == 0 || tokens > owed {
            return Err(self.broken("a chunk holds at least 1 token and at most those that its request owes", slot));
        }
        if tokens > self.budget_left() {
            return Err(self.broken("no iteration loads more tokens than the budget", slot));
        }
        let blocks = self.new_blocks(slot, tokens);
        self.take(slot, blocks)?;
        let context = self.state.requests.context(slot);
        let is_decode = owed == 1 && self.state.requests.is_priced_as_decode(slot);
        self.state.requests.at_mut(slot).placed = true;
        self.state.batch.chunks.push(Chunk { slot, tokens, context, owed, is_decode });
        if !is_decode {
            self.state.batch.priced.push(ChunkShape { tokens, context });
        }
        self.state.batch.chunk_tokens += tokens;
        Ok(())
    }

    /// Gives a waiting request a seat and the blocks for `tokens` tokens. It must be in this batch.
    #[inline]
    pub fn admit(&mut self, slot: Slot, tokens: u64) -> Result<()> {
        if self.state.requests.at(slot).phase != Phase::Waiting {
            return Err(self.broken("only a waiting request can be admitted", slot));
        }
        self.sit_down(slot)?;
        let blocks = self.state.pool.need(tokens);
        self.take(slot, blocks)?;
        self.state.batch.admitted.push(slot);
        Ok(())
    }

    /// Brings a swapped request's context back, with the blocks for `tokens` tokens in all.
    pub fn swap_in(&mut self, slot: Slot, preemption: Preemption, tokens: u64) -> Result<()> {
        if self.state.requests.at(slot).phase != Phase::Swapped {
            return Err(self.broken("only a swapped request can be swapped in", slot));
        }
        self.sit_down(slot)?;
        let context = self.state.requests.context(slot);
        let blocks = self.state.pool.need(tokens.max(context));
        self.take(slot, blocks)?;
        self.charge_swap(preemption, context)
    }

    /// Takes an admitted request's blocks away; it waits again.
    pub fn preempt(&mut self, slot: Slot, preemption: Preemption) -> Result<()> {
        match self.state.requests.at(slot).phase {
            Phase::Decoding => self.state.leave_decodes(slot),
            Phase::Started => self.withdraw_chunk(slot)?,
            Phase::Waiting | Phase::Swapped => {
                return Err(self.broken("only an admitted request can be preempted", slot));
            }
        }
        let context = self.state.requests.context(slot);
        let request = self.state.requests.at_mut(slot);
        self.state.pool.give(request.blocks);
        request.blocks = 0;
        request.preemptions += 1;
        self.state.most_preempted = self.state.most_preempted.max(request.preemptions);
        if preemption == Preemption::Recompute {
            request.computed = 0;
            request.ready = false;
            request.phase = Phase::Waiting;
        } else {
            request.phase = Phase::Swapped;
        }
        self.state.running -= 1;
        self.state.waiting += 1;
        self.state.batch.preempted.push(slot);
        self.charge_swap(preemption, context)
    }

    /// Names the admitted requests that give up their blocks before anybody of the policy that plans next; the last one
    /// goes first. They must not be in the batch.
    pub fn set_juniors(&mut self, juniors: Vec<Slot>) {
        self.state.batch.juniors = juniors;
    }

    /// Preempts a junior, if there is one left.
    pub fn dismiss_junior(&mut self, preemption: Preemption) -> Result<bool> {
        let Some(junior) = self.state.batch.juniors.pop() else { return Ok(false) };
        self.preempt(junior, preemption)?;
        self.state.batch.dismissed.push(junior);
        Ok(true)
    }

    /// The juniors that were preempted since this was asked last, in order.
    pub fn dismissed(&mut self) -> Vec<Slot> {
        std::mem::take(&mut self.state.batch.dismissed)
    }

    /// Sets what [`Plan::refused`] answers: a scheduler that lets several policies plan keeps them apart.
    pub fn set_refused(&mut self, refused: Option<Limit>) {
        self.state.batch.refused = refused;
    }

    /// Says for how long this plan would be asked again unchanged. Silence means once.
    pub fn hold(&mut self, hold: Hold) {
        self.state.batch.hold = hold;
    }

    /// Asks to be woken at an instant, if this plan leaves the replica idle. One that is not later than now wakes nobody.
    pub fn wake_at(&mut self, instant: Instant) {
        self.state.batch.wake_at = Some(instant);
    }

    #[inline]
    fn sit_down(&mut self, slot: Slot) -> Result<()> {
        if self.seats_left() == 0 {
            return Err(self.broken("no more requests are admitted than max_seqs", slot));
        }
        self.state.admissions += 1;
        let request = self.state.requests.at_mut(slot);
        request.phase = Phase::Started;
        request.admission = self.state.admissions;
        self.state.running += 1;
        self.state.waiting -= 1;
        Ok(())
    }

    #[inline]
    fn take(&mut self, slot: Slot, blocks: u64) -> Result<()> {
        if blocks > 0 {
            if i64::try_from(blocks).map_or(true, |blocks| blocks > self.free_blocks()) {
                return Err(self.broken("no more blocks are taken than are free", slot));
            }
            self.state.pool.take(blocks);
            self.state.requests.at_mut(slot).blocks += blocks;
        }
        Ok(())
    }

    fn withdraw_chunk(&mut self, slot: Slot) -> Result<()> {
        if self.state.batch.admitted.contains(&slot) {
            return Err(self.broken("a request is not preempted by the plan that admits it", slot));
        }
        if let Some(place) = self.state.batch.chunks.iter().position(|chunk| chunk.slot == slot) {
            let chunk = self.state.batch.chunks.remove(place);
            let priced = self.state.batch.chunks[..place].iter().filter(|chunk| !chunk.is_decode).count();
            if !chunk.is_decode {
                self.state.batch.priced.remove(priced);
            }
            self.state.batch.chunk_tokens -= chunk.tokens;
            self.state.requests.at_mut(slot).placed = false;
        }
        Ok(())
    }

    fn charge_swap(&mut self, preemption: Preemption, context: u64) -> Result<()> {
        if let Preemption::Swap { per_token, base } = preemption {
            let cost = per_token.times(u128::from(context))?.plus(base)?;
            self.state.swap_charge = self.state.swap_charge.plus(cost)?;
        }
        Ok(())
    }

    #[cold]
    pub(crate) fn broken(&self, rule: &'static str, slot: Slot) -> Error {
        broken(self.now, rule, format!("request {}", self.state.requests.at(slot).arrival.id))
    }
}

#[cold]
pub(crate) fn broken(now: Instant, rule: &'static str, what: String) -> Error {
    Kind::Rule { at_s: now.seconds().to_string(), rule, what }.into()
}

impl Batch {
    pub(crate) fn new() -> Batch {
        Batch {
            chunks: Vec::new(),
            priced: Vec::new(),
            chunk_tokens: 0,
            admitted: Vec::new(),
            refused: None,
            juniors: Vec::new(),
            dismissed: Vec::new(),
            preempted: Vec::new(),
            hold: Hold::ONCE,
            wake_at: None,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.chunks.clear();
        self.priced.clear();
        self.chunk_tokens = 0;
        self.admitted.clear();
        self.refused = None;
        self.juniors.clear();
        self.dismissed.clear();
        self.preempted.clear();
        self.hold = Hold::ONCE;
        self.wake_at = None;
    }
}
