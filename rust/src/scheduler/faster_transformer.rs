//! FasterTransformer: request-level batching (bari2025 Alg. 3; li2025 §3).

use super::orca::{refuses_length, sample_model_len};
use super::prelude::*;

/// When the blocks of a finished request are freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Free {
    /// When the request ends.
    Each,
    /// When the last request of its batch ends.
    Batch,
}

/// A batch runs until all its requests end.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FasterTransformer {
    pub max_seqs: u64,
    pub max_model_len: u64,
    pub free: Free,
}

impl SchedulerParameters for FasterTransformer {
    fn build(&self, _classes: Option<&[Class]>) -> Result<Box<dyn Scheduler>> {
        let frees_with_batch = self.free == Free::Batch;
        let limits = Limits { frees_with_batch, ..limits(Limits::NONE, self.max_seqs)? };
        let max_model_len = count("max_model_len", self.max_model_len)?;
        Ok(Box::new(FasterTransformerScheduler { limits, max_model_len, lists: Lists::without_order(Queue::fcfs()) }))
    }
}

impl Sample for FasterTransformer {
    fn sample(dice: &mut Dice) -> FasterTransformer {
        FasterTransformer {
            max_seqs: dice.scale.max_seqs,
            max_model_len: sample_model_len(dice),
            free: dice.one_of(&[Free::Each, Free::Batch]),
        }
    }
}

/// Admits only while no request runs: all prompts whole in one iteration, then all decode. Each request holds the
/// blocks of the maximum length.
#[derive(Debug)]
pub(super) struct FasterTransformerScheduler {
    limits: Limits,
    max_model_len: u64,
    lists: Lists,
}

impl Scheduler for FasterTransformerScheduler {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn is_timeless(&self) -> bool {
        true
    }

    fn refuses(&self, arrival: &Arrival, cache: &KvBlocks) -> Option<&'static str> {
        refuses_length(arrival, self.max_model_len, cache)
    }

    fn notice(&mut self, notice: Notice, requests: &Requests) {
        self.lists.notice(notice, requests);
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        if plan.running() == 0 {
            while let Some(place) = self.lists.queue.head() {
                plan.look_up(place);
                let (all, owed) = (self.max_model_len, plan.requests().owed(place));
                if !self.lists.try_admit(place, all, 0, all, owed, plan)? {
                    break;
                }
            }
        }
        for index in 0..self.lists.idle.len() {
            plan.decode(self.lists.idle[index])?;
        }
        self.lists.idle.clear();
        // No request joins a running batch, and its prompts take one iteration.
        plan.hold(Hold::THROUGH_ARRIVALS);
        Ok(())
    }
}
