//! What may a scheduler look at?

use super::{Hold, Limit, Plan};
use crate::clock::{Instant, Span};
use crate::request::{Place, Requests};

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
    pub fn was_preempted(&self, place: Place) -> bool {
        self.state.batch.preempted.contains(&place)
    }

    /// Whom this plan has admitted, in order.
    #[inline]
    pub fn admitted(&self) -> &[Place] {
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
        self.state.blocks.free() as i64 - self.state.standing_growth() as i64
    }

    /// Free blocks before the standing decodes of the group take theirs.
    #[inline]
    pub fn free_blocks_before_decodes(&self) -> u64 {
        let others = self.state.standing_growth() - self.state.groups[self.group].next_growth();
        self.state.blocks.free().saturating_sub(others)
    }

    /// Is no block held by anybody?
    #[inline]
    pub fn cache_is_empty(&self) -> bool {
        self.state.blocks.used() == 0 && self.state.standing_growth() == 0
    }

    /// All blocks of the cache.
    #[inline]
    pub fn all_blocks(&self) -> u64 {
        self.state.blocks.capacity()
    }

    /// Those of them that the requests here can hold: not the ones of requests on their way to another replica.
    #[inline]
    pub fn blocks_here(&self) -> u64 {
        self.state.blocks.capacity() - self.state.sent_blocks
    }

    /// Tokens of a block.
    #[inline]
    pub fn block_tokens(&self) -> u64 {
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
        let context = self.state.requests.context(place);
        self.state.blocks.need(context + tokens).saturating_sub(self.state.blocks_of(place))
    }

    /// Blocks that the group of standing decodes takes in an iteration in which it takes part, also while it rests.
    #[inline]
    pub fn decode_growth(&self) -> u64 {
        self.state.groups[self.group].growth.next_growth()
    }

    /// Free blocks that hold what was found for the next request in the queue.
    #[inline]
    pub fn unreferenced_hit(&self, place: Place) -> u64 {
        self.state.blocks_to_admit(place, self.state.requests.context(place))
    }

    /// The content in which a token of a request lies, as a number: two requests agree on a token, and on all before it, if
    /// it is the same. Only where there is a prefix cache.
    #[inline]
    pub fn content_at(&self, place: Place, token: u64) -> Option<u32> {
        self.state.blocks.content_at(place, token)
    }

    /// When the last iteration ended.
    #[inline]
    pub fn last_end(&self) -> Instant {
        self.state.last_end
    }
}
