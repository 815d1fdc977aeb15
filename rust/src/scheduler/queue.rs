//! Lists and queues of requests.

use std::collections::BTreeMap;

use crate::clock::Instant;
use crate::request::{Place, Requests};
use crate::workload::Arrival;

/// The node before the first and after the last request. It closes the ring, so that the ends need no special case.
const END: u32 = 0;

/// Successor of a place that is not in the list.
const ABSENT: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Neighbors {
    previous: u32,
    next: u32,
}

/// A linked list of requests with removal in O(1). The node of a place has index `place + 1`.
#[derive(Debug)]
pub struct List {
    length: usize,
    links: Vec<Neighbors>,
}

impl Default for List {
    fn default() -> List {
        List { length: 0, links: vec![Neighbors { previous: END, next: END }] }
    }
}

fn place(link: u32) -> Option<Place> {
    (link != END).then(|| Place(link - 1))
}

fn link(place: Place) -> u32 {
    place.0 + 1
}

impl List {
    /// The first request.
    #[inline]
    pub(crate) fn first(&self) -> Option<Place> {
        if self.is_empty() { None } else { place(self.at(END).next) }
    }

    /// The last request.
    #[inline]
    pub(crate) fn last(&self) -> Option<Place> {
        if self.is_empty() { None } else { place(self.at(END).previous) }
    }

    /// The request after this one.
    #[inline]
    pub(crate) fn after(&self, at: Place) -> Option<Place> {
        place(self.at(link(at)).next)
    }

    /// The request before this one.
    #[inline]
    pub(crate) fn before(&self, at: Place) -> Option<Place> {
        place(self.at(link(at)).previous)
    }

    fn at(&self, link: u32) -> &Neighbors {
        &self.links[link as usize]
    }

    fn at_mut(&mut self, link: u32) -> &mut Neighbors {
        &mut self.links[link as usize]
    }

    /// Number of requests.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Whether the list is empty.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// All requests in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Place> {
        std::iter::successors(self.first(), |&at| self.after(at))
    }

    /// All requests, the last one first.
    pub(crate) fn iter_back(&self) -> impl Iterator<Item = Place> {
        std::iter::successors(self.last(), |&at| self.before(at))
    }

    /// Adds at the end.
    #[inline]
    pub(crate) fn push_back(&mut self, at: Place) {
        self.insert_after(at, self.at(END).previous);
    }

    /// Adds at the head.
    #[inline]
    pub(crate) fn push_front(&mut self, at: Place) {
        self.insert_after(at, END);
    }

    /// Inserts a request after the last one that `precedes` it.
    pub(crate) fn insert_sorted(&mut self, at: Place, precedes: impl Fn(Place) -> bool) {
        let mut previous = self.at(END).previous;
        while let Some(other) = place(previous).filter(|&other| !precedes(other)) {
            previous = self.at(link(other)).previous;
        }
        self.insert_after(at, previous);
    }

    /// Inserts a request after `previous`, or at the head.
    pub(super) fn insert_behind(&mut self, at: Place, previous: Option<Place>) {
        self.insert_after(at, previous.map_or(END, link));
    }

    #[inline(always)]
    fn insert_after(&mut self, at: Place, previous: u32) {
        if (link(at) as usize) < self.links.len() {
            self.tie(link(at), previous);
        } else {
            self.tie_beyond(link(at), previous);
        }
    }

    /// Links a place beyond the present table.
    #[cold]
    fn tie_beyond(&mut self, link: u32, previous: u32) {
        self.links.resize(link as usize + 1, Neighbors { previous: ABSENT, next: ABSENT });
        self.tie(link, previous);
    }

    fn tie(&mut self, link: u32, previous: u32) {
        let next = std::mem::replace(&mut self.at_mut(previous).next, link);
        self.at_mut(next).previous = link;
        *self.at_mut(link) = Neighbors { previous, next };
        self.length += 1;
    }

    /// Whether the request is in the list.
    #[inline]
    pub(crate) fn contains(&self, at: Place) -> bool {
        self.links.get(link(at) as usize).is_some_and(|neighbors| neighbors.next != ABSENT)
    }

    /// Removes a request. Returns whether it was in the list.
    #[inline(always)]
    pub(crate) fn remove(&mut self, at: Place) -> bool {
        let Some(neighbors) = self.links.get_mut(link(at) as usize) else { return false };
        let Neighbors { previous, next } = *neighbors;
        if next == ABSENT {
            return false;
        }
        neighbors.next = ABSENT;
        self.at_mut(previous).next = next;
        self.at_mut(next).previous = previous;
        self.length -= 1;
        true
    }
}

/// Inserts a request into a list sorted by arrival.
#[inline(always)]
pub(super) fn insert_by_arrival(list: &mut List, place: Place, requests: &Requests) {
    // Nearly every request is the last one.
    if list.last().is_none_or(|last| requests.at(last).sort_key() < requests.at(place).sort_key()) {
        list.push_back(place);
    } else {
        list.insert_sorted(place, |other| requests.arrived_before(other, place));
    }
}

/// Sort key of an ordered queue: whether the class is not the preferred one, the key of the policy, the order of
/// arrival.
type Rank = (bool, i64, Instant, u32);

/// The waiting requests of one replica.
#[derive(Debug)]
pub(crate) enum Queue {
    /// By arrival. Preempted requests return to the head.
    Fcfs(List),
    /// By a key of the policy, then by arrival. Preempted requests return to their position.
    Keyed {
        /// The key of a request; lower is served first.
        key: fn(&Arrival) -> i64,
        /// The class that precedes all others.
        first: Option<u32>,
        /// The next request: most requests arrive at an empty queue.
        head: Option<(Rank, Place)>,
        /// The other requests, in order.
        behind: BTreeMap<Rank, Place>,
    },
}

impl Queue {
    /// First come, first served.
    pub(crate) fn fcfs() -> Queue {
        Queue::Fcfs(List::default())
    }

    /// By a key, lowest first, ties by arrival. Requests of the class `first` precede all others.
    pub(crate) fn by(key: fn(&Arrival) -> i64, first: Option<u32>) -> Queue {
        Queue::Keyed { key, first, head: None, behind: BTreeMap::new() }
    }

    /// Number of waiting requests.
    pub(crate) fn len(&self) -> usize {
        match self {
            Queue::Fcfs(list) => list.len(),
            Queue::Keyed { head, behind, .. } => usize::from(head.is_some()) + behind.len(),
        }
    }

    /// Whether no request waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head().is_none()
    }

    /// Adds an arrived request. It is the last one, except for hand-offs of a higher id at the same instant.
    #[inline(always)]
    pub(crate) fn push(&mut self, at: Place, requests: &Requests) {
        match self {
            Queue::Fcfs(list) => insert_by_arrival(list, at, requests),
            Queue::Keyed { .. } => self.insert_keyed(at, requests),
        }
    }

    /// Returns a preempted request to the queue (R12). Several are returned latest first, so they keep their order.
    pub(crate) fn push_victim(&mut self, at: Place, requests: &Requests) {
        match self {
            Queue::Fcfs(list) => list.push_front(at),
            Queue::Keyed { .. } => self.push(at, requests),
        }
    }

    /// The next request.
    #[inline]
    pub(crate) fn head(&self) -> Option<Place> {
        match self {
            Queue::Fcfs(list) => list.first(),
            Queue::Keyed { head, .. } => head.map(|(_, at)| at),
        }
    }

    /// Removes a request. Returns whether it was in the queue.
    #[inline(always)]
    pub(crate) fn remove(&mut self, at: Place, requests: &Requests) -> bool {
        match self {
            Queue::Fcfs(list) => list.remove(at),
            Queue::Keyed { .. } => self.remove_keyed(at, requests),
        }
    }

    // Separate, so that unordered queues do not pay for it.
    fn insert_keyed(&mut self, at: Place, requests: &Requests) {
        if let Queue::Keyed { key, first, head, behind } = self {
            let mut last = (rank(*key, *first, at, requests), at);
            if let Some(head) = head {
                if last.0 < head.0 {
                    std::mem::swap(&mut last, head);
                }
                behind.insert(last.0, last.1);
            } else {
                *head = Some(last);
            }
        }
    }

    fn remove_keyed(&mut self, at: Place, requests: &Requests) -> bool {
        match self {
            Queue::Fcfs(_) => false,
            Queue::Keyed { head, behind, .. } if head.is_some_and(|(_, next)| next == at) => {
                *head = behind.pop_first();
                true
            }
            Queue::Keyed { key, first, behind, .. } => behind.remove(&rank(*key, *first, at, requests)).is_some(),
        }
    }

    /// Whether an arrival can be served before the present head.
    pub(crate) fn may_be_overtaken(&self) -> bool {
        matches!(self, Queue::Keyed { .. })
    }
}

fn rank(key: fn(&Arrival) -> i64, first: Option<u32>, at: Place, requests: &Requests) -> Rank {
    let history = requests.history(at);
    let (arrived, id) = history.order();
    (first.is_some_and(|class| class != history.arrival.class), key(&history.arrival), arrived, id)
}
