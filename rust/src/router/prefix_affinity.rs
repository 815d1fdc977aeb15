//! Where most of the prompt is known, if it is not too full there.

use super::{Fleet, Router};
use crate::clock::Span;
use crate::error::Result;
use crate::workload::Arrival;

/// The lowest cost: `weight` times the tokens of the prompt that would have to be computed there, and the tokens of the
/// blocks ahead, in use or asked for by waiting prompts. (NVIDIA Dynamo's KV router counts both in blocks of one size.)
#[derive(Debug)]
pub(super) struct PrefixAffinity {
    pub(super) weight: f64,
    /// Time between two reports of the caches; `None`: they are looked at. What lies ahead is always looked at.
    pub(super) every: Option<Span>,
}

impl Router for PrefixAffinity {
    fn route(&mut self, arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        let PrefixAffinity { weight, every } = *self;
        fleet.least(|fleet, replica| {
            let cached = match every {
                Some(_) => fleet.reported_tokens(replica)?,
                None => fleet.cached_tokens(replica)?,
            };
            let uncached = u64::from(arrival.prompt_tokens) - cached;
            let ahead = fleet.blocks(replica)? * fleet.block_tokens(replica);
            // Whole numbers below 2^53 are exact.
            Ok(weight * uncached as f64 + ahead as f64)
        })
    }

    fn reports_every(&self) -> Option<Span> {
        self.every
    }
}
