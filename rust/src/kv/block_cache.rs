//! Which whole blocks are known? (vLLM v1: `v1/core/kv_cache_manager.py`, `block_pool.py`)
//!
//! A block is known by its last token and all before it. A request that computes a block makes an entry for it, also
//! when there is one already; a search takes the oldest entry. Entries that no request holds stand in a list: a
//! request that leaves puts its own at the end, its last block first, so that the beginnings of prompts live longest;
//! blocks that are taken anew are those at the front. So an entry is never evicted before those that come after it
//! in its prompt, unless it has a twin.
//!
//! Entries of one node that follow one another and that the same requests hold are kept as a run, which is cut where
//! requests hold less of it: what is done costs by the run, and not by the block.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::Range;

use super::content_tree::{Chains, KnownRuns, Mixer, NONE, OWN, Segment, Step, step_of};
use super::prefix_cache::{HeldRun, Hit, Part, PrefixCache};
use super::reported::Reported;
use crate::request::Place;

/// Entries for blocks that follow one another, whose last tokens lie in one node.
#[derive(Clone, Copy, Debug)]
struct BlockRun {
    node: u32,
    /// Its blocks, counted from the beginning of the prompt.
    first: u32,
    end: u32,
    /// Requests that hold it.
    holders: u32,
    /// There are older entries for all of its blocks.
    is_twin: bool,
    /// The run that was cut off its front.
    front: u32,
    /// In its node the run in front of it; of twins the next younger one.
    next: u32,
    /// While it is unreferenced: the neighbours in the list. Its last block is the oldest.
    older: u32,
    newer: u32,
}

impl BlockRun {
    #[inline]
    fn blocks(&self) -> u64 {
        u64::from(self.end - self.first)
    }
}

/// All runs, and the list of those that no request holds.
#[derive(Debug)]
struct Runs {
    all: Vec<BlockRun>,
    vacant: Vec<u32>,
    oldest: u32,
    newest: u32,
    /// Blocks in the list.
    unreferenced: u64,
}

impl Runs {
    #[inline]
    fn at(&self, run: u32) -> &BlockRun {
        &self.all[run as usize]
    }

    #[inline]
    fn at_mut(&mut self, run: u32) -> &mut BlockRun {
        &mut self.all[run as usize]
    }

    #[inline]
    fn add(&mut self, run: BlockRun) -> u32 {
        if let Some(vacant) = self.vacant.pop() {
            *self.at_mut(vacant) = run;
            return vacant;
        }
        self.all.push(run);
        self.all.len() as u32 - 1
    }

    /// Puts a run into the list, behind an older one.
    #[inline]
    fn list(&mut self, run: u32, older: u32) {
        let newer = if older == NONE { self.oldest } else { self.at(older).newer };
        self.join(older, run);
        self.join(run, newer);
    }

    /// Takes a run out of the list.
    #[inline]
    fn unlist(&mut self, run: u32) {
        let BlockRun { older, newer, .. } = *self.at(run);
        self.join(older, newer);
    }

    /// Makes two neighbours.
    #[inline]
    fn join(&mut self, older: u32, newer: u32) {
        match older {
            NONE => self.oldest = newer,
            older => self.at_mut(older).newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.at_mut(newer).older = older,
        }
    }
}

#[derive(Debug)]
pub(super) struct BlockCache {
    /// Tokens in a block.
    block: u32,
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
    pub(super) fn new(block: u64) -> BlockCache {
        BlockCache {
            block: block as u32,
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
        self.chains.tree.nodes[node as usize].start() / self.block
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
            let until = most.min(end / self.block);
            let known = self.known_until(node).clamp(block, until);
            goes_on = known == until && known < most;
            block = known;
            Some((node, block))
        })
    }

    /// The request here that says a token of a chain, as its own.
    fn speaker(&self, content: &[Segment], token: u64) -> Option<Place> {
        let mut end = 0;
        let segment = content.iter().find(|segment| {
            end += u64::from(segment.tokens);
            end > token
        })?;
        let owner = *self.owners.get(&segment.content).filter(|_| segment.content & OWN > 0)?;
        let step = self.chains.tree.steps(content).find(|step| u64::from(step.end) > token)?;
        Some(owner).filter(|&owner| self.chains.has(owner, token, step.node))
    }

    /// The runs of a node up to a block, the last first.
    #[inline]
    fn runs_before(&self, node: u32, end: u32) -> impl Iterator<Item = &BlockRun> {
        let mut run = self.chains.tree.nodes[node as usize].known.last;
        let runs = std::iter::from_fn(move || {
            let found = self.runs.all.get(run as usize)?;
            run = found.next;
            Some(found)
        });
        runs.skip_while(move |run| run.first >= end)
    }

    /// Cuts a run before a block; returns the front. The rest keeps its number.
    fn cut(&mut self, run: u32, at: u32) -> u32 {
        let rest = *self.runs.at(run);
        debug_assert!(rest.first < at && at < rest.end, "a run is cut between its blocks");
        let front = self.runs.add(BlockRun { end: at, ..rest });
        let cut = self.runs.at_mut(run);
        (cut.first, cut.front, cut.next) = (at, front, front);
        if rest.holders == 0 {
            self.runs.list(front, run);
        }
        self.chains.tree.use_node(rest.node);
        front
    }

    /// A run has no blocks any more, or all of them in another.
    #[inline]
    fn remove(&mut self, run: u32) {
        self.runs.vacant.push(run);
        self.chains.tree.leave(self.runs.at(run).node);
    }

    /// Blocks of a node become known, or are evicted.
    #[inline]
    fn note(&mut self, node: u32, blocks: Range<u32>, is_cached: bool) {
        if self.reported.is_some() {
            self.note_reported(node, blocks, is_cached);
        }
    }

    #[inline(never)]
    fn note_reported(&mut self, node: u32, blocks: Range<u32>, is_cached: bool) {
        let first = self.first_block(node);
        if let Some(reported) = &mut self.reported {
            reported.note(&mut self.chains.tree, node, blocks.start - first..blocks.end - first, is_cached);
        }
    }

    /// The first `tokens` tokens of a request lie in blocks that it holds: others can find them.
    fn publish(&mut self, place: Place, tokens: u64) {
        let whole = self.whole(tokens);
        let mut block = self.held[place.index()].blocks;
        if whole <= block {
            return;
        }
        let mut step = step_of(self.chains.path(place), self.tokens(block + 1) - 1);
        while block < whole {
            let Step { node, end } = self.chains.path(place)[step];
            step += 1;
            let until = whole.min(end / self.block);
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

    /// Another request continues what this one says.
    fn follow(&mut self, place: Place) {
        let holding = &mut self.held[place.index()];
        if holding.followed == 0 {
            self.followed_here += 1;
            self.ever_followed += 1;
            holding.followed = self.ever_followed;
            if holding.is_running {
                self.followed.push(place);
            }
        }
    }

    /// A followed request runs.
    fn list_followed(&mut self, place: Place) {
        let since = |place: Place| self.held[place.index()].followed;
        let at = self.followed.partition_point(|&other| since(other) < since(place));
        self.followed.insert(at, place);
    }

    /// A request runs no more.
    fn stop(&mut self, place: Place) {
        let Holding { is_running, followed, .. } = &mut self.held[place.index()];
        let followed = *followed;
        if std::mem::take(is_running) && followed > 0 {
            let at = self.followed.partition_point(|&other| self.held[other.index()].followed < followed);
            self.followed.remove(at);
        }
    }

    /// A request makes entries for blocks of a node: twins of older ones, or the first.
    fn insert(&mut self, place: Place, node: u32, blocks: Range<u32>, is_twin: bool) {
        let count = u64::from(blocks.end - blocks.start);
        self.cached += count;
        self.inserted += count;
        if !is_twin {
            self.note(node, blocks.clone(), true);
        }
        let holding = &mut self.held[place.index()];
        debug_assert_eq!(holding.blocks, blocks.start, "a request holds its first blocks");
        holding.blocks = blocks.end;
        let known = &mut self.chains.tree.nodes[node as usize].known;
        if let Some(last) = holding.runs.last() {
            // Its own run goes on, unless there are younger entries for what comes.
            let run = self.runs.at_mut(last.run);
            let is_youngest = if is_twin { run.is_twin && run.next == NONE } else { last.run == known.last };
            if is_youngest && run.node == node && run.holders == 1 {
                run.end = blocks.end;
                return;
            }
        }
        let next = if is_twin { NONE } else { known.last };
        let run = self.runs.add(BlockRun {
            node,
            first: blocks.start,
            end: blocks.end,
            holders: 1,
            is_twin,
            front: NONE,
            next,
            older: NONE,
            newer: NONE,
        });
        holding.runs.push(HeldRun { run, first: blocks.start });
        if !is_twin {
            known.last = run;
        } else if known.oldest_twin == NONE {
            known.oldest_twin = run;
        } else {
            let mut youngest = known.oldest_twin;
            while self.runs.at(youngest).next != NONE {
                youngest = self.runs.at(youngest).next;
            }
            self.runs.at_mut(youngest).next = run;
        }
        self.chains.tree.use_node(node);
    }

    /// A request holds the blocks of a node up to this one, of which it enters the first.
    fn hold_until(&mut self, place: Place, node: u32, until: u32) {
        let mut run = self.chains.tree.nodes[node as usize].known.last;
        while self.runs.at(run).first >= until {
            run = self.runs.at(run).next;
        }
        if self.runs.at(run).end > until {
            run = self.cut(run, until);
        }
        let held = &mut self.held[place.index()].runs;
        let from = held.len();
        while run != NONE {
            let one = self.runs.at_mut(run);
            one.holders += 1;
            let BlockRun { first, next, holders, .. } = *one;
            held.push(HeldRun { run, first });
            if holders == 1 {
                self.runs.unreferenced -= self.runs.at(run).blocks();
                self.runs.unlist(run);
            }
            run = next;
        }
        held[from..].reverse();
    }

    /// What a request held of a run loses a holder, its end first.
    fn drop_holder(&mut self, HeldRun { mut run, first }: HeldRun) {
        loop {
            let BlockRun { first: begin, front, .. } = *self.runs.at(run);
            self.drop_holder_of_run(run);
            if begin <= first {
                return;
            }
            run = front;
        }
    }

    /// A run that no request holds any more stands at the end of the list, as one with the run behind it if that stands
    /// there.
    #[inline]
    fn drop_holder_of_run(&mut self, run: u32) {
        let left = self.runs.at_mut(run);
        debug_assert!(left.holders > 0, "no request gives up what it does not hold");
        left.holders -= 1;
        if left.holders > 0 {
            return;
        }
        let left = *left;
        self.runs.unreferenced += left.blocks();
        let newest = self.runs.newest;
        if let Some(behind) = self.runs.all.get_mut(newest as usize)
            && behind.next == run
            && !behind.is_twin
        {
            debug_assert_eq!(behind.first, left.end, "runs of a node follow one another");
            (behind.first, behind.next) = (left.first, left.next);
            self.remove(run);
            return;
        }
        self.runs.list(run, newest);
    }

    /// Evicts the blocks of a run's end that have been unreferenced for longest.
    fn evict(&mut self, run: u32, count: u32) {
        let evicted = self.runs.at_mut(run);
        let end = evicted.end;
        evicted.end -= count;
        let BlockRun { node, first, end: left, is_twin, .. } = *evicted;
        self.runs.unreferenced -= u64::from(count);
        self.cached -= u64::from(count);
        let is_gone = left == first;
        if is_gone {
            self.runs.unlist(run);
            self.unlink(run);
        }
        if !is_twin {
            if self.chains.tree.nodes[node as usize].known.oldest_twin == NONE {
                self.note(node, left..end, false);
            } else {
                self.replace(node, left..end);
            }
        }
        if is_gone {
            self.remove(run);
        }
    }

    /// Takes a run out of those of its node.
    fn unlink(&mut self, run: u32) {
        let BlockRun { node, next, is_twin, .. } = *self.runs.at(run);
        let known = &mut self.chains.tree.nodes[node as usize].known;
        let head = if is_twin { &mut known.oldest_twin } else { &mut known.last };
        if *head == run {
            *head = next;
            return;
        }
        let mut before = *head;
        while self.runs.at(before).next != run {
            before = self.runs.at(before).next;
        }
        self.runs.at_mut(before).next = next;
    }

    /// Of blocks of a node that are evicted the next oldest entries take the places, where there are any.
    #[cold]
    fn replace(&mut self, node: u32, blocks: Range<u32>) {
        let mut evicted = vec![blocks];
        while let Some(blocks) = evicted.pop() {
            let meets = |run: &BlockRun| run.first < blocks.end && blocks.start < run.end;
            let mut twin = self.chains.tree.nodes[node as usize].known.oldest_twin;
            while twin != NONE && !meets(self.runs.at(twin)) {
                twin = self.runs.at(twin).next;
            }
            if twin == NONE {
                self.note(node, blocks, false);
                continue;
            }
            let BlockRun { first, end, .. } = *self.runs.at(twin);
            let (start, until) = (first.max(blocks.start), end.min(blocks.end));
            if until < end {
                twin = self.cut(twin, until);
            }
            if first < start {
                self.cut(twin, start);
            }
            self.unlink(twin);
            self.link(twin);
            evicted.extend([blocks.start..start, until..blocks.end].into_iter().filter(|rest| !rest.is_empty()));
        }
    }

    /// A run that was a twin is the oldest.
    fn link(&mut self, run: u32) {
        let BlockRun { node, first, .. } = *self.runs.at(run);
        let (mut behind, mut next) = (NONE, self.chains.tree.nodes[node as usize].known.last);
        while next != NONE && self.runs.at(next).first > first {
            (behind, next) = (next, self.runs.at(next).next);
        }
        let linked = self.runs.at_mut(run);
        (linked.is_twin, linked.next) = (false, next);
        match behind {
            NONE => self.chains.tree.nodes[node as usize].known.last = run,
            behind => self.runs.at_mut(behind).next = run,
        }
    }

    /// Is nothing known, and of no request?
    #[cfg(test)]
    pub(super) fn is_bare(&self) -> bool {
        self.chains.tree.is_empty() && self.owners.is_empty() && self.runs.all.len() == self.runs.vacant.len()
    }
}

impl PrefixCache for BlockCache {
    fn open(&mut self, place: Place, content: &[Segment], own: u64, _prompt: u32) {
        if self.held.len() <= place.index() {
            self.held.resize_with(place.index() + 1, Holding::default);
        }
        self.chains.open(place, content, own);
        let mut token = 0;
        for segment in content {
            if segment.content & OWN > 0
                && let Some(&owner) = self.owners.get(&segment.content)
                && self.held[owner.index()].followed == 0
                && self.chains.has(owner, u64::from(token), self.chains.content_at(place, u64::from(token)))
            {
                self.follow(owner);
            }
            token += segment.tokens;
        }
        self.owners.insert(own, place);
        let known_until = |known: KnownRuns| match known.last {
            NONE => 0,
            last => self.tokens(self.runs.at(last).end),
        };
        if self.chains.is_continued(place, token, known_until) {
            self.follow(place);
        }
    }

    fn close(&mut self, place: Place) {
        if let Some(own) = self.chains.own(place) {
            self.owners.remove(&own);
        }
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
            let until = whole.min(end / self.block);
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
        self.held[place.index()].runs = runs;
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

    fn cached_prefix(&self, content: &[Segment], most: u64) -> (u64, Option<Place>) {
        let steps = || self.chains.tree.steps(content);
        let cached = self.cached_blocks(steps(), self.whole(most)).map(|(_, end)| end).last();
        let blocks = cached.unwrap_or(0);
        (self.tokens(blocks), self.speaker(content, self.tokens(blocks + 1) - 1))
    }

    fn report(&mut self) {
        self.reported.get_or_insert_default().update(&mut self.chains.tree);
    }

    fn reported(&self, content: &[Segment], most: u64) -> u64 {
        let blocks = |reported: &Reported| reported.blocks(&self.chains.tree, content, self.tokens(1), most);
        self.reported.as_ref().map_or(0, blocks) * self.tokens(1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::prefix_cache::{Hit, Part, PrefixCache};
    use super::*;
    use proptest::prelude::*;

    /// A token: a content, and which of its tokens.
    type Token = (u64, u32);

    /// An entry by itself, under all tokens up to its end.
    #[derive(Debug)]
    struct Entry {
        tokens: Vec<Token>,
        holders: u32,
    }

    /// The rules, block by block, with every token compared.
    #[derive(Debug, Default)]
    struct Slow {
        block: usize,
        /// All that were ever made, the oldest first; what was evicted is `None`.
        entries: Vec<Option<Entry>>,
        unreferenced: Vec<usize>,
        held: [Vec<usize>; 4],
        said: [Option<Vec<Token>>; 4],
        /// Tokens of each request before its own.
        shared: [usize; 4],
        followed: Vec<usize>,
        reported: Vec<Vec<Token>>,
    }

    impl Slow {
        fn known(&self) -> impl Iterator<Item = (usize, &Entry)> {
            self.entries.iter().enumerate().filter_map(|(entry, known)| Some((entry, known.as_ref()?)))
        }

        /// The oldest entries of the first blocks of some tokens, as far as there are any.
        fn find(&self, tokens: &[Token]) -> Vec<usize> {
            let oldest = |end| self.known().find(|(_, known)| known.tokens == tokens[..end]).map(|(entry, _)| entry);
            (1..=tokens.len() / self.block).map_while(|count| oldest(count * self.block)).collect()
        }

        fn open(&mut self, place: usize, said: Vec<Token>, shared: usize) {
            let first = &said[..=shared];
            let others = self.said.iter().flatten().chain(self.known().map(|(_, known)| &known.tokens));
            let is_followed = others.into_iter().any(|other| other.starts_with(first));
            for (other, tokens) in self.said.iter().enumerate() {
                let follows = |tokens: &Vec<Token>| said.starts_with(&tokens[..=self.shared[other]]);
                if tokens.as_ref().is_some_and(follows) && !self.followed.contains(&other) {
                    self.followed.push(other);
                }
            }
            if is_followed {
                self.followed.push(place);
            }
            (self.said[place], self.shared[place]) = (Some(said), shared);
        }

        fn close(&mut self, place: usize) {
            self.said[place] = None;
            self.followed.retain(|&followed| followed != place);
        }

        fn hold(&mut self, place: usize, entries: Vec<usize>) {
            for &entry in &entries {
                self.entries[entry].as_mut().expect("it was found").holders += 1;
                self.unreferenced.retain(|&other| other != entry);
            }
            self.held[place] = entries;
        }

        fn publish(&mut self, place: usize, tokens: usize) {
            for count in self.held[place].len() + 1..=tokens / self.block {
                let tokens = self.said[place].as_ref().expect("it is here")[..count * self.block].to_vec();
                self.held[place].push(self.entries.len());
                self.entries.push(Some(Entry { tokens, holders: 1 }));
            }
        }

        fn let_go(&mut self, entries: Vec<usize>) {
            for entry in entries.into_iter().rev() {
                let left = self.entries[entry].as_mut().expect("it is held");
                left.holders -= 1;
                if left.holders == 0 {
                    self.unreferenced.push(entry);
                }
            }
        }

        fn evict_until(&mut self, unreferenced: usize) {
            let count = self.unreferenced.len().saturating_sub(unreferenced);
            for entry in self.unreferenced.drain(..count) {
                self.entries[entry] = None;
            }
        }
    }

    /// What is done next, and with which request.
    #[derive(Clone, Debug)]
    enum Act {
        /// Texts and how many tokens of each, or the output of an earlier request; the tokens that are computed at once.
        Come {
            chain: Vec<(u64, u32)>,
            own: u32,
            computed: u32,
        },
        Compute(u32),
        Go {
            is_kept: bool,
        },
        LetGo,
        Evict(u64),
        Report,
    }

    fn acts() -> impl Strategy<Value = Vec<(usize, Act)>> {
        let chain = prop::collection::vec((0_u64..7, 1_u32..14), 0..4);
        let act = prop_oneof![
            6 => (chain, 1_u32..12, 0_u32..50).prop_map(|(chain, own, computed)| Act::Come { chain, own, computed }),
            4 => (0_u32..50).prop_map(Act::Compute),
            4 => any::<bool>().prop_map(|is_kept| Act::Go { is_kept }),
            1 => Just(Act::LetGo),
            3 => (0_u64..25).prop_map(Act::Evict),
            1 => Just(Act::Report),
        ];
        prop::collection::vec((0_usize..4, act), 1..60)
    }

    /// Tokens of each request, its answer included.
    const SAID: u32 = 60;

    fn tokens(chain: &[Segment]) -> Vec<Token> {
        chain.iter().flat_map(|part| (0..part.tokens).map(|token| (part.content, token))).collect()
    }

    fn agree(block: u64, acts: &[(usize, Act)]) {
        let mut cache = BlockCache::new(block);
        let mut slow = Slow { block: block as usize, ..Slow::default() };
        let mut kept: Vec<(Part, Vec<usize>)> = Vec::new();
        let mut chains: [Vec<Segment>; 4] = Default::default();
        cache.report();
        for (id, (index, act)) in acts.iter().enumerate() {
            let (index, place) = (*index, Place(*index as u32));
            let is_here = slow.said[index].is_some();
            match act {
                Act::Come { chain, own, computed } if !is_here => {
                    // The last contents of a chain may be what earlier requests say, here or gone.
                    let content = |&(text, tokens): &(u64, u32)| match text {
                        0..4 => Segment { content: text, tokens },
                        text => Segment { content: OWN | (id as u64).saturating_sub(text - 3), tokens },
                    };
                    let chain: Vec<Segment> =
                        chain.iter().map(content).filter(|one| one.content != OWN | id as u64).collect();
                    let shared: u32 = chain.iter().map(|part| part.tokens).sum();
                    let mut whole = chain.clone();
                    whole.push(Segment { content: OWN | id as u64, tokens: SAID });
                    cache.open(place, &chain, OWN | id as u64, shared + own);
                    slow.open(index, tokens(&whole), shared as usize);
                    let most = (shared + own - 1) as usize;
                    let said = slow.said[index].as_ref().expect("it is here");
                    let found = slow.find(&said[..most]);
                    let (known, next) = cache.cached_prefix(&chain, most as u64);
                    assert_eq!(known, slow.find(&said[..most.min(shared as usize)]).len() as u64 * block);
                    let next_end = known as usize + block as usize;
                    let speaker = (0..4).find(|&other| {
                        other != index
                            && next_end <= shared as usize
                            && slow.said[other].as_ref().is_some_and(|tokens| {
                                next_end > slow.shared[other] && tokens.starts_with(&said[..next_end])
                            })
                            && said[next_end - 1].0 == chains[other].last().expect("its own").content
                    });
                    assert_eq!(next, speaker.map(|speaker| Place(speaker as u32)));
                    let is_free = |&&entry: &&usize| slow.unreferenced.contains(&entry);
                    let hit = Hit {
                        tokens: found.len() as u64 * block,
                        unreferenced: found.iter().filter(is_free).count() as u64,
                    };
                    assert_eq!(cache.find(place, most as u64), hit);
                    assert_eq!(cache.content(place), chain);
                    chains[index] = whole;
                    cache.hold(place, hit);
                    slow.hold(index, found);
                    cache.scheduled(place, u64::from((*computed).min(shared + own)));
                    slow.publish(index, (*computed).min(shared + own) as usize);
                }
                Act::Compute(tokens) if is_here => {
                    let tokens = slow.shared[index] + *tokens as usize;
                    cache.computed(place, tokens as u64);
                    slow.publish(index, tokens);
                }
                Act::Go { is_kept } if is_here => {
                    let entries = std::mem::take(&mut slow.held[index]);
                    if *is_kept {
                        kept.push((cache.keep(place), entries));
                    } else {
                        cache.leave(place);
                        slow.let_go(entries);
                    }
                    cache.close(place);
                    slow.close(index);
                }
                Act::LetGo => {
                    for (part, entries) in kept.drain(..) {
                        cache.let_go(part);
                        slow.let_go(entries);
                    }
                }
                Act::Evict(unreferenced) => {
                    cache.evict_until(*unreferenced);
                    slow.evict_until(*unreferenced as usize);
                }
                Act::Report => {
                    cache.report();
                    slow.reported = slow.known().map(|(_, known)| known.tokens.clone()).collect();
                }
                _ => {}
            }
            assert_eq!(cache.unreferenced(), slow.unreferenced.len() as u64);
            assert_eq!(cache.cached(), slow.known().count() as u64);
            assert_eq!(cache.inserted(), slow.entries.len() as u64);
            let followed: Vec<usize> = cache.followed().iter().map(|place| place.index()).collect();
            assert_eq!(followed, slow.followed);
            for one in (0..4).filter(|&one| slow.said[one].is_some()) {
                let said = slow.said[one].as_ref().expect("it is here");
                assert_eq!(cache.shared(Place(one as u32)), slow.held[one].len() as u64);
                assert_eq!(cache.find(Place(one as u32), 50).tokens, slow.find(&said[..50]).len() as u64 * block);
                let is_reported =
                    |count: &usize| slow.reported.iter().any(|known| *known == said[..count * block as usize]);
                let reported = (1..=50 / block as usize).take_while(is_reported).count() as u64 * block;
                assert_eq!(cache.reported(&chains[one], 50), reported);
                for other in (0..4).filter(|&other| slow.said[other].is_some()) {
                    let end = 20 / block as usize * block as usize + block as usize;
                    let alike = slow.said[other].as_ref().is_some_and(|other| other[..end] == said[..end]);
                    assert_eq!(cache.go_on_alike(Place(one as u32), Place(other as u32), 20), alike);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn runs_of_blocks_do_what_single_blocks_would(block in 1_u64..9, acts in acts()) {
            agree(block, &acts);
        }
    }
}
