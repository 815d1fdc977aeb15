//! Linear in the tokens above a knee, with attention terms: li2025 (2.3) and (A.1).

use super::{Pace, Shape, Timing, sum};
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

impl PiecewiseLinear {
    /// First length and growth in 64 bits, which hold all but absurd iterations (18 s) at a fraction of the cost.
    #[inline]
    fn short_line(&self, shape: &Shape) -> Option<(u64, u64)> {
        let term = |price: u128, amount: u128| {
            if price == 0 {
                return Some(0);
            }
            u64::try_from(price).ok()?.checked_mul(u64::try_from(amount).ok()?)
        };
        let above = shape.tokens().saturating_sub(self.knee);
        let mut first = u64::try_from(self.base)
            .ok()?
            .checked_add(term(self.per_token, u128::from(above))?)?
            .checked_add(term(self.per_context_token, shape.decode_context)?)?;
        let mut growth = term(self.per_context_token, u128::from(shape.decodes))?;
        if !shape.chunks.is_empty() {
            first = first
                .checked_add(term(self.per_prefill_square, shape.chunk_squares)?)?
                .checked_add(term(self.per_chunk_context, shape.chunk_cross)?)?;
            growth = growth.checked_add(term(self.per_chunk_context, shape.chunk_squares)?)?;
        }
        Some((first, growth))
    }
}

impl Timing for PiecewiseLinear {
    fn pace(&self, shape: &Shape) -> Result<Pace> {
        if let Some((first, growth)) = self.short_line(shape) {
            return Pace::line(u128::from(first), u128::from(growth));
        }
        let above = shape.tokens().saturating_sub(self.knee);
        let first = sum(&[
            (self.base, 1),
            (self.per_token, u128::from(above)),
            (self.per_context_token, shape.decode_context),
            (self.per_prefill_square, shape.chunk_squares),
            (self.per_chunk_context, shape.chunk_cross),
        ])?;
        // Every decode's context grows by 1, every chunk's by its own tokens.
        let growth =
            sum(&[(self.per_context_token, u128::from(shape.decodes)), (self.per_chunk_context, shape.chunk_squares)])?;
        Pace::line(first, growth)
    }
}
