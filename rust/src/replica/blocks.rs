//! What each request holds of the KV cache, and what it finds there.
//!
//! The one place where blocks change hands: requests take them at admission and chunk by chunk, the standing decodes as
//! they grow, and a request that leaves or is preempted gives them up. With a prefix cache their content stays behind:
//!
//! - what a chunk computes is known from the instant its batch is formed, so that the next in the same plan can find it;
//! - what decodes compute is known when their request leaves or is preempted: before that no request could ask for it, but
//!   those that go on from its answer (*followers*), for which it is made known before each plan;
//! - what is found at admission counts as computed. It is looked up anew at each attempt.

use super::batch::Chunk;
use super::state::State;
use crate::features::Features;
use crate::kv::{DetachedBlocks, Hit};
use crate::request::{History, Phase, Place, Request};

/// What was found for a request that waits, when the policy thought of admitting it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LookedUp {
    place: Place,
    hit: Hit,
    /// Blocks had changed hands so often.
    exchanges: u64,
    /// So many blocks had been evicted.
    evicted: u64,
}

impl State {
    /// Looks up what the cache has of a waiting request. It is its context until the plan is made.
    #[inline(never)]
    pub(crate) fn look_up(&mut self, place: Place) {
        let exchanges = self.batch.exchanges;
        let before = self.batch.looked_up.iter().rposition(|looked_up| looked_up.place == place);
        if before.is_some_and(|index| self.batch.looked_up[index].exchanges == exchanges) {
            return;
        }
        if before.is_none() && self.requests.at(place).computed > 0 {
            // It brings its context along.
            return;
        }
        // Decodes come before admissions: the blocks that they take are gone.
        self.blocks.reserve(self.standing_growth());
        self.publish_followed(1);
        let hit = self.blocks.find(place, self.requests.known(place) - 1);
        self.requests.at_mut(place).computed = hit.tokens as u32;
        let looked_up = LookedUp { place, hit, exchanges, evicted: self.blocks.evicted() };
        match before {
            Some(index) => self.batch.looked_up[index] = looked_up,
            None => self.batch.looked_up.push(looked_up),
        }
    }

    fn hit(&self, place: Place) -> Hit {
        let looked_up = self.batch.looked_up.iter().rfind(|looked_up| looked_up.place == place);
        looked_up.map_or(Hit::NONE, |looked_up| looked_up.hit)
    }

    /// Free blocks that an admission uses up: new ones, and unreferenced ones that it hits.
    #[inline]
    pub(crate) fn blocks_to_admit(&self, place: Place, tokens: u64) -> u64 {
        let blocks = self.blocks.need(tokens);
        if self.batch.looked_up.is_empty() { blocks } else { self.blocks_beside_hit(place, blocks) }
    }

    #[inline(never)]
    fn blocks_beside_hit(&self, place: Place, blocks: u64) -> u64 {
        let hit = self.hit(place);
        blocks.saturating_sub(self.blocks.need(hit.tokens)) + hit.unreferenced
    }

    /// A waiting request takes what was found for it.
    pub(crate) fn take_hit(&mut self, place: Place) {
        let hit = self.hit(place);
        let blocks = self.blocks.take_hit(place, hit);
        let (request, history) = self.requests.both_mut(place);
        request.blocks += blocks;
        if history.is_new() {
            history.cached_tokens = hit.tokens as u32;
        }
        self.brought_tokens -= hit.tokens.min(u64::from(request.prompt_tokens));
        self.cached_tokens += hit.tokens;
        self.batch.exchanges += 1;
    }

    /// A request takes blocks that are known to be free.
    #[inline]
    pub(crate) fn take(&mut self, place: Place, blocks: u64) {
        self.blocks.take(blocks);
        self.requests.at_mut(place).blocks += blocks;
        self.batch.exchanges += 1;
    }

    /// A request gives up all that it holds: it is over, or preempted.
    #[inline]
    pub(crate) fn release<F: Features>(&mut self, place: Place, is_over: bool) {
        let blocks = std::mem::take(&mut self.requests.at_mut(place).blocks);
        if F::ANY && self.blocks.has_cache() {
            self.release_known(place, blocks, is_over);
        } else {
            self.blocks.give_back(blocks);
        }
    }

    /// The same for blocks whose content the cache knows.
    #[inline(never)]
    fn release_known(&mut self, place: Place, blocks: u64, is_over: bool) {
        let unknown = if is_over { 0 } else { self.unknown_tokens(place) };
        // With drafts the cache has been told all that is known.
        let context = if self.drafts.is_some() { 0 } else { self.requests.context(place) - unknown };
        self.blocks.release(place, blocks, context, is_over);
        self.batch.exchanges += 1;
    }

    /// A request is over, and what it holds stays taken for a while.
    pub(crate) fn keep(&mut self, place: Place) -> DetachedBlocks {
        let context = if self.drafts.is_some() { 0 } else { self.requests.context(place) };
        let request = self.requests.at_mut(place);
        let blocks = std::mem::take(&mut request.blocks);
        self.blocks.detach(place, blocks, context)
    }

    /// A request that holds nothing is here no more.
    #[inline]
    pub(crate) fn remove<F: Features>(&mut self, place: Place) {
        if F::ANY {
            self.blocks.close(place);
        }
        self.requests.remove(place);
    }

    /// The same, and takes it along.
    pub(crate) fn take_out(&mut self, place: Place) -> (Request, History) {
        self.blocks.close(place);
        self.requests.take(place)
    }

    /// A chunk is placed after which so many tokens of its request lie in its blocks. Decodes come before it.
    #[inline(never)]
    pub(crate) fn publish_chunk(&mut self, place: Place, tokens: u64) {
        self.publish_followed(1);
        self.blocks.scheduled(place, tokens);
    }

    /// What decodes have computed becomes known to requests that go on from it, with what they are about to compute
    /// in so many iterations.
    #[inline(never)]
    pub(crate) fn publish_followed(&mut self, iterations: u64) {
        for index in 0..self.blocks.followed().len() {
            let place = self.blocks.followed()[index];
            self.publish_decodes(place, iterations);
        }
    }

    /// What the decodes of a request have computed becomes known, with what they compute in so many iterations.
    pub(crate) fn publish_decodes(&mut self, place: Place, iterations: u64) {
        if self.drafts.is_some() {
            return;
        }
        let request = self.requests.at(place);
        let decodes = request.phase() == Phase::Decoding;
        if decodes || request.phase() == Phase::Started {
            let takes_part = decodes && !self.groups[request.group as usize].rests;
            let ahead = if takes_part { iterations } else { 0 };
            let known = self.requests.context(place) + ahead - self.unknown_tokens(place);
            self.blocks.scheduled(place, known);
        }
    }

    /// One more iteration of the batch that was just settled has begun: what it takes, and what it makes known.
    pub(crate) fn begin_again(&mut self) {
        self.publish_followed(0);
        self.blocks.reserve(self.batch.reserved_each);
        self.blocks.take(self.standing_growth());
        for index in 0..self.batch.chunks.len() {
            let Chunk { place, tokens, .. } = self.batch.chunks[index];
            let context = self.requests.context(place) + tokens;
            self.take(place, self.blocks.need(context).saturating_sub(self.requests.at(place).blocks));
            self.blocks.scheduled(place, context);
        }
    }

    /// A request that was looked up and is not admitted has nothing computed.
    #[inline(never)]
    pub(crate) fn discard_hits(&mut self) {
        for index in 0..self.batch.looked_up.len() {
            let place = self.batch.looked_up[index].place;
            if self.requests.at(place).phase() == Phase::Waiting {
                self.requests.at_mut(place).computed = 0;
            }
        }
    }

    /// Blocks that a stretch may take: all that are free, but that a request that was refused may need fewer once a
    /// whole run of what was found for it is evicted for the sake of one block. None: it may be so already.
    pub(crate) fn room(&self) -> Option<u64> {
        let waits = |one: &&LookedUp| self.requests.at(one.place).phase() == Phase::Waiting;
        let refused = self.batch.looked_up.iter().filter(|one| one.hit.unreferenced > 0).filter(waits);
        let Some(evicted) = refused.map(|one| one.evicted).min().filter(|_| self.blocks.evicts_runs()) else {
            return Some(self.blocks.free());
        };
        (evicted == self.blocks.evicted()).then(|| self.blocks.free() - self.blocks.unreferenced())
    }

    /// Does it matter to the cache which iteration of a stretch of this batch comes when? A request that was looked
    /// up and not admitted might find more, or two requests might compute the same block, or one might compute what
    /// another says.
    #[inline(never)]
    pub(crate) fn order_matters(&self) -> bool {
        let chunks = &self.batch.chunks;
        let lasts = |chunk: &&Chunk| chunk.tokens < chunk.owed;
        let refused = |one: &&LookedUp| self.requests.at(one.place).phase() == Phase::Waiting;
        if self.blocks.has_followed() {
            return chunks.iter().any(|chunk| lasts(&chunk)) || self.batch.looked_up.iter().any(|one| refused(&one));
        }
        let lasting = chunks.iter().enumerate().filter(|(_, chunk)| lasts(chunk));
        lasting.into_iter().any(|(index, chunk)| {
            let computed = |other: &Chunk| other.context.max(chunk.context);
            let mut others = chunks[..index].iter().filter(lasts);
            let mut waiting = self.batch.looked_up.iter().filter(refused);
            self.blocks.is_computed_twice(chunk.place)
                || others.any(|other| self.blocks.share_next_block(chunk.place, other.place, computed(other)))
                || waiting.any(|one| self.blocks.share_next_block(one.place, chunk.place, one.hit.tokens))
        })
    }
}
