//! Which whole blocks are known? (vLLM v1: `v1/core/kv_cache_manager.py`, `block_pool.py`)
//!
//! A block is known by its last token and all before it. A request that computes a block makes an entry for it, also
//! when there is one already; a search takes the oldest entry. Entries that no request holds stand in a list: a
//! request that leaves puts its own at the end, its last block first, so that the beginnings of prompts live longest;
//! blocks that are taken anew are those at the front. So an entry is never evicted before those that come after it
//! in its prompt, unless it has a twin.

use super::content_tree::{Chains, NONE, OWN, Segment, Step, step_of};
use super::prefix_cache::{Hit, Part, PrefixCache};
use super::reported::Reported;
use crate::request::Place;

/// A block whose content is known.
#[derive(Debug)]
struct Entry {
    /// Requests that hold it.
    holders: u32,
    /// Where it is known: a node, and its number among the blocks that end there.
    node: u32,
    offset: u32,
    /// The next younger entry for the same content.
    twin: u32,
    /// While it is unreferenced: the neighbours in the list.
    older: u32,
    newer: u32,
}

/// All entries, and the list of those that no request holds.
#[derive(Debug)]
struct Entries {
    all: Vec<Entry>,
    vacant: Vec<u32>,
    unreferenced: u64,
    oldest: u32,
    newest: u32,
    /// All that were ever made.
    made: u64,
}

impl Entries {
    /// A new one, which its maker holds.
    #[inline]
    fn add(&mut self, node: u32, offset: u32) -> u32 {
        let entry = Entry { holders: 1, node, offset, twin: NONE, older: NONE, newer: NONE };
        if let Some(vacant) = self.vacant.pop() {
            self.all[vacant as usize] = entry;
            return vacant;
        }
        self.all.push(entry);
        self.all.len() as u32 - 1
    }

    /// One holder more. An entry that is held is out of the list.
    #[inline]
    fn hold(&mut self, entry: u32) {
        let Entry { holders, older, newer, .. } = &mut self.all[entry as usize];
        *holders += 1;
        if *holders > 1 {
            return;
        }
        let (older, newer) = (*older, *newer);
        self.join(older, newer);
        self.unreferenced -= 1;
    }

    /// One holder less. An entry that no request holds stands at the end of the list.
    #[inline]
    fn let_go(&mut self, entry: u32) {
        let newest = self.newest;
        let Entry { holders, older, newer, .. } = &mut self.all[entry as usize];
        debug_assert!(*holders > 0, "no request gives up what it does not hold");
        *holders -= 1;
        if *holders > 0 {
            return;
        }
        (*older, *newer) = (newest, NONE);
        self.newest = entry;
        match newest {
            NONE => self.oldest = entry,
            newest => self.all[newest as usize].newer = entry,
        }
        self.unreferenced += 1;
    }

    /// Takes the first out of the list.
    #[inline]
    fn pop_oldest(&mut self) -> u32 {
        let entry = self.oldest;
        let newer = self.all[entry as usize].newer;
        self.join(NONE, newer);
        self.unreferenced -= 1;
        self.vacant.push(entry);
        entry
    }

    /// Makes two neighbours.
    #[inline]
    fn join(&mut self, older: u32, newer: u32) {
        match older {
            NONE => self.oldest = newer,
            older => self.all[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.all[newer as usize].older = older,
        }
    }

    /// The youngest of an entry and its twins.
    fn youngest(&self, mut entry: u32) -> u32 {
        while self.all[entry as usize].twin != NONE {
            entry = self.all[entry as usize].twin;
        }
        entry
    }
}

#[derive(Debug)]
pub(super) struct BlockCache {
    block: u64,
    chains: Chains,
    /// The entries that each request holds: those of its first blocks.
    held: Vec<Vec<u32>>,
    entries: Entries,
    followed: Vec<Place>,
    reported: Option<Reported>,
}

impl BlockCache {
    pub(super) fn new(block: u64) -> BlockCache {
        BlockCache {
            block,
            chains: Chains::default(),
            held: Vec::new(),
            entries: Entries {
                all: Vec::new(),
                vacant: Vec::new(),
                unreferenced: 0,
                oldest: NONE,
                newest: NONE,
                made: 0,
            },
            followed: Vec::new(),
            reported: None,
        }
    }

    /// The first block of which the last token lies in a node.
    #[inline]
    fn first_block(&self, node: u32) -> u64 {
        u64::from(self.chains.tree.nodes[node as usize].start()) / self.block
    }

    /// The entries with which the first `most` whole blocks of a chain are known, as long as all are, node by node.
    fn cached_blocks(&self, path: impl Iterator<Item = Step>, most: u64) -> impl Iterator<Item = &[u32]> {
        let mut block = 0;
        let mut goes_on = true;
        path.map_while(move |Step { node, end }| {
            let until = most.min(u64::from(end) / self.block);
            if !goes_on || (block >= most) {
                return None;
            }
            if until <= block {
                return Some(&[][..]);
            }
            let cached = &self.chains.tree.nodes[node as usize].blocks;
            let cached = cached.get((block - self.first_block(node)) as usize..).unwrap_or_default();
            let cached = &cached[..cached.len().min((until - block) as usize)];
            let cached = &cached[..cached.iter().position(|&entry| entry == NONE).unwrap_or(cached.len())];
            block += cached.len() as u64;
            goes_on = block == until;
            Some(cached)
        })
    }

    /// Evicts the entry that has been unreferenced for longest.
    fn evict_oldest(&mut self) {
        let entry = self.entries.pop_oldest();
        let Entry { node, offset, twin, .. } = self.entries.all[entry as usize];
        let first = &mut self.chains.tree.nodes[node as usize].blocks[offset as usize];
        if *first == entry {
            *first = twin;
            if let Some(reported) = self.reported.as_mut().filter(|_| twin == NONE) {
                reported.note(&mut self.chains.tree, node, offset..offset + 1, false);
            }
        } else {
            let mut before = *first;
            while self.entries.all[before as usize].twin != entry {
                before = self.entries.all[before as usize].twin;
            }
            self.entries.all[before as usize].twin = twin;
        }
        self.chains.tree.leave(node);
    }

    /// The first `tokens` tokens of a request lie in blocks that it holds: others can find them.
    fn publish(&mut self, place: Place, tokens: u64) {
        let whole = tokens / self.block;
        let held = &mut self.held[place.index()];
        let mut block = held.len() as u64;
        if whole <= block {
            return;
        }
        held.reserve((whole - block) as usize);
        let mut step = step_of(self.chains.path(place), (block + 1) * self.block - 1);
        while block < whole {
            let Step { node, end } = self.chains.path(place)[step];
            step += 1;
            let until = whole.min(u64::from(end) / self.block);
            if until <= block {
                continue;
            }
            let first = self.first_block(node);
            self.note_new(node, (block - first) as u32..(until - first) as u32);
            let content = &mut self.chains.tree.nodes[node as usize];
            content.add_uses((until - block) as u32);
            self.entries.made += until - block;
            if content.blocks.len() < (until - first) as usize {
                content.blocks.resize((until - first) as usize, NONE);
            }
            let held = &mut self.held[place.index()];
            for offset in (block - first) as usize..(until - first) as usize {
                let entry = self.entries.add(node, offset as u32);
                held.push(entry);
                let oldest = &mut content.blocks[offset];
                if *oldest == NONE {
                    *oldest = entry;
                } else {
                    let youngest = self.entries.youngest(*oldest);
                    self.entries.all[youngest as usize].twin = entry;
                }
            }
            block = until;
        }
    }

    /// Of some blocks of a node, which now become known, those are noted that were not.
    #[inline]
    fn note_new(&mut self, node: u32, offsets: std::ops::Range<u32>) {
        let Some(reported) = &mut self.reported else { return };
        for offset in offsets {
            let blocks = &self.chains.tree.nodes[node as usize].blocks;
            if blocks.get(offset as usize).is_none_or(|&entry| entry == NONE) {
                reported.note(&mut self.chains.tree, node, offset..offset + 1, true);
            }
        }
    }

    /// Entries lose a holder, the last one first.
    fn drop_holder(&mut self, entries: &[u32]) {
        entries.iter().rev().for_each(|&entry| self.entries.let_go(entry));
    }

    /// Is nothing known, and of no request?
    #[cfg(test)]
    pub(super) fn is_bare(&self) -> bool {
        self.chains.tree.is_empty()
    }
}

impl PrefixCache for BlockCache {
    fn open(&mut self, place: Place, content: &[Segment], own: u64, _prompt: u32) {
        if self.held.len() <= place.index() {
            self.held.resize_with(place.index() + 1, Vec::new);
        }
        self.chains.open(place, content, own);
        let path = self.chains.path(place);
        for step in path {
            let owner = self.chains.tree.nodes[step.node as usize].owner;
            if owner != NONE && !self.followed.contains(&Place(owner)) {
                self.followed.push(Place(owner));
            }
        }
        if let Some(&Step { node, .. }) = path.last() {
            let own = &mut self.chains.tree.nodes[node as usize];
            own.owner = place.0;
            if own.is_used_by_others() {
                self.followed.push(place);
            }
        }
    }

    fn close(&mut self, place: Place) {
        if let Some(&Step { node, .. }) = self.chains.path(place).last() {
            self.chains.tree.nodes[node as usize].owner = NONE;
        }
        self.followed.retain(|&followed| followed != place);
        self.chains.close(place);
    }

    fn content(&self, place: Place) -> Vec<Segment> {
        self.chains.content(place)
    }

    fn find(&self, place: Place, most: u64) -> Hit {
        let (mut blocks, mut unreferenced) = (0, 0);
        for cached in self.cached_blocks(self.chains.path(place).iter().copied(), most / self.block) {
            blocks += cached.len() as u64;
            unreferenced +=
                cached.iter().filter(|&&entry| self.entries.all[entry as usize].holders == 0).count() as u64;
        }
        Hit { tokens: blocks * self.block, unreferenced }
    }

    /// Blocks are ordered by when they were left, not by when they were found.
    fn refresh(&mut self, place: Place, most: u64) -> u64 {
        self.find(place, most).tokens
    }

    fn content_at(&self, place: Place, token: u64) -> u32 {
        self.chains.content_at(place, token)
    }

    fn hold(&mut self, place: Place, hit: Hit) {
        let mut held = std::mem::take(&mut self.held[place.index()]);
        debug_assert!(held.is_empty(), "only a request that holds nothing looks for anything");
        let path = self.chains.path(place).iter().copied();
        self.cached_blocks(path, hit.tokens / self.block).for_each(|cached| held.extend_from_slice(cached));
        held.iter().for_each(|&entry| self.entries.hold(entry));
        self.held[place.index()] = held;
    }

    #[inline]
    fn scheduled(&mut self, place: Place, tokens: u64) {
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
        self.held[place.index()].len() as u64
    }

    fn leave(&mut self, place: Place) {
        let mut held = std::mem::take(&mut self.held[place.index()]);
        self.drop_holder(&held);
        held.clear();
        self.held[place.index()] = held;
    }

    fn keep(&mut self, place: Place) -> Part {
        Part(std::mem::take(&mut self.held[place.index()]))
    }

    fn let_go(&mut self, part: Part) {
        self.drop_holder(&part.0);
    }

    #[inline]
    fn cached(&self) -> u64 {
        (self.entries.all.len() - self.entries.vacant.len()) as u64
    }

    fn inserted(&self) -> u64 {
        self.entries.made
    }

    #[inline]
    fn unreferenced(&self) -> u64 {
        self.entries.unreferenced
    }

    fn evict_until(&mut self, unreferenced: u64) {
        while self.entries.unreferenced > unreferenced {
            self.evict_oldest();
        }
    }

    fn evicts_runs(&self) -> bool {
        false
    }

    #[inline]
    fn followed(&self) -> &[Place] {
        &self.followed
    }

    fn go_on_alike(&self, one: Place, other: Place, tokens: u64) -> bool {
        self.chains.go_on_alike(one, other, tokens, self.block)
    }

    /// Equal blocks are not merged.
    fn is_computed_twice(&self, _slot: Place) -> bool {
        false
    }

    fn cached_prefix(&self, content: &[Segment], most: u64) -> (u64, Option<Place>) {
        let steps = || self.chains.tree.steps(content);
        let blocks: usize = self.cached_blocks(steps(), most / self.block).map(<[u32]>::len).sum();
        let tokens = blocks as u64 * self.block;
        if !content.iter().any(|segment| segment.content & OWN > 0) {
            return (tokens, None);
        }
        let next = steps().find(|step| u64::from(step.end) >= tokens + self.block);
        let owner = next.map_or(NONE, |step| self.chains.tree.nodes[step.node as usize].owner);
        (tokens, Some(Place(owner)).filter(|_| owner != NONE))
    }

    fn report(&mut self) {
        self.reported.get_or_insert_default().update(&mut self.chains.tree);
    }

    fn reported(&self, content: &[Segment], most: u64) -> u64 {
        let blocks = |reported: &Reported| reported.blocks(&self.chains.tree, content, self.block, most);
        self.reported.as_ref().map_or(0, blocks) * self.block
    }
}
