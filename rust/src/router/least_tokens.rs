//! The least work ahead.

use super::{Fleet, Router};
use crate::error::Result;
use crate::workload::Arrival;

/// The fewest tokens still to load and to emit. It knows the lengths of outputs.
#[derive(Debug)]
pub(super) struct LeastTokens;

impl Router for LeastTokens {
    fn route(&mut self, _arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        fleet.least(|fleet, replica| fleet.tokens(replica))
    }
}
