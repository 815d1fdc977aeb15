//! A timing wheel that returns the earliest due member.
//!
//! It has one slot for each of the next ticks, and two levels of bits over the slots. Members due beyond the wheel's
//! reach are in a list. The list is scanned when its first member is due, at least one turn later. Insertion, removal
//! and the query of the earliest tick are O(1).

use crate::request::Place;

const NONE: u32 = u32::MAX;
/// Slots of the wheel: the number of ticks in reach.
const REACH: usize = 2048;
const WORDS: usize = REACH / 64;

/// A member. In the list, `previous` is the member itself, and `next` its index there.
#[derive(Clone, Copy, Debug)]
struct WheelEntry {
    tick: u64,
    previous: u32,
    next: u32,
}

const VACANT: WheelEntry = WheelEntry { tick: u64::MAX, previous: NONE, next: NONE };

/// Members keyed by the tick at which they are due.
#[derive(Debug)]
pub(crate) struct Wheel {
    now: u64,
    /// The earliest tick at which a member is due; `u64::MAX` if there is none.
    next: u64,
    heads: Box<[u32; REACH]>,
    /// The occupied slots as bits, and the non-zero words of them.
    taken: [u64; WORDS],
    words: u64,
    far: Vec<u32>,
    /// The earliest tick of the list, at which it is scanned; `u64::MAX` if it is empty.
    far_next: u64,
    nodes: Vec<WheelEntry>,
}

impl Wheel {
    pub(crate) fn new() -> Wheel {
        Wheel {
            now: 0,
            next: u64::MAX,
            heads: Box::new([NONE; REACH]),
            taken: [0; WORDS],
            words: 0,
            far: Vec::new(),
            far_next: u64::MAX,
            nodes: Vec::new(),
        }
    }

    /// Inserts `place` at `tick`. The tick is later than now, or now if it is removed before the wheel advances.
    #[inline]
    pub(crate) fn insert(&mut self, place: Place, tick: u64) {
        debug_assert!(tick >= self.now, "members are due in the future");
        self.next = self.next.min(tick);
        if place.index() < self.nodes.len() {
            self.link(place.0, tick);
        } else {
            self.link_beyond(place, tick);
        }
    }

    /// Inserts a place beyond the present table.
    #[cold]
    fn link_beyond(&mut self, place: Place, tick: u64) {
        self.nodes.resize(place.index() + 1, VACANT);
        self.link(place.0, tick);
    }

    #[inline(always)]
    fn link(&mut self, index: u32, tick: u64) {
        if tick - self.now >= REACH as u64 {
            return self.put_far(index, tick);
        }
        let at = tick as usize % REACH;
        let next = std::mem::replace(&mut self.heads[at], index);
        self.nodes[index as usize] = WheelEntry { tick, previous: NONE, next };
        if next != NONE {
            self.nodes[next as usize].previous = index;
        }
        self.taken[at / 64] |= 1 << (at % 64);
        self.words |= 1 << (at / 64);
    }

    fn put_far(&mut self, index: u32, tick: u64) {
        self.nodes[index as usize] = WheelEntry { tick, previous: index, next: self.far.len() as u32 };
        self.far.push(index);
        self.far_next = self.far_next.min(tick);
    }

    /// Whether `place` is a member that is not due yet.
    #[inline]
    pub(crate) fn holds(&self, place: Place) -> bool {
        self.nodes[place.index()].tick != u64::MAX
    }

    /// Removes `place`.
    pub(crate) fn remove(&mut self, place: Place) {
        let node = std::mem::replace(&mut self.nodes[place.index()], VACANT);
        debug_assert!(node.tick != u64::MAX, "only members are removed");
        if node.previous == place.0 {
            self.far.swap_remove(node.next as usize);
            if let Some(&moved) = self.far.get(node.next as usize) {
                self.nodes[moved as usize].next = node.next;
            }
            if node.tick == self.far_next {
                let ticks = self.far.iter().map(|&index| self.nodes[index as usize].tick);
                self.far_next = ticks.min().unwrap_or(u64::MAX);
            }
        } else {
            if node.previous == NONE {
                let at = node.tick as usize % REACH;
                self.heads[at] = node.next;
                if node.next == NONE {
                    self.vacate(at);
                }
            } else {
                self.nodes[node.previous as usize].next = node.next;
            }
            if node.next != NONE {
                self.nodes[node.next as usize].previous = node.previous;
            }
        }
        if node.tick == self.next {
            self.next = self.find();
        }
    }

    #[inline]
    fn vacate(&mut self, at: usize) {
        self.taken[at / 64] &= !(1 << (at % 64));
        if self.taken[at / 64] == 0 {
            self.words &= !(1 << (at / 64));
        }
    }

    /// All members, unordered.
    pub(crate) fn members(&self) -> impl Iterator<Item = Place> {
        let is_one = |&index: &u32| index != NONE;
        let next = move |&index: &u32| Some(self.nodes[index as usize].next).filter(is_one);
        let heads = self.heads.iter().copied().filter(is_one);
        let near = heads.flat_map(move |head| std::iter::successors(Some(head), next));
        near.chain(self.far.iter().copied()).map(Place)
    }

    /// The earliest tick at which a member is due; `u64::MAX` if there is none.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The first occupied slot from this tick on, as a tick.
    #[inline]
    fn find(&self) -> u64 {
        let near = if self.words == 0 {
            u64::MAX
        } else {
            let from = self.now as usize % REACH;
            let rest = self.taken[from / 64] >> (from % 64);
            if rest != 0 {
                self.now + u64::from(rest.trailing_zeros())
            } else {
                // The words after this one come first, then those from the beginning, then the lower bits of this
                // one.
                let behind = self.words & (u64::MAX << 1 << (from / 64));
                let word = (if behind != 0 { behind } else { self.words }).trailing_zeros() as usize;
                let at = word * 64 + self.taken[word].trailing_zeros() as usize;
                self.now + (at.wrapping_sub(from) % REACH) as u64
            }
        };
        near.min(self.far_next)
    }

    /// Advances to `tick` and passes the members due then to `due`. No member may be due earlier.
    #[inline(always)]
    pub(crate) fn advance(&mut self, tick: u64, due: impl FnMut(Place)) {
        debug_assert!(tick <= self.next, "no member is skipped");
        self.now = tick;
        if tick == self.next {
            if tick == self.far_next {
                self.draw_near();
            }
            self.hand_out(due);
        }
    }

    #[inline(always)]
    fn hand_out(&mut self, mut due: impl FnMut(Place)) {
        let at = self.now as usize % REACH;
        let mut index = std::mem::replace(&mut self.heads[at], NONE);
        self.vacate(at);
        while index != NONE {
            due(Place(index));
            index = std::mem::replace(&mut self.nodes[index as usize], VACANT).next;
        }
        self.next = self.find();
    }

    /// Moves the members now in reach from the list to the wheel.
    fn draw_near(&mut self) {
        self.far_next = u64::MAX;
        let mut stay = 0;
        for at in 0..self.far.len() {
            let index = self.far[at];
            let node = &mut self.nodes[index as usize];
            if node.tick - self.now >= REACH as u64 {
                node.next = stay as u32;
                self.far_next = self.far_next.min(node.tick);
                self.far[stay] = index;
                stay += 1;
            } else {
                let tick = node.tick;
                self.link(index, tick);
            }
        }
        self.far.truncate(stay);
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
            steps in prop::collection::vec((0_u32..40, prop_oneof![1_u64..2000, 1_u64..200_000], any::<bool>()), 1..200),
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
                prop_assert_eq!(wheel.next(), earliest.unwrap_or(u64::MAX));
                if let Some(earliest) = earliest.filter(|_| ahead % 3 == 0) {
                    // Half the way, then all of it: no member is due in between.
                    let mut due = Vec::new();
                    let halfway = now + (earliest - now) / 2;
                    if halfway > now && halfway < earliest {
                        wheel.advance(halfway, |place| due.push(place));
                        prop_assert!(due.is_empty());
                    }
                    wheel.advance(earliest, |place| due.push(place));
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
