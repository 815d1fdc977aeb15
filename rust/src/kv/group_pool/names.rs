//! Names of blocks: which blocks a later request can hit.

use super::super::layers::{Group, Reach};
use super::blocks::Name;
use super::{GroupPool, NULL, Table};
use crate::request::Place;

impl GroupPool {
    /// Considers the blocks of the first `tokens` tokens of a request for a name in a plan, once each.
    pub(super) fn name(&mut self, place: Place, tokens: u64, plan: u64) {
        if !self.has_names {
            return;
        }
        let tokens = self.chains.limit_tokens(place, tokens) / self.alignment * self.alignment;
        let table = &self.tables[place.index()];
        let named = table.named;
        if tokens <= named {
            return;
        }
        for (index, group) in self.groups.iter().enumerate() {
            for number in named / group.block..tokens / group.block {
                let block = table.entries[index][number as usize];
                let end = (number + 1) * group.block;
                if block == NULL || self.blocks.is_named(block) || !self.is_reachable(group, table, end) {
                    continue;
                }
                let node = self.chains.content_at(place, end - 1);
                let name = Name { group: index as u32, node, index: number as u32 };
                self.blocks.name(block, name, plan, &mut self.chains.tree);
            }
        }
        self.tables[place.index()].named = tokens;
    }

    /// Whether a hit may need the block that ends at token `end`.
    fn is_reachable(&self, group: &Group, table: &Table, end: u64) -> bool {
        if group.reach == Reach::Full {
            return true;
        }
        let kept = group.blocks_of_hit() * group.block;
        let is_before = |boundary: u64| end <= boundary && boundary - end < kept;
        let aligned = |tokens: u64| tokens / self.alignment * self.alignment;
        let first_aligned = end.next_multiple_of(self.alignment);
        match self.retention_interval {
            None => is_before(first_aligned),
            Some(interval) => {
                let of_interval =
                    interval > 0 && (kept >= interval || is_before(aligned(first_aligned.next_multiple_of(interval))));
                of_interval || is_before(aligned(table.prompt - 1)) || is_before(aligned(table.junction))
            }
        }
    }
}
