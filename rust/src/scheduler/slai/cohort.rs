//! Cohorts: ready requests with the same e, unordered until their order matters.
//!
//! Nearly always a cohort decodes as a whole or not at all, which its shortest and longest ITL decide. So insertion
//! and removal take constant time. Members are partitioned only if some are chosen and others are not. A large cohort
//! with few chosen members is dissolved: its members become singles, so that none is examined repeatedly.

use super::deadline::later;
use crate::clock::{Instant, Span};
use crate::request::Place;

/// Position of a decode in the order: its deadline e + ITL, then its id.
pub(super) type Key = (Instant, u32);

/// Behind all other keys.
pub(super) const LAST: Key = (Instant::NEVER, u32::MAX);

/// A request as a cohort member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) itl: Span,
    pub(super) id: u32,
    pub(super) place: Place,
}

impl Member {
    /// The order by deadline, because all members share e.
    #[inline]
    fn order(&self) -> (Span, u32) {
        (self.itl, self.id)
    }
}

/// Cohort number and index of each request, by place.
#[derive(Debug, Default)]
pub(super) struct Positions(Vec<(u32, u32)>);

const NONE: (u32, u32) = (u32::MAX, 0);

impl Positions {
    #[inline]
    fn set(&mut self, place: Place, group: usize, index: usize) {
        if place.index() >= self.0.len() {
            self.0.resize(place.index() + 1, NONE);
        }
        self.0[place.index()] = (group as u32, index as u32);
    }

    /// The cohort of a request and its index there, if it has one.
    #[inline]
    pub(super) fn of(&self, place: Place) -> Option<(usize, usize)> {
        let &(group, index) = self.0.get(place.index()).filter(|&&(group, _)| group != NONE.0)?;
        Some((group as usize, index as usize))
    }
}

/// Ready requests with the same e: one group of steady decodes.
#[derive(Debug)]
pub(super) struct Cohort {
    /// Group number.
    pub(super) group: usize,
    /// The kind of its ITLs.
    pub(super) kind: u32,
    pub(super) end: Instant,
    members: Vec<Member>,
    /// Bounds of all ITLs. They are exact unless `is_loose`.
    shortest: Span,
    longest: Span,
    is_loose: bool,
    /// Number of chosen members, which come first.
    pub(super) chosen: usize,
    /// Whether the batch contains it.
    pub(super) takes_part: bool,
    /// Whether this plan has examined each member.
    pub(super) is_walked: bool,
}

/// Members beyond eight times the chosen ones that may be examined without being chosen.
const FEW: usize = 256;

impl Cohort {
    /// An empty cohort.
    pub(super) fn new(group: usize, kind: u32) -> Cohort {
        Cohort {
            group,
            kind,
            end: Instant::ZERO,
            members: Vec::new(),
            shortest: Span::NEVER,
            longest: Span::ZERO,
            is_loose: false,
            chosen: 0,
            takes_part: false,
            is_walked: false,
        }
    }

    /// The three leading bits of an ITL, and the number of bits after them.
    pub(super) fn kind(itl: Span) -> u32 {
        let bits = (itl.0 | 4).ilog2();
        4 * bits + (itl.0 >> (bits - 2)) as u32 % 4
    }

    /// Whether an ITL is within the bounds, and therefore of this kind.
    #[inline]
    pub(super) fn spans(&self, itl: Span) -> bool {
        self.shortest <= itl && itl <= self.longest
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(super) fn deadline(&self, itl: Span) -> Instant {
        later(self.end, itl)
    }

    pub(super) fn key(&self, member: &Member) -> Key {
        (self.deadline(member.itl), member.id)
    }

    pub(super) fn insert(&mut self, member: Member, positions: &mut Positions) {
        if self.members.is_empty() {
            (self.shortest, self.longest, self.is_loose) = (member.itl, member.itl, false);
        } else {
            self.shortest = self.shortest.min(member.itl);
            self.longest = self.longest.max(member.itl);
        }
        positions.set(member.place, self.group, self.members.len());
        self.members.push(member);
    }

    pub(super) fn remove(&mut self, index: usize, positions: &mut Positions) -> Member {
        let member = self.members.swap_remove(index);
        positions.0[member.place.index()] = NONE;
        if let Some(moved) = self.members.get(index) {
            positions.set(moved.place, self.group, index);
        }
        let is_bound = member.itl == self.shortest || member.itl == self.longest;
        self.is_loose |= is_bound && self.shortest < self.longest;
        member
    }

    fn tighten(&mut self) {
        if std::mem::take(&mut self.is_loose) {
            let itls = || self.members.iter().map(|member| member.itl);
            (self.shortest, self.longest) = (itls().min().unwrap_or(Span::NEVER), itls().max().unwrap_or(Span::ZERO));
        }
    }

    /// The earliest deadline; `NEVER` without members.
    pub(super) fn first_deadline(&mut self) -> Instant {
        self.tighten();
        if self.is_empty() { Instant::NEVER } else { self.deadline(self.shortest) }
    }

    /// The longest ITL; zero without members.
    pub(super) fn longest_itl(&mut self) -> Span {
        self.tighten();
        if self.is_empty() { Span::ZERO } else { self.longest }
    }

    pub(super) fn chosen(&self) -> &[Member] {
        &self.members[..self.chosen]
    }

    pub(super) fn chosen_keys(&self) -> impl Iterator<Item = (Key, Place)> {
        self.chosen().iter().map(|member| (self.key(member), member.place))
    }

    /// The deadlines of the chosen members with their counts; deadlines may repeat.
    pub(super) fn chosen_deadlines(&mut self) -> impl Iterator<Item = (Instant, usize)> {
        let is_one = self.shortest == self.longest;
        self.is_walked |= !is_one;
        let parts = self.chosen().chunks(if is_one { self.members.len().max(1) } else { 1 });
        parts.map(|part| (self.deadline(part[0].itl), part.len()))
    }

    /// Collects the ids of the chosen members with this deadline.
    pub(super) fn list_chosen_ids(&self, deadline: Instant, ids: &mut Vec<u32>) {
        let (first, last) = (self.deadline(self.shortest), self.deadline(self.longest));
        if first == last && first == deadline {
            ids.extend(self.chosen().iter().map(|member| member.id));
        } else if first <= deadline && deadline <= last {
            let alike = self.chosen().iter().filter(|member| self.deadline(member.itl) == deadline);
            ids.extend(alike.map(|member| member.id));
        }
    }

    /// Whether too many members were examined for too few chosen ones.
    pub(super) fn is_to_dissolve(&self) -> bool {
        self.is_walked && self.members.len() > 8 * self.chosen + FEW
    }

    /// Whether all members are chosen.
    pub(super) fn is_whole(&self) -> bool {
        self.chosen == self.members.len()
    }

    /// Chooses the members up to `last`. Returns their number.
    pub(super) fn choose(&mut self, last: Key, positions: &mut Positions) -> usize {
        self.chosen = match self.last_up_to(last) {
            None => 0,
            Some((itl, _)) if itl < self.shortest => 0,
            Some(most) if (self.longest, u32::MAX) <= most || self.longest < most.0 => self.members.len(),
            Some(most) => self.part(most, positions),
        };
        self.chosen
    }

    /// The upper bound of (ITL, id) for a key.
    fn last_up_to(&self, (deadline, id): Key) -> Option<(Span, u32)> {
        if deadline == Instant::NEVER {
            return Some((Span::NEVER, id));
        }
        deadline.0.checked_sub(self.end.0).map(|itl| (Span(itl), id))
    }

    /// Moves the members up to `most` to the front. Returns their number.
    fn part(&mut self, most: (Span, u32), positions: &mut Positions) -> usize {
        self.is_walked = true;
        let is_one = self.shortest == self.longest;
        let is_chosen = |member: &Member| if is_one { member.id <= most.1 } else { member.order() <= most };
        let (mut chosen, mut end) = (0, self.members.len());
        // Members before `chosen` are chosen, members from `end` on are not.
        while chosen < end {
            if is_chosen(&self.members[chosen]) {
                chosen += 1;
            } else {
                end -= 1;
                if is_chosen(&self.members[end]) {
                    self.members.swap(chosen, end);
                    positions.set(self.members[chosen].place, self.group, chosen);
                    positions.set(self.members[end].place, self.group, end);
                    chosen += 1;
                }
            }
        }
        chosen
    }

    /// Sorts the chosen members.
    pub(super) fn sort_chosen(&mut self, positions: &mut Positions) {
        self.members[..self.chosen].sort_unstable_by_key(Member::order);
        for (index, member) in self.members[..self.chosen].iter().enumerate() {
            positions.set(member.place, self.group, index);
        }
    }

    /// Removes the last member, which is not chosen if any are not.
    pub(super) fn pop(&mut self, positions: &mut Positions) -> Member {
        self.remove(self.members.len() - 1, positions)
    }
}
