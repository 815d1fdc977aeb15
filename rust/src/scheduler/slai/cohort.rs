//! Ready requests with one e: in no order until it matters which of them come first.
//!
//! Nearly always a cohort decodes as a whole or not at all, and its shortest and its longest TBT tell which. So members
//! come and go at no cost that grows with their number, and only where some are chosen and others not are they parted. A
//! large one of which few are chosen is dissolved: its members go on alone, so that none is looked at twice in vain.

use super::deadline::later;
use crate::clock::{Instant, Span};
use crate::request::Place;

/// The place of a decode in the order: its deadline e + TBT, then its id.
pub(super) type Key = (Instant, u32);

/// No place is behind this one.
pub(super) const LAST: Key = (Instant::NEVER, u32::MAX);

/// What stands for a request in its cohort.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) tbt: Span,
    pub(super) id: u32,
    pub(super) place: Place,
}

impl Member {
    /// Their order is that of their deadlines, since they have one e.
    #[inline]
    fn order(&self) -> (Span, u32) {
        (self.tbt, self.id)
    }
}

/// Where each request stands, by its place: the number of its cohort, and the index there.
#[derive(Debug, Default)]
pub(super) struct Seats(Vec<(u32, u32)>);

const NONE: (u32, u32) = (u32::MAX, 0);

impl Seats {
    #[inline]
    fn set(&mut self, place: Place, group: usize, index: usize) {
        if place.index() >= self.0.len() {
            self.0.resize(place.index() + 1, NONE);
        }
        self.0[place.index()] = (group as u32, index as u32);
    }

    /// The cohort of a request and its index there, if it is in one.
    #[inline]
    pub(super) fn of(&self, place: Place) -> Option<(usize, usize)> {
        let &(group, index) = self.0.get(place.index()).filter(|&&(group, _)| group != NONE.0)?;
        Some((group as usize, index as usize))
    }
}

/// Ready requests with the same e. It is a group of the standing decodes.
#[derive(Debug)]
pub(super) struct Cohort {
    /// The number of the group.
    pub(super) group: usize,
    /// What their TBTs have in common.
    pub(super) kind: u32,
    pub(super) end: Instant,
    members: Vec<Member>,
    /// No TBT is outside of these; both are of members unless they are loose.
    shortest: Span,
    longest: Span,
    is_loose: bool,
    /// How many the present plan has chosen: they are the first.
    pub(super) chosen: usize,
    /// Is it in the batch?
    pub(super) takes_part: bool,
    /// Has the present plan looked at each member?
    pub(super) is_walked: bool,
}

/// So many members more than eight times the chosen may be looked at in vain.
const FEW: usize = 256;

impl Cohort {
    /// No member yet.
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

    /// The three leading bits of a TBT, and how many follow.
    pub(super) fn kind(tbt: Span) -> u32 {
        let bits = (tbt.0 | 4).ilog2();
        4 * bits + (tbt.0 >> (bits - 2)) as u32 % 4
    }

    /// Does a TBT lie between those of members, so that it is of their kind?
    #[inline]
    pub(super) fn spans(&self, tbt: Span) -> bool {
        self.shortest <= tbt && tbt <= self.longest
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(super) fn deadline(&self, tbt: Span) -> Instant {
        later(self.end, tbt)
    }

    pub(super) fn key(&self, member: &Member) -> Key {
        (self.deadline(member.tbt), member.id)
    }

    pub(super) fn insert(&mut self, member: Member, seats: &mut Seats) {
        if self.members.is_empty() {
            (self.shortest, self.longest, self.is_loose) = (member.tbt, member.tbt, false);
        } else {
            self.shortest = self.shortest.min(member.tbt);
            self.longest = self.longest.max(member.tbt);
        }
        seats.set(member.place, self.group, self.members.len());
        self.members.push(member);
    }

    pub(super) fn remove(&mut self, index: usize, seats: &mut Seats) -> Member {
        let member = self.members.swap_remove(index);
        seats.0[member.place.index()] = NONE;
        if let Some(moved) = self.members.get(index) {
            seats.set(moved.place, self.group, index);
        }
        let is_bound = member.tbt == self.shortest || member.tbt == self.longest;
        self.is_loose |= is_bound && self.shortest < self.longest;
        member
    }

    fn tighten(&mut self) {
        if std::mem::take(&mut self.is_loose) {
            let tbts = || self.members.iter().map(|member| member.tbt);
            (self.shortest, self.longest) = (tbts().min().unwrap_or(Span::NEVER), tbts().max().unwrap_or(Span::ZERO));
        }
    }

    /// The earliest deadline; without end if there is no member.
    pub(super) fn first_deadline(&mut self) -> Instant {
        self.tighten();
        if self.is_empty() { Instant::NEVER } else { self.deadline(self.shortest) }
    }

    /// The longest TBT; none at all if there is no member.
    pub(super) fn longest_tbt(&mut self) -> Span {
        self.tighten();
        if self.is_empty() { Span::ZERO } else { self.longest }
    }

    pub(super) fn chosen(&self) -> &[Member] {
        &self.members[..self.chosen]
    }

    pub(super) fn chosen_keys(&self) -> impl Iterator<Item = (Key, Place)> {
        self.chosen().iter().map(|member| (self.key(member), member.place))
    }

    /// The deadlines of the chosen, and how many have each; the same one may come more than once.
    pub(super) fn chosen_deadlines(&mut self) -> impl Iterator<Item = (Instant, usize)> {
        let is_one = self.shortest == self.longest;
        self.is_walked |= !is_one;
        let parts = self.chosen().chunks(if is_one { self.members.len().max(1) } else { 1 });
        parts.map(|part| (self.deadline(part[0].tbt), part.len()))
    }

    /// Lists the ids of the chosen with this deadline.
    pub(super) fn list_chosen_ids(&self, deadline: Instant, ids: &mut Vec<u32>) {
        let (first, last) = (self.deadline(self.shortest), self.deadline(self.longest));
        if first == last && first == deadline {
            ids.extend(self.chosen().iter().map(|member| member.id));
        } else if first <= deadline && deadline <= last {
            let alike = self.chosen().iter().filter(|member| self.deadline(member.tbt) == deadline);
            ids.extend(alike.map(|member| member.id));
        }
    }

    /// Have so many members been looked at for so few that are chosen that they had better be alone?
    pub(super) fn is_to_dissolve(&self) -> bool {
        self.is_walked && self.members.len() > 8 * self.chosen + FEW
    }

    /// Are all members chosen?
    pub(super) fn is_whole(&self) -> bool {
        self.chosen == self.members.len()
    }

    /// Chooses the members up to a place in the order; says how many they are.
    pub(super) fn choose(&mut self, last: Key, seats: &mut Seats) -> usize {
        self.chosen = match self.last_up_to(last) {
            None => 0,
            Some((tbt, _)) if tbt < self.shortest => 0,
            Some(most) if (self.longest, u32::MAX) <= most || self.longest < most.0 => self.members.len(),
            Some(most) => self.part(most, seats),
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

    /// Brings the members up to one before the others; says how many they are.
    fn part(&mut self, most: (Span, u32), seats: &mut Seats) -> usize {
        self.is_walked = true;
        let is_one = self.shortest == self.longest;
        let is_chosen = |member: &Member| if is_one { member.id <= most.1 } else { member.order() <= most };
        let (mut chosen, mut end) = (0, self.members.len());
        // Those before `chosen` are, those from `end` on are not.
        while chosen < end {
            if is_chosen(&self.members[chosen]) {
                chosen += 1;
            } else {
                end -= 1;
                if is_chosen(&self.members[end]) {
                    self.members.swap(chosen, end);
                    seats.set(self.members[chosen].place, self.group, chosen);
                    seats.set(self.members[end].place, self.group, end);
                    chosen += 1;
                }
            }
        }
        chosen
    }

    /// Brings the chosen into their order.
    pub(super) fn sort_chosen(&mut self, seats: &mut Seats) {
        self.members[..self.chosen].sort_unstable_by_key(Member::order);
        for (index, member) in self.members[..self.chosen].iter().enumerate() {
            seats.set(member.place, self.group, index);
        }
    }

    /// Takes the last member out, which is not chosen if some are not.
    pub(super) fn pop(&mut self, seats: &mut Seats) -> Member {
        self.remove(self.members.len() - 1, seats)
    }
}
