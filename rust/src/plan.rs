//! The plan of one batch: what a scheduler may ask, and what the replica answers.
//!
//! Here is what every policy needs. A newcomer can ignore the rest: `plan/prefix.rs` (blocks that requests share), `plan/groups.rs`
//! (decodes that take part group by group), `plan/drafts.rs` (rows that verify drafts), `plan/nested.rs` (policies inside a policy), `plan/preemption.rs` (blocks that are given up) and `plan/sglang.rs` (what SGLang alone asks).
//!
//! A [`Plan`] edits the batch of one replica: the standing decodes stay as they are unless the scheduler says otherwise,
//! chunks are asked anew each time. Every question is answered from, and every request is checked against, the one state
//! that the replica itself runs on (rule 6): budget, sequences and blocks are enforced here and nowhere else. What goes
//! beyond the rules is an error that names the rule.

mod prefix;
mod drafts;
mod groups;
mod nested;
mod preemption;
mod sglang;
mod terms;

use crate::clock::{Instant, Span};
use crate::error::{Error, Result};
use crate::features::Plain;
use crate::replica::{Chunk, State};
use crate::request::{Phase, Place, Requests};
pub use preemption::Preemption;
pub(crate) use terms::Limit;
pub use terms::{Ahead, Hold, Limits};

const NO_BLOCK: &str = "no more blocks are taken than are free";

/// The batch that one replica is about to run, open to its scheduler.
#[derive(Debug)]
pub struct Plan<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) now: Instant,
    /// When the batch begins: later than now where it is planned ahead.
    begins: Instant,
    pub(crate) drain: bool,
    /// The selected group of standing decodes.
    group: usize,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(state: &'a mut State, now: Instant, begins: Instant, drain: bool) -> Plan<'a> {
        Plan { state, now, begins, drain, group: 0 }
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

    /// Is nothing more to come but what other replicas do, which are asked again when the batch of each is over?
    #[inline]
    pub(crate) fn drains_in_turn(&self) -> bool {
        self.drain && !self.state.drains_alone
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

    /// Can this iteration load so many tokens beside those that it has?
    #[inline]
    pub(crate) fn carries(&self, tokens: u64) -> bool {
        self.state.batch.chunk_tokens + self.state.standing + tokens <= self.state.limits.token_budget
    }

    /// Requests that can still be admitted.
    #[inline]
    pub fn seats_left(&self) -> u64 {
        self.state.limits.max_seqs - self.state.running
    }

    /// Requests that are admitted.
    #[inline]
    pub(crate) fn running(&self) -> u64 {
        self.state.running
    }

    /// Requests in the queue, preempted and swapped ones included.
    #[inline]
    pub fn waiting(&self) -> u64 {
        self.state.waiting
    }

    /// Members of the selected group of standing decodes.
    #[inline]
    pub fn decodes(&self) -> u64 {
        self.state.groups[self.group].count
    }

    /// Has this plan preempted a request?
    #[inline]
    pub(crate) fn has_preempted(&self) -> bool {
        !self.state.batch.preempted.is_empty()
    }

    /// Has this plan preempted this request?
    #[inline]
    pub(crate) fn was_preempted(&self, place: Place) -> bool {
        self.has_preempted() && self.state.batch.preempted.contains(&place)
    }

    /// What kept a request in the queue from being admitted, if the policy asked and was refused.
    #[inline]
    pub(crate) fn refused(&self) -> Option<Limit> {
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
        Span(self.state.last_end.0 - self.state.idle.0)
    }

    /// Free blocks, less those that this batch takes. Below 0 the standing decodes lack blocks, and a request must be
    /// preempted or paused.
    #[inline]
    pub fn free_blocks(&self) -> i64 {
        self.state.blocks.free() as i64 - self.state.standing_growth() as i64
    }

    /// Are so many blocks free beside those that this batch takes?
    #[inline]
    pub(crate) fn has_free(&self, blocks: u64) -> bool {
        self.state.has_free(blocks)
    }

    /// Do the standing decodes find no free block, so that a request must be preempted or paused?
    #[inline]
    pub(crate) fn lacks_blocks(&self) -> bool {
        !self.state.has_free(0)
    }

    /// Tokens that all blocks of the cache hold.
    #[inline]
    pub(crate) fn all_tokens(&self) -> u64 {
        self.state.blocks.capacity().saturating_mul(self.state.blocks.block_tokens())
    }

    /// All blocks of the cache.
    #[inline]
    pub fn all_blocks(&self) -> u64 {
        self.state.blocks.capacity()
    }

    /// Tokens of a block.
    #[inline]
    pub(crate) fn block_tokens(&self) -> u64 {
        self.state.blocks.block_tokens()
    }

    /// Blocks that hold so many tokens.
    #[inline]
    pub fn blocks(&self, tokens: u64) -> u64 {
        self.state.blocks.need(tokens)
    }

    /// Blocks that a request must take to compute so many more tokens.
    #[inline]
    pub fn new_blocks(&self, place: Place, tokens: u64) -> u64 {
        let (context, blocks) = self.state.context_and_blocks(place);
        self.state.blocks.need(context + tokens).saturating_sub(blocks)
    }
}

/// What a scheduler may ask.
impl Plan<'_> {
    /// Looks the next request in the queue up in the prefix cache. From here on what is found there is its context: it
    /// owes less, and needs fewer blocks. To be asked before anything else is asked about it; without a cache, for nothing.
    #[inline(always)]
    pub(crate) fn look_up(&mut self, place: Place) {
        if self.state.blocks.has_cache() && self.state.requests.at(place).phase == Phase::Waiting {
            self.state.look_up(place);
        }
    }

    /// Can the next request in the queue be admitted with the blocks for `tokens` tokens, leaving `spare` free while
    /// another request holds blocks (rule 11)? What stands in its way is noted for the audit of work conservation.
    #[inline(always)]
    pub(crate) fn has_room(&mut self, place: Place, tokens: u64, spare: u64) -> bool {
        self.finds_room(self.state.blocks_to_admit(place, tokens), spare)
    }

    #[inline(always)]
    fn finds_room(&mut self, blocks: u64, spare: u64) -> bool {
        let fits =
            self.state.has_free(blocks.saturating_add(spare)) || (self.cache_is_empty() && self.state.has_free(blocks));
        if self.seats_left() == 0 {
            self.state.batch.refused = Some(Limit::Seats);
        } else if !fits {
            self.state.batch.refused = Some(Limit::Blocks);
        } else {
            return true;
        }
        false
    }

    /// Lets a request emit a token in every iteration from this one on.
    #[inline(always)]
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
    #[inline]
    pub fn rest_decodes(&mut self, rest: bool) {
        let group = &mut self.state.groups[self.group];
        if group.rests == rest {
            return;
        }
        self.state.standing -= group.active();
        group.rests = rest;
        self.state.standing += group.active();
        self.state.further_growth.take();
        self.state.is_resting |= rest;
    }

    /// Computes the next `tokens` tokens that a request owes. One that has emitted before and computes its last owed token
    /// is priced as a decode.
    #[inline(always)]
    pub fn chunk(&mut self, place: Place, tokens: u64) -> Result<()> {
        self.add_chunk(place, tokens, true)
    }

    #[inline(always)]
    fn add_chunk(&mut self, place: Place, tokens: u64, may_be_decode: bool) -> Result<()> {
        let budget = self.budget_left();
        let request = self.state.requests.at_mut(place);
        if request.phase != Phase::Started || request.placed {
            return Err(self.broken("only an admitted request, and only once, can have a chunk in a batch", place));
        }
        let (context, owed, held) = (u64::from(request.computed), request.owed(), request.blocks);
        if tokens == 0 || tokens > owed {
            return Err(self.broken("a chunk holds at least 1 token and at most those that its request owes", place));
        }
        if tokens > budget {
            return Err(self.broken("no iteration loads more tokens than the budget", place));
        }
        request.placed = true;
        let is_decode = may_be_decode && owed == 1 && self.state.requests.is_priced_as_decode(place);
        self.take(place, self.state.blocks.need(context + tokens).saturating_sub(held))?;
        if self.state.blocks.has_cache() {
            self.state.publish_chunk(place, context + tokens);
        }
        self.state.batch.push(Chunk { place, tokens, context, owed, is_decode });
        Ok(())
    }

    /// Gives a waiting request a seat and the blocks for `tokens` tokens. It must be in this batch.
    #[inline(always)]
    pub fn admit(&mut self, place: Place, tokens: u64) -> Result<()> {
        if self.state.requests.at(place).phase != Phase::Waiting {
            return Err(self.broken("only a waiting request can be admitted", place));
        }
        self.look_up(place);
        self.sit_down(place)?;
        let state = &mut *self.state;
        let blocks = state.blocks.need(tokens);
        let fits = state.has_free(blocks);
        state.waits_no_more(state.requests.at(place).prompt_tokens);
        let request = state.requests.at_mut(place);
        state.batch.admitted.push(place);
        state.batch.is_each_placed = false;
        if state.blocks.has_cache() {
            self.take_beside_hit(place, tokens)?;
        } else if fits {
            request.blocks += blocks;
            state.blocks.take(blocks);
        } else {
            return Err(self.broken(NO_BLOCK, place));
        }
        self.state.requests.history_mut(place).begin(self.begins);
        Ok(())
    }

    /// Admits the next request in the queue, if it can be with the blocks for `room` tokens, leaving `spare` free
    /// (`has_room`): it takes those for `reserved` tokens, and computes the first `tokens` that it owes. The same as
    /// [`Plan::admit`] and then [`Plan::chunk`], at once. Says whether it is admitted.
    #[inline(always)]
    pub fn try_admit(&mut self, place: Place, room: u64, spare: u64, reserved: u64, tokens: u64) -> Result<bool> {
        let budget = self.budget_left();
        let request = self.state.requests.at(place);
        let (context, owed, is_waiting) =
            (u64::from(request.computed), request.owed(), request.phase == Phase::Waiting);
        let blocks_of_room = self.state.blocks_to_admit(place, room);
        if !self.finds_room(blocks_of_room, spare) {
            return Ok(false);
        }
        let state = &mut *self.state;
        // What has room for more has room for this.
        let is_right = is_waiting
            && (1..=owed.min(budget)).contains(&tokens)
            && context + tokens <= reserved
            && reserved <= room
            && !state.blocks.has_cache();
        if !is_right {
            // One after the other, to name the rule that does not hold.
            self.admit_then_chunk(place, reserved, tokens)?;
            return Ok(true);
        }
        let blocks = if reserved == room { blocks_of_room } else { state.blocks.need(reserved) };
        debug_assert!(state.has_free(blocks) && state.running < state.limits.max_seqs, "it has room");
        let is_decode = owed == 1 && state.requests.is_priced_as_decode(place);
        state.last_row += 1;
        let (request, history) = state.requests.both_mut(place);
        (request.row, request.phase, request.placed) = (state.last_row, Phase::Started, true);
        request.blocks += blocks;
        history.begin(self.begins);
        let prompt = request.prompt_tokens;
        state.waits_no_more(prompt);
        state.blocks.take_for::<Plain>(blocks);
        state.running += 1;
        state.waiting -= 1;
        state.batch.admitted.push(place);
        state.batch.push(Chunk { place, tokens, context, owed, is_decode });
        Ok(true)
    }

    #[inline(never)]
    fn admit_then_chunk(&mut self, place: Place, reserved: u64, tokens: u64) -> Result<()> {
        self.admit(place, reserved)?;
        self.chunk(place, tokens)
    }

    /// Says for how long this plan would be asked again unchanged. Silence means once.
    pub fn hold(&mut self, hold: Hold) {
        self.state.batch.hold = hold;
    }

    /// Asks to be woken at an instant, if this plan leaves the replica idle. One that is not later than now wakes
    /// nothing.
    pub fn wake_at(&mut self, instant: Instant) {
        self.state.batch.wake_at = Some(instant);
    }

    #[inline(always)]
    fn sit_down(&mut self, place: Place) -> Result<()> {
        let state = &mut *self.state;
        if state.running == state.limits.max_seqs {
            return Err(self.broken("no more requests are admitted than max_seqs", place));
        }
        state.last_row += 1;
        let request = state.requests.at_mut(place);
        (request.row, request.phase) = (state.last_row, Phase::Started);
        state.running += 1;
        state.waiting -= 1;
        Ok(())
    }

    // A call costs more than what is done here, and every request pays for it twice.
    #[inline(always)]
    fn take(&mut self, place: Place, blocks: u64) -> Result<()> {
        if blocks > 0 {
            if !self.state.has_free(blocks) {
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

    #[cold]
    pub(crate) fn broken(&self, rule: &'static str, place: Place) -> Error {
        self.state.broken(self.now, rule, format!("request {}", self.state.requests.at(place).id))
    }
}
