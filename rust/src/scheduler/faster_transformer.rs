//! FasterTransformer: a batch of requests runs until all of them end (bari2025 Alg. 3; li2025 §3).

use super::orca::refuses_length;
use super::roster::Lists;
use super::{Notice, Queue, Scheduler};
use crate::error::Result;
use crate::kv::KvBlocks;
use crate::plan::{Hold, Limits, Plan};
use crate::request::Requests;
use crate::workload::Arrival;

/// Admits while nobody runs, all prompts whole in one iteration; then all decode. Each holds the blocks of the longest
/// sequence.
#[derive(Debug)]
pub(super) struct FasterTransformer {
    limits: Limits,
    max_model_len: u64,
    lists: Lists,
}

impl FasterTransformer {
    pub(super) fn new(limits: Limits, max_model_len: u64) -> FasterTransformer {
        FasterTransformer { limits, max_model_len, lists: Lists::new(Queue::fcfs()) }
    }
}

impl Scheduler for FasterTransformer {
    fn limits(&self) -> Limits {
        self.limits
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
                if !plan.has_room(place, self.max_model_len, 0) {
                    break;
                }
                self.lists.admit(place, self.max_model_len, plan.requests().owed(place), plan)?;
            }
        }
        for place in self.lists.idle.drain(..) {
            plan.decode(place)?;
        }
        // Nobody joins a batch under way; its prompts are complete after one iteration.
        plan.hold(Hold::THROUGH_ARRIVALS);
        Ok(())
    }
}
