//! What the schedulers that serve by arrival keep, and how they make room.

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

/// So many of the latest admitted requests are looked through for the place of one that came before them.
const NEAR: usize = 64;

/// The queue and the admitted requests, as most schedulers keep them.
#[derive(Debug)]
pub(super) struct Lists {
    pub(super) queue: Queue,
    /// Admitted requests, in the order of the policy.
    pub(super) running: List,
    /// Of each place, whether it is admitted, before that order is asked for first. Most runs never ask.
    without_order: Option<Vec<bool>>,
    /// The same by arrival, while so many of them are overtaken that to look for a place one by one takes long.
    by_arrival: Option<BTreeMap<Order, Place>>,
    /// Those of them that cannot decode yet, in the same order.
    pub(super) prefills: List,
    /// Requests that can decode and are not among the standing decodes.
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

    /// The same for a policy that says when it asks for the order of the admitted, which is that of arrival
    /// ([`Lists::put_in_order`]).
    pub(super) fn without_order(queue: Queue) -> Lists {
        Lists { without_order: Some(Vec::new()), ..Lists::new(queue) }
    }

    /// From now on the admitted are kept in order.
    #[inline(always)]
    pub(super) fn put_in_order(&mut self, requests: &Requests) {
        if let Some(admitted) = self.without_order.take() {
            self.put_all_in_order(&admitted, requests);
        }
    }

    #[cold]
    #[inline(never)]
    fn put_all_in_order(&mut self, admitted: &[bool], requests: &Requests) {
        let mut all: Vec<Place> =
            requests.places().filter(|place| admitted.get(place.index()) == Some(&true)).collect();
        all.sort_unstable_by_key(|&place| requests.order(place));
        all.into_iter().for_each(|place| self.running.push_back(place));
    }

    /// The admitted, if they are kept in order.
    pub(super) fn in_order(&self) -> Option<&List> {
        self.without_order.is_none().then_some(&self.running)
    }

    #[inline(always)]
    pub(super) fn notice(&mut self, notice: Notice, requests: &Requests) {
        match notice {
            Notice::Arrived(place) => self.arrived(place, requests),
            Notice::Ready(place) => self.ready(place),
            Notice::Left(place) => self.left(place, requests),
            Notice::Preempted(victim) => self.await_again(victim, requests),
        }
    }

    // All policies share these, and each saves only the registers that it needs.
    #[inline(never)]
    fn arrived(&mut self, place: Place, requests: &Requests) {
        self.queue.push(place, requests);
    }

    #[inline(never)]
    fn ready(&mut self, place: Place) {
        if !self.prefills.is_empty() {
            self.prefills.remove(place);
        }
        self.idle.push(place);
    }

    #[inline(never)]
    fn left(&mut self, place: Place, requests: &Requests) {
        let ran = self.by_arrival.is_none() && self.remove_running(place, requests);
        if !ran || !self.prefills.is_empty() {
            self.leave_others(place, ran, requests);
        }
    }

    /// It leaves the other lists too.
    #[inline(never)]
    fn leave_others(&mut self, place: Place, ran: bool, requests: &Requests) {
        if !ran && !self.remove_running(place, requests) {
            self.queue.remove(place, requests);
        }
        self.prefills.remove(place);
    }

    #[cold]
    #[inline(never)]
    fn await_again(&mut self, victim: Place, requests: &Requests) {
        self.take_out(victim, requests);
        self.queue.push_victim(victim, requests);
    }

    /// Admits the head of the queue, as [`Plan::try_admit`] does. Says whether it is admitted.
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

    /// A request joins the admitted, which are kept by arrival.
    #[inline(always)]
    pub(super) fn insert_running(&mut self, place: Place, requests: &Requests) {
        if let Some(admitted) = &mut self.without_order {
            match admitted.get_mut(place.index()) {
                Some(is_admitted) => *is_admitted = true,
                None => admit_beyond(admitted, place),
            }
            return;
        }
        let is_last = self.running.last().is_none_or(|last| requests.at(last).hour() < requests.at(place).hour());
        if is_last && self.by_arrival.is_none() {
            self.running.push_back(place);
        } else {
            self.insert_among_running(place, requests);
        }
    }

    #[inline(never)]
    fn insert_among_running(&mut self, place: Place, requests: &Requests) {
        let order = requests.order(place);
        let by_arrival = match &mut self.by_arrival {
            Some(by_arrival) => by_arrival,
            None => {
                let goes_before = |other: Place| requests.order(other) < order;
                if self.running.len() <= NEAR || self.running.iter_back().take(NEAR).any(goes_before) {
                    return self.running.insert_sorted(place, goes_before);
                }
                let all = self.running.iter().map(|other| (requests.order(other), other)).collect();
                self.by_arrival.insert(all)
            }
        };
        let before = by_arrival.range(..order).next_back().map(|(_, &other)| other);
        self.running.insert_behind(place, before);
        by_arrival.insert(order, place);
    }

    /// A request ceases to be among the admitted, if it was.
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

    #[inline(never)]
    fn forget_arrival(&mut self, place: Place, requests: &Requests) {
        if let Some(by_arrival) = &mut self.by_arrival {
            by_arrival.remove(&requests.order(place));
            if by_arrival.len() < NEAR {
                self.by_arrival = None;
            }
        }
    }

    /// A request was preempted: among the admitted no more.
    pub(super) fn take_out(&mut self, victim: Place, requests: &Requests) {
        self.remove_running(victim, requests);
        self.prefills.remove(victim);
        self.idle.retain(|&place| place != victim);
    }
}

/// A place is admitted beyond those that were here before.
#[cold]
#[inline(never)]
fn admit_beyond(admitted: &mut Vec<bool>, place: Place) {
    admitted.resize(place.index(), false);
    admitted.push(true);
}

/// What a policy answers from its roster alone.
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
    /// The running by arrival.
    pub(super) lists: Lists,
    /// Swapped requests by arrival.
    pub(super) swapped: List,
    /// Requests that can decode and were left out by a plan, by arrival: all standing decodes come before them.
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
    #[inline(never)]
    fn preempted(&mut self, victim: Place, requests: &Requests) {
        self.take_out(victim, requests);
        self.await_again(victim, requests);
    }

    /// The first `most` decodes by arrival, and no more than the budget carries, are the standing ones.
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

    /// The same where not all that can decode may, or might before this plan. What it costs depends on how many come to
    /// decode or cease to, and not on how many are left out.
    #[inline(never)]
    fn choose_some(&mut self, most: u64, plan: &mut Plan) -> Result<()> {
        if most == 0 {
            plan.rest_decodes(true);
            return Ok(());
        }
        self.lists.put_in_order(plan.requests());
        // Behind the first that was left out there is no decode.
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

    /// A request was preempted: among the admitted no more.
    fn take_out(&mut self, victim: Place, requests: &Requests) {
        self.lists.take_out(victim, requests);
        self.left_out.remove(&requests.order(victim));
    }

    /// Short of blocks for its decodes, the latest arrival not placed before them goes, a decode itself last. The decodes
    /// are the first by arrival.
    #[inline(always)]
    pub(super) fn make_room(&mut self, plan: &mut Plan) -> Result<()> {
        if plan.lacks_blocks() { self.preempt(plan) } else { Ok(()) }
    }

    #[inline(never)]
    fn preempt(&mut self, plan: &mut Plan) -> Result<()> {
        let mut victims = Vec::new();
        self.lists.put_in_order(plan.requests());
        while plan.free_blocks() < 0 {
            if plan.dismiss_junior(self.preemption)? {
                continue;
            }
            let Some(latest) = self.lists.running.last() else { break };
            // The last decode may be the only one that finds no block; then unfinished prefills go before it.
            let only_it = plan.free_blocks() == -1
                && plan.requests().at(latest).phase() == Phase::Decoding
                && plan.new_blocks(latest, 1) == 1;
            let victim = if only_it { self.lists.prefills.last().unwrap_or(latest) } else { latest };
            plan.preempt(victim, self.preemption)?;
            self.take_out(victim, plan.requests());
            victims.push(victim);
        }
        for victim in victims {
            self.await_again(victim, plan.requests());
        }
        Ok(())
    }

    /// A victim waits again: in the queue, or swapped out.
    fn await_again(&mut self, victim: Place, requests: &Requests) {
        if let Preemption::Swap { .. } = self.preemption {
            insert_by_arrival(&mut self.swapped, victim, requests);
        } else {
            self.lists.queue.push_victim(victim, requests);
        }
    }

    /// The oldest swapped request comes back before any admission (rule 12), unless a request has just been preempted.
    #[inline(always)]
    pub(super) fn swap_in(&mut self, plan: &mut Plan) -> Result<()> {
        if self.swapped.is_empty() { Ok(()) } else { self.swap_in_oldest(plan) }
    }

    #[inline(never)]
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

    /// Admits the head of the queue with the blocks for all its known tokens, if it has room for them, and computes what
    /// the budget carries. Says whether it is admitted.
    #[inline(always)]
    pub(super) fn try_admit(&mut self, place: Place, plan: &mut Plan) -> Result<bool> {
        self.try_admit_part(place, plan.budget_left(), plan)
    }

    /// The same, but `most` tokens of it are computed at most.
    #[inline(always)]
    pub(super) fn try_admit_part(&mut self, place: Place, most: u64, plan: &mut Plan) -> Result<bool> {
        let spare = self.watermark.spare(plan);
        plan.look_up(place);
        let request = plan.requests().at(place);
        let owed = request.owed();
        let known = request.context_held() + owed;
        self.lists.try_admit(place, known, spare, known, owed.min(most), plan)
    }

    /// For how long a plan holds that decodes, continues and admits as much as it can: while no request leaves,
    /// blocks only get fewer, so a request that lacks them goes on lacking them; an arrival matters only if it could
    /// be admitted.
    #[inline(always)]
    pub(super) fn hold(&self, plan: &mut Plan) {
        let arrivals_wait = plan.budget_left() == 0
            || plan.seats_left() == 0
            || !self.swapped.is_empty()
            || (plan.refused() == Some(Limit::Blocks) && !self.lists.queue.may_be_overtaken());
        plan.hold(if plan.has_preempted() { Hold::ONCE } else { Hold::while_arrivals_wait(arrivals_wait) });
    }
}
