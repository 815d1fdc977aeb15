//! The gate that lin2026 section 6.3 calls queue-length based: whose queue is longest beyond its target?

use super::{Gate, Prefills, QueueTargets};
use crate::control::allocation::Allocation;
use crate::error::{Error, Result};
use std::cmp::Reverse;

/// The largest δ_i = Q_i − n q_p,i*, then the lower class. Section 6.3 gives no formula; δ_i is the queue deviation of
/// section 4.1, there the tie-break of the occupancy gate.
#[derive(Debug)]
pub(super) struct Queue {
    targets: QueueTargets,
}

impl Queue {
    pub(super) fn new(replicas: u32, allocation: &Allocation) -> Result<Queue> {
        let missing = || Error::config("allocation.prefill_queue", "missing: the queue gate holds queues against it");
        let queues = allocation.prefill_queue.as_ref().ok_or_else(missing)?;
        Ok(Queue { targets: QueueTargets::new(replicas, queues) })
    }
}

impl Gate for Queue {
    fn class(&self, prefills: &Prefills) -> Option<usize> {
        prefills.classes().min_by_key(|&class| Reverse(self.targets.deviation(class, prefills)))
    }
}
