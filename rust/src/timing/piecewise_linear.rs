//! Linear in the tokens above a knee, with attention terms: li2025 (2.3) and (A.1).

use super::prelude::*;
use super::sum;
use crate::clock::attoseconds;

/// Linear in tokens above a knee, with attention terms; in seconds as described, in attoseconds as built.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PiecewiseLinear<Time = f64> {
    /// Length of every iteration.
    pub base: Time,
    /// Per token above the knee.
    pub per_token: Time,
    /// Tokens that cost nothing more.
    #[serde(default)]
    pub knee: u64,
    /// β: per token of context of a decode.
    #[serde(default)]
    pub per_context_token: Time,
    /// α: per squared chunk token.
    #[serde(default)]
    pub per_prefill_square: Time,
    /// ε: per chunk token and token of context.
    #[serde(default)]
    pub per_chunk_context: Time,
}

impl TimingParameters for PiecewiseLinear {
    fn build(&self) -> Result<Box<dyn Timing>> {
        Ok(Box::new(PiecewiseLinear {
            base: attoseconds(self.base, "base")?,
            per_token: attoseconds(self.per_token, "per_token")?,
            knee: self.knee,
            per_context_token: attoseconds(self.per_context_token, "per_context_token")?,
            per_prefill_square: attoseconds(self.per_prefill_square, "per_prefill_square")?,
            per_chunk_context: attoseconds(self.per_chunk_context, "per_chunk_context")?,
        }))
    }
}

impl Sample for PiecewiseLinear {
    fn sample(dice: &mut Dice) -> PiecewiseLinear {
        PiecewiseLinear {
            base: dice.seconds(1000, 9000),
            per_token: dice.seconds(0, 100),
            knee: dice.below(100),
            per_context_token: dice.seconds(0, 3),
            per_prefill_square: dice.seconds(0, 2000) / 1e3,
            per_chunk_context: dice.seconds(0, 2000) / 1e3,
        }
    }
}

impl PiecewiseLinear<u128> {
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

/// base + a·max(0, tokens − knee) + β·Σ decode contexts + α·Σ c² + ε·Σ c·x.
impl Timing for PiecewiseLinear<u128> {
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
