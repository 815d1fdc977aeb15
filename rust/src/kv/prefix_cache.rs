//! Prefix caches: requests that use what others have computed.

use std::fmt::Debug;

use super::Segment;
use super::content_tree::Newcomer;
use crate::request::Place;

/// What a cache has of a request's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    /// The first so many are there.
    pub(crate) tokens: u64,
    /// Of the blocks that they lie in, those that no request holds.
    pub(crate) unreferenced: u64,
}

impl Hit {
    pub(crate) const NONE: Hit = Hit { tokens: 0, unreferenced: 0 };
}

/// A run of blocks that is held, from this block on.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldRun {
    pub(super) run: u32,
    pub(super) first: u32,
}

/// What a request held that is gone, in terms of its cache.
#[derive(Debug)]
pub(crate) struct Part(pub(super) Vec<HeldRun>);

/// The content of blocks, behind a pool that counts them.
///
/// A block that the cache knows is *held* by at least one request, or *unreferenced*: free, and still worth
/// something. The pool says when unreferenced blocks have to be evicted. Blocks of a request that the cache does not
/// know are the request's alone.
pub(crate) trait PrefixCache: Debug + Send {
    /// A request comes.
    fn open(&mut self, place: Place, newcomer: Newcomer);

    /// A request that holds nothing goes.
    fn close(&mut self, place: Place);

    /// What `open` was told, without the request's own content.
    fn content(&self, place: Place) -> Vec<Segment>;

    /// The longest known part at the beginning of a request's first `most` tokens.
    fn find(&self, place: Place, most: u64) -> Hit;

    /// The same, which counts as a use of what is found, as if it were held; says how many tokens it is.
    fn refresh(&mut self, place: Place, most: u64) -> u64;

    /// The content in which a token of a request lies: all requests that agree on it and on all before it have the same.
    fn content_at(&self, place: Place, token: u64) -> u32;

    /// The request holds what has just been found.
    fn hold(&mut self, place: Place, hit: Hit);

    /// A batch is formed after which the first `tokens` tokens of a request lie in its blocks.
    fn scheduled(&mut self, place: Place, tokens: u64);

    /// The first `tokens` tokens of a request have been computed, and it goes on.
    fn computed(&mut self, place: Place, tokens: u64);

    /// The first `tokens` tokens of a request have been computed, and it gives up its blocks: is it over, or preempted?
    fn ended(&mut self, place: Place, tokens: u64, is_over: bool);

    /// The blocks that a request holds and that the cache knows.
    fn shared(&self, place: Place) -> u64;

    /// A request gives up what it holds, the end first.
    fn leave(&mut self, place: Place);

    /// A request goes, and what it holds stays held.
    fn keep(&mut self, place: Place) -> Part;

    /// Lets go what was kept.
    fn let_go(&mut self, part: Part);

    /// Blocks that are cached.
    fn cached(&self) -> u64;

    /// Blocks inserted since the cache was empty, evicted ones too.
    fn inserted(&self) -> u64;

    /// Cached blocks that no request holds.
    fn unreferenced(&self) -> u64;

    /// Evicts unreferenced blocks, those that were left first before the others, until at most so many are
    /// unreferenced.
    fn evict_until(&mut self, unreferenced: u64);

    /// Are several blocks evicted at once, and more than asked?
    fn evicts_runs(&self) -> bool;

    /// Running requests whose output another request's prompt continues, where what they compute is cached before
    /// they are over.
    fn followed(&self) -> &[Place];

    /// Is there such a request here, running or waiting?
    fn has_followed(&self) -> bool;

    /// Have two requests the same block behind their first `tokens` tokens, and all before it?
    fn go_on_alike(&self, one: Place, other: Place, tokens: u64) -> bool;

    /// Does a request compute what the cache knows already, so that blocks come free as it goes on?
    fn is_computed_twice(&self, place: Place) -> bool;

    /// Is there anything that begins with this content, cached, reported or of a request here?
    fn knows(&self, content: u64) -> bool;

    /// How many of the first `most` tokens of a prompt that begins with this content are cached; and the request here
    /// that computes what comes next, where its decodes are known as they come.
    fn cached_prefix(&self, content: &[Segment], most: u64) -> (u64, Option<Place>);

    /// From now on it is remembered what is known at this instant, until this is called again.
    fn report(&mut self);

    /// How many of the first `most` tokens of such a prompt were known at the last report.
    fn reported(&self, content: &[Segment], most: u64) -> u64;
}

#[cfg(test)]
mod tests {
    use super::super::OWN;
    use super::super::block_cache::BlockCache;
    use super::super::radix_cache::RadixCache;
    use super::*;
    use proptest::prelude::*;

    /// What a request does: which text it begins with, how many tokens of it, the rest of its prompt, its output; and how
    /// many unreferenced blocks are then left.
    type Visit = (u64, u32, u32, u32, u64);

    fn visits() -> impl Strategy<Value = Vec<Visit>> {
        prop::collection::vec((0_u64..3, 1_u32..40, 0_u32..20, 1_u32..20, 0_u64..30), 1..40)
    }

    /// Requests come one after another, the last three of them side by side.
    fn run(cache: &mut dyn PrefixCache, block: u64, visits: &[Visit]) {
        let held = |cache: &dyn PrefixCache| (0..3).map(|place| cache.shared(Place(place))).collect::<Vec<_>>();
        let texts = |cache: &dyn PrefixCache| {
            let cached = |text| cache.cached_prefix(&[Segment { content: text, tokens: 60 }], 60).0;
            (0..3).map(cached).collect::<Vec<u64>>()
        };
        let mut report = Vec::new();
        let mut here: [Option<u64>; 3] = [None; 3];
        for place in 0..3 {
            let own = u64::MAX - u64::from(place);
            cache.open(Place(place), Newcomer { content: &[], own, prompt: 1, tokens: 2 });
            cache.close(Place(place));
        }
        for (id, &(text, shared, rest, output, left)) in visits.iter().enumerate() {
            let index = id % 3;
            let place = Place(index as u32);
            if let Some(context) = here[index].take() {
                cache.ended(place, context, id % 2 == 0);
                cache.leave(place);
                cache.close(place);
            }
            let prompt = shared + rest;
            let content = [Segment { content: text, tokens: shared }];
            let before = cache.cached_prefix(&content, u64::from(prompt) - 1).0;
            cache.open(place, Newcomer { content: &content, own: OWN | id as u64, prompt, tokens: prompt + output });
            let hit = cache.find(place, u64::from(prompt) - 1);
            assert_eq!(before, hit.tokens, "a request need not be here to be told what is there");
            if id % 4 == 0 {
                cache.report();
                report = texts(cache);
            }
            let cached = |text| cache.reported(&[Segment { content: text, tokens: 60 }], 60);
            assert_eq!((0..3).map(cached).collect::<Vec<u64>>(), report, "as it was at the last report");
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
            // Everything that is known is there for every request that says the same.
            assert_eq!(cache.find(place, u64::from(prompt)).tokens, u64::from(prompt) / block * block);
            here[index] = Some(u64::from(prompt + output) - 1);
            cache.evict_until(left);
            assert!(cache.unreferenced() <= left && cache.unreferenced() <= cache.cached());
            assert!(held(cache).into_iter().max() <= Some(cache.cached() - cache.unreferenced()));
        }
        for index in (0..3).filter(|&index| here[index].is_some()) {
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
        fn what_is_cached_is_hit_and_what_is_evicted_leaves_nothing(block in 1_u64..9, visits in visits()) {
            let (mut blocks, mut radix) = (BlockCache::new(block, 0), RadixCache::new(block));
            run(&mut blocks, block, &visits);
            run(&mut radix, block, &visits);
            prop_assert!(blocks.is_bare() && radix.is_bare());
        }
    }
}
