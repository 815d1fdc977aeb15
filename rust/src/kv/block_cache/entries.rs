//! Insertion, use and eviction of entries, run by run, in the order in which single blocks would be processed.

use std::ops::Range;

use super::super::content_tree::NONE;
use super::super::prefix_cache::HeldRun;
use super::BlockCache;
use super::runs::BlockRun;
use crate::request::Place;

impl BlockCache {
    /// Returns the runs of a node before block `end`, last first.
    #[inline]
    pub(super) fn runs_before(&self, node: u32, end: u32) -> impl Iterator<Item = &BlockRun> {
        let mut run = self.chains.tree.nodes[node as usize].cached_runs.last;
        let runs = std::iter::from_fn(move || {
            let run_before = self.runs.all.get(run as usize)?;
            run = run_before.next;
            Some(run_before)
        });
        runs.skip_while(move |run| run.first >= end)
    }

    /// Splits a run before a block and returns the front. The rest keeps its number.
    fn cut(&mut self, run: u32, at: u32) -> u32 {
        let rest = *self.runs.at(run);
        debug_assert!(rest.first < at && at < rest.end, "a run is split between its blocks");
        let front = self.runs.add(BlockRun { end: at, ..rest });
        let cut = self.runs.at_mut(run);
        (cut.first, cut.front, cut.next) = (at, front, front);
        if rest.holders == 0 {
            self.runs.list(front, run);
        }
        self.chains.tree.use_node(rest.node);
        front
    }

    /// Removes a run that has no blocks left or has been merged into another run.
    #[inline]
    fn remove(&mut self, run: u32) {
        self.runs.vacant.push(run);
        self.chains.tree.leave(self.runs.at(run).node);
    }

    /// Records that blocks of a node are now cached, or evicted.
    #[inline]
    fn note(&mut self, node: u32, blocks: Range<u32>, is_cached: bool) {
        if self.reported.is_some() {
            self.note_reported(node, blocks, is_cached);
        }
    }

    fn note_reported(&mut self, node: u32, blocks: Range<u32>, is_cached: bool) {
        let first = self.first_block(node);
        if let Some(reported) = &mut self.reported {
            reported.note(&mut self.chains.tree, node, blocks.start - first..blocks.end - first, is_cached);
        }
    }

    /// Adds entries for blocks of a node: duplicates of older entries, or the first ones.
    pub(super) fn insert(&mut self, place: Place, node: u32, blocks: Range<u32>, is_duplicate: bool) {
        let count = u64::from(blocks.end - blocks.start);
        self.cached += count;
        self.inserted += count;
        if !is_duplicate {
            self.note(node, blocks.clone(), true);
        }
        let holding = &mut self.used_blocks[place.index()];
        debug_assert_eq!(holding.blocks, blocks.start, "a request uses its first blocks");
        holding.blocks = blocks.end;
        let node_runs = &mut self.chains.tree.nodes[node as usize].cached_runs;
        if let Some(last) = holding.runs.last() {
            // Its own run is extended, unless there are newer entries for the next blocks.
            let run = self.runs.at_mut(last.run);
            let is_youngest =
                if is_duplicate { run.is_duplicate && run.next == NONE } else { last.run == node_runs.last };
            if is_youngest && run.node == node && run.holders == 1 {
                run.end = blocks.end;
                return;
            }
        }
        let next = if is_duplicate { NONE } else { node_runs.last };
        let run = self.runs.add(BlockRun {
            node,
            first: blocks.start,
            end: blocks.end,
            holders: 1,
            is_duplicate,
            front: NONE,
            next,
            older: NONE,
            newer: NONE,
        });
        holding.runs.push(HeldRun { run, first: blocks.start });
        if !is_duplicate {
            node_runs.last = run;
        } else if node_runs.oldest_duplicate == NONE {
            node_runs.oldest_duplicate = run;
        } else {
            let mut youngest = node_runs.oldest_duplicate;
            while self.runs.at(youngest).next != NONE {
                youngest = self.runs.at(youngest).next;
            }
            self.runs.at_mut(youngest).next = run;
        }
        self.chains.tree.use_node(node);
    }

    /// Makes a request use the blocks of a node up to block `until`; it enters the first.
    pub(super) fn hold_until(&mut self, place: Place, node: u32, until: u32) {
        let mut run = self.chains.tree.nodes[node as usize].cached_runs.last;
        while self.runs.at(run).first >= until {
            run = self.runs.at(run).next;
        }
        if self.runs.at(run).end > until {
            run = self.cut(run, until);
        }
        let used_blocks = &mut self.used_blocks[place.index()].runs;
        let from = used_blocks.len();
        while run != NONE {
            let entered = self.runs.at_mut(run);
            entered.holders += 1;
            let BlockRun { first, next, holders, .. } = *entered;
            used_blocks.push(HeldRun { run, first });
            if holders == 1 {
                self.runs.unreferenced -= self.runs.at(run).blocks();
                self.runs.unlist(run);
            }
            run = next;
        }
        used_blocks[from..].reverse();
    }

    /// Removes a request from the runs that it used, last first.
    pub(super) fn drop_holder(&mut self, HeldRun { mut run, first }: HeldRun) {
        loop {
            let BlockRun { first: begin, front, .. } = *self.runs.at(run);
            self.drop_holder_of_run(run);
            if begin <= first {
                return;
            }
            run = front;
        }
    }

    /// Appends an unreferenced run to the list, merged with the next run if that is at the end of the list.
    #[inline]
    fn drop_holder_of_run(&mut self, run: u32) {
        let left = self.runs.at_mut(run);
        debug_assert!(left.holders > 0, "a run is released only by its users");
        left.holders -= 1;
        if left.holders > 0 {
            return;
        }
        let left = *left;
        self.runs.unreferenced += left.blocks();
        let newest = self.runs.newest;
        if let Some(newer) = self.runs.all.get_mut(newest as usize)
            && newer.next == run
            && !newer.is_duplicate
        {
            debug_assert_eq!(newer.first, left.end, "runs of a node are consecutive");
            (newer.first, newer.next) = (left.first, left.next);
            self.remove(run);
            return;
        }
        self.runs.list(run, newest);
    }

    /// Evicts the last blocks of a run, which have been unreferenced for longest.
    pub(super) fn evict(&mut self, run: u32, count: u32) {
        let evicted = self.runs.at_mut(run);
        let end = evicted.end;
        evicted.end -= count;
        let BlockRun { node, first, end: left, is_duplicate, .. } = *evicted;
        self.runs.unreferenced -= u64::from(count);
        self.cached -= u64::from(count);
        let is_gone = left == first;
        if is_gone {
            self.runs.unlist(run);
            self.unlink(run);
        }
        if !is_duplicate {
            if self.chains.tree.nodes[node as usize].cached_runs.oldest_duplicate == NONE {
                self.note(node, left..end, false);
            } else {
                self.replace(node, left..end);
            }
        }
        if is_gone {
            self.remove(run);
        }
    }

    /// Unlinks a run from its node.
    fn unlink(&mut self, run: u32) {
        let BlockRun { node, next, is_duplicate, .. } = *self.runs.at(run);
        let node_runs = &mut self.chains.tree.nodes[node as usize].cached_runs;
        let head = if is_duplicate { &mut node_runs.oldest_duplicate } else { &mut node_runs.last };
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

    /// Replaces evicted blocks of a node by the next oldest entries, if any.
    fn replace(&mut self, node: u32, blocks: Range<u32>) {
        let mut evicted = vec![blocks];
        while let Some(blocks) = evicted.pop() {
            let meets = |run: &BlockRun| run.first < blocks.end && blocks.start < run.end;
            let mut duplicate = self.chains.tree.nodes[node as usize].cached_runs.oldest_duplicate;
            while duplicate != NONE && !meets(self.runs.at(duplicate)) {
                duplicate = self.runs.at(duplicate).next;
            }
            if duplicate == NONE {
                self.note(node, blocks, false);
                continue;
            }
            let BlockRun { first, end, .. } = *self.runs.at(duplicate);
            let (start, until) = (first.max(blocks.start), end.min(blocks.end));
            if until < end {
                duplicate = self.cut(duplicate, until);
            }
            if first < start {
                self.cut(duplicate, start);
            }
            self.unlink(duplicate);
            self.link(duplicate);
            evicted.extend([blocks.start..start, until..blocks.end].into_iter().filter(|rest| !rest.is_empty()));
        }
    }

    /// Links a former duplicate as the oldest run.
    fn link(&mut self, run: u32) {
        let BlockRun { node, first, .. } = *self.runs.at(run);
        let (mut newer, mut next) = (NONE, self.chains.tree.nodes[node as usize].cached_runs.last);
        while next != NONE && self.runs.at(next).first > first {
            (newer, next) = (next, self.runs.at(next).next);
        }
        let linked = self.runs.at_mut(run);
        (linked.is_duplicate, linked.next) = (false, next);
        match newer {
            NONE => self.chains.tree.nodes[node as usize].cached_runs.last = run,
            newer => self.runs.at_mut(newer).next = run,
        }
    }
}
