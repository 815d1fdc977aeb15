//! The least work ahead.

use serde::{Deserialize, Serialize};

use super::{Fleet, Router, RouterParameters};
use crate::dice::{Dice, Sample};
use crate::error::Result;
use crate::workload::Arrival;

/// The fewest tokens still to load and to emit. It knows the lengths of outputs.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LeastTokens {}

impl RouterParameters for LeastTokens {
    fn build(&self, _seed: u64, _pool: u64) -> Result<Box<dyn Router>> {
        Ok(Box::new(LeastTokens {}))
    }
}

impl Sample for LeastTokens {
    fn sample(_dice: &mut Dice) -> LeastTokens {
        LeastTokens {}
    }
}

impl Router for LeastTokens {
    fn route(&mut self, _arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        fleet.least(|fleet, replica| fleet.tokens(replica))
    }
}
