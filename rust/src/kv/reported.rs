//! Content of a cache at its last report.
//!
//! A gateway receives the state of its caches at intervals. Insertions and evictions are recorded as they happen and
//! applied at a report, so a report costs the number of changes, not the size of the cache. A node that is reported
//! or has changes keeps its number in the content tree, even if it is no longer cached.

use std::ops::Range;

use super::content_tree::{Segment, Step, Tree};

/// State at the last report, and later changes.
#[derive(Debug, Default)]
pub(super) struct Reported {
    /// For each node, whether each block was cached, from the first block whose last token is in it.
    nodes: Vec<Blocks>,
    changes: Vec<ReportedChange>,
}

#[derive(Clone, Debug, Default)]
struct Blocks {
    cached: Vec<bool>,
    /// Number of cached blocks.
    count: u32,
}

/// An insertion or eviction of blocks of a node, counted from its first block.
#[derive(Debug)]
struct ReportedChange {
    node: u32,
    offsets: Range<u32>,
    is_cached: bool,
}

impl Reported {
    /// Records a change for the next report.
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

    /// Applies the recorded changes.
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
            // Pending changes and reported blocks each pin the node.
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

    /// Returns the number of reported whole blocks within the first `limit` tokens of a chain. A block must match
    /// `beyond` tokens after it too.
    pub(super) fn blocks(&self, tree: &Tree, content: &[Segment], (block, beyond): (u32, u32), limit: u64) -> u64 {
        let blocks_until = |end: u32| u64::from(end.saturating_sub(beyond) / block);
        let mut count = 0;
        for Step { node, end } in tree.steps(content) {
            let until = blocks_until(end).min(limit / u64::from(block));
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
