//! The queue-length based gate of lin2026 section 6.3: the class whose queue exceeds its target by most.

use super::{Gate, Prefills, QueueTargets};
use std::cmp::Reverse;

/// The largest δ_i = Q_i − n q_p,i*, then the lower class. Section 6.3 has no formula; δ_i is the queue deviation of
/// section 4.1, where it breaks ties of the occupancy gate.
#[derive(Debug)]
pub(super) struct QueueGate {
    pub(super) targets: QueueTargets,
}

impl Gate for QueueGate {
    fn class(&self, prefills: &Prefills) -> Option<usize> {
        prefills.classes().min_by_key(|&class| Reverse(self.targets.deviation(class, prefills)))
    }
}
