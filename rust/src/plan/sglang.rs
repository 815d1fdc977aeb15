//! SGLang's part of a plan: the order of rows, and its view of the radix cache. No other policy uses it.

use super::Plan;
use crate::clock::Instant;
use crate::error::Result;
use crate::request::Place;

impl Plan<'_> {
    /// The prefix cache processes the rows of a batch in their order, finished and running, then partial prefills.
    /// Default: finished requests last.
    #[inline]
    pub(crate) fn cache_in_row_order(&mut self) {
        self.state.caches_in_row_order = true;
    }

    /// Marks the cached part of a request's first `tokens` tokens as used now, and splits a run that it ends inside.
    /// Returns the number of cached tokens.
    #[inline]
    pub(crate) fn refresh(&mut self, place: Place, tokens: u64) -> u64 {
        self.state.blocks.refresh(place, tokens)
    }

    /// In every iteration of this plan, `blocks` of the free blocks count as taken before the decodes take theirs.
    #[inline]
    pub(crate) fn reserve_each(&mut self, blocks: u64) {
        self.state.batch.reserved_each = blocks;
    }

    /// An id of the content up to a token: two requests with the same id agree on this token and all before it.
    /// `None` without a prefix cache.
    #[inline]
    pub(crate) fn content_at(&self, place: Place, token: u64) -> Option<u32> {
        self.state.blocks.content_at(place, token)
    }

    /// Free blocks in the cache hit of the next request in the queue.
    #[inline]
    pub(crate) fn unreferenced_hit(&self, place: Place) -> u64 {
        self.state.blocks_to_admit(place, self.state.requests.context(place))
    }

    /// Whether no request holds a block.
    #[inline]
    pub(crate) fn cache_is_empty(&self) -> bool {
        self.state.blocks.used() == 0 && self.state.steady_growth() == 0
    }

    /// Blocks that the selected group takes in an iteration that includes it.
    #[inline]
    pub(crate) fn decode_growth(&self) -> u64 {
        self.state.groups[self.group].growth.next_growth()
    }

    /// End of the last iteration.
    #[inline]
    pub(crate) fn last_end(&self) -> Instant {
        self.state.last_end
    }

    /// Moves the row of an admitted request behind all others.
    #[inline]
    pub(crate) fn move_last(&mut self, place: Place) {
        self.state.last_row += 1;
        self.state.requests.at_mut(place).row = self.state.last_row;
    }

    /// Moves the row of an admitted request before all others.
    #[inline]
    pub(crate) fn move_first(&mut self, place: Place) {
        self.state.first_row -= 1;
        self.state.requests.at_mut(place).row = self.state.first_row;
    }

    /// [`Plan::chunk`], but the last owed token of a request that has emitted is priced as prefill too.
    #[inline]
    pub(crate) fn prefill(&mut self, place: Place, tokens: u64) -> Result<()> {
        self.add_chunk(place, tokens, false)
    }
}
