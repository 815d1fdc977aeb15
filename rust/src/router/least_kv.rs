//! The router by used KV blocks.

use super::prelude::*;
use super::ranking::{LeastOf, Measure};

/// The fewest blocks, used or required by waiting prompts.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LeastKv {}

impl RouterParameters for LeastKv {
    fn build(&self, _seed: u64, _pool: u64) -> Result<Box<dyn Router>> {
        Ok(Box::new(LeastOf(Measure::Blocks)))
    }
}
