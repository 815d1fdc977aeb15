//! Ready requests in the order of their deadlines, many of them with one e.

use std::collections::VecDeque;

use super::deadline::later;
use crate::clock::{Instant, Span};
use crate::request::Place;

/// The place of a decode in the order: its deadline e + TBT, then its id.
pub(super) type Key = (Instant, u32);

/// No place is behind this one.
pub(super) const LAST: Key = (Instant::NEVER, u32::MAX);

/// What stands for a request in its cohort. They are sorted by this, and differ in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) tbt: Span,
    pub(super) id: u32,
    pub(super) place: Place,
}

impl Member {
    fn order(&self) -> (Span, u32) {
        (self.tbt, self.id)
    }
}

/// Ready requests with the same e, in order.
#[derive(Debug, Default)]
pub(super) struct Cohort {
    /// What their TBTs have in common.
    pub(super) kind: u32,
    /// Their e. For requests that are alone it is 0, and the deadline stands in the place of the TBT.
    pub(super) end: Instant,
    /// By TBT and id. They come and go at both ends.
    pub(super) members: VecDeque<Member>,
    /// How many of them, from the first, the present plan has chosen.
    pub(super) chosen: usize,
    /// Is it in the batch?
    pub(super) takes_part: bool,
}

impl Cohort {
    /// The three leading bits of a TBT, and how many follow.
    pub(super) fn kind(tbt: Span) -> u32 {
        let bits = (tbt.0 | 4).ilog2();
        4 * bits + (tbt.0 >> (bits - 2)) as u32 % 4
    }

    pub(super) fn deadline(&self, tbt: Span) -> Instant {
        later(self.end, tbt)
    }

    pub(super) fn key(&self, member: &Member) -> Key {
        (self.deadline(member.tbt), member.id)
    }

    /// The place of the first in the order, behind all if there is none.
    pub(super) fn first(&self) -> Key {
        self.members.front().map_or(LAST, |member| self.key(member))
    }

    /// The place of the last.
    fn last(&self) -> Key {
        self.members.back().map_or((Instant::ZERO, 0), |member| self.key(member))
    }

    /// Does a member belong behind all that are here?
    pub(super) fn is_behind(&self, member: &Member) -> bool {
        self.members.back().is_none_or(|last| last.order() < member.order())
    }

    /// A new member is most often the last one: it has arrived after the others, or has a later deadline. One that comes
    /// back after an iteration without the others is most often the first.
    pub(super) fn insert(&mut self, member: Member) {
        if self.is_behind(&member) {
            self.members.push_back(member);
        } else if self.members.front().is_some_and(|first| member.order() < first.order()) {
            self.members.push_front(member);
        } else {
            let index = self.members.partition_point(|other| other.order() < member.order());
            self.members.insert(index, member);
        }
    }

    pub(super) fn find(&self, member: &Member) -> Option<usize> {
        self.members.binary_search_by_key(&member.order(), Member::order).ok()
    }

    pub(super) fn chosen(&self) -> impl DoubleEndedIterator<Item = &Member> {
        self.members.range(..self.chosen)
    }

    pub(super) fn chosen_keys(&self) -> impl DoubleEndedIterator<Item = (Key, Place)> {
        self.chosen().map(|member| (self.key(member), member.place))
    }

    /// Are all members chosen?
    pub(super) fn is_whole(&self) -> bool {
        self.chosen == self.members.len()
    }

    /// Chooses the members up to a place in the order; says how many they are.
    pub(super) fn choose(&mut self, last: Key) -> usize {
        self.chosen = if last == LAST || self.last() <= last {
            self.members.len()
        } else if self.first() > last {
            0
        } else {
            let end = self.last_up_to(last);
            self.members.partition_point(|member| end.is_some_and(|end| member.order() <= end))
        };
        self.chosen
    }

    /// The last member that there can be up to a place in the order.
    fn last_up_to(&self, (deadline, id): Key) -> Option<(Span, u32)> {
        if deadline == Instant::NEVER {
            return Some((Span::NEVER, id));
        }
        deadline.0.checked_sub(self.end.0).map(|tbt| (Span(tbt), id))
    }
}
