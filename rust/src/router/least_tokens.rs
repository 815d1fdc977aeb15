//! The router by remaining work.

use super::prelude::*;
use super::ranking::Measure;

/// The fewest tokens to compute and to emit. It uses true output lengths.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LeastTokens {}

impl RouterParameters for LeastTokens {
    fn build(&self, _seed: u64, _pool: u64) -> Result<Box<dyn Router>> {
        Ok(Box::new(LeastTokens {}))
    }
}

impl Router for LeastTokens {
    fn is_timeless(&self) -> bool {
        true
    }

    fn route(&mut self, _arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        let replica = fleet.with_least()?;
        debug_assert_eq!(
            Some(replica),
            fleet.least(|fleet, replica| fleet.tokens(replica)).ok(),
            "equal to comparing all replicas"
        );
        Ok(replica)
    }

    fn ranks(&self) -> Option<Measure> {
        Some(Measure::Tokens)
    }
}
