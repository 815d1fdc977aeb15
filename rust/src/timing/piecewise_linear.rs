//! Linear in the tokens above a knee, with attention terms: li2025 (2.3) and (A.1).

use super::{Pace, Shape, Timing, sum};
use crate::clock::product;
use crate::error::Result;

/// base + a·max(0, tokens − knee) + β·Σ decode contexts + α·Σ c² + ε·Σ c·x, all in attoseconds.
#[derive(Debug)]
pub(super) struct PiecewiseLinear {
    pub(super) base: u128,
    pub(super) per_token: u128,
    pub(super) knee: u64,
    pub(super) per_context_token: u128,
    pub(super) per_prefill_square: u128,
    pub(super) per_chunk_context: u128,
}

impl Timing for PiecewiseLinear {
    fn pace(&self, shape: &Shape) -> Result<Pace> {
        let above = shape.tokens().saturating_sub(self.knee);
        let mut first = sum(&[
            (self.base, 1),
            (self.per_token, u128::from(above)),
            (self.per_context_token, shape.decode_context),
        ])?;
        // Every decode's context grows by 1, every chunk's by its own tokens.
        let mut growth = product(self.per_context_token, u128::from(shape.decodes))?;
        if shape.chunks > 0 {
            let squares = (self.per_prefill_square, shape.chunk_squares);
            first = sum(&[(first, 1), squares, (self.per_chunk_context, shape.chunk_cross)])?;
            growth = sum(&[(growth, 1), (self.per_chunk_context, shape.chunk_squares)])?;
        }
        Pace::line(first, growth)
    }
}
