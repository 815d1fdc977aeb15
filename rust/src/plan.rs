//! What may a scheduler ask, and what does the replica answer?
//!
//! A [`Plan`] edits the batch of one replica: the standing decodes stay as they are unless the scheduler says otherwise,
//! chunks are asked anew each time. Every question is answered from, and every request is checked against, the one state
//! that the replica itself runs on (rule 6): budget, sequences and blocks are enforced here and nowhere else. What goes
//! beyond the rules is an error that names the rule.

mod look;

use crate::clock::{Instant, Span};
use crate::error::{Error, Kind, Result};
use crate::replica::{Chunk, State};
use crate::request::{Phase, Place};
use crate::timing::ChunkShape;

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

const NO_BLOCK: &str = "no more blocks are taken than are free";

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

/// What a scheduler may ask.
impl Plan<'_> {
    /// Looks the next request in the queue up in the prefix cache. From here on what is found there is its context: it
    /// owes less, and needs fewer blocks. To be asked before anything else is asked about it; without a cache, for nothing.
    #[inline]
    pub fn look_up(&mut self, place: Place) {
        if self.state.blocks.has_cache() && self.state.requests.at(place).phase == Phase::Waiting {
            self.state.look_up(place);
        }
    }

    /// What the prefix cache has of a request's first `tokens` tokens counts as used now, whether it is admitted or not, and
    /// a run that it leaves in the middle is cut there. Returns how many tokens those are.
    #[inline]
    pub fn refresh(&mut self, place: Place, tokens: u64) -> u64 {
        self.state.blocks.refresh(place, tokens)
    }

    /// Do requests hold blocks in common, so that one of them may give up fewer than it holds?
    #[inline]
    pub fn shares_blocks(&self) -> bool {
        self.state.blocks.has_cache()
    }

    /// So many of the free blocks are as good as taken, by rows that the plan has yet to ask for: what they still hold is
    /// found by nobody any more.
    #[inline]
    pub fn reserve(&mut self, blocks: u64) {
        if self.state.blocks.has_cache() {
            self.state.blocks.reserve(self.state.standing_growth() + blocks);
        }
    }

    /// Somebody is in this batch with a decode that the plan has yet to ask for: who goes on from it finds what it computes.
    #[inline]
    pub fn publish_decode(&mut self, place: Place) {
        if self.state.blocks.followed().contains(&place) {
            self.state.blocks.scheduled(place, self.state.requests.context(place) + 1);
        }
    }

    /// In every iteration for which this plan holds, so many of the free blocks are as good as taken before the decodes take
    /// theirs.
    #[inline]
    pub fn reserve_each(&mut self, blocks: u64) {
        self.state.batch.reserved_each = blocks;
    }

    /// Can the next request in the queue be admitted with the blocks for `tokens` tokens, leaving `spare` free while
    /// anybody else holds blocks (rule 11)? What stands in its way is noted for the audit of work conservation.
    #[inline]
    pub fn has_room(&mut self, place: Place, tokens: u64, spare: u64) -> bool {
        let left = self.free_blocks() - self.state.blocks_to_admit(place, tokens) as i64;
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
    pub fn decode(&mut self, place: Place) -> Result<()> {
        let request = self.state.requests.at(place);
        if request.phase == Phase::Decoding {
            return Err(self.broken("a request decodes once in an iteration", place));
        }
        if request.phase != Phase::Started || request.placed {
            return Err(self.broken("only an admitted request that has no chunk in this batch can decode", place));
        }
        if !request.ready {
            return Err(self.broken("no decode before the prompt is complete", place));
        }
        if self.budget_left() == 0 && !self.state.groups[self.group].rests {
            return Err(self.broken("no iteration loads more tokens than the budget", place));
        }
        self.state.join_decodes(place, self.group);
        Ok(())
    }

    /// Takes a request out of the standing decodes; it keeps its blocks.
    pub fn pause(&mut self, place: Place) -> Result<()> {
        if self.state.requests.at(place).phase != Phase::Decoding {
            return Err(self.broken("only a decoding request can be paused", place));
        }
        self.state.leave_decodes(place);
        Ok(())
    }

    /// Lets the group of standing decodes sit this iteration out, or take part again.
    pub fn rest_decodes(&mut self, rest: bool) {
        let group = &mut self.state.groups[self.group];
        self.state.standing -= group.active();
        group.rests = rest;
        self.state.standing += group.active();
    }

    /// Computes the next `tokens` tokens that a request owes. One that has emitted before and computes its last owed token
    /// is priced as a decode.
    #[inline]
    pub fn chunk(&mut self, place: Place, tokens: u64) -> Result<()> {
        self.add_chunk(place, tokens, true)
    }

    /// The same, priced as a part of a prompt also then.
    #[inline]
    pub fn prefill(&mut self, place: Place, tokens: u64) -> Result<()> {
        self.add_chunk(place, tokens, false)
    }

    #[inline]
    fn add_chunk(&mut self, place: Place, tokens: u64, may_be_decode: bool) -> Result<()> {
        let request = self.state.requests.at(place);
        if request.phase != Phase::Started || request.placed {
            return Err(self.broken("only an admitted request, and only once, can have a chunk in a batch", place));
        }
        let owed = self.state.requests.owed(place);
        if tokens == 0 || tokens > owed {
            return Err(self.broken("a chunk holds at least 1 token and at most those that its request owes", place));
        }
        if tokens > self.budget_left() {
            return Err(self.broken("no iteration loads more tokens than the budget", place));
        }
        let blocks = self.new_blocks(place, tokens);
        self.take(place, blocks)?;
        let context = self.state.requests.context(place);
        if self.state.blocks.has_cache() {
            self.state.publish_chunk(place, context + tokens);
        }
        let is_decode = may_be_decode && owed == 1 && self.state.requests.is_priced_as_decode(place);
        self.state.requests.at_mut(place).placed = true;
        self.state.batch.chunks.push(Chunk { place, tokens, context, owed, is_decode });
        if !is_decode {
            self.state.batch.priced.push(ChunkShape { tokens, context });
        }
        self.state.batch.chunk_tokens += tokens;
        Ok(())
    }

    /// Gives a waiting request a seat and the blocks for `tokens` tokens. It must be in this batch.
    #[inline]
    pub fn admit(&mut self, place: Place, tokens: u64) -> Result<()> {
        if self.state.requests.at(place).phase != Phase::Waiting {
            return Err(self.broken("only a waiting request can be admitted", place));
        }
        self.look_up(place);
        self.sit_down(place)?;
        if self.state.blocks.has_cache() {
            self.take_beside_hit(place, tokens)?;
        } else {
            self.take(place, self.state.blocks.need(tokens))?;
        }
        let prompt = u64::from(self.state.requests.at(place).arrival.prompt_tokens);
        self.state.waiting_blocks -= self.state.blocks.need(prompt);
        self.state.batch.admitted.push(place);
        Ok(())
    }

    /// Brings a swapped request's context back, with the blocks for `tokens` tokens in all.
    pub fn swap_in(&mut self, place: Place, preemption: Preemption, tokens: u64) -> Result<()> {
        if self.state.requests.at(place).phase != Phase::Swapped {
            return Err(self.broken("only a swapped request can be swapped in", place));
        }
        self.sit_down(place)?;
        let context = self.state.requests.context(place);
        let blocks = self.state.blocks.need(tokens.max(context));
        self.take(place, blocks)?;
        self.state.blocks.scheduled(place, context);
        self.charge_swap(preemption, context)
    }

    /// Takes an admitted request's blocks away, because another lacks one; it waits again. Whoever was placed before that one
    /// has taken the blocks that were free.
    pub fn preempt(&mut self, place: Place, preemption: Preemption) -> Result<()> {
        self.leave_batch(place)?;
        self.reserve(0);
        self.give_up(place, preemption)
    }

    /// The same before anybody takes a block in this plan.
    pub fn preempt_first(&mut self, place: Place, preemption: Preemption) -> Result<()> {
        self.leave_batch(place)?;
        self.give_up(place, preemption)
    }

    fn leave_batch(&mut self, place: Place) -> Result<()> {
        match self.state.requests.at(place).phase {
            Phase::Decoding => self.state.leave_decodes(place),
            Phase::Started => self.withdraw_chunk(place)?,
            Phase::Waiting | Phase::Swapped => {
                return Err(self.broken("only an admitted request can be preempted", place));
            }
        }
        Ok(())
    }

    fn give_up(&mut self, place: Place, preemption: Preemption) -> Result<()> {
        let context = self.state.requests.context(place);
        self.state.release(place, false);
        let request = self.state.requests.at_mut(place);
        request.preemptions += 1;
        self.state.most_preempted = self.state.most_preempted.max(request.preemptions);
        if preemption == Preemption::Recompute {
            let prompt = request.arrival.prompt_tokens;
            self.state.tokens_ahead += u64::from(prompt.min(request.computed));
            self.state.waiting_blocks += self.state.blocks.need(u64::from(prompt));
            request.computed = 0;
            request.ready = false;
            request.phase = Phase::Waiting;
        } else {
            request.phase = Phase::Swapped;
        }
        self.state.running -= 1;
        self.state.waiting += 1;
        self.state.batch.preempted.push(place);
        self.charge_swap(preemption, context)
    }

    /// From now on the row of an admitted request stands behind those of all others.
    #[inline]
    pub fn move_last(&mut self, place: Place) {
        self.state.last_row += 1;
        self.state.requests.at_mut(place).row = self.state.last_row;
    }

    /// From now on it stands before them.
    #[inline]
    pub fn move_first(&mut self, place: Place) {
        self.state.first_row -= 1;
        self.state.requests.at_mut(place).row = self.state.first_row;
    }

    /// A victim had its place in the batch already: it has taken the blocks for so many tokens, and they are known.
    pub fn pass(&mut self, place: Place, tokens: u64) {
        if self.state.blocks.has_cache() {
            if self.state.requests.at(place).phase == Phase::Decoding {
                self.state.leave_decodes(place);
            }
            let context = self.state.requests.context(place);
            let blocks = self.new_blocks(place, tokens);
            self.state.take(place, blocks);
            self.state.blocks.scheduled(place, context + tokens);
        }
    }

    /// Names the admitted requests that give up their blocks before anybody of the policy that plans next; the last one
    /// goes first. They must not be in the batch.
    pub fn set_juniors(&mut self, juniors: Vec<Place>) {
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
    pub fn dismissed(&mut self) -> Vec<Place> {
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
    fn sit_down(&mut self, place: Place) -> Result<()> {
        if self.seats_left() == 0 {
            return Err(self.broken("no more requests are admitted than max_seqs", place));
        }
        self.move_last(place);
        self.state.requests.at_mut(place).phase = Phase::Started;
        self.state.running += 1;
        self.state.waiting -= 1;
        Ok(())
    }

    // A call costs more than what is done here, and every request pays for it twice.
    #[inline(always)]
    fn take(&mut self, place: Place, blocks: u64) -> Result<()> {
        if blocks > 0 {
            if i64::try_from(blocks).map_or(true, |blocks| blocks > self.free_blocks()) {
                return Err(self.broken(NO_BLOCK, place));
            }
            self.state.take(place, blocks);
        }
        Ok(())
    }

    /// Takes what was found, and what is missing to the blocks for `tokens` tokens.
    #[inline(never)]
    fn take_beside_hit(&mut self, place: Place, tokens: u64) -> Result<()> {
        if self.state.blocks_to_admit(place, tokens) as i64 > self.free_blocks() {
            return Err(self.broken(NO_BLOCK, place));
        }
        self.state.take_hit(place);
        let blocks = self.state.blocks.need(tokens).saturating_sub(self.state.requests.at(place).blocks);
        self.take(place, blocks)?;
        self.state.blocks.scheduled(place, self.state.requests.context(place));
        Ok(())
    }

    fn withdraw_chunk(&mut self, place: Place) -> Result<()> {
        if self.state.batch.admitted.contains(&place) {
            return Err(self.broken("a request is not preempted by the plan that admits it", place));
        }
        if let Some(index) = self.state.batch.chunks.iter().position(|chunk| chunk.place == place) {
            let chunk = self.state.batch.chunks.remove(index);
            let priced = self.state.batch.chunks[..index].iter().filter(|chunk| !chunk.is_decode).count();
            if !chunk.is_decode {
                self.state.batch.priced.remove(priced);
            }
            self.state.batch.chunk_tokens -= chunk.tokens;
            self.state.requests.at_mut(place).placed = false;
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
    pub(crate) fn broken(&self, rule: &'static str, place: Place) -> Error {
        broken(self.now, rule, format!("request {}", self.state.requests.at(place).arrival.id))
    }
}

#[cold]
pub(crate) fn broken(now: Instant, rule: &'static str, what: String) -> Error {
    Kind::Rule { at_s: now.seconds().to_string(), rule, what }.into()
}
