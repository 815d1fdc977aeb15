//! The router by number of requests.

use super::prelude::*;

/// The fewest waiting and running requests: join the shortest queue.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LeastRequests {}

impl RouterParameters for LeastRequests {
    fn build(&self, _seed: u64, _pool: u64) -> Result<Box<dyn Router>> {
        Ok(Box::new(LeastRequests {}))
    }
}

impl Router for LeastRequests {
    fn is_timeless(&self) -> bool {
        true
    }

    fn route(&mut self, _arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        Ok(fleet.with_fewest_requests())
    }
}
