//! Two speeds, with a prefill in the batch and without: lin2026 (2), (3).

use super::{Pace, Shape, Timing, sum};
use crate::clock::Span;
use crate::error::Result;

/// α + β·(prefill tokens) when a chunk is present, else 1/γ.
#[derive(Debug)]
pub(super) struct MixedSolo {
    pub(super) alpha: u128,
    pub(super) beta: u128,
    pub(super) solo: Span,
}

impl Timing for MixedSolo {
    fn pace(&self, shape: &Shape) -> Result<Pace> {
        if shape.chunks.is_empty() {
            return Ok(Pace::constant(self.solo));
        }
        let length = sum(&[(self.alpha, 1), (self.beta, u128::from(shape.chunk_tokens))])?;
        Ok(Pace::constant(Span(length)))
    }
}
