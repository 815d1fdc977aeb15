//! The router by remaining work.

use super::prelude::*;
use super::ranking::{LeastOf, Measure};

/// The fewest tokens to compute and to emit. It uses true output lengths.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LeastTokens {}

impl RouterParameters for LeastTokens {
    fn build(&self, _seed: u64, _pool: u64) -> Result<Box<dyn Router>> {
        Ok(Box::new(LeastOf(Measure::Tokens)))
    }
}
