//! RAD in two phases: all prompts of a cycle, then its decodes (bari2025 Alg. 2).
//!
//! One error of the paper is corrected: the last chunk of a prompt contains its remaining tokens.

use std::collections::VecDeque;

use super::prelude::*;
use super::rad::{Tiles, sample_tiles};

/// Full tiles, with all prefills of a cycle before its decodes.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RadPhased {
    pub rows: u64,
    pub columns: u64,
    pub reduction: u64,
    pub requests_per_cycle: u64,
}

impl SchedulerParameters for RadPhased {
    fn build(&self, _classes: Option<&[Class]>) -> Result<Box<dyn Scheduler>> {
        let tiles = Tiles::new(self.rows, self.columns, self.reduction)?;
        let requests_per_cycle = count("requests_per_cycle", self.requests_per_cycle)?;
        Ok(Box::new(RadPhasedScheduler {
            tiles,
            requests_per_cycle,
            queue: List::default(),
            prompt: None,
            ready: VecDeque::new(),
            active: List::default(),
            left: requests_per_cycle,
            idle: 0,
        }))
    }
}

impl Sample for RadPhased {
    fn sample(dice: &mut Dice) -> RadPhased {
        let (rows, columns, reduction) = sample_tiles(dice);
        RadPhased { rows, columns, reduction, requests_per_cycle: 1 + dice.below(7) }
    }
}

/// Computes one prompt at a time while requests can be admitted and the cycle allows more. Then decodes run, up to
/// the number of tile columns at a time, until the cycle is empty.
///
/// Prompts begin in order of arrival, and a victim waits for the next cycle. So within a cycle requests become ready
/// and active by arrival too.
#[derive(Debug)]
pub(super) struct RadPhasedScheduler {
    tiles: Tiles,
    requests_per_cycle: u64,
    queue: List,
    /// The prompt in progress.
    prompt: Option<Place>,
    /// D: requests with complete prompts that wait for a column.
    ready: VecDeque<Place>,
    /// The steady decodes.
    active: List,
    /// Prompts that this cycle may still begin; 0 once it decodes.
    left: u64,
    /// Idle time of the replica at the last plan without admitted requests.
    idle: u128,
}

impl RadPhasedScheduler {
    /// Puts a victim back into the queue for the next cycle.
    fn requeue(&mut self, victim: Place) {
        self.leave(victim);
        self.queue.push_front(victim);
    }

    /// Removes a request that waits for a column. Nearly always it is the last one, which was preempted.
    fn leave_ready(&mut self, place: Place) -> bool {
        let at = self.ready.iter().rposition(|&ready| ready == place);
        at.and_then(|at| self.ready.remove(at)).is_some()
    }

    /// Removes a request from the admitted ones. Returns whether it was one of them.
    #[inline]
    fn leave(&mut self, place: Place) -> bool {
        self.prompt.take_if(|prompt| *prompt == place).is_some() || self.active.remove(place) || self.leave_ready(place)
    }
}

impl Scheduler for RadPhasedScheduler {
    fn limits(&self) -> Limits {
        Limits { token_budget: Limits::NONE, max_seqs: self.requests_per_cycle, frees_with_batch: false }
    }

    fn is_timeless(&self) -> bool {
        true
    }

    fn notice(&mut self, notice: Notice, requests: &Requests) {
        match notice {
            Notice::Arrived(place) => insert_by_arrival(&mut self.queue, place, requests),
            Notice::Ready(place) => {
                self.prompt = None;
                self.ready.push_back(place);
            }
            Notice::Left(place) => {
                if !self.leave(place) {
                    self.queue.remove(place);
                }
            }
            Notice::Preempted(victim) => self.requeue(victim),
        }
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        if let Some(place) = self.prompt {
            plan.rest_decodes(true);
            plan.hold(Hold::THROUGH_ARRIVALS);
            return plan.chunk(place, plan.requests().owed(place).min(self.tiles.chunk));
        }
        // If all outputs had length 1, there are no decodes: the cycle ends when the replica is empty.
        if plan.running() == 0 {
            let idle = plan.now().0 - plan.busy().0;
            let stood_empty = std::mem::replace(&mut self.idle, idle) < idle;
            if self.left == 0 || stood_empty {
                self.left = self.requests_per_cycle;
            }
        }
        if let Some(place) = self.queue.first().filter(|_| self.left > 0) {
            // Resting decodes take no blocks from the prompt admitted here.
            plan.rest_decodes(true);
            plan.look_up(place);
            let request = plan.requests().at(place);
            let owed = request.owed();
            let context = request.context_held() + owed;
            if plan.try_admit(place, context, 0, context, owed.min(self.tiles.chunk))? {
                self.queue.remove(place);
                self.prompt = Some(place);
                self.left -= 1;
                plan.hold(Hold::THROUGH_ARRIVALS);
                return Ok(());
            }
            plan.rest_decodes(false);
        }
        self.left = 0;
        while plan.decodes() < self.tiles.columns
            && let Some(place) = self.ready.pop_front()
        {
            self.active.push_back(place);
            plan.decode(place)?;
        }
        while plan.lacks_blocks() {
            // All lists are in order of arrival. Requests that wait for a column are preempted first, then decodes,
            // latest first.
            let Some(latest) = self.ready.back().copied().or(self.active.last()) else { break };
            plan.preempt(latest, Preemption::Recompute)?;
            self.requeue(latest);
        }
        // Only the plan that tried an admission records its limit; later plans do not.
        let changes = plan.has_preempted() || plan.refused().is_some();
        plan.hold(if changes { Hold::ONCE } else { Hold::THROUGH_ARRIVALS });
        Ok(())
    }
}
