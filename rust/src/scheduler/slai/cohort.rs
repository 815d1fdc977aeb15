//! Ready requests in the order of their deadlines, many of them with one e.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::deadline::later;
use crate::clock::{Instant, Span};
use crate::request::Place;

/// The place of a decode in the order: its deadline e + TBT, then its id.
pub(super) type Key = (Instant, u32);

/// No place is behind this one.
pub(super) const LAST: Key = (Instant::NEVER, u32::MAX);

/// Ready requests with the same e, in order.
#[derive(Debug, Default)]
pub(super) struct Cohort {
    /// What their TBTs have in common.
    pub(super) kind: u32,
    /// Their e. For requests that are alone it is 0, and the deadline stands in the place of the TBT.
    pub(super) end: Instant,
    /// By TBT and id.
    pub(super) members: BTreeMap<(Span, u32), Place>,
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

    pub(super) fn key(&self, (tbt, id): (Span, u32)) -> Key {
        (self.deadline(tbt), id)
    }

    /// The place of the first in the order, behind all if there is none.
    pub(super) fn first(&self) -> Key {
        self.members.first_key_value().map_or(LAST, |(&member, _)| self.key(member))
    }

    /// The place of the last.
    pub(super) fn last(&self) -> Key {
        self.members.last_key_value().map_or((Instant::ZERO, 0), |(&member, _)| self.key(member))
    }

    /// The members up to a place in the order.
    pub(super) fn up_to(&self, last: Key) -> impl DoubleEndedIterator<Item = (Key, Place)> {
        let end = self.last_up_to(last).map_or(Bound::Excluded((Span::ZERO, 0)), Bound::Included);
        self.members.range((Bound::Unbounded, end)).map(|(&member, &place)| (self.key(member), place))
    }

    /// Takes them out.
    pub(super) fn take_up_to(&mut self, last: Key) -> BTreeMap<(Span, u32), Place> {
        let Some(last) = self.last_up_to(last) else { return BTreeMap::new() };
        let behind = self.members.range((Bound::Excluded(last), Bound::Unbounded)).next();
        let behind = behind.map(|(&member, _)| member).map(|member| self.members.split_off(&member));
        std::mem::replace(&mut self.members, behind.unwrap_or_default())
    }

    /// The last member that there can be up to a place in the order.
    pub(super) fn last_up_to(&self, (deadline, id): Key) -> Option<(Span, u32)> {
        if deadline == Instant::NEVER {
            return Some((Span::NEVER, id));
        }
        deadline.0.checked_sub(self.end.0).map(|tbt| (Span(tbt), id))
    }

    /// Are these all?
    pub(super) fn is_up_to(&self, last: Key) -> bool {
        last == LAST || self.last() <= last
    }

    pub(super) fn count_up_to(&self, last: Key) -> usize {
        if self.is_up_to(last) {
            self.members.len()
        } else if self.first() > last {
            0
        } else {
            self.up_to(last).count()
        }
    }
}
