//! The occupancy gate of lin2026 section 4.1: the class furthest below its planned number of prefills.

use super::{Gate, Prefills, QueueTargets};
use std::cmp::Ordering;

/// The class with the least ξ_i = (X_i − n x_i*) / x_i*; ties go to the queue furthest above its target, then to the
/// lower class. A class with x_i* = 0 is last. As ξ_i + n = X_i / x_i*, two classes are compared by integer products.
/// If the plan has no q_p*, all queue targets are 0.
#[derive(Debug)]
pub(super) struct OccupancyGate {
    pub(super) shares: Vec<u64>,
    pub(super) targets: QueueTargets,
}

impl OccupancyGate {
    /// Compares X_i / x_i* of two classes; x_i* = 0 counts as infinite.
    fn deviations(&self, left: usize, right: usize, prefills: &Prefills) -> Ordering {
        match (self.shares[left], self.shares[right]) {
            (0, 0) => Ordering::Equal,
            (0, _) => Ordering::Greater,
            (_, 0) => Ordering::Less,
            (of_left, of_right) => {
                let crossed = |class: usize, other| u128::from(prefills.running[class]) * u128::from(other);
                crossed(left, of_right).cmp(&crossed(right, of_left))
            }
        }
    }
}

impl Gate for OccupancyGate {
    fn class(&self, prefills: &Prefills) -> Option<usize> {
        prefills.classes().min_by(|&left, &right| {
            self.deviations(left, right, prefills)
                .then_with(|| self.targets.deviation(right, prefills).cmp(&self.targets.deviation(left, prefills)))
        })
    }
}
