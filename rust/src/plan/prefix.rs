//! Shared blocks. A policy may ignore them: every request then still uses its cache hit, and the output of a decode
//! is visible to its followers one iteration later.

use super::Plan;
use crate::error::Result;
use crate::plan::Preemption;
use crate::request::{Phase, Place};

impl Plan<'_> {
    /// Whether requests share blocks, so that one may free fewer blocks than it holds.
    #[inline]
    pub(crate) fn shares_blocks(&self) -> bool {
        self.state.blocks.has_cache()
    }

    /// Reserves free blocks for rows that this plan adds later: their cached content is evicted.
    #[inline]
    pub(crate) fn reserve(&mut self, blocks: u64) {
        if self.state.blocks.has_cache() {
            self.state.blocks.reserve(self.state.steady_growth() + blocks);
        }
    }

    /// Publishes the next token of a decode that this plan adds later, so that followers find it.
    #[inline]
    pub(crate) fn publish_decode(&mut self, place: Place) {
        if self.state.blocks.followed().contains(&place) {
            self.state.blocks.scheduled(place, self.state.requests.context(place) + 1);
        }
    }

    /// Drops the row of a victim, which has already taken and cached the blocks for `tokens` tokens.
    pub(crate) fn pass(&mut self, place: Place, tokens: u64) {
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

    /// [`Plan::preempt`] before any request takes a block in this plan.
    pub(crate) fn preempt_first(&mut self, place: Place, preemption: Preemption) -> Result<()> {
        self.leave_batch(place)?;
        self.give_up(place, preemption)
    }

    /// Blocks available to requests here: all except those of requests in transfer to another replica.
    #[inline]
    pub(crate) fn blocks_here(&self) -> u64 {
        self.state.blocks.capacity() - self.state.sent_blocks
    }
}
