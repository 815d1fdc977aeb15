//! The blocks of a KV cache: taken ones, free ones, and free ones that still hold something.
//!
//! Law L4: free + used = total after every event, and nothing is held after the last request. *Which* block is whose
//! never matters: blocks are counted, and those whose content may serve another request are cached by a `PrefixCache`.
//! Free blocks that hold nothing are taken first; then the cache evicts what it holds in the others.

mod residues;
mod content_tree;
mod prefix_cache;
mod reported;
mod block_cache;
mod radix_cache;

use std::ops::RangeInclusive;

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::features::{Features, Full};
use crate::request::Place;
use crate::results::BlockOperations;
use crate::workload::Arrival;
use block_cache::BlockCache;
use content_tree::Newcomer;
pub(crate) use content_tree::OWN;
pub use content_tree::Segment;
pub(crate) use prefix_cache::Hit;
use prefix_cache::PrefixCache;
use radix_cache::RadixCache;
use residues::Divisor;
pub(crate) use residues::Residues;

/// A KV cache as a user describes it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvCache {
    /// Capacity in tokens; `None`: without limit.
    pub tokens: Option<u64>,
    /// Tokens in a block.
    pub block: u32,
    /// The kind of prefix cache, if any.
    #[serde(default)]
    pub prefix_cache: Option<PrefixKind>,
}

/// How requests find what others have computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrefixKind {
    /// By whole blocks, as vLLM does.
    Blocks,
    /// By pages in a tree of runs, as SGLang does.
    Radix,
}

impl KvCache {
    /// Tests the fields.
    pub fn check(&self) -> Result<()> {
        if !(1..=LARGEST_BLOCK).contains(&self.block) {
            return Err(Error::config("block", format!("{}: a block has 1 to {LARGEST_BLOCK} tokens", self.block)));
        }
        if self.tokens.is_some_and(|tokens| tokens < u64::from(self.block)) {
            return Err(Error::config("tokens", "the cache must hold at least one block"));
        }
        Ok(())
    }
}

/// The blocks of one replica.
#[derive(Debug)]
pub struct KvBlocks {
    block: Divisor,
    capacity: u64,
    /// Tokens that all blocks hold.
    tokens: u64,
    used: u64,
    /// Blocks that were found.
    hit_blocks: u64,
    cache: Option<Box<dyn PrefixCache>>,
}

/// More blocks than any run can take: the capacity of a cache without limit.
pub(crate) const UNLIMITED: u64 = 1 << 62;

/// Contexts are counted by their residue modulo the block.
const LARGEST_BLOCK: u32 = 1 << 20;

impl KvBlocks {
    /// An empty cache, where requests that share a block agree on so many tokens behind it too.
    pub(crate) fn of(kv: &KvCache, beyond: u32) -> KvBlocks {
        let block = u64::from(kv.block);
        let capacity = kv.tokens.map_or(UNLIMITED, |tokens| (tokens / block).min(UNLIMITED));
        KvBlocks {
            block: Divisor::new(block),
            capacity,
            tokens: capacity.saturating_mul(block),
            used: 0,
            hit_blocks: 0,
            cache: kv.prefix_cache.map(|kind| -> Box<dyn PrefixCache> {
                match kind {
                    PrefixKind::Blocks => Box::new(BlockCache::new(block, beyond)),
                    PrefixKind::Radix => Box::new(RadixCache::new(block)),
                }
            }),
        }
    }

    /// Blocks that hold so many tokens.
    #[inline]
    pub(crate) fn need(&self, tokens: u64) -> u64 {
        self.block.quotient(tokens + self.block.less_one)
    }

    /// Tokens in a block.
    #[inline]
    pub(crate) fn block_tokens(&self) -> u64 {
        self.block.value
    }

    /// All blocks.
    #[inline]
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Tokens that all blocks hold.
    #[inline]
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Blocks that a request holds. One that several hold counts once.
    #[inline]
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Blocks that no request holds, whether they still have content or not.
    #[inline]
    pub(crate) fn free(&self) -> u64 {
        self.capacity - self.used
    }

    /// Takes blocks that are known to be free.
    #[inline]
    pub(crate) fn take(&mut self, blocks: u64) {
        self.take_for::<Full>(blocks);
    }

    /// The same.
    #[inline]
    pub(crate) fn take_for<F: Features>(&mut self, blocks: u64) {
        debug_assert!(blocks <= self.free(), "L4: no more blocks than the cache has");
        self.used += blocks;
        if F::FULL && self.cache.is_some() {
            self.reserve(0);
        }
    }

    /// Gives back blocks whose content no other request can use.
    #[inline]
    pub(crate) fn give(&mut self, blocks: u64) {
        debug_assert!(blocks <= self.used, "L4: no more blocks freed than taken");
        self.used -= blocks;
    }
}

/// What a prefix cache adds. Without one, every request has all of its blocks to itself.
///
/// What only a cache needs is not inlined: replicas without one would pay for its set-up.
impl KvBlocks {
    /// Can a request find what another has computed?
    #[inline]
    pub(crate) fn has_cache(&self) -> bool {
        self.cache.is_some()
    }

    /// So many of the free blocks are as good as taken: what they hold is evicted, in the order in which it was left.
    #[inline(never)]
    pub(crate) fn reserve(&mut self, blocks: u64) {
        let most = self.free().saturating_sub(blocks);
        if let Some(cache) = &mut self.cache
            && cache.unreferenced() > most
        {
            cache.evict_until(most);
        }
    }

    /// A request comes: its prompt begins with this content, and goes on with its own.
    #[inline]
    pub(crate) fn open(&mut self, place: Place, content: &[Segment], arrival: &Arrival) {
        if let Some(cache) = &mut self.cache {
            let prompt = arrival.prompt_tokens;
            let tokens = prompt + arrival.output_tokens;
            cache.open(place, Newcomer { content, own: OWN | u64::from(arrival.id), prompt, tokens });
        }
    }

    /// A request that holds nothing leaves.
    #[inline]
    pub(crate) fn close(&mut self, place: Place) {
        if let Some(cache) = &mut self.cache {
            cache.close(place);
        }
    }

    /// With what the prompt of a request begins before its own content.
    pub(crate) fn content(&self, place: Place) -> Vec<Segment> {
        self.cache.as_ref().map_or_else(Vec::new, |cache| cache.content(place))
    }

    /// The longest part of the first `most` tokens of a request that is in the cache.
    pub(crate) fn find(&self, place: Place, most: u64) -> Hit {
        self.cache.as_ref().map_or(Hit::NONE, |cache| cache.find(place, most))
    }

    /// The same, which counts as a use of what is found, and cuts the run in which it ends; says how many tokens it is.
    pub(crate) fn refresh(&mut self, place: Place, most: u64) -> u64 {
        self.cache.as_mut().map_or(0, |cache| cache.refresh(place, most))
    }

    /// The content in which a token of a request lies.
    pub(crate) fn content_at(&self, place: Place, token: u64) -> Option<u32> {
        self.cache.as_ref().map(|cache| cache.content_at(place, token))
    }

    /// A request takes what was found for it; says how many blocks that are.
    pub(crate) fn take_hit(&mut self, place: Place, hit: Hit) -> u64 {
        debug_assert!(hit.unreferenced <= self.free(), "L4: no more blocks than the cache has");
        if let Some(cache) = &mut self.cache {
            cache.hold(place, hit);
            self.used += hit.unreferenced;
            self.hit_blocks += self.block.quotient(hit.tokens);
        }
        self.need(hit.tokens)
    }

    /// What the cache, if there is one, has done so far.
    pub(crate) fn operations(&self, replica: u32) -> Option<BlockOperations> {
        let inserted = self.cache.as_ref()?.inserted();
        Some(BlockOperations { replica, hit: self.hit_blocks, inserted, evicted: self.evicted() })
    }

    /// Blocks that the cache has evicted so far.
    pub(crate) fn evicted(&self) -> u64 {
        self.cache.as_ref().map_or(0, |cache| cache.inserted() - cache.cached())
    }

    /// A batch is formed after which the first `tokens` tokens of a request lie in its blocks.
    #[inline]
    pub(crate) fn scheduled(&mut self, place: Place, tokens: u64) {
        if let Some(cache) = &mut self.cache {
            cache.scheduled(place, tokens);
            debug_assert!(cache.unreferenced() <= self.capacity - self.used, "L4: only free blocks are unreferenced");
        }
    }

    /// The first `tokens` tokens of a request have been computed, and it goes on.
    #[inline(never)]
    pub(crate) fn computed(&mut self, place: Place, tokens: u64) {
        if self.cache.is_some() {
            self.change(place, |cache| cache.computed(place, tokens));
        }
    }

    /// The same step by step: so many tokens more in each of these iterations.
    #[inline(never)]
    pub(crate) fn computed_in_steps(&mut self, place: Place, context: u64, step: u64, iterations: RangeInclusive<u64>) {
        iterations.for_each(|iteration| self.computed(place, context + step * iteration));
    }

    /// Lets the cache do something with a request. Blocks that it enters were the request's alone, and those that no
    /// request holds any more are free.
    #[inline(never)]
    fn change(&mut self, place: Place, act: impl FnOnce(&mut dyn PrefixCache)) {
        let Some(cache) = &mut self.cache else { return };
        let alone = cache.shared(place);
        let held = cache.cached() - cache.unreferenced();
        act(cache.as_mut());
        self.used = self.used + (cache.cached() - cache.unreferenced()) - held;
        self.used -= cache.shared(place) - alone;
    }

    /// A request gives up all of its `blocks`, in which its first `context` tokens lie. Is it over?
    #[inline]
    pub(crate) fn release(&mut self, place: Place, blocks: u64, context: u64, is_over: bool) {
        let shared = self.end(place, context, is_over);
        let mut free = blocks - shared;
        if let Some(cache) = &mut self.cache {
            let unreferenced = cache.unreferenced();
            cache.leave(place);
            free += cache.unreferenced() - unreferenced;
        }
        self.give(free);
    }

    /// A request goes and its blocks stay taken until they are let go.
    pub(crate) fn keep(&mut self, place: Place, blocks: u64, context: u64) -> Kept {
        let shared = self.end(place, context, true);
        let part = self.cache.as_mut().map(|cache| cache.keep(place));
        Kept { blocks: blocks - shared, parts: part.into_iter().collect() }
    }

    /// Makes known what a request leaves; says how many of its blocks the cache then knows.
    fn end(&mut self, place: Place, context: u64, is_over: bool) -> u64 {
        self.change(place, |cache| cache.ended(place, context, is_over));
        self.cache.as_ref().map_or(0, |cache| cache.shared(place))
    }

    /// Lets blocks go that were kept.
    pub(crate) fn let_go(&mut self, kept: Kept) {
        let mut unreferenced = kept.blocks;
        if let Some(cache) = &mut self.cache {
            let before = cache.unreferenced();
            kept.parts.into_iter().for_each(|part| cache.let_go(part));
            unreferenced += cache.unreferenced() - before;
        }
        self.give(unreferenced);
    }

    /// Running requests whose output another request here continues, where what they compute is known as they go.
    #[inline]
    pub(crate) fn followed(&self) -> &[Place] {
        self.cache.as_ref().map_or(&[], |cache| cache.followed())
    }

    /// Is there such a request here, running or waiting?
    pub(crate) fn has_followed(&self) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.has_followed())
    }

    /// Have two requests the same block behind their first `tokens` tokens, and all before it?
    pub(crate) fn go_on_alike(&self, one: Place, other: Place, tokens: u64) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.go_on_alike(one, other, tokens))
    }

    /// Unreferenced blocks of the cache.
    pub(crate) fn unreferenced(&self) -> u64 {
        self.cache.as_ref().map_or(0, |cache| cache.unreferenced())
    }

    /// Does the cache evict several blocks for the sake of one?
    pub(crate) fn evicts_runs(&self) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.evicts_runs())
    }

    /// Is there anything that begins with this content, cached, reported or of a request here?
    pub(crate) fn knows(&self, content: u64) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.knows(content))
    }

    /// How much of a prompt that begins with this content is cached, and the request here that computes what comes
    /// next (see [`PrefixCache::cached`]).
    pub(crate) fn cached_prefix(&self, content: &[Segment], most: u64) -> (u64, Option<Place>) {
        self.cache.as_ref().map_or((0, None), |cache| cache.cached_prefix(content, most))
    }

    /// The cache reports what it knows now.
    pub(crate) fn report(&mut self) {
        if let Some(cache) = &mut self.cache {
            cache.report();
        }
    }

    /// How much of a prompt that begins with this content was known at the last report.
    pub(crate) fn reported(&self, content: &[Segment], most: u64) -> u64 {
        self.cache.as_ref().map_or(0, |cache| cache.reported(content, most))
    }

    /// Does a request compute what the cache knows already, so that blocks come free as it goes on?
    pub(crate) fn is_computed_twice(&self, place: Place) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.is_computed_twice(place))
    }
}

/// Blocks of requests that are gone.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Those that no other request can use.
    blocks: u64,
    /// The others, as the cache knows them.
    parts: Vec<prefix_cache::Part>,
}

impl Kept {
    pub(crate) fn add(&mut self, other: Kept) {
        self.blocks += other.blocks;
        self.parts.extend(other.parts);
    }
}
