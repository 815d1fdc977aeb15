//! Ready requests that are in no cohort, since their e is another: they decode one by one, the first in order first.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::cohort::Key;
use crate::clock::Instant;
use crate::request::Place;

/// A deadline, and behind it the id and the place of the request that has it in one number: quick to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry(Instant, u64);

impl Entry {
    #[inline]
    fn new((deadline, id): Key, place: Place) -> Entry {
        Entry(deadline, u64::from(id) << 32 | u64::from(place.0))
    }

    #[inline]
    fn key(self) -> Key {
        (self.0, (self.1 >> 32) as u32)
    }

    #[inline]
    fn place(self) -> Place {
        Place(self.1 as u32)
    }
}

/// So many are sorted at once.
const FEW: usize = 128;

/// So many stand in order at most, where no more are chosen: it takes time in proportion to put one between them.
const MOST_FIRST: usize = 256;

/// Requests by their places in the order. However many they are, what it costs depends on how many are chosen.
#[derive(Debug)]
pub(super) struct Singles {
    /// Those that came since one of them was looked for, and the first of them: most plans choose all or none.
    fresh: Vec<Entry>,
    first_fresh: Entry,
    /// Those that come first, in order.
    first: VecDeque<Entry>,
    /// The others: all of them come behind those.
    others: BinaryHeap<Reverse<Entry>>,
    /// How many of them, from the first, the present plan has chosen.
    pub(super) chosen: usize,
}

/// Behind all others.
const NONE: Entry = Entry(Instant::NEVER, u64::MAX);

impl Default for Singles {
    fn default() -> Singles {
        Singles { fresh: Vec::new(), first_fresh: NONE, first: VecDeque::new(), others: BinaryHeap::new(), chosen: 0 }
    }
}

impl Singles {
    #[inline]
    pub(super) fn insert(&mut self, key: Key, place: Place) {
        let entry = Entry::new(key, place);
        self.first_fresh = self.first_fresh.min(entry);
        self.fresh.push(entry);
    }

    /// How many they are.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.fresh.len() + self.first.len() + self.others.len()
    }

    /// The fresh ones take their places.
    #[inline(never)]
    fn settle(&mut self) {
        self.first_fresh = NONE;
        while let Some(entry) = self.fresh.pop() {
            self.put(entry);
        }
    }

    fn put(&mut self, entry: Entry) {
        if self.first.back().is_some_and(|last| entry < *last) {
            let index = self.first.partition_point(|other| *other < entry);
            self.first.insert(index, entry);
            if self.first.len() > self.chosen.max(MOST_FIRST) {
                self.others.extend(self.first.pop_back().map(Reverse));
            }
        } else {
            self.others.push(Reverse(entry));
        }
    }

    /// A request that is preempted is not here any more.
    pub(super) fn remove(&mut self, place: Place) {
        self.settle();
        self.first.retain(|entry| entry.place() != place);
        self.others.retain(|Reverse(entry)| entry.place() != place);
    }

    /// The place of a request in the order, if it is here.
    pub(super) fn find(&self, place: Place) -> Option<Key> {
        let others = self.others.iter().map(|Reverse(entry)| entry);
        self.fresh.iter().chain(&self.first).chain(others).find(|entry| entry.place() == place).map(|entry| entry.key())
    }

    /// The place of the first in the order, behind all if there is none.
    pub(super) fn first(&self) -> Key {
        let settled = self.first.front().or(self.others.peek().map(|Reverse(entry)| entry));
        settled.map_or(self.first_fresh, |&entry| entry.min(self.first_fresh)).key()
    }

    /// Chooses all, in no order: the present plan takes all of them out.
    pub(super) fn choose_all(&mut self) {
        self.first_fresh = NONE;
        self.first.extend(self.fresh.drain(..));
        self.first.extend(self.others.drain().map(|Reverse(entry)| entry));
        self.chosen = self.first.len();
    }

    /// Chooses those up to a place in the order; says how many they are, or a number above `most` if they are more.
    pub(super) fn choose(&mut self, last: Key, most: u64) -> usize {
        let last = Entry::new(last, Place(u32::MAX));
        if self.first_fresh <= last && !self.fresh.is_empty() {
            self.settle();
        }
        while self.first.len() as u64 <= most && self.others.peek().is_some_and(|Reverse(entry)| *entry <= last) {
            if self.others.len() > FEW {
                self.first.extend(self.others.pop().map(|Reverse(entry)| entry));
            } else {
                // To sort them all is quicker than to take one after the other.
                let sorted = self.first.len();
                self.first.extend(self.others.drain().map(|Reverse(entry)| entry));
                self.first.make_contiguous()[sorted..].sort_unstable();
            }
        }
        let is_all = self.first.back().is_none_or(|entry| *entry <= last);
        self.chosen = if is_all { self.first.len() } else { self.first.partition_point(|entry| *entry <= last) };
        self.chosen
    }

    pub(super) fn chosen_keys(&self) -> impl Iterator<Item = (Key, Place)> {
        self.first.range(..self.chosen).map(|entry| (entry.key(), entry.place()))
    }

    /// Takes the first one out, which is chosen.
    pub(super) fn pop(&mut self) -> Option<Place> {
        self.chosen = self.chosen.checked_sub(1)?;
        self.first.pop_front().map(Entry::place)
    }
}
