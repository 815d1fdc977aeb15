//! Ready requests outside cohorts, because their e differs. They decode one by one, in order.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::cohort::Key;
use crate::clock::Instant;
use crate::request::Place;

/// A deadline, and the id and place of its request in one number, for fast comparison.
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

/// Number of entries that are sorted at once.
const FEW: usize = 128;

/// Maximum length of the sorted part beyond the chosen ones: insertion takes linear time.
const MOST_FIRST: usize = 256;

/// Requests in order of their keys. The cost depends on the number of chosen requests, not on the total.
#[derive(Debug)]
pub(super) struct Singles {
    /// Requests added since the last search, and the first of them. Most plans choose all or none.
    fresh: Vec<Entry>,
    first_fresh: Entry,
    /// The first requests, sorted.
    first: VecDeque<Entry>,
    /// The other requests, all behind `first`.
    others: BinaryHeap<Reverse<Entry>>,
    /// Number of requests chosen by this plan, from the first on.
    pub(super) chosen: usize,
}

/// Behind all entries.
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

    /// Number of requests.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.fresh.len() + self.first.len() + self.others.len()
    }

    /// Sorts in the fresh requests.
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

    /// Removes a preempted request.
    pub(super) fn remove(&mut self, place: Place) {
        self.settle();
        self.first.retain(|entry| entry.place() != place);
        self.others.retain(|Reverse(entry)| entry.place() != place);
    }

    /// The key of a request, if it is here.
    pub(super) fn find(&self, place: Place) -> Option<Key> {
        let others = self.others.iter().map(|Reverse(entry)| entry);
        self.fresh.iter().chain(&self.first).chain(others).find(|entry| entry.place() == place).map(|entry| entry.key())
    }

    /// The first key; the last possible one if there is no request.
    pub(super) fn first(&self) -> Key {
        let settled = self.first.front().or(self.others.peek().map(|Reverse(entry)| entry));
        settled.map_or(self.first_fresh, |&entry| entry.min(self.first_fresh)).key()
    }

    /// Chooses all requests, unordered: this plan removes all of them.
    pub(super) fn choose_all(&mut self) {
        self.first_fresh = NONE;
        self.first.extend(self.fresh.drain(..));
        self.first.extend(self.others.drain().map(|Reverse(entry)| entry));
        self.chosen = self.first.len();
    }

    /// Chooses the requests up to `last`. Returns their number, or any number above `most` if there are more.
    pub(super) fn choose(&mut self, last: Key, most: u64) -> usize {
        let last = Entry::new(last, Place(u32::MAX));
        if self.first_fresh <= last && !self.fresh.is_empty() {
            self.settle();
        }
        while self.first.len() as u64 <= most && self.others.peek().is_some_and(|Reverse(entry)| *entry <= last) {
            if self.others.len() > FEW {
                self.first.extend(self.others.pop().map(|Reverse(entry)| entry));
            } else {
                // Sorting all of them is faster than popping one by one.
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

    /// Removes the first request, which is chosen.
    pub(super) fn pop(&mut self) -> Option<Place> {
        self.chosen = self.chosen.checked_sub(1)?;
        self.first.pop_front().map(Entry::place)
    }
}
