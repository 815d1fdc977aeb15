//! Shared state of schedulers that serve by arrival, and their preemption.

use std::collections::BTreeMap;

use super::{
    Notice, Queue, Watermark,
    queue::{List, insert_by_arrival},
};
use crate::clock::Instant;
use crate::error::Result;
use crate::plan::{Hold, Limit, Limits, Plan, Preemption};
use crate::request::{Phase, Place, Requests};

/// Order of arrival.
type Order = (Instant, u32);

/// Linear-scan limit before the ordered map is used.
const NEAR: usize = 64;

/// The queue and the admitted requests of most schedulers.
#[derive(Debug)]
pub(super) struct Lists {
    pub(super) queue: Queue,
    /// Admitted requests, in the order of the policy.
    pub(super) running: List,
    /// Whether each place is admitted, before the order is first needed. Most runs never need it.
    without_order: Option<Vec<bool>>,
    /// The admitted requests by arrival, while a linear scan would be slow.
    by_arrival: Option<BTreeMap<Order, Place>>,
    /// Admitted requests that cannot decode yet, in the same order.
    pub(super) prefills: List,
    /// Requests that can decode and are not steady decodes.
    pub(super) idle: Vec<Place>,
}

impl Lists {
    pub(super) fn new(queue: Queue) -> Lists {
        Lists {
            queue,
            running: List::default(),
            without_order: None,
            by_arrival: None,
            prefills: List::default(),
            idle: Vec::new(),
        }
    }

    /// Lists for a policy that calls [`Lists::put_in_order`] before it uses the order of the admitted requests, which
    /// is that of arrival.
    pub(super) fn without_order(queue: Queue) -> Lists {
        Lists { without_order: Some(Vec::new()), ..Lists::new(queue) }
    }

    /// Starts to keep the admitted requests in order.
    #[inline(always)]
    pub(super) fn put_in_order(&mut self, requests: &Requests) {
        if let Some(admitted) = self.without_order.take() {
            self.put_all_in_order(&admitted, requests);
        }
    }

    #[cold]
    fn put_all_in_order(&mut self, admitted: &[bool], requests: &Requests) {
        let mut all: Vec<Place> =
            requests.places().filter(|place| admitted.get(place.index()) == Some(&true)).collect();
        all.sort_unstable_by_key(|&place| requests.order(place));
        all.into_iter().for_each(|place| self.running.push_back(place));
    }

    /// The admitted requests, if they are in order.
    pub(super) fn in_order(&self) -> Option<&List> {
        self.without_order.is_none().then_some(&self.running)
    }

    #[inline(always)]
    pub(super) fn notice(&mut self, notice: Notice, requests: &Requests) {
        match notice {
            Notice::Arrived(place) => self.arrived(place, requests),
            Notice::Ready(place) => self.ready(place),
            Notice::Left(place) => self.left(place, requests),
            Notice::Preempted(victim) => self.requeue(victim, requests),
        }
    }

    // Separate functions, shared by all policies, save few registers each.
    fn arrived(&mut self, place: Place, requests: &Requests) {
        self.queue.push(place, requests);
    }

    fn ready(&mut self, place: Place) {
        if !self.prefills.is_empty() {
            self.prefills.remove(place);
        }
        self.idle.push(place);
    }

    fn left(&mut self, place: Place, requests: &Requests) {
        let ran = self.by_arrival.is_none() && self.remove_running(place, requests);
        if !ran || !self.prefills.is_empty() {
            self.leave_others(place, ran, requests);
        }
    }

    /// Removes a request from the other lists.
    fn leave_others(&mut self, place: Place, ran: bool, requests: &Requests) {
        if !ran && !self.remove_running(place, requests) {
            self.queue.remove(place, requests);
        }
        self.prefills.remove(place);
    }

    #[cold]
    fn requeue(&mut self, victim: Place, requests: &Requests) {
        self.take_out(victim, requests);
        self.queue.push_victim(victim, requests);
    }

    /// Admits the head of the queue with [`Plan::try_admit`]. Returns whether it is admitted.
    #[inline(always)]
    pub(super) fn try_admit(
        &mut self,
        place: Place,
        room: u64,
        spare: u64,
        reserved: u64,
        tokens: u64,
        plan: &mut Plan,
    ) -> Result<bool> {
        let owed = plan.requests().owed(place);
        if !plan.try_admit(place, room, spare, reserved, tokens)? {
            return Ok(false);
        }
        self.queue.remove(place, plan.requests());
        self.insert_running(place, plan.requests());
        if tokens < owed {
            insert_by_arrival(&mut self.prefills, place, plan.requests());
        }
        Ok(true)
    }

    /// Adds a request to the admitted ones, in order of arrival.
    #[inline(always)]
    pub(super) fn insert_running(&mut self, place: Place, requests: &Requests) {
        if let Some(admitted) = &mut self.without_order {
            match admitted.get_mut(place.index()) {
                Some(is_admitted) => *is_admitted = true,
                None => admit_beyond(admitted, place),
            }
            return;
        }
        let is_last =
            self.running.last().is_none_or(|last| requests.at(last).sort_key() < requests.at(place).sort_key());
        if is_last && self.by_arrival.is_none() {
            self.running.push_back(place);
        } else {
            self.insert_among_running(place, requests);
        }
    }

    fn insert_among_running(&mut self, place: Place, requests: &Requests) {
        let order = requests.order(place);
        let by_arrival = match &mut self.by_arrival {
            Some(by_arrival) => by_arrival,
            None => {
                let precedes = |other: Place| requests.order(other) < order;
                if self.running.len() <= NEAR || self.running.iter_back().take(NEAR).any(precedes) {
                    return self.running.insert_sorted(place, precedes);
                }
                let all = self.running.iter().map(|other| (requests.order(other), other)).collect();
                self.by_arrival.insert(all)
            }
        };
        let before = by_arrival.range(..order).next_back().map(|(_, &other)| other);
        self.running.insert_behind(place, before);
        by_arrival.insert(order, place);
    }

    /// Removes a request from the admitted ones. Returns whether it was one of them.
    #[inline(always)]
    fn remove_running(&mut self, place: Place, requests: &Requests) -> bool {
        if let Some(admitted) = &mut self.without_order {
            return admitted.get_mut(place.index()).is_some_and(std::mem::take);
        }
        if self.by_arrival.is_some() {
            self.forget_arrival(place, requests);
        }
        self.running.remove(place)
    }

    fn forget_arrival(&mut self, place: Place, requests: &Requests) {
        if let Some(by_arrival) = &mut self.by_arrival {
            by_arrival.remove(&requests.order(place));
            if by_arrival.len() < NEAR {
                self.by_arrival = None;
            }
        }
    }

    /// Removes a preempted request from the admitted ones.
    pub(super) fn take_out(&mut self, victim: Place, requests: &Requests) {
        self.remove_running(victim, requests);
        self.prefills.remove(victim);
        self.idle.retain(|&place| place != victim);
    }
}

/// Marks a place beyond the present table as admitted.
#[cold]
fn admit_beyond(admitted: &mut Vec<bool>, place: Place) {
    admitted.resize(place.index(), false);
    admitted.push(true);
}

/// Trait methods that depend on the roster alone.
macro_rules! answered_by_the_roster {
    () => {
        fn limits(&self) -> Limits {
            self.roster.limits
        }

        fn restarts(&self) -> bool {
            self.roster.preemption == Preemption::Restart
        }

        fn is_timeless(&self) -> bool {
            self.roster.preemption.takes_no_time()
        }

        fn notice(&mut self, notice: Notice, requests: &Requests) {
            self.roster.notice(notice, requests);
        }

        fn admitted(&self) -> Option<&List> {
            self.roster.lists.in_order()
        }
    };
}

pub(super) use answered_by_the_roster;

/// The state of a scheduler that decodes by arrival and preempts the latest arrival.
#[derive(Debug)]
pub(super) struct Roster {
    pub(super) limits: Limits,
    watermark: Watermark,
    pub(super) preemption: Preemption,
    /// Running requests are sorted by arrival.
    pub(super) lists: Lists,
    /// Swapped requests by arrival.
    pub(super) swapped: List,
    /// Requests that can decode but were left out by a plan, by arrival. All steady decodes precede them.
    left_out: BTreeMap<Order, Place>,
}

impl Roster {
    pub(super) fn new(limits: Limits, watermark: Watermark, preemption: Preemption, queue: Queue) -> Roster {
        let lists = Lists::without_order(queue);
        Roster { limits, watermark, preemption, lists, swapped: List::default(), left_out: BTreeMap::new() }
    }

    #[inline(always)]
    pub(super) fn notice(&mut self, notice: Notice, requests: &Requests) {
        if let Notice::Preempted(victim) = notice {
            self.preempted(victim, requests);
        } else {
            self.lists.notice(notice, requests);
        }
    }

    #[cold]
    fn preempted(&mut self, victim: Place, requests: &Requests) {
        self.take_out(victim, requests);
        self.requeue(victim, requests);
    }

    /// Makes the first `most` decodes by arrival the steady decodes, as far as the budget allows.
    #[inline(always)]
    pub(super) fn choose_decodes(&mut self, most: u64, plan: &mut Plan) -> Result<()> {
        let idle = self.lists.idle.len() as u64;
        if !plan.carries(idle) || plan.decodes() + idle > most || !self.left_out.is_empty() {
            return self.choose_some(most.min(plan.budget_for_decodes()), plan);
        }
        for index in 0..self.lists.idle.len() {
            plan.decode(self.lists.idle[index])?;
        }
        self.lists.idle.clear();
        Ok(())
    }

    /// The general case, when some requests are left out now or were before. The cost depends on the number of
    /// changes, not on the number left out.
    fn choose_some(&mut self, most: u64, plan: &mut Plan) -> Result<()> {
        if most == 0 {
            plan.rest_decodes(true);
            return Ok(());
        }
        self.lists.put_in_order(plan.requests());
        // No decode follows the first request that was left out.
        let behind = match self.left_out.first_key_value() {
            Some((_, &place)) => self.lists.running.before(place),
            None => self.lists.running.last(),
        };
        for &place in &self.lists.idle {
            self.left_out.insert(plan.requests().order(place), place);
        }
        self.lists.idle.clear();
        let decodes = |&place: &Place, plan: &Plan| plan.requests().at(place).phase() == Phase::Decoding;
        let mut latest = behind;
        loop {
            while let Some(place) = latest.filter(|place| !decodes(place, plan)) {
                latest = self.lists.running.before(place);
            }
            let room = most.saturating_sub(plan.decodes());
            let first = self.left_out.first_key_value().map(|(&order, &place)| (order, place));
            match (latest, first) {
                (Some(place), _) if plan.decodes() > most => self.leave_out(place, plan)?,
                (_, Some((order, place))) if room > 0 => {
                    self.left_out.remove(&order);
                    plan.decode(place)?;
                }
                (Some(place), Some((order, _))) if order < plan.requests().order(place) => {
                    self.leave_out(place, plan)?;
                }
                _ => return Ok(()),
            }
        }
    }

    fn leave_out(&mut self, place: Place, plan: &mut Plan) -> Result<()> {
        plan.pause(place)?;
        self.left_out.insert(plan.requests().order(place), place);
        Ok(())
    }

    /// Removes a preempted request from the admitted ones.
    fn take_out(&mut self, victim: Place, requests: &Requests) {
        self.lists.take_out(victim, requests);
        self.left_out.remove(&requests.order(victim));
    }

    /// Preempts until the decodes have blocks: the latest arrival that is not placed before them, a decode last. The
    /// decodes are the first requests by arrival.
    #[inline(always)]
    pub(super) fn make_room(&mut self, plan: &mut Plan) -> Result<()> {
        if plan.lacks_blocks() { self.preempt(plan) } else { Ok(()) }
    }

    fn preempt(&mut self, plan: &mut Plan) -> Result<()> {
        let mut victims = Vec::new();
        self.lists.put_in_order(plan.requests());
        while plan.free_blocks() < 0 {
            if plan.preempt_lower_ranked(self.preemption)? {
                continue;
            }
            let Some(latest) = self.lists.running.last() else { break };
            // If only the last decode lacks a block, unfinished prefills are preempted before it.
            let only_it = plan.free_blocks() == -1
                && plan.requests().at(latest).phase() == Phase::Decoding
                && plan.new_blocks(latest, 1) == 1;
            let victim = if only_it { self.lists.prefills.last().unwrap_or(latest) } else { latest };
            plan.preempt(victim, self.preemption)?;
            self.take_out(victim, plan.requests());
            victims.push(victim);
        }
        for victim in victims {
            self.requeue(victim, plan.requests());
        }
        Ok(())
    }

    /// Puts a preempted request back into the queue, or among the swapped ones.
    fn requeue(&mut self, victim: Place, requests: &Requests) {
        if let Preemption::Swap { .. } = self.preemption {
            insert_by_arrival(&mut self.swapped, victim, requests);
        } else {
            self.lists.queue.push_victim(victim, requests);
        }
    }

    /// Swaps in the oldest swapped requests before any admission (R12), unless this plan has preempted.
    #[inline(always)]
    pub(super) fn swap_in(&mut self, plan: &mut Plan) -> Result<()> {
        if self.swapped.is_empty() { Ok(()) } else { self.swap_in_oldest(plan) }
    }

    fn swap_in_oldest(&mut self, plan: &mut Plan) -> Result<()> {
        while let Some(place) = self.swapped.first().filter(|_| !plan.has_preempted()) {
            let tokens = plan.requests().next_context(place);
            let spare = self.watermark.spare(plan);
            if !plan.has_room(place, tokens, spare) {
                break;
            }
            plan.swap_in(place, self.preemption, tokens)?;
            self.swapped.remove(place);
            self.lists.insert_running(place, plan.requests());
            if !plan.requests().at(place).is_ready() {
                insert_by_arrival(&mut self.lists.prefills, place, plan.requests());
            } else if plan.budget_left() > 0 {
                plan.decode(place)?;
            } else {
                self.lists.idle.push(place);
            }
        }
        Ok(())
    }

    /// Computes at most `most` prompts: unfinished ones, then new ones from the queue, each cut to the budget.
    #[inline(always)]
    pub(super) fn prefill(&mut self, most: u64, plan: &mut Plan) -> Result<()> {
        let mut left = most;
        for place in self.lists.prefills.iter() {
            let tokens = plan.requests().owed(place).min(plan.budget_left());
            if tokens == 0 || left == 0 {
                break;
            }
            plan.chunk(place, tokens)?;
            left -= 1;
        }
        while let Some(place) = self.lists.queue.head() {
            let may_admit = left > 0 && plan.budget_left() > 0 && self.swapped.is_empty();
            if !may_admit || plan.was_preempted(place) || !self.try_admit(place, plan)? {
                break;
            }
            left -= 1;
        }
        Ok(())
    }

    /// Admits the head of the queue if the blocks for all its known tokens are free, and computes what the budget
    /// allows. Returns whether it is admitted.
    #[inline(always)]
    pub(super) fn try_admit(&mut self, place: Place, plan: &mut Plan) -> Result<bool> {
        self.try_admit_part(place, plan.budget_left(), plan)
    }

    /// [`Roster::try_admit`] that computes at most `most` tokens.
    #[inline(always)]
    pub(super) fn try_admit_part(&mut self, place: Place, most: u64, plan: &mut Plan) -> Result<bool> {
        let spare = self.watermark.spare(plan);
        plan.look_up(place);
        let request = plan.requests().at(place);
        let owed = request.owed();
        let known = request.context_held() + owed;
        self.lists.try_admit(place, known, spare, known, owed.min(most), plan)
    }

    /// How long a plan holds that decodes, prefills and admits as much as possible. While no request leaves, free
    /// blocks only decrease, so a request that lacks blocks keeps lacking them. An arrival matters only if it could
    /// be admitted.
    #[inline(always)]
    pub(super) fn hold(&self, plan: &mut Plan) {
        let arrivals_wait = plan.budget_left() == 0
            || plan.sequences_left() == 0
            || !self.swapped.is_empty()
            || (plan.refused() == Some(Limit::Blocks) && !self.lists.queue.may_be_overtaken());
        plan.hold(if plan.has_preempted() { Hold::ONCE } else { Hold::while_arrivals_wait(arrivals_wait) });
    }
}
