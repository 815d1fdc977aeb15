//! Planning ahead: a batch is planned when the previous one begins, without knowing its outcome.
//!
//! The GPU runs batch after batch without a pause, because the next one is ready. The cost: a plan does not include
//! requests that arrived during the previous batch. Requests whose last token comes with that batch still hold their
//! sequences and blocks. A policy enables it with [`Scheduler::plans_ahead`]; all other rules stay the same.
//!
//! Nothing is guessed and rolled back. A plan made at the start of a batch has no visible effect before that batch
//! ends. So it is made at the end, from what was known at the start. The policy is not notified of later arrivals
//! ([`AheadScheduler`]), and requests that have just emitted their last token keep their resources until the plan is
//! made. If the policy foresees the end, because the client allowed no more tokens, the request gets no row. If the
//! request ends by a stop token, it gets a row like any other decode, and the result of that row is dropped. Both
//! leave at the end of the batch with their last token.
//!
//! Stretches work as usual, shifted by one: an event during an iteration affects the plan of the iteration after the
//! next.

use super::in_flight::{DroppedRow, InFlight};
use super::state::State;
use super::stretch::Stretch;
use super::{HeldBlocks, Replica, Role, end_after};
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
    /// The data in flight with planning ahead.
    pub(super) fn in_flight(&mut self) -> &mut InFlight {
        self.ahead.get_or_insert_default()
    }

    /// Records that the last token of a request certainly comes with the running batch.
    pub(super) fn note_ending(&mut self, place: Place) {
        self.in_flight().ending.push(place);
    }

    /// Whether the last token of a request certainly comes with the batch that runs during this plan.
    pub(crate) fn is_ending(&self, place: Place) -> bool {
        self.ahead.as_ref().is_some_and(|ahead| ahead.ending.contains(&place))
    }

    /// Those requests, unordered.
    pub(crate) fn ending(&self) -> &[Place] {
        self.ahead.as_ref().map_or(&[], |ahead| &ahead.ending)
    }

    /// Tokens that a request has computed and the prefix cache does not have yet.
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

    /// Whether a request with a row in the last batch continues. If the cache processes rows in order, publishes what
    /// the row computed, unless the request lost it.
    fn continues_after_row<F: Features>(&mut self, place: Place) -> bool {
        let request = self.requests.at(place);
        let owes = match request.phase() {
            Phase::Decoding => !request.ends_at(self.requests.tick(request)),
            _ => !request.owes_no_output(),
        };
        if F::FULL && owes && request.phase() != Phase::Waiting && self.caches_in_row_order {
            let computed = u64::from(request.computed);
            self.blocks.computed(place, computed);
        }
        owes
    }

    /// Caches the result of a dropped row like any other, if the cache processes rows in order.
    fn compute_dropped(&mut self, place: Place) {
        if !self.caches_in_row_order || !self.blocks.has_cache() {
            return;
        }
        let computed = u64::from(self.requests.at(place).computed) + 1;
        let blocks = self.blocks.need(computed).saturating_sub(self.requests.at(place).blocks);
        self.take(place, blocks);
        self.requests.at_mut(place).computed += 1;
    }

    /// Records the preemption of a steady decode whose row is in flight.
    pub(crate) fn lose_in_flight(&mut self, place: Place) {
        let request = self.requests.at(place);
        let has_row = request.phase() == Phase::Decoding && self.requests.tick(request) > request.joined;
        if let Some(ahead) = self.ahead.as_mut().filter(|ahead| has_row && !ahead.drops) {
            ahead.left_decodes.push(place);
        }
    }
}

impl Replica {
    /// Handles a request that joins the queue while iterations run.
    pub(super) fn queue_while_planned(&mut self, now: Instant) -> Result<()> {
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
        // The iteration after the running one is planned already.
        let begun = if now == stretch.start { 0 } else { begun };
        stretch.count = stretch.count.min(begun + 1);
        stretch.end = end_after(stretch.start, &stretch.pace, stretch.count)?;
        self.next = stretch.end;
        Ok(())
    }

    /// Plans and begins the next batch. The stretch is settled, except for the requests that leave.
    pub(super) fn plan_next_ahead<F: Features>(&mut self, results: &mut Recorder) -> Result<()> {
        let Stretch { start, count, end, .. } = self.stretch;
        let planned_at = if count == 1 { start } else { end_after(start, &self.stretch.pace, count - 1)? };
        if F::FULL && self.role != Role::Whole {
            self.free_arrived(planned_at);
        }
        if F::FULL && self.state.drafts.is_some() {
            self.hold_back_drafted();
        } else {
            self.hold_back::<F>(count);
        }
        self.state.in_flight().is_planning = true;
        self.make_plan::<F>(planned_at, end, false)?;
        let in_flight = self.state.in_flight();
        in_flight.is_planning = false;
        if !in_flight.late_tokens.is_empty() || !in_flight.dropped_tokens.is_empty() {
            self.settle_late(results)?;
        }
        if F::FULL || self.state.variant.is_plain_ahead() {
            self.begin_planned::<F>(end, results)
        } else {
            // The plan added a group or a swap.
            self.begin_planned_fully(end, results)
        }
    }

    fn begin_planned_fully(&mut self, now: Instant, results: &mut Recorder) -> Result<()> {
        if self.is_short() {
            self.begin_planned::<Full<Short>>(now, results)
        } else {
            self.begin_planned::<Full<Long>>(now, results)
        }
    }

    /// Removes finished requests and begins the planned batch.
    fn begin_planned<F: Features>(&mut self, now: Instant, results: &mut Recorder) -> Result<()> {
        if F::FULL && self.state.drafts.is_some() {
            self.settle_drafts(now, results);
        } else {
            self.remove_finished::<F>(now, results)?;
        }
        if F::FULL && self.role != Role::Whole {
            let requests = &self.state.requests;
            self.departing.retain(|&place| requests.at(place).phase() != Phase::Waiting);
            self.depart(now);
            // Transfers that end at `now` come after the iteration's end, and the next batch is formed already.
            self.free_arrived(Instant(now.0 - 1));
        }
        let loaded = self.state.batch.chunk_tokens + self.state.steady;
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

    /// Keeps the resources of requests with their last token until the next batch is planned.
    fn hold_back<F: Features>(&mut self, iterations: u64) {
        let state = &mut self.state;
        let in_flight = state.in_flight();
        in_flight.late = if iterations > 1 { 1 } else { in_flight.unknown };
        in_flight.unknown = 1;
        in_flight.frees = !self.ending.is_empty() || !self.departing.is_empty() || !self.arrived.is_empty();
        in_flight.dropped.clear();
        in_flight.left_decodes.clear();
        if F::FULL && state.blocks.has_cache() {
            // The next chunk of a prompt follows at once, so the previous one is already published.
            self.ending.retain(|&(row, place)| row < u64::MAX || !state.continues(place));
        }
        for &(_, place) in &self.ending {
            let decodes = state.requests.at(place).phase() == Phase::Decoding;
            if !decodes && !state.requests.at(place).owes_no_output() {
                continue;
            }
            if state.requests.arrival(place).end_is_foreseen() {
                if decodes {
                    state.finish_decoding::<F>(place);
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

    /// Removes the requests whose last token came at `now`, in the order of the batch.
    fn remove_finished<F: Features>(&mut self, now: Instant, results: &mut Recorder) -> Result<()> {
        if self.ending.len() > 1 {
            self.ending.sort_unstable_by_key(|&(row, _)| row);
        }
        let state = &mut self.state;
        if F::FULL && state.blocks.has_cache() {
            // Blocks that rows take next are evicted, even if their result is dropped.
            let growth = state.steady_growth();
            state.blocks.reserve(growth);
        }
        for index in 0..self.ending.len() {
            let (_, place) = self.ending[index];
            if state.continues_after_row::<F>(place) {
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
                        // The row runs in the first iteration only.
                        state.in_flight().dropped.push(row);
                        state.batch.single_decodes += 1;
                        state.batch.most_iterations = 1;
                        if F::FULL {
                            state.compute_dropped(place);
                        }
                    }
                }
                // It was preempted, but needs no further token.
                Phase::Waiting | Phase::Swapped => {
                    let prompt = state.requests.at(place).prompt_tokens;
                    state.waiting -= 1;
                    state.running += 1;
                    state.remove_waiting_blocks(prompt);
                    state.brought_tokens -= u64::from(prompt);
                }
                Phase::Started => {}
            }
            debug_assert!(state.requests.at(place).owes_no_output(), "L5: a request emits exactly its output tokens");
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

    /// Frees the blocks whose transfer to another replica ended by `now`.
    pub(super) fn free_arrived(&mut self, now: Instant) {
        let state = &mut self.state;
        self.arrived.retain_mut(|(at, held)| {
            if *at > now {
                return true;
            }
            let HeldBlocks { blocks, kept } = std::mem::take(held);
            state.sent_blocks -= blocks;
            state.blocks.release_detached(kept);
            false
        });
    }
}

/// The wrapper of a policy that plans ahead. It delays notices of arrivals until a plan may use them.
pub(super) struct AheadScheduler {
    policy: Box<dyn Scheduler>,
    ahead: Ahead,
    /// Arrivals that the policy has not seen, in order.
    unseen: Vec<(Instant, Place)>,
    /// No plan is made before this instant.
    paused_until: Instant,
}

impl AheadScheduler {
    pub(super) fn new(policy: Box<dyn Scheduler>, ahead: Ahead) -> AheadScheduler {
        AheadScheduler { policy, ahead, unseen: Vec::new(), paused_until: Instant::ZERO }
    }

    /// Notifies the policy of the arrivals that this plan may use.
    fn notify_arrivals(&mut self, plan: &Plan) {
        let seen = self.unseen.iter().take_while(|&&(at, _)| at <= plan.now()).count();
        for (_, place) in self.unseen.drain(..seen) {
            self.policy.notice(Notice::Arrived(place), plan.requests());
        }
    }

    fn leave_queue(&mut self, place: Place, requests: &Requests) {
        match self.unseen.iter().position(|&(_, unseen)| unseen == place) {
            Some(index) => drop(self.unseen.remove(index)),
            None => self.policy.notice(Notice::Left(place), requests),
        }
    }

    /// Pauses the engine after the running batch, because the plan made during it is empty.
    fn pause_engine(&mut self, plan: &Plan) -> Result<()> {
        if self.ahead.pause > Span::ZERO && plan.requests().len() > self.unseen.len() {
            self.paused_until = plan.last_end().after(self.ahead.pause)?;
        }
        Ok(())
    }
}

impl Scheduler for AheadScheduler {
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
            // A request that was never admitted may be unseen.
            Notice::Left(place) if requests.at(place).phase() == Phase::Waiting => self.leave_queue(place, requests),
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
        if plan.now() < self.paused_until {
            plan.wake_at(self.paused_until);
            return Ok(());
        }
        if !self.unseen.is_empty() {
            self.notify_arrivals(plan);
        }
        self.policy.plan(plan)?;
        if plan.now() < plan.last_end() {
            let hold = plan.held();
            if plan.frees_later() || (!self.unseen.is_empty() && !hold.through_arrivals) {
                plan.hold(Hold { iterations: 1, ..hold });
            }
            if plan.is_empty() {
                return self.pause_engine(plan);
            }
        }
        Ok(())
    }

    fn holds(&self, pace: &Pace) -> u64 {
        self.policy.holds(pace)
    }
}

/// Queries with planning ahead.
impl Plan<'_> {
    /// Requests whose last token certainly comes with the batch that runs during this plan, unordered.
    #[inline]
    pub(crate) fn ending(&self) -> &[Place] {
        self.state.ending()
    }

    /// Output tokens of a request (0 or 1) that the batch running during this plan computes. They count as emitted.
    #[inline]
    pub(crate) fn tokens_in_flight(&self, place: Place) -> u64 {
        self.state.tokens_in_flight(place)
    }

    /// Whether the last token of an admitted request certainly comes with the batch that runs during this plan. It
    /// gets no row, and holds its sequence and blocks until that batch ends.
    #[inline]
    pub(crate) fn is_ending(&self, place: Place) -> bool {
        self.state.is_ending(place)
    }

    /// Whether sequences or blocks that count as taken in this plan are free when its batch begins.
    #[inline]
    pub(crate) fn frees_later(&self) -> bool {
        self.state.ahead.as_ref().is_some_and(|ahead| ahead.frees)
    }

    /// Lets this plan hold even when requests leave whose resources it counts as taken.
    #[inline]
    pub(crate) fn hold_as_requests_leave(&mut self) {
        if let Some(ahead) = &mut self.state.ahead {
            ahead.frees = false;
        }
    }

    /// Whether the plan is empty.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.state.batch.chunk_tokens == 0 && self.state.steady == 0
    }
}
