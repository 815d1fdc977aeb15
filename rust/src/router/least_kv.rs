//! The router by used KV blocks.

use super::prelude::*;
use super::ranking::Measure;

/// The fewest blocks, used or required by waiting prompts.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LeastKv {}

impl RouterParameters for LeastKv {
    fn build(&self, _seed: u64, _pool: u64) -> Result<Box<dyn Router>> {
        Ok(Box::new(LeastKv {}))
    }
}

impl Router for LeastKv {
    fn is_timeless(&self) -> bool {
        true
    }

    fn route(&mut self, _arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        let replica = fleet.with_least()?;
        debug_assert_eq!(
            Some(replica),
            fleet.least(|fleet, replica| fleet.blocks(replica)).ok(),
            "equal to comparing all replicas"
        );
        Ok(replica)
    }

    fn ranks(&self) -> Option<Measure> {
        Some(Measure::Blocks)
    }
}
