//! Ready requests with one e: in no order until it matters which of them come first.
//!
//! Nearly always a cohort decodes as a whole or not at all, and its shortest and its longest ITL tell which. So members
//! come and go at no cost that grows with their number, and only where some are chosen and others not are they parted. A
//! large one of which few are chosen is dissolved: its members go on alone, so that none is looked at twice in vain.

use super::deadline::later;
use crate::clock::{Instant, Span};
use crate::request::Place;

/// The place of a decode in the order: its deadline e + ITL, then its id.
pub(super) type Key = (Instant, u32);

/// No place is behind this one.
pub(super) const LAST: Key = (Instant::NEVER, u32::MAX);

/// What stands for a request in its cohort.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) itl: Span,
    pub(super) id: u32,
    pub(super) place: Place,
}

impl Member {
    /// Their order is that of their deadlines, since they have one e.
    #[inline]
    fn order(&self) -> (Span, u32) {
        (self.itl, self.id)
    }
}

/// Where each request stands, by its place: the number of its cohort, and the index there.
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
    /// What their ITLs have in common.
    pub(super) kind: u32,
    pub(super) end: Instant,
    members: Vec<Member>,
    /// No ITL is outside of these; both are of members unless they are loose.
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

    /// The three leading bits of a ITL, and how many follow.
    pub(super) fn kind(itl: Span) -> u32 {
        let bits = (itl.0 | 4).ilog2();
        4 * bits + (itl.0 >> (bits - 2)) as u32 % 4
    }

    /// Does a ITL lie between those of members, so that it is of their kind?
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

    /// The earliest deadline; without end if there is no member.
    pub(super) fn first_deadline(&mut self) -> Instant {
        self.tighten();
        if self.is_empty() { Instant::NEVER } else { self.deadline(self.shortest) }
    }

    /// The longest ITL; none at all if there is no member.
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

    /// The deadlines of the chosen, and how many have each; the same one may come more than once.
    pub(super) fn chosen_deadlines(&mut self) -> impl Iterator<Item = (Instant, usize)> {
        let is_one = self.shortest == self.longest;
        self.is_walked |= !is_one;
        let parts = self.chosen().chunks(if is_one { self.members.len().max(1) } else { 1 });
        parts.map(|part| (self.deadline(part[0].itl), part.len()))
    }

    /// Lists the ids of the chosen with this deadline.
    pub(super) fn list_chosen_ids(&self, deadline: Instant, ids: &mut Vec<u32>) {
        let (first, last) = (self.deadline(self.shortest), self.deadline(self.longest));
        if first == last && first == deadline {
            ids.extend(self.chosen().iter().map(|member| member.id));
        } else if first <= deadline && deadline <= last {
            let alike = self.chosen().iter().filter(|member| self.deadline(member.itl) == deadline);
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
    pub(super) fn choose(&mut self, last: Key, positions: &mut Positions) -> usize {
        self.chosen = match self.last_up_to(last) {
            None => 0,
            Some((itl, _)) if itl < self.shortest => 0,
            Some(most) if (self.longest, u32::MAX) <= most || self.longest < most.0 => self.members.len(),
            Some(most) => self.part(most, positions),
        };
        self.chosen
    }

    /// The last member that there can be up to a place in the order.
    fn last_up_to(&self, (deadline, id): Key) -> Option<(Span, u32)> {
        if deadline == Instant::NEVER {
            return Some((Span::NEVER, id));
        }
        deadline.0.checked_sub(self.end.0).map(|itl| (Span(itl), id))
    }

    /// Brings the members up to one before the others; says how many they are.
    fn part(&mut self, most: (Span, u32), positions: &mut Positions) -> usize {
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
                    positions.set(self.members[chosen].place, self.group, chosen);
                    positions.set(self.members[end].place, self.group, end);
                    chosen += 1;
                }
            }
        }
        chosen
    }

    /// Brings the chosen into their order.
    pub(super) fn sort_chosen(&mut self, positions: &mut Positions) {
        self.members[..self.chosen].sort_unstable_by_key(Member::order);
        for (index, member) in self.members[..self.chosen].iter().enumerate() {
            positions.set(member.place, self.group, index);
        }
    }

    /// Takes the last member out, which is not chosen if some are not.
    pub(super) fn pop(&mut self, positions: &mut Positions) -> Member {
        self.remove(self.members.len() - 1, positions)
    }
}
