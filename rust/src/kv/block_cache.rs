//! Which whole blocks are known? (vLLM v1: `v1/core/kv_cache_manager.py`, `block_pool.py`)
//!
//! A block is known by its last token and all before it. A request that computes a block makes an entry for it, also
//! when there is one already; a search takes the oldest entry. Entries that no request holds stand in a list: a
//! request that leaves puts its own at the end, its last block first, so that the beginnings of prompts live longest;
//! blocks that are taken anew are those at the front. So an entry is never evicted before those that come after it
//! in its prompt, unless it has a twin.
//!
//! Where drafters read one token ahead, a block is known by the token behind it: what is said of its last token here holds
//! for that one.
//!
//! Entries of one node that follow one another and that the same requests hold are kept as a run, which is cut where
//! requests hold less of it: what is done costs by the run, and not by the block.

mod entries;
mod followed;
mod runs;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use self::runs::Runs;
use super::content_tree::{Chains, KnownRuns, Mixer, NONE, Newcomer, Segment, Step, step_of};
use super::prefix_cache::{HeldRun, Hit, Part, PrefixCache};
use super::reported::Reported;
use crate::request::Place;

/// Room for so many runs is kept for the next request in a place.
const MOST_KEPT: usize = 64;

#[derive(Debug)]
pub(super) struct BlockCache {
    /// Tokens in a block.
    block: u32,
    /// Tokens behind its last one by which it is known too.
    beyond: u32,
    chains: Chains,
    runs: Runs,
    /// What each request holds: its first blocks, in their order.
    held: Vec<Holding>,
    /// Known blocks, twins too, and all that ever were.
    cached: u64,
    inserted: u64,
    /// Requests by their own contents.
    owners: HashMap<u64, Place, BuildHasherDefault<Mixer>>,
    /// Running requests that another one continues, in the order in which that was first so.
    followed: Vec<Place>,
    /// How many requests that are here, running or not, another one continues; and how many ever were.
    followed_here: u64,
    ever_followed: u64,
    reported: Option<Reported>,
}

/// The entries that a request holds.
#[derive(Debug, Default)]
struct Holding {
    runs: Vec<HeldRun>,
    blocks: u32,
    /// Is it in batches, and not waiting?
    is_running: bool,
    /// As which one of all another request came to continue it; 0: none does.
    followed: u64,
}

impl BlockCache {
    pub(super) fn new(block: u64, beyond: u32) -> BlockCache {
        BlockCache {
            block: block as u32,
            beyond,
            chains: Chains::default(),
            runs: Runs { all: Vec::new(), vacant: Vec::new(), oldest: NONE, newest: NONE, unreferenced: 0 },
            held: Vec::new(),
            cached: 0,
            inserted: 0,
            owners: HashMap::default(),
            followed: Vec::new(),
            followed_here: 0,
            ever_followed: 0,
            reported: None,
        }
    }

    /// Whole blocks in so many tokens.
    #[inline]
    fn whole(&self, tokens: u64) -> u32 {
        debug_assert!(tokens < u64::from(u32::MAX), "prompt and output together are below 2^31");
        tokens as u32 / self.block
    }

    /// Tokens in so many blocks.
    #[inline]
    fn tokens(&self, blocks: u32) -> u64 {
        u64::from(blocks) * u64::from(self.block)
    }

    /// The first block of which the last token lies in a node.
    #[inline]
    fn first_block(&self, node: u32) -> u32 {
        self.blocks_until(self.chains.tree.nodes[node as usize].start())
    }

    /// The blocks of which the last token comes before this one.
    #[inline]
    fn blocks_until(&self, end: u32) -> u32 {
        end.saturating_sub(self.beyond) / self.block
    }

    /// The token by which a block is known.
    #[inline]
    fn last_of(&self, block: u32) -> u64 {
        self.tokens(block + 1) - 1 + u64::from(self.beyond)
    }

    /// The blocks of a node that are known end before this one.
    #[inline]
    fn known_until(&self, node: u32) -> u32 {
        self.runs.all.get(self.chains.tree.nodes[node as usize].known.last as usize).map_or(0, |run| run.end)
    }

    /// The nodes in which the first `most` whole blocks of a chain are known, and before which block that ends. What is
    /// known of a chain is its beginning.
    #[inline]
    fn cached_blocks(&self, path: impl Iterator<Item = Step>, most: u32) -> impl Iterator<Item = (u32, u32)> {
        let mut block = 0;
        let mut goes_on = most > 0;
        path.map_while(move |Step { node, end }| {
            if !goes_on {
                return None;
            }
            let until = most.min(self.blocks_until(end));
            let known = self.known_until(node).clamp(block, until);
            goes_on = known == until && known < most;
            block = known;
            Some((node, block))
        })
    }

    /// The first `tokens` tokens of a request lie in blocks that it holds: others can find them.
    fn publish(&mut self, place: Place, tokens: u64) {
        let whole = self.whole(self.chains.said(place, tokens));
        let mut block = self.held[place.index()].blocks;
        if whole <= block {
            return;
        }
        let mut step = step_of(self.chains.path(place), self.last_of(block));
        while block < whole {
            let Step { node, end } = self.chains.path(place)[step];
            step += 1;
            let until = whole.min(self.blocks_until(end));
            let known = self.known_until(node).min(until);
            if block < known {
                self.insert(place, node, block..known, true);
                block = known;
            }
            if block < until {
                self.insert(place, node, block..until, false);
                block = until;
            }
        }
    }

    /// Is nothing known, and of no request?
    #[cfg(test)]
    pub(super) fn is_bare(&self) -> bool {
        self.chains.tree.is_empty() && self.owners.is_empty() && self.runs.all.len() == self.runs.vacant.len()
    }
}

impl PrefixCache for BlockCache {
    fn open(&mut self, place: Place, newcomer: Newcomer) {
        if self.held.len() <= place.index() {
            self.held.resize_with(place.index() + 1, Holding::default);
        }
        self.chains.open(place, newcomer);
        if let Some(before) = self.last_before(place, newcomer.content)
            && self.held[before.index()].followed == 0
        {
            self.follow(before);
        }
        self.owners.insert(newcomer.own, place);
        let known_until = |known: KnownRuns| match known.last {
            NONE => 0,
            last => self.tokens(self.runs.at(last).end),
        };
        if self.chains.is_continued(place, known_until) {
            self.follow(place);
        }
    }

    fn close(&mut self, place: Place) {
        self.owners.remove(&self.chains.own(place).content);
        self.stop(place);
        let followed = std::mem::take(&mut self.held[place.index()].followed);
        self.followed_here -= u64::from(followed > 0);
        self.chains.close(place);
    }

    fn content(&self, place: Place) -> Vec<Segment> {
        self.chains.content(place)
    }

    fn find(&self, place: Place, most: u64) -> Hit {
        let (mut whole, mut unreferenced) = (0, 0);
        for (node, end) in self.cached_blocks(self.chains.path(place).iter().copied(), self.whole(most)) {
            let runs = self.runs_before(node, end).filter(|run| run.holders == 0);
            unreferenced += runs.map(|run| u64::from(end.min(run.end) - run.first)).sum::<u64>();
            whole = end;
        }
        Hit { tokens: self.tokens(whole), unreferenced }
    }

    /// Blocks are ordered by when they were left, not by when they were found.
    fn refresh(&mut self, place: Place, most: u64) -> u64 {
        self.find(place, most).tokens
    }

    fn content_at(&self, place: Place, token: u64) -> u32 {
        self.chains.content_at(place, token)
    }

    fn hold(&mut self, place: Place, hit: Hit) {
        debug_assert_eq!(self.held[place.index()].blocks, 0, "only a request that holds nothing looks for anything");
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
        self.held[place.index()].blocks = whole;
    }

    #[inline]
    fn scheduled(&mut self, place: Place, tokens: u64) {
        let holding = &mut self.held[place.index()];
        if !std::mem::replace(&mut holding.is_running, true) && holding.followed > 0 {
            self.list_followed(place);
        }
        self.publish(place, tokens);
    }

    /// What was scheduled is known already; what decodes computed is not.
    fn computed(&mut self, place: Place, tokens: u64) {
        self.publish(place, tokens);
    }

    fn ended(&mut self, place: Place, tokens: u64, _is_over: bool) {
        self.publish(place, tokens);
    }

    #[inline]
    fn shared(&self, place: Place) -> u64 {
        u64::from(self.held[place.index()].blocks)
    }

    fn leave(&mut self, place: Place) {
        self.stop(place);
        let holding = &mut self.held[place.index()];
        holding.blocks = 0;
        let mut runs = std::mem::take(&mut holding.runs);
        runs.drain(..).rev().for_each(|held| self.drop_holder(held));
        // Places that thousands of runs went through keep no room for them.
        if runs.capacity() <= MOST_KEPT {
            self.held[place.index()].runs = runs;
        }
    }

    fn keep(&mut self, place: Place) -> Part {
        self.stop(place);
        let holding = &mut self.held[place.index()];
        holding.blocks = 0;
        Part(std::mem::take(&mut holding.runs))
    }

    fn let_go(&mut self, part: Part) {
        part.0.into_iter().rev().for_each(|held| self.drop_holder(held));
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
            let most = self.runs.unreferenced - unreferenced;
            self.evict(oldest, self.runs.at(oldest).blocks().min(most) as u32);
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

    fn go_on_alike(&self, one: Place, other: Place, tokens: u64) -> bool {
        self.chains.go_on_alike(one, other, tokens, self.tokens(1))
    }

    /// Equal blocks are not merged.
    fn is_computed_twice(&self, _slot: Place) -> bool {
        false
    }

    fn knows(&self, content: u64) -> bool {
        self.chains.tree.knows(content)
    }

    fn cached_prefix(&self, content: &[Segment], most: u64) -> (u64, Option<Place>) {
        let steps = || self.chains.tree.steps(content);
        let cached = self.cached_blocks(steps(), self.whole(most)).map(|(_, end)| end).last();
        let blocks = cached.unwrap_or(0);
        (self.tokens(blocks), self.speaker(content, self.last_of(blocks)))
    }

    fn report(&mut self) {
        self.reported.get_or_insert_default().update(&mut self.chains.tree);
    }

    fn reported(&self, content: &[Segment], most: u64) -> u64 {
        let blocks = |reported: &Reported| reported.blocks(&self.chains.tree, content, (self.block, self.beyond), most);
        self.reported.as_ref().map_or(0, blocks) * self.tokens(1)
    }
}
