//! One after the other.

use super::{Fleet, Router};
use crate::error::Result;
use crate::workload::Arrival;

/// Replicas by turns, in the order of arrivals.
#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    next: usize,
}

impl Router for RoundRobin {
    fn route(&mut self, _arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        let replica = self.next;
        self.next = (replica + 1) % fleet.len();
        Ok(replica)
    }

    fn looks(&self) -> bool {
        false
    }
}
