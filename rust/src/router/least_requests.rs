//! The shortest queue.

use super::{Fleet, Router};
use crate::error::Result;
use crate::workload::Arrival;

/// The fewest requests, waiting and running: join the shortest queue.
#[derive(Debug)]
pub(super) struct LeastRequests;

impl Router for LeastRequests {
    fn route(&mut self, _arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        Ok(fleet.with_fewest_requests())
    }
}
