//! RAD in two phases: all prompts of a cycle, then its decodes (bari2025 Alg. 2).
//!
//! A slip of the paper is mended: the last chunk of a prompt holds what is left of it.

use std::collections::VecDeque;

use super::prelude::*;
use super::rad::{Tiles, sample_tiles};

/// Tiles filled exactly, all prefills of a cycle before its decodes.
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

/// Prompts one after another, each alone, while any can be admitted and the cycle may have more of them. Then decodes, as
/// many at once as a tile has columns, until no request of the cycle is left.
///
/// Prompts are begun by arrival, and a victim waits for the next cycle. So within a cycle requests become ready, and are
/// made active, by arrival too.
#[derive(Debug)]
pub(super) struct RadPhasedScheduler {
    tiles: Tiles,
    requests_per_cycle: u64,
    queue: List,
    /// The prompt under way.
    prompt: Option<Place>,
    /// D: their prompts are complete, and they wait for a column.
    ready: VecDeque<Place>,
    /// The standing decodes.
    active: List,
    /// Prompts that this cycle may still begin: none once it decodes.
    left: u64,
    /// How long the replica had been without work by the last plan that found no request admitted.
    idle: u128,
}

impl RadPhasedScheduler {
    /// A victim waits for the next cycle.
    fn await_again(&mut self, victim: Place) {
        self.leave(victim);
        self.queue.push_front(victim);
    }

    /// Takes a request out of those that wait for a column. Nearly always it is the last, which was preempted.
    fn leave_ready(&mut self, place: Place) -> bool {
        let at = self.ready.iter().rposition(|&ready| ready == place);
        at.and_then(|at| self.ready.remove(at)).is_some()
    }

    /// Takes a request out of the admitted, if it is one of them.
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
            Notice::Preempted(victim) => self.await_again(victim),
        }
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        if let Some(place) = self.prompt {
            plan.rest_decodes(true);
            plan.hold(Hold::THROUGH_ARRIVALS);
            return plan.chunk(place, plan.requests().owed(place).min(self.tiles.chunk));
        }
        // Without decodes, because all outputs had length 1, a cycle ends when the replica stands empty.
        if plan.running() == 0 {
            let idle = plan.now().0 - plan.busy().0;
            let stood_empty = std::mem::replace(&mut self.idle, idle) < idle;
            if self.left == 0 || stood_empty {
                self.left = self.requests_per_cycle;
            }
        }
        if let Some(place) = self.queue.first().filter(|_| self.left > 0) {
            // Decodes at rest take no block from the prompt that is admitted beside them.
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
            // All orders are that of arrival: the latest of requests that do not decode goes first, then the latest
            // decode.
            let Some(latest) = self.ready.back().copied().or(self.active.last()) else { break };
            plan.preempt(latest, Preemption::Recompute)?;
            self.await_again(latest);
        }
        // What kept the head of the queue out is noted by the plan that asked, and by no later one.
        let changes = plan.has_preempted() || plan.refused().is_some();
        plan.hold(if changes { Hold::ONCE } else { Hold::THROUGH_ARRIVALS });
        Ok(())
    }
}
