//! A timing wheel: the member that is due first.
//!
//! A timing wheel of eleven levels with 64 buckets each, enough for every 64-bit tick: level l holds what differs from the current tick first in its
//! l-th digit to the base 64. Insertion and removal are O(1); a member moves down at most once per level.

use crate::request::Place;

const NONE: u32 = u32::MAX;
const LEVELS: usize = 11;

#[derive(Clone, Copy, Debug)]
struct WheelEntry {
    tick: u64,
    previous: u32,
    next: u32,
    level: u8,
    bucket: u8,
}

const VACANT: WheelEntry = WheelEntry { tick: 0, previous: NONE, next: NONE, level: u8::MAX, bucket: 0 };

/// Members keyed by the tick at which they are due.
#[derive(Debug)]
pub(crate) struct Wheel {
    now: u64,
    occupied: [u64; LEVELS],
    heads: [[u32; 64]; LEVELS],
    nodes: Vec<WheelEntry>,
}

impl Wheel {
    pub(crate) fn new() -> Wheel {
        Wheel { now: 0, occupied: [0; LEVELS], heads: [[NONE; 64]; LEVELS], nodes: Vec::new() }
    }

    /// `place` is due at `tick`, which is later than now.
    #[inline]
    pub(crate) fn insert(&mut self, place: Place, tick: u64) {
        debug_assert!(tick > self.now, "members are due in the future");
        if place.index() >= self.nodes.len() {
            self.nodes.resize(place.index() + 1, VACANT);
        }
        self.link(place.0, tick);
    }

    #[inline]
    fn link(&mut self, index: u32, tick: u64) {
        let level = ((63 - ((tick ^ self.now) | 1).leading_zeros()) / 6) as usize;
        let bucket = (tick >> (6 * level)) as usize & 63;
        let next = self.heads[level][bucket];
        self.nodes[index as usize] =
            WheelEntry { tick, previous: NONE, next, level: level as u8, bucket: bucket as u8 };
        if next != NONE {
            self.nodes[next as usize].previous = index;
        }
        self.heads[level][bucket] = index;
        self.occupied[level] |= 1 << bucket;
    }

    /// Takes `place` out.
    #[inline]
    pub(crate) fn remove(&mut self, place: Place) {
        let node = self.nodes[place.index()];
        debug_assert!(node.level != u8::MAX, "only members leave");
        let (level, bucket) = (node.level as usize, node.bucket as usize);
        if node.previous == NONE {
            self.heads[level][bucket] = node.next;
            if node.next == NONE {
                self.occupied[level] &= !(1 << bucket);
            }
        } else {
            self.nodes[node.previous as usize].next = node.next;
        }
        if node.next != NONE {
            self.nodes[node.next as usize].previous = node.previous;
        }
        self.nodes[place.index()].level = u8::MAX;
    }

    /// The earliest tick at which a request is due.
    #[inline]
    pub(crate) fn next(&self) -> Option<u64> {
        if self.occupied[0] != 0 {
            return Some((self.now & !63) | u64::from(self.occupied[0].trailing_zeros()));
        }
        let level = (1..LEVELS).find(|&level| self.occupied[level] != 0)?;
        let mut index = self.heads[level][self.occupied[level].trailing_zeros() as usize];
        let mut earliest = u64::MAX;
        while index != NONE {
            let node = self.nodes[index as usize];
            earliest = earliest.min(node.tick);
            index = node.next;
        }
        Some(earliest)
    }

    /// Moves to `tick`, which no member's time precedes, and hands out requests that are due at it.
    #[inline]
    pub(crate) fn advance(&mut self, tick: u64, due: &mut Vec<Place>) {
        let changed = self.now ^ tick;
        self.now = tick;
        let top = ((63 - (changed | 1).leading_zeros()) / 6) as usize;
        for level in (1..=top).rev() {
            let mut index = self.clear(level, (tick >> (6 * level)) as usize & 63);
            while index != NONE {
                let node = self.nodes[index as usize];
                self.link(index, node.tick);
                index = node.next;
            }
        }
        let mut index = self.clear(0, tick as usize & 63);
        while index != NONE {
            let node = &mut self.nodes[index as usize];
            debug_assert_eq!(node.tick, tick, "no request is passed over");
            node.level = u8::MAX;
            due.push(Place(index));
            index = node.next;
        }
    }

    /// Empties a bucket and returns the first of requests that were there.
    #[inline]
    fn clear(&mut self, level: usize, bucket: usize) -> u32 {
        if self.occupied[level] & (1 << bucket) == 0 {
            return NONE;
        }
        self.occupied[level] &= !(1 << bucket);
        std::mem::replace(&mut self.heads[level][bucket], NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn a_wheel_hands_out_what_a_sorted_map_would(
            begun in prop_oneof![Just(0), Just((1 << 36) - 100), 0..u64::MAX / 2],
            steps in prop::collection::vec((0_u32..40, 1_u64..200_000, any::<bool>()), 1..200),
        ) {
            // A run may have seen any number of ticks before.
            let mut wheel = Wheel { now: begun, ..Wheel::new() };
            let mut map: BTreeMap<u32, u64> = BTreeMap::new();
            let mut now = begun;
            for (place, ahead, removes) in steps {
                if map.remove(&place).is_some() {
                    wheel.remove(Place(place));
                }
                if !removes {
                    wheel.insert(Place(place), now + ahead);
                    map.insert(place, now + ahead);
                }
                let earliest = map.values().min().copied();
                prop_assert_eq!(wheel.next(), earliest);
                if let Some(earliest) = earliest.filter(|_| ahead % 3 == 0) {
                    // Halfway first, then all the way: no request is due in between.
                    let mut due = Vec::new();
                    let halfway = now + (earliest - now) / 2;
                    if halfway > now && halfway < earliest {
                        wheel.advance(halfway, &mut due);
                        prop_assert!(due.is_empty());
                    }
                    wheel.advance(earliest, &mut due);
                    now = earliest;
                    let mut got: Vec<u32> = due.iter().map(|place| place.0).collect();
                    got.sort_unstable();
                    let expected: Vec<u32> =
                        map.iter().filter(|entry| *entry.1 == now).map(|entry| *entry.0).collect();
                    prop_assert_eq!(got, expected);
                    map.retain(|_, tick| *tick > now);
                }
            }
        }
    }
}
