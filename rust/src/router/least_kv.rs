//! The emptiest memory.

use serde::{Deserialize, Serialize};

use super::{Fleet, Router, RouterParameters};
use crate::dice::{Dice, Sample};
use crate::error::Result;
use crate::workload::Arrival;

/// The fewest blocks, in use or asked for by waiting prompts.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LeastKv {}

impl RouterParameters for LeastKv {
    fn build(&self, _seed: u64, _pool: u64) -> Result<Box<dyn Router>> {
        Ok(Box::new(LeastKv {}))
    }
}

impl Sample for LeastKv {
    fn sample(_dice: &mut Dice) -> LeastKv {
        LeastKv {}
    }
}

impl Router for LeastKv {
    fn route(&mut self, _arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        fleet.least(|fleet, replica| fleet.blocks(replica))
    }
}
