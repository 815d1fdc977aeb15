//! Questions about blocks that requests share. A policy may ignore them all: every request then finds what is cached, and a
//! decode that another request continues is found one iteration later.

use super::Plan;
use crate::error::Result;
use crate::plan::Preemption;
use crate::request::{Phase, Place};

impl Plan<'_> {
    /// Do requests hold blocks in common, so that one of them may give up fewer than it holds?
    #[inline]
    pub(crate) fn shares_blocks(&self) -> bool {
        self.state.blocks.has_cache()
    }

    /// Reserves free blocks for rows that the plan has yet to ask for: what they still hold is evicted.
    #[inline]
    pub(crate) fn reserve(&mut self, blocks: u64) {
        if self.state.blocks.has_cache() {
            self.state.blocks.reserve(self.state.standing_growth() + blocks);
        }
    }

    /// A request decodes in this batch, though the plan has yet to ask for it: requests that continue its output find what
    /// it computes.
    #[inline]
    pub(crate) fn publish_decode(&mut self, place: Place) {
        if self.state.blocks.followed().contains(&place) {
            self.state.blocks.scheduled(place, self.state.requests.context(place) + 1);
        }
    }

    /// A victim that the batch had a row for: it has taken the blocks for so many tokens, and they are cached.
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

    /// The same as [`Plan::preempt`], before any request takes a block in this plan.
    pub(crate) fn preempt_first(&mut self, place: Place, preemption: Preemption) -> Result<()> {
        self.leave_batch(place)?;
        self.give_up(place, preemption)
    }

    /// Blocks that requests here can hold: all but those of requests on their way to another replica.
    #[inline]
    pub(crate) fn blocks_here(&self) -> u64 {
        self.state.blocks.capacity() - self.state.sent_blocks
    }
}
