//! The least work ahead.

use super::prelude::*;

/// The fewest tokens still to load and to emit. It knows the lengths of outputs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LeastTokens {}

impl RouterParameters for LeastTokens {
    fn build(&self, _seed: u64, _pool: u64) -> Result<Box<dyn Router>> {
        Ok(Box::new(LeastTokens {}))
    }
}

impl Router for LeastTokens {
    fn route(&mut self, _arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        fleet.least(|fleet, replica| fleet.tokens(replica))
    }
}
