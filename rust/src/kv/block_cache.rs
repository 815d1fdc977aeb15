//! Prefix cache by whole blocks (vLLM v1: `v1/core/kv_cache_manager.py`, `block_pool.py`).
//!
//! A block is identified by its last token and all tokens before it. A request that computes a block adds an entry
//! for it, even if there is one already; a lookup uses the oldest entry. Unreferenced entries are in a list: a
//! leaving request appends its entries, last block first, so that the beginnings of prompts stay longest; allocation
//! evicts from the front. So an entry is never evicted before later blocks of its prompt, unless it has a duplicate.
//!
//! With drafters that read one token ahead, a block is identified by the token after it instead of its last token.
//!
//! Consecutive entries of one node that the same requests use are stored as a run, which is split when a request uses
//! only part of it. So the cost is per run, not per block.

mod entries;
mod followed;
mod runs;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use self::runs::Runs;
use super::content_tree::{CachedRuns, Chains, Mixer, NONE, NewRequest, Segment, Step, step_of};
use super::prefix_cache::{HeldRun, Hit, Part, PrefixCache};
use super::reported::Reported;
use crate::request::Place;

/// Capacity in runs that a place keeps for its next request.
const MAX_SPARE_RUNS: usize = 64;

#[derive(Debug)]
pub(super) struct BlockCache {
    /// Tokens per block.
    block: u32,
    /// Tokens after a block that must match too.
    beyond: u32,
    chains: Chains,
    runs: Runs,
    /// Entries used by each request: its first blocks in order.
    used_blocks: Vec<Holding>,
    /// Entries, duplicates included: current, and total ever inserted.
    cached: u64,
    inserted: u64,
    /// Requests by their own content.
    owners: HashMap<u64, Place, BuildHasherDefault<Mixer>>,
    /// Running requests that another request continues, in the order in which this began.
    followed: Vec<Place>,
    /// Current requests, running or not, that another request continues; and the total ever.
    followed_here: u64,
    ever_followed: u64,
    reported: Option<Reported>,
}

/// Entries used by a request.
#[derive(Debug, Default)]
struct Holding {
    runs: Vec<HeldRun>,
    blocks: u32,
    /// Whether it is running.
    is_running: bool,
    /// Sequence number at which another request began to continue it; 0: none does.
    followed: u64,
}

impl BlockCache {
    pub(super) fn new(block: u64, beyond: u32) -> BlockCache {
        BlockCache {
            block: block as u32,
            beyond,
            chains: Chains::default(),
            runs: Runs { all: Vec::new(), vacant: Vec::new(), oldest: NONE, newest: NONE, unreferenced: 0 },
            used_blocks: Vec::new(),
            cached: 0,
            inserted: 0,
            owners: HashMap::default(),
            followed: Vec::new(),
            followed_here: 0,
            ever_followed: 0,
            reported: None,
        }
    }

    /// Whole blocks in `tokens` tokens.
    #[inline]
    fn whole(&self, tokens: u64) -> u32 {
        debug_assert!(tokens < u64::from(u32::MAX), "prompt plus output is below 2^31 tokens");
        tokens as u32 / self.block
    }

    /// Tokens in `blocks` blocks.
    #[inline]
    fn tokens(&self, blocks: u32) -> u64 {
        u64::from(blocks) * u64::from(self.block)
    }

    /// The first block whose last token is in a node.
    #[inline]
    fn first_block(&self, node: u32) -> u32 {
        self.blocks_until(self.chains.tree.nodes[node as usize].start())
    }

    /// The blocks whose last token is before this one.
    #[inline]
    fn blocks_until(&self, end: u32) -> u32 {
        end.saturating_sub(self.beyond) / self.block
    }

    /// The token that identifies a block.
    #[inline]
    fn last_of(&self, block: u32) -> u64 {
        self.tokens(block + 1) - 1 + u64::from(self.beyond)
    }

    /// End of the cached blocks of a node.
    #[inline]
    fn cached_until(&self, node: u32) -> u32 {
        self.runs.all.get(self.chains.tree.nodes[node as usize].cached_runs.last as usize).map_or(0, |run| run.end)
    }

    /// Returns the nodes that contain the first `limit` cached whole blocks of a chain, each with its end block. The
    /// cached part of a chain is always its beginning.
    #[inline]
    fn cached_blocks(&self, path: impl Iterator<Item = Step>, limit: u32) -> impl Iterator<Item = (u32, u32)> {
        let mut block = 0;
        let mut continues = limit > 0;
        path.map_while(move |Step { node, end }| {
            if !continues {
                return None;
            }
            let until = limit.min(self.blocks_until(end));
            let cached_end = self.cached_until(node).clamp(block, until);
            continues = cached_end == until && cached_end < limit;
            block = cached_end;
            Some((node, block))
        })
    }

    /// Makes the first `tokens` tokens of a request available to other requests.
    fn publish(&mut self, place: Place, tokens: u64) {
        let whole = self.whole(self.chains.limit_tokens(place, tokens));
        let mut block = self.used_blocks[place.index()].blocks;
        if whole <= block {
            return;
        }
        let mut step = step_of(self.chains.path(place), self.last_of(block));
        while block < whole {
            let Step { node, end } = self.chains.path(place)[step];
            step += 1;
            let until = whole.min(self.blocks_until(end));
            let cached_end = self.cached_until(node).min(until);
            if block < cached_end {
                self.insert(place, node, block..cached_end, true);
                block = cached_end;
            }
            if block < until {
                self.insert(place, node, block..until, false);
                block = until;
            }
        }
    }

    /// Whether the cache is empty and has no requests.
    #[cfg(test)]
    pub(super) fn is_unused(&self) -> bool {
        self.chains.tree.is_empty() && self.owners.is_empty() && self.runs.all.len() == self.runs.vacant.len()
    }
}

impl PrefixCache for BlockCache {
    fn open(&mut self, place: Place, request: NewRequest) {
        if self.used_blocks.len() <= place.index() {
            self.used_blocks.resize_with(place.index() + 1, Holding::default);
        }
        self.chains.open(place, request);
        if let Some(before) = self.last_before(place, request.content)
            && self.used_blocks[before.index()].followed == 0
        {
            self.follow(before);
        }
        self.owners.insert(request.own, place);
        let cached_until = |runs: CachedRuns| match runs.last {
            NONE => 0,
            last => self.tokens(self.runs.at(last).end),
        };
        if self.chains.is_continued(place, cached_until) {
            self.follow(place);
        }
    }

    fn close(&mut self, place: Place) {
        self.owners.remove(&self.chains.own(place).content);
        self.stop(place);
        let followed = std::mem::take(&mut self.used_blocks[place.index()].followed);
        self.followed_here -= u64::from(followed > 0);
        self.chains.close(place);
    }

    fn content(&self, place: Place) -> Vec<Segment> {
        self.chains.content(place)
    }

    fn find(&self, place: Place, limit: u64) -> Hit {
        let (mut whole, mut unreferenced) = (0, 0);
        for (node, end) in self.cached_blocks(self.chains.path(place).iter().copied(), self.whole(limit)) {
            let runs = self.runs_before(node, end).filter(|run| run.holders == 0);
            unreferenced += runs.map(|run| u64::from(end.min(run.end) - run.first)).sum::<u64>();
            whole = end;
        }
        Hit { tokens: self.tokens(whole), unreferenced }
    }

    /// Blocks are ordered by release, not by lookup.
    fn refresh(&mut self, place: Place, limit: u64) -> u64 {
        self.find(place, limit).tokens
    }

    fn content_at(&self, place: Place, token: u64) -> u32 {
        self.chains.content_at(place, token)
    }

    fn hold(&mut self, place: Place, hit: Hit) {
        debug_assert_eq!(self.used_blocks[place.index()].blocks, 0, "only a request without blocks looks up a prefix");
        let whole = self.whole(hit.tokens);
        let (mut step, mut block) = (0, 0);
        while block < whole {
            let Step { node, end } = self.chains.path(place)[step];
            step += 1;
            let until = whole.min(self.blocks_until(end));
            if block < until {
                self.hold_until(place, node, until);
                block = until;
            }
        }
        self.used_blocks[place.index()].blocks = whole;
    }

    #[inline]
    fn scheduled(&mut self, place: Place, tokens: u64) {
        let holding = &mut self.used_blocks[place.index()];
        if !std::mem::replace(&mut holding.is_running, true) && holding.followed > 0 {
            self.list_followed(place);
        }
        self.publish(place, tokens);
    }

    /// Scheduled tokens are cached already; tokens of decodes are not cached.
    fn computed(&mut self, place: Place, tokens: u64) {
        self.publish(place, tokens);
    }

    fn ended(&mut self, place: Place, tokens: u64, _is_over: bool) {
        self.publish(place, tokens);
    }

    #[inline]
    fn shared(&self, place: Place) -> u64 {
        u64::from(self.used_blocks[place.index()].blocks)
    }

    fn leave(&mut self, place: Place) {
        self.stop(place);
        let holding = &mut self.used_blocks[place.index()];
        holding.blocks = 0;
        let mut runs = std::mem::take(&mut holding.runs);
        runs.drain(..).rev().for_each(|used_blocks| self.drop_holder(used_blocks));
        // Places that thousands of runs passed through keep no capacity for them.
        if runs.capacity() <= MAX_SPARE_RUNS {
            self.used_blocks[place.index()].runs = runs;
        }
    }

    fn detach(&mut self, place: Place) -> Part {
        self.stop(place);
        let holding = &mut self.used_blocks[place.index()];
        holding.blocks = 0;
        Part(std::mem::take(&mut holding.runs))
    }

    fn release_detached(&mut self, part: Part) {
        part.0.into_iter().rev().for_each(|used_blocks| self.drop_holder(used_blocks));
    }

    #[inline]
    fn cached(&self) -> u64 {
        self.cached
    }

    fn inserted(&self) -> u64 {
        self.inserted
    }

    #[inline]
    fn unreferenced(&self) -> u64 {
        self.runs.unreferenced
    }

    fn evict_until(&mut self, unreferenced: u64) {
        while self.runs.unreferenced > unreferenced {
            let oldest = self.runs.oldest;
            let limit = self.runs.unreferenced - unreferenced;
            self.evict(oldest, self.runs.at(oldest).blocks().min(limit) as u32);
        }
    }

    fn evicts_runs(&self) -> bool {
        false
    }

    #[inline]
    fn followed(&self) -> &[Place] {
        &self.followed
    }

    fn has_followed(&self) -> bool {
        self.followed_here > 0
    }

    fn share_next_block(&self, first: Place, second: Place, tokens: u64) -> bool {
        self.chains.share_next_block(first, second, tokens, self.tokens(1))
    }

    /// Equal blocks are not merged.
    fn is_computed_twice(&self, _slot: Place) -> bool {
        false
    }

    fn has_content(&self, content: u64) -> bool {
        self.chains.tree.has_content(content)
    }

    fn cached_prefix(&self, content: &[Segment], limit: u64) -> (u64, Option<Place>) {
        let steps = || self.chains.tree.steps(content);
        let cached = self.cached_blocks(steps(), self.whole(limit)).map(|(_, end)| end).last();
        let blocks = cached.unwrap_or(0);
        (self.tokens(blocks), self.owner_of(content, self.last_of(blocks)))
    }

    fn report(&mut self) {
        self.reported.get_or_insert_default().update(&mut self.chains.tree);
    }

    fn reported(&self, content: &[Segment], limit: u64) -> u64 {
        let blocks =
            |reported: &Reported| reported.blocks(&self.chains.tree, content, (self.block, self.beyond), limit);
        self.reported.as_ref().map_or(0, blocks) * self.tokens(1)
    }
}
