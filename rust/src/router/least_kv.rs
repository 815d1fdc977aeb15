//! The emptiest memory.

use super::{Fleet, Router};
use crate::error::Result;
use crate::workload::Arrival;

/// The fewest blocks, in use or asked for by waiting prompts.
#[derive(Debug)]
pub(super) struct LeastKv;

impl Router for LeastKv {
    fn route(&mut self, _arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        fleet.least(|fleet, replica| fleet.blocks(replica))
    }
}
