//! What SGLang alone asks: the order of rows, and the state of its radix cache as its scheduler sees it. Every other policy
//! may ignore it.

use super::Plan;
use crate::clock::Instant;
use crate::error::Result;
use crate::request::Place;

impl Plan<'_> {
    /// The prefix cache hears of the rows of a batch in their order, of finished requests and of running ones, and then of
    /// partial prefills. Otherwise finished requests come last.
    #[inline]
    pub(crate) fn cache_in_row_order(&mut self) {
        self.state.caches_in_row_order = true;
    }

    /// What the prefix cache has of a request's first `tokens` tokens counts as used now, whether it is admitted or not, and
    /// a run that it leaves in the middle is cut there. Returns how many tokens those are.
    #[inline]
    pub(crate) fn refresh(&mut self, place: Place, tokens: u64) -> u64 {
        self.state.blocks.refresh(place, tokens)
    }

    /// In every iteration for which this plan holds, so many of the free blocks are as good as taken before the decodes take
    /// theirs.
    #[inline]
    pub(crate) fn reserve_each(&mut self, blocks: u64) {
        self.state.batch.reserved_each = blocks;
    }

    /// The content in which a token of a request lies, as a number: two requests agree on a token, and on all before it, if
    /// it is the same. Only where there is a prefix cache.
    #[inline]
    pub(crate) fn content_at(&self, place: Place, token: u64) -> Option<u32> {
        self.state.blocks.content_at(place, token)
    }

    /// Free blocks that hold what was found for the next request in the queue.
    #[inline]
    pub(crate) fn unreferenced_hit(&self, place: Place) -> u64 {
        self.state.blocks_to_admit(place, self.state.requests.context(place))
    }

    /// Is no block held by any request?
    #[inline]
    pub(crate) fn cache_is_empty(&self) -> bool {
        self.state.blocks.used() == 0 && self.state.standing_growth() == 0
    }

    /// Blocks that the group of standing decodes takes in an iteration in which it takes part, also while it rests.
    #[inline]
    pub(crate) fn decode_growth(&self) -> u64 {
        self.state.groups[self.group].growth.next_growth()
    }

    /// When the last iteration ended.
    #[inline]
    pub(crate) fn last_end(&self) -> Instant {
        self.state.last_end
    }

    /// From now on the row of an admitted request stands behind those of all others.
    #[inline]
    pub(crate) fn move_last(&mut self, place: Place) {
        self.state.last_row += 1;
        self.state.requests.at_mut(place).row = self.state.last_row;
    }

    /// From now on the row of an admitted request stands before those of all others.
    #[inline]
    pub(crate) fn move_first(&mut self, place: Place) {
        self.state.first_row -= 1;
        self.state.requests.at_mut(place).row = self.state.first_row;
    }

    /// The same as [`Plan::chunk`], but the last owed token of a request that has emitted is priced as a prefill too.
    #[inline]
    pub(crate) fn prefill(&mut self, place: Place, tokens: u64) -> Result<()> {
        self.add_chunk(place, tokens, false)
    }
}
