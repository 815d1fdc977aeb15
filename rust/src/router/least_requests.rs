//! The shortest queue.

use serde::{Deserialize, Serialize};

use super::{Fleet, Router, RouterParameters};
use crate::dice::{Dice, Sample};
use crate::error::Result;
use crate::workload::Arrival;

/// The fewest requests, waiting and running: join the shortest queue.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LeastRequests {}

impl RouterParameters for LeastRequests {
    fn build(&self, _seed: u64, _pool: u64) -> Result<Box<dyn Router>> {
        Ok(Box::new(LeastRequests {}))
    }
}

impl Sample for LeastRequests {
    fn sample(_dice: &mut Dice) -> LeastRequests {
        LeastRequests {}
    }
}

impl Router for LeastRequests {
    fn route(&mut self, _arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        Ok(fleet.with_fewest_requests())
    }
}
