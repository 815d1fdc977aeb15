//! A first-come, first-served queue that any request may leave.

use std::collections::VecDeque;

/// A waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// Its id, which keys its draws.
    pub request: u32,
    /// Its handle in the service.
    pub handle: u32,
    /// Its class.
    pub class: u32,
    /// Replica of its prefill; unused while it waits for a prefill.
    pub from: u32,
    /// Number of requests that joined a queue of the same kind earlier.
    pub turn: u64,
}

/// A first-come, first-served queue. A request that leaves from the middle leaves a gap, which is removed when it
/// reaches the front.
#[derive(Debug, Default)]
pub(super) struct Line {
    entries: VecDeque<Option<Waiting>>,
    /// Number of entries removed from the front.
    removed: u64,
    length: u64,
}

impl Line {
    /// Number of waiting requests.
    pub(super) fn len(&self) -> u64 {
        self.length
    }

    /// Appends a request. The returned place is valid until the request is popped or leaves.
    pub(super) fn push(&mut self, waiting: Waiting) -> u64 {
        self.entries.push_back(Some(waiting));
        self.length += 1;
        self.removed + self.entries.len() as u64 - 1
    }

    /// Returns the first request. The front is never a gap.
    pub(super) fn first(&self) -> Option<&Waiting> {
        self.entries.front().and_then(Option::as_ref)
    }

    /// Removes the first request.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let first = self.entries.pop_front().flatten()?;
        self.removed += 1;
        self.length -= 1;
        self.close_gaps();
        Some(first)
    }

    /// Removes the request at a place.
    pub(super) fn leave(&mut self, place: u64) {
        let Some(entry) = place.checked_sub(self.removed).and_then(|place| self.entries.get_mut(place as usize)) else {
            debug_assert!(false, "a request that leaves a queue is in it");
            return;
        };
        debug_assert!(entry.is_some(), "no request leaves a queue twice");
        self.length -= u64::from(entry.take().is_some());
        self.close_gaps();
    }

    fn close_gaps(&mut self) {
        while let Some(None) = self.entries.front() {
            self.entries.pop_front();
            self.removed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_left_from_the_middle_is_skipped() {
        let mut line = Line::default();
        let waiting = |request| Waiting { request, handle: 0, class: 0, from: 0, turn: u64::from(request) };
        let places: Vec<u64> = (0..5).map(|request| line.push(waiting(request))).collect();
        line.leave(places[1]);
        line.leave(places[2]);
        assert_eq!(line.pop().map(|first| first.request), Some(0));
        assert_eq!((line.len(), line.first().map(|first| first.request)), (2, Some(3)));
        line.leave(places[3]);
        line.leave(places[4]);
        assert_eq!((line.len(), line.pop()), (0, None));
        let place = line.push(waiting(9));
        line.leave(place);
        assert_eq!(line.pop(), None);
    }
}
