//! What a cache held when it last reported.
//!
//! A gateway hears of the caches behind it now and then. What becomes known and what is evicted is noted as it happens,
//! and taken over at a report: so a report costs what has changed, and not what there is. A node of which something is
//! remembered here keeps its number in the tree of contents, whether the cache still knows it or not.

use std::ops::Range;

use super::content_tree::{Segment, Step, Tree};

/// What the last report said, and what has changed since.
#[derive(Debug, Default)]
pub(super) struct Reported {
    /// For each node, was the block known, from the first on whose last token lies in it?
    nodes: Vec<Blocks>,
    changes: Vec<ReportedChange>,
}

#[derive(Clone, Debug, Default)]
struct Blocks {
    cached: Vec<bool>,
    /// How many were.
    count: u32,
}

/// Blocks of a node, counted from its first, have become known or been evicted.
#[derive(Debug)]
struct ReportedChange {
    node: u32,
    offsets: Range<u32>,
    is_cached: bool,
}

impl Reported {
    /// Something changes that will be reported.
    pub(super) fn note(&mut self, tree: &mut Tree, node: u32, offsets: Range<u32>, is_cached: bool) {
        if let Some(last) = self.changes.last_mut().filter(|last| (last.node, last.is_cached) == (node, is_cached)) {
            if last.offsets.end == offsets.start {
                last.offsets.end = offsets.end;
                return;
            }
            if last.offsets.start == offsets.end {
                last.offsets.start = offsets.start;
                return;
            }
        }
        tree.pin(node);
        self.changes.push(ReportedChange { node, offsets, is_cached });
    }

    /// Reports what has changed.
    pub(super) fn update(&mut self, tree: &mut Tree) {
        for ReportedChange { node, offsets, is_cached } in self.changes.drain(..) {
            if self.nodes.len() <= node as usize {
                self.nodes.resize_with(node as usize + 1, Blocks::default);
            }
            let blocks = &mut self.nodes[node as usize];
            let before = blocks.count;
            if blocks.cached.len() < offsets.end as usize {
                blocks.cached.resize(offsets.end as usize, false);
            }
            for cached in &mut blocks.cached[offsets.start as usize..offsets.end as usize] {
                blocks.count = blocks.count + u32::from(is_cached) - u32::from(*cached);
                *cached = is_cached;
            }
            // What was noted is one reason to keep the node, what is known in it another.
            if before == 0 && blocks.count > 0 {
                tree.pin(node);
            }
            if blocks.count == 0 {
                blocks.cached = Vec::new();
                if before > 0 {
                    tree.unpin(node);
                }
            }
            tree.unpin(node);
        }
    }

    /// How many whole blocks at the beginning of a chain's first `most` tokens were known.
    /// A block is known by so many tokens behind it too.
    pub(super) fn blocks(&self, tree: &Tree, content: &[Segment], (block, beyond): (u32, u32), most: u64) -> u64 {
        let blocks_until = |end: u32| u64::from(end.saturating_sub(beyond) / block);
        let mut count = 0;
        for Step { node, end } in tree.steps(content) {
            let until = blocks_until(end).min(most / u64::from(block));
            if until > count {
                let first = blocks_until(tree.nodes[node as usize].start());
                let cached = self.nodes.get(node as usize).map_or(&[][..], |blocks| &blocks.cached);
                let cached = cached.get((count - first) as usize..).unwrap_or_default();
                count += cached.iter().take((until - count) as usize).take_while(|&&cached| cached).count() as u64;
                if count < until {
                    break;
                }
            }
        }
        count
    }
}
