//! The gate that lin2026 section 6.3 calls queue-length based: the class whose queue is longest beyond its target.

use super::{Gate, Prefills, QueueTargets};
use std::cmp::Reverse;

/// The largest δ_i = Q_i − n q_p,i*, then the lower class. Section 6.3 gives no formula; δ_i is the queue deviation of
/// section 4.1, there the tie-break of the occupancy gate.
#[derive(Debug)]
pub(super) struct QueueGate {
    pub(super) targets: QueueTargets,
}

impl Gate for QueueGate {
    fn class(&self, prefills: &Prefills) -> Option<usize> {
        prefills.classes().min_by_key(|&class| Reverse(self.targets.deviation(class, prefills)))
    }
}
