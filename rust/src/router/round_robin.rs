//! The round-robin router.

use super::prelude::*;

/// Replicas in turn, in the order of arrivals.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RoundRobin {}

impl RouterParameters for RoundRobin {
    fn build(&self, _seed: u64, _pool: u64) -> Result<Box<dyn Router>> {
        Ok(Box::new(RoundRobinRouter { next: 0 }))
    }
}

/// Replicas in turn, in the order of arrivals.
#[derive(Debug)]
struct RoundRobinRouter {
    next: usize,
}

impl Router for RoundRobinRouter {
    fn is_timeless(&self) -> bool {
        true
    }

    fn route(&mut self, _arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        let replica = fleet.next_open(self.next);
        self.next = replica + 1;
        Ok(replica)
    }

    fn uses_state(&self) -> bool {
        false
    }
}
