//! The interface of prefix caches.

use std::fmt::Debug;

use super::Segment;
use super::content_tree::NewRequest;
use crate::request::Place;

/// Cached prefix of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    /// Number of cached tokens.
    pub(crate) tokens: u64,
    /// Unreferenced blocks among its blocks.
    pub(crate) unreferenced: u64,
}

impl Hit {
    pub(crate) const NONE: Hit = Hit { tokens: 0, unreferenced: 0 };
}

/// A used run of blocks, from block `first` on.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldRun {
    pub(super) run: u32,
    pub(super) first: u32,
}

/// Blocks of a request that has left, in terms of its cache.
#[derive(Debug)]
pub(crate) struct Part(pub(super) Vec<HeldRun>);

/// The content of blocks; a pool counts the blocks.
///
/// A cached block is *used* by at least one request, or *unreferenced*: free but with content. The pool determines
/// when unreferenced blocks are evicted. Blocks that are not cached belong to one request.
pub(crate) trait PrefixCache: Debug + Send {
    /// Adds a request.
    fn open(&mut self, place: Place, request: NewRequest);

    /// Removes a request without blocks.
    fn close(&mut self, place: Place);

    /// Returns the content passed to `open`, without the request's own content.
    fn content(&self, place: Place) -> Vec<Segment>;

    /// Returns the longest cached prefix within the first `limit` tokens of a request.
    fn find(&self, place: Place, limit: u64) -> Hit;

    /// Like `find`, but counts as a use of the prefix. Returns the number of tokens.
    fn refresh(&mut self, place: Place, limit: u64) -> u64;

    /// Returns the content of a token: equal for all requests that agree on it and on all tokens before it.
    fn content_at(&self, place: Place, token: u64) -> u32;

    /// Makes a request use a hit that has just been found.
    fn hold(&mut self, place: Place, hit: Hit);

    /// Records a new batch after which the first `tokens` tokens of a request are in its blocks.
    fn scheduled(&mut self, place: Place, tokens: u64);

    /// Records that the first `tokens` tokens of a request have been computed and that it continues.
    fn computed(&mut self, place: Place, tokens: u64);

    /// Records the computed tokens of a request that gives up its blocks, because it is over or preempted.
    fn ended(&mut self, place: Place, tokens: u64, is_over: bool);

    /// Returns the number of cached blocks that a request uses.
    fn shared(&self, place: Place) -> u64;

    /// Releases the blocks of a request, last first.
    fn leave(&mut self, place: Place);

    /// Removes a request; its blocks stay used.
    fn detach(&mut self, place: Place) -> Part;

    /// Releases detached blocks.
    fn release_detached(&mut self, part: Part);

    /// Cached blocks.
    fn cached(&self) -> u64;

    /// Blocks inserted so far, including evicted ones.
    fn inserted(&self) -> u64;

    /// Cached blocks that no request uses.
    fn unreferenced(&self) -> u64;

    /// Evicts blocks in the order of their release until at most `unreferenced` are left.
    fn evict_until(&mut self, unreferenced: u64);

    /// Whether an eviction may remove more blocks than required.
    fn evicts_runs(&self) -> bool;

    /// Running requests whose output another request's prompt continues, if their content is cached while they run.
    fn followed(&self) -> &[Place];

    /// Whether there is such a request, running or waiting.
    fn has_followed(&self) -> bool;

    /// Whether two requests have the same next block after their first `tokens` tokens, and the same content before
    /// it.
    fn share_next_block(&self, first: Place, second: Place, tokens: u64) -> bool;

    /// Whether a request computes content that is cached already, so that blocks are freed while it runs.
    fn is_computed_twice(&self, place: Place) -> bool;

    /// Whether cached, reported or current content begins with this content.
    fn has_content(&self, content: u64) -> bool;

    /// Returns the cached tokens within the first `limit` tokens of a prompt, and the request that computes the
    /// tokens after them if its decodes are cached while it runs.
    fn cached_prefix(&self, content: &[Segment], limit: u64) -> (u64, Option<Place>);

    /// Stores the current state of the cache for `reported`.
    fn report(&mut self);

    /// Returns the tokens within the first `limit` tokens of a prompt that were cached at the last report.
    fn reported(&self, content: &[Segment], limit: u64) -> u64;
}

#[cfg(test)]
mod tests {
    use super::super::OWN;
    use super::super::block_cache::BlockCache;
    use super::super::radix_cache::RadixCache;
    use super::*;
    use proptest::prelude::*;

    /// A request: its text, tokens of the text, rest of its prompt, output; and the number of unreferenced blocks to
    /// leave.
    type Visit = (u64, u32, u32, u32, u64);

    fn visits() -> impl Strategy<Value = Vec<Visit>> {
        prop::collection::vec((0_u64..3, 1_u32..40, 0_u32..20, 1_u32..20, 0_u64..30), 1..40)
    }

    /// Runs requests one after another, with the last three present at the same time.
    fn run(cache: &mut dyn PrefixCache, block: u64, visits: &[Visit]) {
        let used_blocks = |cache: &dyn PrefixCache| (0..3).map(|place| cache.shared(Place(place))).collect::<Vec<_>>();
        let texts = |cache: &dyn PrefixCache| {
            let cached = |text| cache.cached_prefix(&[Segment { content: text, tokens: 60 }], 60).0;
            (0..3).map(cached).collect::<Vec<u64>>()
        };
        let mut report = Vec::new();
        let mut contexts: [Option<u64>; 3] = [None; 3];
        for place in 0..3 {
            let own = u64::MAX - u64::from(place);
            cache.open(Place(place), NewRequest { content: &[], own, prompt: 1, tokens: 2 });
            cache.close(Place(place));
        }
        for (id, &(text, shared, rest, output, left)) in visits.iter().enumerate() {
            let index = id % 3;
            let place = Place(index as u32);
            if let Some(context) = contexts[index].take() {
                cache.ended(place, context, id % 2 == 0);
                cache.leave(place);
                cache.close(place);
            }
            let prompt = shared + rest;
            let content = [Segment { content: text, tokens: shared }];
            let before = cache.cached_prefix(&content, u64::from(prompt) - 1).0;
            cache.open(place, NewRequest { content: &content, own: OWN | id as u64, prompt, tokens: prompt + output });
            let hit = cache.find(place, u64::from(prompt) - 1);
            assert_eq!(before, hit.tokens, "a prompt without a request has the same hit");
            if id % 4 == 0 {
                cache.report();
                report = texts(cache);
            }
            let cached = |text| cache.reported(&[Segment { content: text, tokens: 60 }], 60);
            assert_eq!((0..3).map(cached).collect::<Vec<u64>>(), report, "reported content is that of the last report");
            assert!(
                hit.tokens < u64::from(prompt)
                    && hit.tokens.is_multiple_of(block)
                    && hit.unreferenced * block <= hit.tokens
            );
            let before = cache.unreferenced();
            cache.hold(place, hit);
            assert_eq!((cache.shared(place), cache.unreferenced()), (hit.tokens / block, before - hit.unreferenced));
            cache.scheduled(place, u64::from(prompt));
            cache.computed(place, u64::from(prompt));
            // All cached content is available to every request with the same tokens.
            assert_eq!(cache.find(place, u64::from(prompt)).tokens, u64::from(prompt) / block * block);
            contexts[index] = Some(u64::from(prompt + output) - 1);
            cache.evict_until(left);
            assert!(cache.unreferenced() <= left && cache.unreferenced() <= cache.cached());
            assert!(used_blocks(cache).into_iter().max() <= Some(cache.cached() - cache.unreferenced()));
        }
        for index in (0..3).filter(|&index| contexts[index].is_some()) {
            cache.leave(Place(index as u32));
            cache.close(Place(index as u32));
        }
        assert_eq!(cache.unreferenced(), cache.cached());
        cache.evict_until(0);
        assert_eq!((cache.unreferenced(), cache.cached()), (0, 0));
        cache.report();
    }

    proptest! {
        #[test]
        fn cached_content_is_hit_and_eviction_leaves_nothing(block in 1_u64..9, visits in visits()) {
            let (mut blocks, mut radix) = (BlockCache::new(block, 0), RadixCache::new(block));
            run(&mut blocks, block, &visits);
            run(&mut radix, block, &visits);
            prop_assert!(blocks.is_unused() && radix.is_unused());
        }
    }
}
