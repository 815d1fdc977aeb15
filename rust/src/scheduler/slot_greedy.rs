//! The greedy policy of the KV-memory stability model: nie2026 §3.
//!
//! The model has no shared prefixes. With a prefix cache, every request is counted with all its blocks, as if it
//! shared none. So blocks never run short.

use super::prelude::*;
use crate::clock::Span;

/// Swapping is free in the model.
const STEP_OUT: Preemption = Preemption::Swap { per_token: Span::ZERO, base: Span::ZERO };

/// Requests whose next step fits, in order of arrival.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SlotGreedy {
    pub chunk: u64,
}

impl SchedulerParameters for SlotGreedy {
    fn build(&self, _classes: Option<&[Class]>) -> Result<Box<dyn Scheduler>> {
        Ok(Box::new(SlotGreedyScheduler {
            chunk: count("chunk", self.chunk)?,
            lists: Lists::new(Queue::fcfs()),
            outside: List::default(),
            returning: Vec::new(),
        }))
    }
}

impl Sample for SlotGreedy {
    fn sample(dice: &mut Dice) -> SlotGreedy {
        SlotGreedy { chunk: dice.scale.token_budget }
    }
}

/// Requests whose next step fits advance, in order of arrival. The others are swapped out.
#[derive(Debug)]
pub(super) struct SlotGreedyScheduler {
    /// ŝ: the maximum number of prompt tokens per request and iteration.
    chunk: u64,
    /// `running` has all started requests, swapped ones included. `prefills` are in memory.
    lists: Lists,
    /// Swapped requests, by arrival.
    outside: List,
    /// With shared blocks: the swapped requests that return in this plan.
    returning: Vec<Place>,
}

impl SlotGreedyScheduler {
    /// Tokens of a request's next step.
    #[inline]
    fn step(&self, place: Place, requests: &Requests) -> u64 {
        requests.owed(place).min(self.chunk)
    }

    /// Blocks of a request after its next step.
    #[inline]
    fn blocks(&self, place: Place, plan: &Plan) -> i64 {
        let context = plan.requests().context(place);
        plan.blocks(context + self.step(place, plan.requests())) as i64
    }

    /// Swaps out requests that do not fit after the earlier ones.
    #[inline]
    fn step_out(&mut self, plan: &mut Plan) -> Result<()> {
        // In nearly all plans, all requests in memory decode and fit.
        let all_decode = self.lists.prefills.is_empty() && self.outside.is_empty();
        if all_decode && !plan.lacks_blocks() { Ok(()) } else { self.step_out_in_order(plan) }
    }

    fn step_out_in_order(&mut self, plan: &mut Plan) -> Result<()> {
        let more = |place| plan.new_blocks(place, self.step(place, plan.requests())) as i64;
        let mut left = plan.free_blocks() - self.lists.prefills.iter().map(more).sum::<i64>();
        // Go back to the first request that is swapped out or lacks blocks. All earlier ones stay.
        let (mut outside, mut first) = (self.outside.len(), None);
        let mut next = self.lists.running.last();
        while let Some(place) = next.filter(|_| left < 0 || outside > 0) {
            if plan.requests().at(place).phase() == Phase::Swapped {
                outside -= 1;
            } else {
                left += self.blocks(place, plan);
            }
            first = next;
            next = self.lists.running.before(place);
        }
        while let Some(place) = first {
            let blocks = self.blocks(place, plan);
            if blocks <= left {
                left -= blocks;
            } else if plan.requests().at(place).phase() != Phase::Swapped {
                plan.preempt_first(place, STEP_OUT)?;
                self.lists.prefills.remove(place);
                insert_by_arrival(&mut self.outside, place, plan.requests());
            }
            first = self.lists.running.after(place);
        }
        Ok(())
    }

    /// The variant for shared blocks, which counts all blocks of each request. Returns the remaining blocks.
    fn step_out_sharing(&mut self, plan: &mut Plan) -> Result<i64> {
        self.returning.clear();
        let mut left = plan.blocks_here() as i64;
        let mut next = self.lists.running.first();
        while let Some(place) = next {
            next = self.lists.running.after(place);
            let is_outside = plan.requests().at(place).phase() == Phase::Swapped;
            let blocks = self.blocks(place, plan);
            if blocks <= left {
                left -= blocks;
                if is_outside {
                    self.returning.push(place);
                }
            } else if !is_outside {
                plan.preempt_first(place, STEP_OUT)?;
                self.lists.prefills.remove(place);
                insert_by_arrival(&mut self.outside, place, plan.requests());
            }
        }
        Ok(left)
    }

    /// Swaps in the requests that fit. After all requests in memory have their blocks, the free blocks suffice for
    /// exactly those that fit after the earlier ones.
    fn return_to_memory(&mut self, plan: &mut Plan) -> Result<()> {
        let mut next = self.outside.first();
        while let Some(place) = next {
            next = self.outside.after(place);
            let step = self.step(place, plan.requests());
            let tokens = plan.requests().context(place) + step;
            if plan.shares_blocks() && !self.returning.contains(&place) {
                plan.set_refused(Some(Limit::Blocks));
                continue;
            }
            if !plan.has_room(place, tokens, 0) {
                continue;
            }
            plan.swap_in(place, STEP_OUT, tokens)?;
            self.outside.remove(place);
            if plan.requests().at(place).is_ready() {
                plan.decode(place)?;
            } else {
                plan.chunk(place, step)?;
                insert_by_arrival(&mut self.lists.prefills, place, plan.requests());
            }
        }
        Ok(())
    }
}

impl Scheduler for SlotGreedyScheduler {
    fn limits(&self) -> Limits {
        Limits { token_budget: Limits::NONE, max_seqs: Limits::NONE, frees_with_batch: false }
    }

    fn is_timeless(&self) -> bool {
        true
    }

    fn notice(&mut self, notice: Notice, requests: &Requests) {
        self.lists.notice(notice, requests);
    }

    fn admitted(&self) -> Option<&List> {
        Some(&self.lists.running)
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        for index in 0..self.lists.idle.len() {
            plan.decode(self.lists.idle[index])?;
        }
        self.lists.idle.clear();
        let mut left = i64::MAX;
        if plan.shares_blocks() {
            left = self.step_out_sharing(plan)?;
        } else {
            self.step_out(plan)?;
        }
        for place in self.lists.prefills.iter() {
            plan.chunk(place, self.step(place, plan.requests()))?;
        }
        self.return_to_memory(plan)?;
        while let Some(place) = self.lists.queue.head() {
            plan.look_up(place);
            let step = self.step(place, plan.requests());
            let tokens = plan.requests().context(place) + step;
            let blocks = plan.blocks(tokens) as i64;
            if blocks > left {
                if plan.has_room(place, tokens, 0) {
                    plan.set_refused(Some(Limit::Blocks));
                }
                break;
            }
            if !self.lists.try_admit(place, tokens, 0, tokens, step, plan)? {
                break;
            }
            left -= blocks;
        }
        if plan.shares_blocks() {
            return Ok(());
        }
        // While no request leaves, memory only fills. A request that does not fit keeps not fitting, and arrivals
        // wait behind it.
        let arrivals_wait = !self.lists.queue.is_empty();
        plan.hold(Hold::while_arrivals_wait(arrivals_wait));
        Ok(())
    }
}
