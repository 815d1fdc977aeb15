//! Planning ahead: a batch is planned when the one before it begins, without knowing its outcome.
//!
//! The device goes from one batch to the next without a pause, since the next one is ready. What this costs: a plan does not
//! know of requests that came while the batch before it ran, and requests whose last token comes with that batch still have
//! their seats and blocks. A policy asks for it with [`Scheduler::plans_ahead`], and its plans are made by the rules of all.
//!
//! Nothing is guessed and taken back. A plan that was made when a batch began cannot be seen before that batch ends, so it is
//! made then, of what was known when it began: arrivals after that are kept from the policy ([`Foresighted`]), and requests
//! that have just emitted their last token hold what they have until the plan is made. Two kinds of them: an end that the
//! policy foresees, since the client allowed no more tokens, gets no row; one by a stop token looks like any other decode,
//! gets a row, and what that row computes is dropped. Then both leave, at the end of the batch that brought their last token.
//!
//! Stretches are as ever, shifted by one: what comes while an iteration runs is seen by the plan of the one after the next.

use super::in_flight::{DroppedRow, InFlight};
use super::state::State;
use super::stretch::Stretch;
use super::{Held, Replica, Role, end_after};
use crate::clock::{Instant, Long, Short, Span};
use crate::error::Result;
use crate::features::{Features, Full};
use crate::finding::Finding;
use crate::kv::KvCache;
use crate::plan::{Ahead, Hold, Limits, Plan};
use crate::request::{Phase, Place, Requests};
use crate::results::{Recorder, Status};
use crate::scheduler::{List, Notice, Scheduler};
use crate::timing::Pace;
use crate::workload::Arrival;

impl State {
    /// What is in flight, where batches are planned ahead.
    #[inline(always)]
    pub(super) fn in_flight(&mut self) -> &mut InFlight {
        self.ahead.get_or_insert_default()
    }

    /// The last token of a request is certain to come with the batch that runs while the next one is planned.
    pub(super) fn hold_seat(&mut self, place: Place) {
        self.in_flight().ending.push(place);
    }

    /// Is the last token of a request certain to come with the batch that runs while this one is planned?
    pub(crate) fn is_ending(&self, place: Place) -> bool {
        self.ahead.as_ref().is_some_and(|ahead| ahead.ending.contains(&place))
    }

    /// Those requests, in no order.
    pub(crate) fn ending(&self) -> &[Place] {
        self.ahead.as_ref().map_or(&[], |ahead| &ahead.ending)
    }

    /// Tokens that a request has computed and the prefix cache cannot know yet.
    pub(super) fn unknown_tokens(&self, place: Place) -> u64 {
        let Some(ahead) = &self.ahead else { return 0 };
        if self.requests.at(place).phase() == Phase::Decoding {
            ahead.unknown
        } else if ahead.left_decodes.contains(&place) {
            ahead.late
        } else {
            0
        }
    }

    /// Does a request that had a row in the last batch go on? Where the prefix cache hears of rows in their order, it hears
    /// what the row has computed, if the request still has it.
    #[inline(always)]
    fn goes_on_behind_its_row<F: Features>(&mut self, place: Place) -> bool {
        let request = self.requests.at(place);
        let owes = match request.phase() {
            Phase::Decoding => !request.ends_at(self.requests.tick(request)),
            _ => !request.owes_no_output(),
        };
        if F::ANY && owes && request.phase() != Phase::Waiting && self.caches_in_row_order {
            let computed = u64::from(request.computed);
            self.blocks.computed(place, computed);
        }
        owes
    }

    /// What a row in vain computes is cached with the rest, where the cache hears of rows in their order.
    fn compute_in_vain(&mut self, place: Place) {
        if !self.caches_in_row_order || !self.blocks.has_cache() {
            return;
        }
        let computed = u64::from(self.requests.at(place).computed) + 1;
        let blocks = self.blocks.need(computed).saturating_sub(self.requests.at(place).blocks);
        self.take(place, blocks);
        self.requests.at_mut(place).computed += 1;
    }

    /// A standing decode is preempted while its row is in flight.
    pub(crate) fn lose_in_flight(&mut self, place: Place) {
        let request = self.requests.at(place);
        let has_row = request.phase() == Phase::Decoding && self.requests.tick(request) > request.joined;
        if let Some(ahead) = self.ahead.as_mut().filter(|ahead| has_row && !ahead.drops) {
            ahead.left_decodes.push(place);
        }
    }
}

impl Replica {
    /// A request joined the queue while iterations run.
    #[inline(never)]
    pub(super) fn queue_ahead(&mut self, now: Instant) -> Result<()> {
        let stretch = &mut self.stretch;
        if stretch.count == 1 {
            stretch.before_a_request_waits = stretch.before_a_request_waits.min(1 + u64::from(stretch.end == now));
            return Ok(());
        }
        let begun = stretch.begun_before(now)?;
        if stretch.before_a_request_waits == u64::MAX {
            let at_a_boundary = now > stretch.start && end_after(stretch.start, &stretch.pace, begun)? == now;
            stretch.before_a_request_waits = begun + u64::from(at_a_boundary);
        }
        if stretch.through_arrivals || stretch.end <= now {
            return Ok(());
        }
        // The iteration after the one that runs now is planned already.
        let begun = if now == stretch.start { 0 } else { begun };
        stretch.count = stretch.count.min(begun + 1);
        stretch.end = end_after(stretch.start, &stretch.pace, stretch.count)?;
        self.next = stretch.end;
        Ok(())
    }

    /// A stretch has been settled but for the requests that leave: what was planned when its last iteration began follows.
    #[inline(always)]
    pub(super) fn go_on_ahead<F: Features>(&mut self, results: &mut Recorder) -> Result<()> {
        let Stretch { start, count, end, .. } = self.stretch;
        let planned_at = if count == 1 { start } else { end_after(start, &self.stretch.pace, count - 1)? };
        if F::ANY && self.role != Role::Whole {
            self.free_arrived(planned_at);
        }
        if F::ANY && self.state.drafts.is_some() {
            self.hold_back_drafted();
        } else {
            self.hold_back::<F>(count);
        }
        self.state.in_flight().is_planning = true;
        self.ask::<F>(planned_at, end, false)?;
        let in_flight = self.state.in_flight();
        in_flight.is_planning = false;
        if !in_flight.late_tokens.is_empty() || !in_flight.dropped_tokens.is_empty() {
            self.settle_late(results)?;
        }
        if F::ANY || self.state.variant.is_plain_ahead() {
            self.begin_planned::<F>(end, results)
        } else {
            // The plan brought a group more, or a swap.
            self.begin_planned_fully(end, results)
        }
    }

    #[cold]
    #[inline(never)]
    fn begin_planned_fully(&mut self, now: Instant, results: &mut Recorder) -> Result<()> {
        if self.is_short() {
            self.begin_planned::<Full<Short>>(now, results)
        } else {
            self.begin_planned::<Full<Long>>(now, results)
        }
    }

    /// Requests with their last token leave, and the batch that is planned begins.
    #[inline(always)]
    fn begin_planned<F: Features>(&mut self, now: Instant, results: &mut Recorder) -> Result<()> {
        if F::ANY && self.state.drafts.is_some() {
            self.settle_drafts(now, results);
        } else {
            self.let_finished_leave::<F>(now, results)?;
        }
        if F::ANY && self.role != Role::Whole {
            let requests = &self.state.requests;
            self.departing.retain(|&place| requests.at(place).phase() != Phase::Waiting);
            self.depart(now);
            // What arrives at this very instant comes after the end of the iteration, and the next batch is formed already.
            self.free_arrived(Instant(now.0 - 1));
        }
        let loaded = self.state.batch.chunk_tokens + self.state.standing;
        let in_flight = self.state.in_flight();
        in_flight.late = 0;
        let dropped = in_flight.dropped.iter().map(|row| row.tokens).sum::<u64>();
        if loaded + dropped == 0 {
            in_flight.unknown = 0;
            self.free_arrived(now);
            return Ok(());
        }
        self.run::<F>(now)?;
        self.stretch.load += dropped;
        Ok(())
    }

    /// Requests with their last token hold what they have until the next batch is planned.
    #[inline(always)]
    fn hold_back<F: Features>(&mut self, iterations: u64) {
        let state = &mut self.state;
        let in_flight = state.in_flight();
        in_flight.late = if iterations > 1 { 1 } else { in_flight.unknown };
        in_flight.unknown = 1;
        in_flight.frees = !self.ending.is_empty() || !self.departing.is_empty() || !self.arrived.is_empty();
        in_flight.dropped.clear();
        in_flight.left_decodes.clear();
        if F::ANY && state.blocks.has_cache() {
            // The next chunk of a prompt follows at once: what the last one computed is known already.
            self.ending.retain(|&(row, place)| row < u64::MAX || !state.goes_on(place));
        }
        for &(_, place) in &self.ending {
            let decodes = state.requests.at(place).phase() == Phase::Decoding;
            if !decodes && !state.requests.at(place).owes_no_output() {
                continue;
            }
            if state.requests.arrival(place).end_is_foreseen() {
                if decodes {
                    state.left_decodes::<F>(place);
                }
                let in_flight = state.in_flight();
                in_flight.ending.push(place);
                if decodes {
                    in_flight.left_decodes.push(place);
                }
                self.scheduler.ending(place);
            } else if !decodes {
                state.requests.at_mut(place).ready = true;
                self.scheduler.notice(Notice::Ready(place), &state.requests);
            }
        }
        for &place in &self.departing {
            state.in_flight().ending.push(place);
            self.scheduler.ending(place);
        }
    }

    /// Requests whose last token came at `now` leave, in the order of the batch that brought it.
    #[inline(always)]
    fn let_finished_leave<F: Features>(&mut self, now: Instant, results: &mut Recorder) -> Result<()> {
        if self.ending.len() > 1 {
            self.ending.sort_unstable_by_key(|&(row, _)| row);
        }
        let state = &mut self.state;
        if F::ANY && state.blocks.has_cache() {
            // Blocks that rows are about to take are forgotten, also where the outcome is dropped.
            let growth = state.standing_growth();
            state.blocks.reserve(growth);
        }
        for index in 0..self.ending.len() {
            let (_, place) = self.ending[index];
            if state.goes_on_behind_its_row::<F>(place) {
                continue;
            }
            match state.requests.at(place).phase() {
                Phase::Decoding => {
                    let request = state.requests.at(place);
                    let context = state.requests.context(place);
                    let row = DroppedRow { row: request.row, id: request.id, context, tokens: 1 };
                    let has_row = !state.groups[request.group as usize].rests;
                    state.leave_ended::<F>(place);
                    if has_row {
                        // It is in the first iteration alone.
                        state.in_flight().dropped.push(row);
                        state.batch.single_decodes += 1;
                        state.batch.most_iterations = 1;
                        if F::ANY {
                            state.compute_in_vain(place);
                        }
                    }
                }
                // It was preempted, and waits for nothing.
                Phase::Waiting | Phase::Swapped => {
                    let prompt = state.requests.at(place).prompt_tokens;
                    state.waiting -= 1;
                    state.running += 1;
                    state.waits_no_more(prompt);
                    state.brought_tokens -= u64::from(prompt);
                }
                Phase::Started => {}
            }
            debug_assert!(state.requests.at(place).owes_no_output(), "L5: exactly o tokens, once");
            results.leave::<F::Width>(state.requests.history(place), self.index, Status::Finished, now);
            state.release::<F>(place, true);
            self.scheduler.notice(Notice::Left(place), &state.requests);
            state.remove::<F>(place);
            state.running -= 1;
        }
        self.ending.clear();
        state.in_flight().ending.clear();
        state.end_batch::<F>();
        Ok(())
    }

    /// Blocks whose content has reached another replica by an instant are free.
    pub(super) fn free_arrived(&mut self, now: Instant) {
        let state = &mut self.state;
        self.arrived.retain_mut(|(at, held)| {
            if *at > now {
                return true;
            }
            let Held { blocks, kept } = std::mem::take(held);
            state.sent_blocks -= blocks;
            state.blocks.release_detached(kept);
            false
        });
    }
}

/// A policy that plans ahead: it is told of an arrival when the plan is made that may know of it.
pub(super) struct Foresighted {
    policy: Box<dyn Scheduler>,
    ahead: Ahead,
    /// Requests that came and when, in order.
    unseen: Vec<(Instant, Place)>,
    /// No plan is made before this.
    asleep_until: Instant,
}

impl Foresighted {
    pub(super) fn new(policy: Box<dyn Scheduler>, ahead: Ahead) -> Foresighted {
        Foresighted { policy, ahead, unseen: Vec::new(), asleep_until: Instant::ZERO }
    }

    /// Of what arrived the policy is told that may be known when this plan is made.
    #[inline(never)]
    fn show_arrived(&mut self, plan: &Plan) {
        let seen = self.unseen.iter().take_while(|&&(at, _)| at <= plan.now()).count();
        for (_, place) in self.unseen.drain(..seen) {
            self.policy.notice(Notice::Arrived(place), plan.requests());
        }
    }

    #[inline(never)]
    fn waits_no_more(&mut self, place: Place, requests: &Requests) {
        match self.unseen.iter().position(|&(_, unseen)| unseen == place) {
            Some(index) => drop(self.unseen.remove(index)),
            None => self.policy.notice(Notice::Left(place), requests),
        }
    }

    /// The plan that was made while a batch runs asks for nothing: the engine sleeps when that batch has ended.
    #[cold]
    #[inline(never)]
    fn fall_asleep(&mut self, plan: &Plan) -> Result<()> {
        if self.ahead.pause > Span::ZERO && plan.requests().len() > self.unseen.len() {
            self.asleep_until = plan.last_end().after(self.ahead.pause)?;
        }
        Ok(())
    }
}

impl Scheduler for Foresighted {
    fn limits(&self) -> Limits {
        self.policy.limits()
    }

    fn refuses(&self, arrival: &Arrival, cache: &crate::kv::KvBlocks) -> Option<&'static str> {
        self.policy.refuses(arrival, cache)
    }

    fn check(&self, cache: &KvCache) -> Result<()> {
        self.policy.check(cache)
    }

    fn findings(&self, cache: &KvCache) -> Vec<Finding> {
        self.policy.findings(cache)
    }

    fn notice(&mut self, notice: Notice, requests: &Requests) {
        match notice {
            Notice::Arrived(place) => self.unseen.push((requests.order(place).0, place)),
            // Of those that leave, one that was never admitted may be unseen.
            Notice::Left(place) if requests.at(place).phase() == Phase::Waiting => self.waits_no_more(place, requests),
            Notice::Left(_) | Notice::Ready(_) | Notice::Preempted(_) => self.policy.notice(notice, requests),
        }
    }

    fn admitted(&self) -> Option<&List> {
        self.policy.admitted()
    }

    fn ending(&mut self, place: Place) {
        self.policy.ending(place);
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        if plan.now() < self.asleep_until {
            plan.wake_at(self.asleep_until);
            return Ok(());
        }
        if !self.unseen.is_empty() {
            self.show_arrived(plan);
        }
        self.policy.plan(plan)?;
        if plan.now() < plan.last_end() {
            let hold = plan.held();
            if plan.frees_later() || (!self.unseen.is_empty() && !hold.through_arrivals) {
                plan.hold(Hold { iterations: 1, ..hold });
            }
            if plan.is_empty() {
                return self.fall_asleep(plan);
            }
        }
        Ok(())
    }

    fn holds(&self, pace: &Pace) -> u64 {
        self.policy.holds(pace)
    }
}

/// What a policy that plans ahead may look at.
impl Plan<'_> {
    /// Requests of which the last token is certain to come with the batch that runs while this one is planned, in no order.
    #[inline]
    pub(crate) fn ending(&self) -> &[Place] {
        self.state.ending()
    }

    /// Output tokens of a request, none or one, that are computed by the batch that runs while this one is planned. They count
    /// among those that it has emitted.
    #[inline]
    pub(crate) fn tokens_in_flight(&self, place: Place) -> u64 {
        self.state.tokens_in_flight(place)
    }

    /// Is the last token of an admitted request certain to come with the batch that runs while this one is planned? It
    /// gets no row, and holds its seat and its blocks until that batch ends.
    #[inline]
    pub(crate) fn is_ending(&self, place: Place) -> bool {
        self.state.is_ending(place)
    }

    /// Are there seats or blocks that this plan counts as taken, and that are free when its batch begins?
    #[inline]
    pub(crate) fn frees_later(&self) -> bool {
        self.state.ahead.as_ref().is_some_and(|ahead| ahead.frees)
    }

    /// This plan holds also when requests leave whose seats and blocks it counts as taken.
    #[inline]
    pub(crate) fn hold_as_requests_leave(&mut self) {
        if let Some(ahead) = &mut self.state.ahead {
            ahead.frees = false;
        }
    }

    /// Has nothing been placed?
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.state.batch.chunk_tokens == 0 && self.state.standing == 0
    }
}
