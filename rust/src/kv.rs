//! Blocks of a KV cache: used blocks, empty free blocks, and free blocks that still cache content.
//!
//! L4: free + used = total after every event, and no block is used after the last request leaves. Block identities do
//! not matter: blocks are counted, and reusable blocks are cached by a `PrefixCache`. Empty free blocks are used
//! first; then the cache evicts content. Several groups of layers take blocks from a `GroupPool` instead.

mod residues;
mod content_tree;
mod prefix_cache;
mod reported;
mod block_cache;
mod radix_cache;
mod layers;
mod group_pool;

use std::ops::RangeInclusive;

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::features::{Features, Full};
use crate::request::Place;
use crate::results::BlockOperations;
use crate::workload::Arrival;
use block_cache::BlockCache;
use content_tree::NewRequest;
pub(crate) use content_tree::OWN;
pub use content_tree::Segment;
use group_pool::GroupPool;
pub(crate) use group_pool::{NextRow, RowLimits};
pub use layers::{CachedLayers, KvGroups};
pub(crate) use prefix_cache::Hit;
use prefix_cache::PrefixCache;
use radix_cache::RadixCache;
use residues::Divisor;
pub(crate) use residues::Residues;

/// A KV cache as described by the user.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvCache {
    /// Capacity in tokens; `None`: unlimited.
    pub tokens: Option<u64>,
    /// Tokens per block.
    pub block: u32,
    /// The kind of prefix cache, if any.
    #[serde(default)]
    pub prefix_cache: Option<PrefixKind>,
    /// The layers of a model whose layers keep different amounts. `None`: every layer keeps every token.
    #[serde(default)]
    pub groups: Option<KvGroups>,
}

/// Kinds of prefix caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrefixKind {
    /// Whole blocks, as in vLLM.
    Blocks,
    /// Pages in a radix tree, as in SGLang.
    Radix,
}

impl KvCache {
    /// Checks the fields.
    pub fn check(&self) -> Result<()> {
        if !(1..=LARGEST_BLOCK).contains(&self.block) {
            return Err(Error::config(
                "block",
                format!("must be from 1 to {LARGEST_BLOCK} tokens, got {}", self.block),
            ));
        }
        if self.tokens.is_some_and(|tokens| tokens < u64::from(self.block)) {
            return Err(Error::config("tokens", "the cache must hold at least one block"));
        }
        if let Some(groups) = &self.groups {
            if self.prefix_cache == Some(PrefixKind::Radix) {
                let what = "must be \"blocks\" or None for a cache with groups, got \"radix\"";
                return Err(Error::config("prefix_cache", what));
            }
            groups.check(self.block, self.prefix_cache.is_some()).map_err(|error| error.within("groups"))?;
        }
        Ok(())
    }

    /// Whether its layers form several groups. One group is a cache without groups.
    pub(crate) fn has_layer_groups(&self) -> bool {
        self.groups.as_ref().is_some_and(|groups| groups.groups(self.block, self.prefix_cache.is_some()).len() > 1)
    }
}

/// The blocks of one replica.
#[derive(Debug)]
pub struct KvBlocks {
    block: Divisor,
    capacity: u64,
    /// Capacity in tokens, in whole blocks: the longest request that fits.
    tokens: u64,
    used: u64,
    /// Blocks hit.
    hit_blocks: u64,
    cache: Option<Box<dyn PrefixCache>>,
    /// The blocks of several groups of layers; then there is no `cache`.
    pool: Option<Box<GroupPool>>,
}

/// Capacity of an unlimited cache: more blocks than any run uses.
pub(crate) const UNLIMITED: u64 = 1 << 62;

/// Contexts are counted by their residue modulo the block size.
const LARGEST_BLOCK: u32 = 1 << 20;

impl KvBlocks {
    /// Builds an empty cache. Requests share a block only if `beyond` tokens after it match too.
    pub(crate) fn of(kv: &KvCache, beyond: u32, limits: RowLimits) -> KvBlocks {
        let block = u64::from(kv.block);
        let capacity = kv.tokens.map_or(UNLIMITED, |tokens| (tokens / block).min(UNLIMITED));
        let pool = kv
            .groups
            .as_ref()
            .filter(|_| kv.has_layer_groups())
            .map(|groups| Box::new(GroupPool::new(groups, kv.block, capacity, kv.prefix_cache.is_some(), limits)));
        let without_groups = capacity.saturating_mul(block);
        KvBlocks {
            block: Divisor::new(block),
            capacity,
            tokens: pool.as_ref().map_or(without_groups, |pool| pool.longest_request()),
            used: 0,
            hit_blocks: 0,
            cache: kv.prefix_cache.filter(|_| pool.is_none()).map(|kind| -> Box<dyn PrefixCache> {
                match kind {
                    PrefixKind::Blocks => Box::new(BlockCache::new(block, beyond)),
                    PrefixKind::Radix => Box::new(RadixCache::new(block)),
                }
            }),
            pool,
        }
    }

    /// Returns the blocks that store `tokens` tokens.
    #[inline]
    pub(crate) fn need(&self, tokens: u64) -> u64 {
        self.block.quotient(tokens + self.block.minus_one)
    }

    /// Tokens per block.
    #[inline]
    pub(crate) fn block_tokens(&self) -> u64 {
        self.block.value
    }

    /// Total blocks.
    #[inline]
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Capacity in tokens, in whole blocks.
    #[inline]
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Blocks used by requests. A shared block counts once.
    #[inline]
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Blocks not used by any request, with or without cached content.
    #[inline]
    pub(crate) fn free(&self) -> u64 {
        self.capacity - self.used
    }

    /// Takes free blocks.
    #[inline]
    pub(crate) fn take(&mut self, blocks: u64) {
        self.take_for::<Full>(blocks);
    }

    /// Takes free blocks, compiled for a set of features.
    #[inline]
    pub(crate) fn take_for<F: Features>(&mut self, blocks: u64) {
        debug_assert!(blocks <= self.free(), "L4: used blocks never exceed the capacity");
        self.used += blocks;
        if F::FULL && self.cache.is_some() {
            self.reserve(0);
        }
    }

    /// Frees blocks whose content no other request can use.
    #[inline]
    pub(crate) fn give_back(&mut self, blocks: u64) {
        debug_assert!(blocks <= self.used, "L4: freed blocks never exceed the used ones");
        self.used -= blocks;
    }
}

/// Operations of a prefix cache. Without one, every request has all of its blocks to itself.
///
/// They are not inlined, since replicas without a prefix cache would pay for their setup.
impl KvBlocks {
    /// Whether the replica has a prefix cache.
    #[inline]
    pub(crate) fn has_cache(&self) -> bool {
        self.cache.is_some()
    }

    /// Reserves free blocks: their cached content is evicted in the order in which it was released.
    pub(crate) fn reserve(&mut self, blocks: u64) {
        let limit = self.free().saturating_sub(blocks);
        if let Some(cache) = &mut self.cache
            && cache.unreferenced() > limit
        {
            cache.evict_until(limit);
        }
    }

    /// Adds a request whose prompt begins with this content and continues with its own.
    #[inline]
    pub(crate) fn open(&mut self, place: Place, content: &[Segment], arrival: &Arrival) {
        if let Some(cache) = &mut self.cache {
            let prompt = arrival.prompt_tokens;
            let tokens = prompt + arrival.output_tokens;
            cache.open(place, NewRequest { content, own: OWN | u64::from(arrival.id), prompt, tokens });
        } else if let Some(pool) = &mut self.pool {
            let (prompt, own) = (arrival.prompt_tokens, OWN | u64::from(arrival.id));
            pool.open(place, NewRequest { content, own, prompt, tokens: prompt + arrival.output_tokens });
        }
    }

    /// Removes a request that uses no blocks.
    #[inline]
    pub(crate) fn close(&mut self, place: Place) {
        if let Some(cache) = &mut self.cache {
            cache.close(place);
        } else if let Some(pool) = &mut self.pool {
            pool.close(place);
        }
    }

    /// Returns the shared content at the start of a request's prompt.
    pub(crate) fn content(&self, place: Place) -> Vec<Segment> {
        self.cache.as_ref().map_or_else(Vec::new, |cache| cache.content(place))
    }

    /// Returns the longest cached prefix of the first `limit` tokens of a request.
    pub(crate) fn find(&self, place: Place, limit: u64) -> Hit {
        self.cache.as_ref().map_or(Hit::NONE, |cache| cache.find(place, limit))
    }

    /// Looks up a prefix, counts it as used, and splits the run in which it ends. Returns its number of tokens.
    pub(crate) fn refresh(&mut self, place: Place, limit: u64) -> u64 {
        self.cache.as_mut().map_or(0, |cache| cache.refresh(place, limit))
    }

    /// Returns the content that includes a token of a request.
    pub(crate) fn content_at(&self, place: Place, token: u64) -> Option<u32> {
        self.cache.as_ref().map(|cache| cache.content_at(place, token))
    }

    /// Takes the blocks of a hit for a request. Returns their number.
    pub(crate) fn take_hit(&mut self, place: Place, hit: Hit) -> u64 {
        debug_assert!(hit.unreferenced <= self.free(), "L4: used blocks never exceed the capacity");
        if let Some(cache) = &mut self.cache {
            cache.hold(place, hit);
            self.used += hit.unreferenced;
            self.hit_blocks += self.block.quotient(hit.tokens);
        }
        self.need(hit.tokens)
    }

    /// Returns the operations of the cache so far, if there is a cache.
    pub(crate) fn operations(&self, replica: u32) -> Option<BlockOperations> {
        if let Some(pool) = &self.pool {
            return pool.operations(replica);
        }
        let inserted = self.cache.as_ref()?.inserted();
        Some(BlockOperations { replica, hit: self.hit_blocks, inserted, evicted: self.evicted() })
    }

    /// Blocks evicted so far.
    pub(crate) fn evicted(&self) -> u64 {
        self.cache.as_ref().map_or(0, |cache| cache.inserted() - cache.cached())
    }

    /// Records a new batch after which the first `tokens` tokens of a request are in its blocks.
    #[inline]
    pub(crate) fn scheduled(&mut self, place: Place, tokens: u64) {
        if let Some(cache) = &mut self.cache {
            cache.scheduled(place, tokens);
            debug_assert!(cache.unreferenced() <= self.capacity - self.used, "L4: only free blocks are unreferenced");
        }
    }

    /// Records that the first `tokens` tokens of a request have been computed and that it continues.
    pub(crate) fn computed(&mut self, place: Place, tokens: u64) {
        if self.cache.is_some() {
            self.change(place, |cache| cache.computed(place, tokens));
        }
    }

    /// Records the same for each of several iterations with `step` more tokens each.
    pub(crate) fn computed_in_steps(&mut self, place: Place, context: u64, step: u64, iterations: RangeInclusive<u64>) {
        iterations.for_each(|iteration| self.computed(place, context + step * iteration));
    }

    /// Runs an operation of the cache on a request. Blocks that enter the cache were the request's own, and blocks
    /// that no request uses any more become free.
    fn change(&mut self, place: Place, act: impl FnOnce(&mut dyn PrefixCache)) {
        let Some(cache) = &mut self.cache else { return };
        let alone = cache.shared(place);
        let used_before = cache.cached() - cache.unreferenced();
        act(cache.as_mut());
        self.used = self.used + (cache.cached() - cache.unreferenced()) - used_before;
        self.used -= cache.shared(place) - alone;
    }

    /// Frees all `blocks` of a request, which contain its first `context` tokens. `is_over`: the request has ended.
    #[inline]
    pub(crate) fn release(&mut self, place: Place, blocks: u64, context: u64, is_over: bool) {
        let shared = self.end(place, context, is_over);
        let mut free = blocks - shared;
        if let Some(cache) = &mut self.cache {
            let unreferenced = cache.unreferenced();
            cache.leave(place);
            free += cache.unreferenced() - unreferenced;
        }
        self.give_back(free);
    }

    /// Detaches the blocks of a leaving request, which stay used until they are released.
    pub(crate) fn detach(&mut self, place: Place, blocks: u64, context: u64) -> DetachedBlocks {
        let shared = self.end(place, context, true);
        let part = self.cache.as_mut().map(|cache| cache.detach(place));
        DetachedBlocks { blocks: blocks - shared, parts: part.into_iter().collect() }
    }

    /// Caches the content of a leaving request. Returns the number of its blocks in the cache.
    fn end(&mut self, place: Place, context: u64, is_over: bool) -> u64 {
        self.change(place, |cache| cache.ended(place, context, is_over));
        self.cache.as_ref().map_or(0, |cache| cache.shared(place))
    }

    /// Releases detached blocks.
    pub(crate) fn release_detached(&mut self, detached: DetachedBlocks) {
        let mut unreferenced = detached.blocks;
        if let Some(cache) = &mut self.cache {
            let before = cache.unreferenced();
            detached.parts.into_iter().for_each(|part| cache.release_detached(part));
            unreferenced += cache.unreferenced() - before;
        }
        self.give_back(unreferenced);
    }

    /// Running requests whose output another request continues, if their content is cached while they run.
    #[inline]
    pub(crate) fn followed(&self) -> &[Place] {
        self.cache.as_ref().map_or(&[], |cache| cache.followed())
    }

    /// Whether there is such a request, running or waiting.
    pub(crate) fn has_followed(&self) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.has_followed())
    }

    /// Whether two requests have the same next block after their first `tokens` tokens, and the same content before
    /// it.
    pub(crate) fn share_next_block(&self, first: Place, second: Place, tokens: u64) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.share_next_block(first, second, tokens))
    }

    /// Unreferenced blocks of the cache.
    pub(crate) fn unreferenced(&self) -> u64 {
        self.cache.as_ref().map_or(0, |cache| cache.unreferenced())
    }

    /// Whether the cache may evict several blocks when it needs one.
    pub(crate) fn evicts_runs(&self) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.evicts_runs())
    }

    /// Whether cached, reported or current content begins with this content.
    pub(crate) fn has_content(&self, content: u64) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.has_content(content))
    }

    /// Returns the cached tokens of a prompt that begins with this content, and the request that computes the tokens
    /// after them (see [`PrefixCache::cached`]).
    pub(crate) fn cached_prefix(&self, content: &[Segment], limit: u64) -> (u64, Option<Place>) {
        self.cache.as_ref().map_or((0, None), |cache| cache.cached_prefix(content, limit))
    }

    /// Makes the current content of the cache visible to routers.
    pub(crate) fn report(&mut self) {
        if let Some(cache) = &mut self.cache {
            cache.report();
        }
    }

    /// Returns the tokens of a prompt that begins with this content that were cached at the last report.
    pub(crate) fn reported(&self, content: &[Segment], limit: u64) -> u64 {
        self.cache.as_ref().map_or(0, |cache| cache.reported(content, limit))
    }

    /// Whether a request computes content that is cached already, so that blocks are freed while it runs.
    pub(crate) fn is_computed_twice(&self, place: Place) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.is_computed_twice(place))
    }
}

/// Operations of several groups of layers, whose blocks the pool counts row by row.
impl KvBlocks {
    /// Whether there are several groups.
    #[inline]
    pub(crate) fn has_layer_groups(&self) -> bool {
        self.pool.is_some()
    }

    /// The pool of a cache with groups.
    pub(crate) fn layer_groups(&self) -> Option<&GroupPool> {
        self.pool.as_deref()
    }

    /// Changes the pool of a cache with groups, and counts its blocks.
    pub(crate) fn change_layer_groups<T: Default>(&mut self, change: impl FnOnce(&mut GroupPool) -> T) -> T {
        let Some(pool) = &mut self.pool else { return T::default() };
        let result = change(pool);
        self.used = pool.used();
        result
    }
}

/// Blocks of requests that have left.
#[derive(Debug, Default)]
pub(crate) struct DetachedBlocks {
    /// Blocks that no other request can use.
    blocks: u64,
    /// Blocks in the cache.
    parts: Vec<prefix_cache::Part>,
}

impl DetachedBlocks {
    pub(crate) fn add(&mut self, other: DetachedBlocks) {
        self.blocks += other.blocks;
        self.parts.extend(other.parts);
    }
}
