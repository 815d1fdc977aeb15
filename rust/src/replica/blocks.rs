//! Blocks of requests, and prefix cache hits.
//!
//! All block transfers happen here: requests take blocks at admission and per chunk, steady decodes as they grow, and
//! requests that leave or are preempted free them. With a prefix cache, their content stays cached:
//!
//! - The content of a chunk is published when its batch is formed, so that later requests of the same plan can hit
//!   it.
//! - The output of decodes is published when their request leaves or is preempted. Before that, only requests that
//!   continue it (*followers*) could use it; for them it is published before each plan.
//! - A hit counts as computed at admission. Each attempt looks it up anew.

use super::batch::Chunk;
use super::state::State;
use crate::features::Features;
use crate::kv::{DetachedBlocks, Hit};
use crate::request::{History, Phase, Place, Request};

/// The cache hit of a waiting request that the policy considered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LookedUp {
    place: Place,
    hit: Hit,
    /// Number of block transfers at the lookup.
    exchanges: u64,
    /// Number of evicted blocks at the lookup.
    evicted: u64,
}

impl State {
    /// Looks up a waiting request in the cache. The hit counts as its context during the plan.
    pub(crate) fn look_up(&mut self, place: Place) {
        let exchanges = self.batch.exchanges;
        let before = self.batch.looked_up.iter().rposition(|looked_up| looked_up.place == place);
        if before.is_some_and(|index| self.batch.looked_up[index].exchanges == exchanges) {
            return;
        }
        if before.is_none() && self.requests.at(place).computed > 0 {
            // It arrived with its context.
            return;
        }
        // Decodes precede admissions, so their blocks are evicted first.
        self.blocks.reserve(self.steady_growth());
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

    /// Free blocks that an admission needs: new blocks, and unreferenced blocks of the hit.
    #[inline]
    pub(crate) fn blocks_to_admit(&self, place: Place, tokens: u64) -> u64 {
        let blocks = self.blocks.need(tokens);
        if self.batch.looked_up.is_empty() { blocks } else { self.blocks_without_hit(place, blocks) }
    }

    fn blocks_without_hit(&self, place: Place, blocks: u64) -> u64 {
        let hit = self.hit(place);
        blocks.saturating_sub(self.blocks.need(hit.tokens)) + hit.unreferenced
    }

    /// Gives a waiting request the blocks of its hit.
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

    /// Takes blocks that are known to be free.
    #[inline]
    pub(crate) fn take(&mut self, place: Place, blocks: u64) {
        self.blocks.take(blocks);
        self.requests.at_mut(place).blocks += blocks;
        self.batch.exchanges += 1;
    }

    /// Frees all blocks of a request that is finished or preempted.
    #[inline]
    pub(crate) fn release<F: Features>(&mut self, place: Place, is_over: bool) {
        let blocks = std::mem::take(&mut self.requests.at_mut(place).blocks);
        if F::FULL && self.blocks.has_cache() {
            self.release_known(place, blocks, is_over);
        } else if F::FULL && self.blocks.has_layer_groups() {
            self.blocks.change_layer_groups(|pool| pool.release(place));
        } else {
            self.blocks.give_back(blocks);
        }
    }

    /// Frees blocks whose content the cache has.
    fn release_known(&mut self, place: Place, blocks: u64, is_over: bool) {
        let unknown = if is_over { 0 } else { self.unknown_tokens(place) };
        // With drafts, everything known is already published.
        let context = if self.drafts.is_some() { 0 } else { self.requests.context(place) - unknown };
        self.blocks.release(place, blocks, context, is_over);
        self.batch.exchanges += 1;
    }

    /// Keeps the blocks of a finished request for a while.
    pub(crate) fn keep(&mut self, place: Place) -> DetachedBlocks {
        let context = if self.drafts.is_some() { 0 } else { self.requests.context(place) };
        let request = self.requests.at_mut(place);
        let blocks = std::mem::take(&mut request.blocks);
        self.blocks.detach(place, blocks, context)
    }

    /// Removes a request without blocks.
    #[inline]
    pub(crate) fn remove<F: Features>(&mut self, place: Place) {
        if F::FULL {
            self.blocks.close(place);
        }
        self.requests.remove(place);
    }

    /// Removes and returns a request without blocks.
    pub(crate) fn take_out(&mut self, place: Place) -> (Request, History) {
        self.blocks.close(place);
        self.requests.take(place)
    }

    /// Publishes a chunk, after which `tokens` tokens of its request are in its blocks. Decodes come before it.
    pub(crate) fn publish_chunk(&mut self, place: Place, tokens: u64) {
        self.publish_followed(1);
        self.blocks.scheduled(place, tokens);
    }

    /// Publishes the output of decodes to their followers, including the next `iterations` iterations.
    pub(crate) fn publish_followed(&mut self, iterations: u64) {
        for index in 0..self.blocks.followed().len() {
            let place = self.blocks.followed()[index];
            self.publish_decodes(place, iterations);
        }
    }

    /// Publishes the output of one request's decodes, including the next `iterations` iterations.
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

    /// Starts one more iteration of the batch that was just settled: takes and publishes its blocks.
    pub(crate) fn begin_again(&mut self) {
        self.publish_followed(0);
        self.blocks.reserve(self.batch.reserved_each);
        self.blocks.take(self.steady_growth());
        for index in 0..self.batch.chunks.len() {
            let Chunk { place, tokens, .. } = self.batch.chunks[index];
            let context = self.requests.context(place) + tokens;
            self.take(place, self.blocks.need(context).saturating_sub(self.requests.at(place).blocks));
            self.blocks.scheduled(place, context);
        }
    }

    /// Resets the computed tokens of requests that were looked up but not admitted.
    pub(crate) fn discard_hits(&mut self) {
        for index in 0..self.batch.looked_up.len() {
            let place = self.batch.looked_up[index].place;
            if self.requests.at(place).phase() == Phase::Waiting {
                self.requests.at_mut(place).computed = 0;
            }
        }
    }

    /// Blocks that a stretch may take: all free ones. Exception: a refused request may need fewer blocks after one
    /// eviction removed a whole run of its hit. `None`: this may have happened already.
    pub(crate) fn room(&self) -> Option<u64> {
        let waits = |looked_up: &&LookedUp| self.requests.at(looked_up.place).phase() == Phase::Waiting;
        let refused = self.batch.looked_up.iter().filter(|looked_up| looked_up.hit.unreferenced > 0).filter(waits);
        let Some(evicted) = refused.map(|looked_up| looked_up.evicted).min().filter(|_| self.blocks.evicts_runs())
        else {
            return Some(self.blocks.free());
        };
        (evicted == self.blocks.evicted()).then(|| self.blocks.free() - self.blocks.unreferenced())
    }

    /// Whether the order of a stretch's iterations matters to the cache: a refused request might hit more, two
    /// requests might compute the same block, or one might compute another's output.
    pub(crate) fn order_matters(&self) -> bool {
        let chunks = &self.batch.chunks;
        let lasts = |chunk: &&Chunk| chunk.tokens < chunk.owed;
        let refused = |looked_up: &&LookedUp| self.requests.at(looked_up.place).phase() == Phase::Waiting;
        if self.blocks.has_followed() {
            return chunks.iter().any(|chunk| lasts(&chunk))
                || self.batch.looked_up.iter().any(|looked_up| refused(&looked_up));
        }
        let lasting = chunks.iter().enumerate().filter(|(_, chunk)| lasts(chunk));
        lasting.into_iter().any(|(index, chunk)| {
            let computed = |other: &Chunk| other.context.max(chunk.context);
            let mut others = chunks[..index].iter().filter(lasts);
            let mut waiting = self.batch.looked_up.iter().filter(refused);
            self.blocks.is_computed_twice(chunk.place)
                || others.any(|other| self.blocks.share_next_block(chunk.place, other.place, computed(other)))
                || waiting
                    .any(|looked_up| self.blocks.share_next_block(looked_up.place, chunk.place, looked_up.hit.tokens))
        })
    }
}
