//! The plan of one batch: queries and edits of a scheduler, checked by the replica.
//!
//! This file has what every policy needs. The rest can be skipped at first: `plan/prefix.rs` (shared blocks),
//! `plan/groups.rs` (groups of decodes), `plan/layer_groups.rs` (groups of layers), `plan/drafts.rs` (speculative
//! decoding), `plan/nested.rs` (policies inside a policy), `plan/preemption.rs` (preemption) and `plan/sglang.rs`
//! (SGLang).
//!
//! A [`Plan`] edits the batch of one replica. The steady decodes stay in it until the scheduler changes them; chunks
//! are planned anew each time. All queries read, and all edits are checked against, the state that the replica runs
//! on (R6). Budget, sequences and blocks are enforced here and nowhere else. A violation is an error that names
//! the rule.

mod prefix;
mod drafts;
mod groups;
mod layer_groups;
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

const NO_BLOCK: &str = "a plan takes at most the free blocks";

/// The next batch of a replica, open to its scheduler.
#[derive(Debug)]
pub struct Plan<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) now: Instant,
    /// Start of the batch: later than `now` if it is planned ahead.
    begins: Instant,
    pub(crate) drain: bool,
    /// The selected group of steady decodes.
    group: usize,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(state: &'a mut State, now: Instant, begins: Instant, drain: bool) -> Plan<'a> {
        Plan { state, now, begins, drain, group: 0 }
    }
}

/// Queries.
impl Plan<'_> {
    /// The instant at which the batch is formed.
    #[inline]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Whether no further event is due, so that a policy that waits for more requests must stop waiting (R5).
    #[inline]
    pub fn drain(&self) -> bool {
        self.drain
    }

    /// Whether only the batches of other replicas are still to come; the plan is repeated after them.
    #[inline]
    pub(crate) fn drains_with_others(&self) -> bool {
        self.drain && !self.state.drains_last
    }

    /// The requests of the replica.
    #[inline]
    pub fn requests(&self) -> &Requests {
        &self.state.requests
    }

    /// Remaining token budget of this iteration.
    #[inline]
    pub fn budget_left(&self) -> u64 {
        self.state.limits.token_budget.saturating_sub(self.state.batch.chunk_tokens + self.state.steady)
    }

    /// Whether the token budget has room for `tokens` more.
    #[inline]
    pub(crate) fn carries(&self, tokens: u64) -> bool {
        self.state.batch.chunk_tokens + self.state.steady + tokens <= self.state.limits.token_budget
    }

    /// Remaining sequence slots (`max_seqs`).
    #[inline]
    pub fn sequences_left(&self) -> u64 {
        // Above `max_seqs` while admissions are closed.
        self.state.limits.max_seqs.saturating_sub(self.state.running)
    }

    /// Admitted requests.
    #[inline]
    pub(crate) fn running(&self) -> u64 {
        self.state.running
    }

    /// Requests in the queue, including preempted and swapped ones.
    #[inline]
    pub fn waiting(&self) -> u64 {
        self.state.waiting
    }

    /// Members of the selected group of steady decodes.
    #[inline]
    pub fn decodes(&self) -> u64 {
        self.state.groups[self.group].count
    }

    /// Whether this plan has preempted a request.
    #[inline]
    pub(crate) fn has_preempted(&self) -> bool {
        !self.state.batch.preempted.is_empty()
    }

    /// Whether this plan has preempted `place`.
    #[inline]
    pub(crate) fn was_preempted(&self, place: Place) -> bool {
        self.has_preempted() && self.state.batch.preempted.contains(&place)
    }

    /// The limit that prevented an admission, if any.
    #[inline]
    pub(crate) fn refused(&self) -> Option<Limit> {
        self.state.batch.refused
    }

    /// Iterations run by the replica.
    #[inline]
    pub fn iterations(&self) -> u64 {
        self.state.iterations
    }

    /// Total length of the iterations.
    #[inline]
    pub fn busy(&self) -> Span {
        Span(self.state.last_end.0 - self.state.idle.0)
    }

    /// Free blocks minus those that this batch takes. If negative, the steady decodes lack blocks: the policy must
    /// preempt or pause a request.
    #[inline]
    pub fn free_blocks(&self) -> i64 {
        self.state.blocks.free() as i64 - self.state.steady_growth() as i64
    }

    /// Whether `blocks` blocks are free in addition to those of this batch.
    #[inline]
    pub(crate) fn has_free(&self, blocks: u64) -> bool {
        self.state.has_free(blocks)
    }

    /// Whether the steady decodes lack blocks, so that a request must be preempted or paused.
    #[inline]
    pub(crate) fn lacks_blocks(&self) -> bool {
        !self.state.has_free(0)
    }

    /// Capacity of the cache in tokens.
    #[inline]
    pub(crate) fn all_tokens(&self) -> u64 {
        self.state.blocks.capacity().saturating_mul(self.state.blocks.block_tokens())
    }

    /// Capacity of the cache in blocks.
    #[inline]
    pub fn all_blocks(&self) -> u64 {
        self.state.blocks.capacity()
    }

    /// Tokens per block.
    #[inline]
    pub(crate) fn block_tokens(&self) -> u64 {
        self.state.blocks.block_tokens()
    }

    /// Blocks for `tokens` tokens.
    #[inline]
    pub fn blocks(&self, tokens: u64) -> u64 {
        self.state.blocks.need(tokens)
    }

    /// New blocks that a request needs to compute `tokens` more tokens.
    #[inline]
    pub fn new_blocks(&self, place: Place, tokens: u64) -> u64 {
        let (context, blocks) = self.state.context_and_blocks(place);
        self.state.blocks.need(context + tokens).saturating_sub(blocks)
    }
}

/// Edits of the batch.
impl Plan<'_> {
    /// Looks up the next request of the queue in the prefix cache. From here on the hit counts as its context: it
    /// owes fewer tokens and needs fewer blocks. Call this before any other query about the request. Without a cache
    /// it has no effect.
    #[inline(always)]
    pub(crate) fn look_up(&mut self, place: Place) {
        if self.state.blocks.has_cache() && self.state.requests.at(place).phase == Phase::Waiting {
            self.state.look_up(place);
        }
    }

    /// Whether the next request of the queue can be admitted with the blocks for `tokens` tokens, leaving `spare`
    /// blocks free while another request holds blocks (R11). The limiting resource is recorded for the audit of work
    /// conservation.
    #[inline(always)]
    pub(crate) fn has_room(&mut self, place: Place, tokens: u64, spare: u64) -> bool {
        self.check_room(self.state.blocks_to_admit(place, tokens), spare)
    }

    #[inline(always)]
    fn check_room(&mut self, blocks: u64, spare: u64) -> bool {
        let fits =
            self.state.has_free(blocks.saturating_add(spare)) || (self.cache_is_empty() && self.state.has_free(blocks));
        if self.sequences_left() == 0 {
            self.state.batch.refused = Some(Limit::MaxSeqs);
        } else if !fits {
            self.state.batch.refused = Some(Limit::Blocks);
        } else {
            return true;
        }
        false
    }

    /// Adds a request to the steady decodes: one token in every iteration from this one on.
    #[inline(always)]
    pub fn decode(&mut self, place: Place) -> Result<()> {
        let request = self.state.requests.at(place);
        if request.phase == Phase::Decoding {
            return Err(self.broken("a request decodes once in an iteration", place));
        }
        if request.phase != Phase::Started || request.placed {
            return Err(self.broken("only an admitted request without a chunk in this batch can decode", place));
        }
        if !request.ready {
            return Err(self.broken("no decode before the prompt is complete", place));
        }
        if self.budget_left() == 0 && !self.state.groups[self.group].rests {
            return Err(self.broken("an iteration must not load more tokens than the budget", place));
        }
        self.state.join_decodes(place, self.group);
        Ok(())
    }

    /// Removes a request from the steady decodes; it keeps its blocks.
    pub fn pause(&mut self, place: Place) -> Result<()> {
        if self.state.requests.at(place).phase != Phase::Decoding {
            return Err(self.broken("only a decoding request can be paused", place));
        }
        self.state.leave_decodes(place);
        Ok(())
    }

    /// Excludes the selected group of steady decodes from this iteration, or includes it again.
    #[inline]
    pub fn rest_decodes(&mut self, rest: bool) {
        let group = &mut self.state.groups[self.group];
        if group.rests == rest {
            return;
        }
        self.state.steady -= group.active();
        group.rests = rest;
        self.state.steady += group.active();
        self.state.further_growth.take();
        self.state.is_resting |= rest;
    }

    /// Computes the next `tokens` owed tokens of a request. The last owed token of a request that has emitted before
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
            return Err(self.broken("only an admitted request can have a chunk in a batch, and only one", place));
        }
        let (context, owed, held) = (u64::from(request.computed), request.owed(), request.blocks);
        if tokens == 0 || tokens > owed {
            return Err(
                self.broken("a chunk has from 1 token to all tokens that its request has still to compute", place)
            );
        }
        if tokens > budget {
            return Err(self.broken("an iteration must not load more tokens than the budget", place));
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

    /// Admits a waiting request with the blocks for `tokens` tokens. The same batch must contain it.
    #[inline(always)]
    pub fn admit(&mut self, place: Place, tokens: u64) -> Result<()> {
        if self.state.requests.at(place).phase != Phase::Waiting {
            return Err(self.broken("only a waiting request can be admitted", place));
        }
        self.look_up(place);
        self.take_sequence(place)?;
        let state = &mut *self.state;
        let blocks = state.blocks.need(tokens);
        let fits = state.has_free(blocks);
        state.remove_waiting_blocks(state.requests.at(place).prompt_tokens);
        let request = state.requests.at_mut(place);
        state.batch.admitted.push(place);
        state.batch.is_each_placed = false;
        if state.blocks.has_cache() {
            self.take_with_hit(place, tokens)?;
        } else if fits {
            request.blocks += blocks;
            state.blocks.take(blocks);
        } else {
            return Err(self.broken(NO_BLOCK, place));
        }
        self.state.requests.history_mut(place).begin(self.begins);
        Ok(())
    }

    /// Admits the next request of the queue if it has room for `room` tokens with `spare` blocks left (`has_room`).
    /// It takes the blocks for `reserved` tokens and computes its first `tokens` owed tokens. This is [`Plan::admit`]
    /// followed by [`Plan::chunk`]. Returns whether it is admitted.
    #[inline(always)]
    pub fn try_admit(&mut self, place: Place, room: u64, spare: u64, reserved: u64, tokens: u64) -> Result<bool> {
        let budget = self.budget_left();
        let request = self.state.requests.at(place);
        let (context, owed, is_waiting) =
            (u64::from(request.computed), request.owed(), request.phase == Phase::Waiting);
        let blocks_of_room = self.state.blocks_to_admit(place, room);
        if !self.check_room(blocks_of_room, spare) {
            return Ok(false);
        }
        let state = &mut *self.state;
        // Room for `room` tokens implies room for fewer.
        let is_right = is_waiting
            && (1..=owed.min(budget)).contains(&tokens)
            && context + tokens <= reserved
            && reserved <= room
            && !state.blocks.has_cache();
        if !is_right {
            // The separate calls name the violated rule.
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
        state.remove_waiting_blocks(prompt);
        state.blocks.take_for::<Plain>(blocks);
        state.running += 1;
        state.waiting -= 1;
        state.batch.admitted.push(place);
        state.batch.push(Chunk { place, tokens, context, owed, is_decode });
        Ok(true)
    }

    fn admit_then_chunk(&mut self, place: Place, reserved: u64, tokens: u64) -> Result<()> {
        self.admit(place, reserved)?;
        self.chunk(place, tokens)
    }

    /// Sets how long this plan holds. Default: one iteration.
    pub fn hold(&mut self, hold: Hold) {
        self.state.batch.hold = hold;
    }

    /// Sets the wake-up instant of an idle replica. An instant that is not later than now has no effect.
    pub fn wake_at(&mut self, instant: Instant) {
        self.state.batch.wake_at = Some(instant);
    }

    #[inline(always)]
    fn take_sequence(&mut self, place: Place) -> Result<()> {
        let state = &mut *self.state;
        if state.running >= state.limits.max_seqs {
            return Err(self.broken("at most max_seqs requests can be admitted", place));
        }
        state.last_row += 1;
        let request = state.requests.at_mut(place);
        (request.row, request.phase) = (state.last_row, Phase::Started);
        state.running += 1;
        state.waiting -= 1;
        Ok(())
    }

    // Inlined: a call costs more than the body, and every request makes two.
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

    /// Takes the cached blocks and the missing ones for `tokens` tokens.
    fn take_with_hit(&mut self, place: Place, tokens: u64) -> Result<()> {
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
