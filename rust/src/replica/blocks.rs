//! What does each request hold of the KV cache, and what does it find there?
//!
//! The one place where blocks change hands: requests take them at admission and chunk by chunk, the standing decodes as
//! they grow, and whoever leaves or is preempted gives them up. With a prefix cache their content stays behind:
//!
//! - what a chunk computes is known from the instant its batch is formed, so that the next in the same plan can find it;
//! - what decodes compute is known when their request leaves or is preempted: before that nobody could ask for it, but
//!   those that go on from its answer (*followers*), for whom it is made known before each plan;
//! - what is found at admission counts as computed. It is looked up anew at each attempt.

use super::state::{Chunk, State};
use crate::kv::{Found, Kept};
use crate::request::{Phase, Request, Slot};

/// What was found for a request that waits, when the policy thought of admitting it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LookedUp {
    slot: Slot,
    found: Found,
    /// Blocks had changed hands so often in this plan.
    exchanges: u64,
}

impl State {
    /// Looks up what the cache has of a waiting request. It is its context until the plan is made.
    #[inline(never)]
    pub(crate) fn look_up(&mut self, slot: Slot) {
        let exchanges = self.batch.exchanges;
        let before = self.batch.looked_up.iter().rposition(|looked_up| looked_up.slot == slot);
        if before.is_some_and(|place| self.batch.looked_up[place].exchanges == exchanges) {
            return;
        }
        if before.is_none() && self.requests.at(slot).computed > 0 {
            // It brings its context along.
            return;
        }
        // Decodes come before admissions: the blocks that they take are gone.
        self.pool.claim(self.standing_growth());
        self.publish_followed(1);
        let found = self.pool.find(slot, self.requests.known(slot) - 1);
        self.requests.at_mut(slot).computed = found.tokens as u32;
        match before {
            Some(place) => self.batch.looked_up[place] = LookedUp { slot, found, exchanges },
            None => self.batch.looked_up.push(LookedUp { slot, found, exchanges }),
        }
    }

    fn found(&self, slot: Slot) -> Found {
        let looked_up = self.batch.looked_up.iter().rfind(|looked_up| looked_up.slot == slot);
        looked_up.map_or(Found::NOTHING, |looked_up| looked_up.found)
    }

    /// Free blocks that an admission uses up: new ones, and idle ones that it finds.
    #[inline]
    pub(crate) fn blocks_to_admit(&self, slot: Slot, tokens: u64) -> u64 {
        let blocks = self.pool.need(tokens);
        if self.batch.looked_up.is_empty() { blocks } else { self.blocks_beside_found(slot, blocks) }
    }

    #[inline(never)]
    fn blocks_beside_found(&self, slot: Slot, blocks: u64) -> u64 {
        let found = self.found(slot);
        blocks.saturating_sub(self.pool.need(found.tokens)) + found.idle
    }

    /// A waiting request takes what was found for it.
    pub(crate) fn take_found(&mut self, slot: Slot) {
        let found = self.found(slot);
        let blocks = self.pool.take_found(slot, found);
        let request = self.requests.at_mut(slot);
        request.blocks += blocks;
        if request.is_new() {
            request.cached_tokens = found.tokens as u32;
        }
        self.tokens_ahead -= found.tokens.min(u64::from(request.arrival.prompt_tokens));
        self.cached_tokens += found.tokens;
        self.batch.exchanges += 1;
    }

    /// A request takes blocks that are known to be free.
    #[inline]
    pub(crate) fn take(&mut self, slot: Slot, blocks: u64) {
        self.pool.take(blocks);
        self.requests.at_mut(slot).blocks += blocks;
        self.batch.exchanges += 1;
    }

    /// A request gives up all that it holds: it is over, or preempted.
    #[inline]
    pub(crate) fn release(&mut self, slot: Slot, is_over: bool) {
        let blocks = std::mem::take(&mut self.requests.at_mut(slot).blocks);
        if self.pool.has_cache() {
            self.release_known(slot, blocks, is_over);
        } else {
            self.pool.give(blocks);
        }
    }

    /// The same for blocks whose content the cache knows.
    #[inline(never)]
    fn release_known(&mut self, slot: Slot, blocks: u64, is_over: bool) {
        let context = self.requests.context(slot);
        self.pool.release(slot, blocks, context, is_over);
        self.batch.exchanges += 1;
    }

    /// A request is over, and what it holds stays taken for a while.
    pub(crate) fn keep(&mut self, slot: Slot) -> Kept {
        let context = self.requests.context(slot);
        let request = self.requests.at_mut(slot);
        let blocks = std::mem::take(&mut request.blocks);
        self.pool.keep(slot, blocks, context)
    }

    /// A request that holds nothing is here no more.
    #[inline]
    pub(crate) fn remove(&mut self, slot: Slot) {
        self.pool.close(slot);
        self.requests.remove(slot);
    }

    /// The same, and takes it along.
    pub(crate) fn take_out(&mut self, slot: Slot) -> Request {
        self.pool.close(slot);
        self.requests.take(slot)
    }

    /// A chunk is placed after which so many tokens of its request lie in its blocks. Decodes come before it.
    #[inline(never)]
    pub(crate) fn publish_chunk(&mut self, slot: Slot, tokens: u64) {
        self.publish_followed(1);
        self.pool.scheduled(slot, tokens);
    }

    /// What decodes have computed becomes known to those who go on from it, with what they are about to compute in so
    /// many iterations.
    #[inline(never)]
    pub(crate) fn publish_followed(&mut self, iterations: u64) {
        for place in 0..self.pool.followed().len() {
            let slot = self.pool.followed()[place];
            self.publish_decodes(slot, iterations);
        }
    }

    /// What the decodes of a request have computed becomes known, with what they compute in so many iterations.
    pub(crate) fn publish_decodes(&mut self, slot: Slot, iterations: u64) {
        let request = self.requests.at(slot);
        let decodes = request.phase() == Phase::Decoding;
        if decodes || request.phase() == Phase::Started {
            let takes_part = decodes && !self.groups[request.group as usize].rests;
            let ahead = if takes_part { iterations } else { 0 };
            self.pool.scheduled(slot, self.requests.context(slot) + ahead);
        }
    }

    /// One more iteration of the batch that was just settled has begun: what it takes, and what it makes known.
    pub(crate) fn begin_again(&mut self) {
        self.publish_followed(0);
        self.pool.claim(self.batch.claimed_each);
        self.pool.take(self.standing_growth());
        for place in 0..self.batch.chunks.len() {
            let Chunk { slot, tokens, .. } = self.batch.chunks[place];
            let context = self.requests.context(slot) + tokens;
            self.take(slot, self.pool.need(context).saturating_sub(self.requests.at(slot).blocks));
            self.pool.scheduled(slot, context);
        }
    }

    /// Whoever was looked up and is not admitted has nothing computed.
    #[inline(never)]
    pub(crate) fn forget_looked_up(&mut self) {
        for place in 0..self.batch.looked_up.len() {
            let slot = self.batch.looked_up[place].slot;
            if self.requests.at(slot).phase() == Phase::Waiting {
                self.requests.at_mut(slot).computed = 0;
            }
        }
    }

    /// Blocks that a stretch may take: all that are free, but that whoever was refused may need fewer once a whole run of
    /// what was found for it is forgotten for the sake of one block.
    pub(crate) fn room(&self) -> u64 {
        let waits = |one: &LookedUp| self.requests.at(one.slot).phase() == Phase::Waiting;
        let mut looked_up = self.batch.looked_up.iter();
        let forgets = looked_up.any(|one| one.found.idle > 0 && waits(one)) && self.pool.forgets_runs();
        self.pool.free() - if forgets { self.pool.idle() } else { 0 }
    }

    /// Does it matter to the cache which iteration of a stretch of this batch comes when? Somebody who was looked up and
    /// not admitted might find more, or two requests might compute the same block, or one might compute what another says.
    #[inline(never)]
    pub(crate) fn order_matters(&self) -> bool {
        let chunks = &self.batch.chunks;
        let lasts = |chunk: &&Chunk| chunk.tokens < chunk.owed;
        let refused = |one: &&LookedUp| self.requests.at(one.slot).phase() == Phase::Waiting;
        if !self.pool.followed().is_empty() {
            return chunks.iter().any(|chunk| lasts(&chunk)) || self.batch.looked_up.iter().any(|one| refused(&one));
        }
        let lasting = chunks.iter().enumerate().filter(|(_, chunk)| lasts(chunk));
        lasting.into_iter().any(|(place, chunk)| {
            let computed = |other: &Chunk| other.context.max(chunk.context);
            let mut others = chunks[..place].iter().filter(lasts);
            let mut waiting = self.batch.looked_up.iter().filter(refused);
            self.pool.is_computed_twice(chunk.slot)
                || others.any(|other| self.pool.go_on_alike(chunk.slot, other.slot, computed(other)))
                || waiting.any(|one| self.pool.go_on_alike(one.slot, chunk.slot, one.found.tokens))
        })
    }
}
