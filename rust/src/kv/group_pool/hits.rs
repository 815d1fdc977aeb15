//! Prefixes that all groups have.

use super::super::layers::Reach;
use super::GroupPool;
use super::blocks::Name;
use crate::request::Place;

/// The longest prefix of a request that all groups have.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupHit {
    pub(crate) tokens: u64,
    /// The end of a longer prefix that not all groups have; 0: there is none.
    pub(super) junction: u64,
    /// Its blocks: group after group, in order. Entries before them are null.
    pub(super) blocks: Vec<(usize, u32)>,
}

impl GroupPool {
    /// Looks up a waiting request among its first `limit` tokens. Returns the tokens of the hit.
    pub(crate) fn look_up(&mut self, place: Place, limit: u64) -> u64 {
        let hit = if self.has_names { self.find(place, limit) } else { GroupHit::default() };
        let tokens = hit.tokens;
        self.looked_up = Some((place, hit));
        tokens
    }

    fn find(&self, place: Place, limit: u64) -> GroupHit {
        let mut longest = 0;
        let mut length = limit;
        // By kind: the length found, and the blocks before its end that the kind has.
        let mut runs = vec![(u64::MAX, 0); self.kinds.len()];
        loop {
            let before = length;
            for (kind, run) in self.kinds.iter().zip(&mut runs) {
                let is_full = self.groups[kind[0]].reach == Reach::Full;
                if !is_full {
                    *run = self.last_run(place, kind, length);
                    length = run.0;
                } else if run.0 == u64::MAX {
                    run.0 = self.whole_prefix(place, kind, length);
                    length = run.0;
                }
                longest = longest.max(length);
            }
            let is_simple = self.kinds.len() == 2 && self.groups[self.kinds[1][0]].reach != Reach::Full;
            if length == before || is_simple || length == 0 {
                break;
            }
        }
        let mut blocks = Vec::new();
        for (index, group) in self.groups.iter().enumerate() {
            let end = length / group.block;
            let kind = self.kinds.iter().position(|kind| kind.contains(&index)).unwrap_or(0);
            let first = if group.reach == Reach::Full { 0 } else { end - runs[kind].1.min(end) };
            let found = (first..end).filter_map(|number| self.block_at(place, index, number));
            blocks.extend(found.map(|block| (index, block)));
        }
        GroupHit { tokens: length, junction: if longest > length { longest } else { 0 }, blocks }
    }

    /// The cached block of a group with this number.
    fn block_at(&self, place: Place, group: usize, number: u64) -> Option<u32> {
        let last = (number + 1) * self.groups[group].block - 1;
        let node = self.chains.content_at(place, last);
        self.blocks.find(Name { group: group as u32, node, index: number as u32 })
    }

    /// Whether all groups of a kind have a block.
    fn have(&self, place: Place, kind: &[usize], number: u64) -> bool {
        kind.iter().all(|&group| self.block_at(place, group, number).is_some())
    }

    /// The tokens of the longest prefix without a gap, down to a multiple of the alignment.
    fn whole_prefix(&self, place: Place, kind: &[usize], limit: u64) -> u64 {
        let block = self.groups[kind[0]].block;
        let blocks = (0..limit / block).take_while(|&number| self.have(place, kind, number)).count() as u64;
        blocks * block / self.alignment * self.alignment
    }

    /// The end of the last run that is long enough for a hit and ends at a multiple of the alignment, and its blocks.
    /// Otherwise that of the run from the start.
    fn last_run(&self, place: Place, kind: &[usize], limit: u64) -> (u64, u64) {
        let group = &self.groups[kind[0]];
        let mut run = 0;
        for number in (0..limit / group.block).rev() {
            let end = (number + 1) * group.block;
            if (run == 0 && !end.is_multiple_of(self.alignment)) || !self.have(place, kind, number) {
                run = 0;
                continue;
            }
            run += 1;
            if run == group.blocks_of_hit() {
                return ((number + run) * group.block, run);
            }
        }
        (run * group.block, run)
    }
}
