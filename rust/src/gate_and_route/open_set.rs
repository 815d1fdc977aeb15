//! The set of replicas with a free slot.

use crate::random::below;

const ABSENT: u32 = u32::MAX;

/// A set of replicas with uniform random choice: every operation takes constant time.
#[derive(Debug)]
pub(super) struct OpenSet {
    members: Vec<u32>,
    /// Place of each replica among the members.
    places: Vec<u32>,
}

impl OpenSet {
    /// Builds an empty set.
    pub(super) fn new(replicas: u32) -> OpenSet {
        OpenSet { members: Vec::new(), places: vec![ABSENT; replicas as usize] }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn set(&mut self, replica: u32, is_open: bool) {
        let place = self.places[replica as usize];
        if is_open && place == ABSENT {
            self.places[replica as usize] = self.members.len() as u32;
            self.members.push(replica);
        } else if !is_open && place != ABSENT {
            self.members.swap_remove(place as usize);
            if let Some(&moved) = self.members.get(place as usize) {
                self.places[moved as usize] = place;
            }
            self.places[replica as usize] = ABSENT;
        }
    }

    /// Returns the member selected by 64 uniform bits.
    pub(super) fn pick(&self, word: u64) -> Option<u32> {
        self.members.get(below(word, self.members.len() as u64) as usize).copied()
    }

    /// Returns the member of the union with a disjoint set selected by 64 uniform bits.
    pub(super) fn pick_of_union(&self, other: &OpenSet, word: u64) -> Option<u32> {
        let place = below(word, (self.len() + other.len()) as u64) as usize;
        self.members.get(place).or_else(|| other.members.get(place - self.len())).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn every_member_of_the_set_can_be_picked(changes in prop::collection::vec((0_u32..12, any::<bool>()), 0..80)) {
            let (mut open, mut plain) = (OpenSet::new(12), BTreeSet::new());
            for (replica, is_open) in changes {
                open.set(replica, is_open);
                if is_open { plain.insert(replica); } else { plain.remove(&replica); }
                let members = plain.len() as u64;
                // The middle of each of the equal parts of 2^64.
                let middle = |part: u64| ((2 * u128::from(part) + 1) * (1 << 63) / u128::from(members)) as u64;
                let drawn: BTreeSet<u32> = (0..members).filter_map(|part| open.pick(middle(part))).collect();
                prop_assert_eq!(&drawn, &plain);
                prop_assert_eq!(open.is_empty(), plain.is_empty());
                let none = OpenSet::new(12);
                let union: BTreeSet<u32> =
                    (0..members).filter_map(|part| none.pick_of_union(&open, middle(part))).collect();
                prop_assert_eq!(&union, &plain);
            }
        }
    }
}
