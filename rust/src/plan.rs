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
use crate::timing::Shape;

/// What a replica enforces for its scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens that one iteration may load.
    pub token_budget: u64,
    /// Requests that may be admitted at once.
    pub max_seqs: u64,
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
    pub(crate) chunk_tokens: u64,
    pub(crate) decodes_rest: bool,
    pub(crate) admitted: Vec<Slot>,
    pub(crate) preempted: u64,
    pub(crate) hold: Hold,
    pub(crate) wake_at: Option<Instant>,
}

/// All of a replica that its scheduler's plan may move.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) requests: Requests,
    pub(crate) pool: BlockPool,
    pub(crate) decodes: Decodes,
    pub(crate) limits: Limits,
    pub(crate) batch: Batch,
    /// Admitted requests: decoding, computing or paused.
    pub(crate) running: u64,
    /// Requests in the queue, preempted and swapped ones included.
    pub(crate) waiting: u64,
    pub(crate) admissions: u64,
    /// Time that swapping added, owed to the next iteration.
    pub(crate) swap_charge: Span,
    /// Most preemptions of one request so far.
    pub(crate) most_preempted: u32,
    pub(crate) measured: std::ops::Range<u32>,
}

impl State {
    /// Blocks that the standing decodes take when the batch is formed.
    #[inline]
    fn standing_growth(&self) -> u64 {
        if self.batch.decodes_rest { 0 } else { self.decodes.growth.next_growth() }
    }

    /// A request begins to decode in every iteration.
    fn join_decodes(&mut self, slot: Slot) {
        let tick = self.requests.tick;
        let first_token = self.requests.first_token;
        let alone = self.decodes.count == 0;
        let block = self.pool.block_tokens();
        let request = self.requests.at_mut(slot);
        let measured = self.measured.contains(&request.arrival.id);
        request.phase = Phase::Decoding;
        request.joined = tick;
        request.gaps_known = tick;
        let context = u64::from(request.computed);
        self.decodes.join(context, tick);
        let mut due = tick + u64::from(request.arrival.output_tokens - request.emitted);
        request.grows = request.blocks == self.pool.need(context);
        if !request.grows && request.blocks * block < request.longest_context(first_token) {
            // Blocks taken ahead last for a while; from then on it grows like everybody else.
            due = due.min(tick + (request.blocks * block - context));
        }
        if request.grows {
            self.decodes.growth.join(context);
        }
        if alone && request.emitted > 0 {
            self.decodes.last_end = request.last_token;
        }
        if request.emitted > 0 && request.last_token == self.decodes.last_end {
            if measured {
                self.decodes.measured[request.arrival.class as usize] += 1;
            }
        } else {
            self.decodes.odd.push(slot);
        }
        self.decodes.due.insert(slot, due);
    }

    /// A request decodes no more; what the ticks gave it is written to the request itself.
    pub(crate) fn leave_decodes(&mut self, slot: Slot) {
        self.decodes.due.remove(slot);
        self.left_decodes(slot);
    }

    /// The same for a member whose time has come: the wheel has let it go already.
    pub(crate) fn left_decodes(&mut self, slot: Slot) {
        let tick = self.requests.tick;
        let context = self.requests.context(slot);
        let request = self.requests.at_mut(slot);
        let measured = self.measured.contains(&request.arrival.id);
        let ticks = (tick - request.joined) as u32;
        request.computed += ticks;
        request.emitted += ticks;
        let is_odd = !self.decodes.odd.is_empty() && self.decodes.odd.contains(&slot);
        if is_odd {
            self.decodes.odd.retain(|&odd| odd != slot);
        } else {
            request.last_token = self.decodes.last_end;
            request.longest_gap = request.longest_gap.max(self.decodes.longest_gap_since(request.gaps_known));
            if measured {
                self.decodes.measured[request.arrival.class as usize] -= 1;
            }
        }
        if request.grows {
            request.blocks = self.pool.need(context);
            self.decodes.growth.leave(context);
        }
        request.phase = Phase::Started;
        self.decodes.leave(context, tick);
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
        let standing = if self.state.batch.decodes_rest { 0 } else { self.state.decodes.count };
        self.state.limits.token_budget.saturating_sub(self.state.batch.chunk_tokens + standing)
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

    /// Members of the standing decodes.
    #[inline]
    pub fn decodes(&self) -> u64 {
        self.state.decodes.count
    }

    /// Free blocks, less those that this batch takes. Below 0 the standing decodes lack blocks, and somebody must be
    /// preempted or paused.
    #[inline]
    pub fn free_blocks(&self) -> i64 {
        self.state.pool.free() as i64 - self.state.standing_growth() as i64
    }

    /// Free blocks before the standing decodes take theirs.
    #[inline]
    pub fn free_blocks_before_decodes(&self) -> u64 {
        self.state.pool.free()
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
        if !self.state.requests.is_ready_to_decode(slot) {
            return Err(self.broken("no decode before the prompt is complete", slot));
        }
        if self.budget_left() == 0 && !self.state.batch.decodes_rest {
            return Err(self.broken("no iteration loads more tokens than the budget", slot));
        }
        self.state.join_decodes(slot);
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

    /// Lets all standing decodes sit this iteration out, or take part again.
    pub fn rest_decodes(&mut self, rest: bool) {
        self.state.batch.decodes_rest = rest;
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
        let is_decode = owed == 1 && self.state.requests.is_ready_to_decode(slot);
        self.state.requests.at_mut(slot).placed = true;
        self.state.batch.chunks.push(Chunk { slot, tokens, context, owed, is_decode });
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
            request.phase = Phase::Waiting;
        } else {
            request.phase = Phase::Swapped;
        }
        self.state.running -= 1;
        self.state.waiting += 1;
        self.state.batch.preempted += 1;
        self.charge_swap(preemption, context)
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
            chunk_tokens: 0,
            decodes_rest: false,
            admitted: Vec::new(),
            preempted: 0,
            hold: Hold::ONCE,
            wake_at: None,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.chunks.clear();
        self.chunk_tokens = 0;
        self.decodes_rest = false;
        self.admitted.clear();
        self.preempted = 0;
        self.hold = Hold::ONCE;
        self.wake_at = None;
    }

    /// The shape that the timing model prices.
    pub(crate) fn shape(&self, decodes: &Decodes, tick: u64) -> Shape {
        let mut shape = Shape::default();
        for chunk in &self.chunks {
            if chunk.is_decode {
                shape.add_decodes(1, u128::from(chunk.context));
            } else {
                shape.add_chunk(chunk.tokens, chunk.context);
            }
        }
        if !self.decodes_rest {
            shape.add_decodes(decodes.count, decodes.context(tick));
        }
        shape
    }
}
