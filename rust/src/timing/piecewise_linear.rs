//! Iteration time linear in the tokens above a knee, with attention terms: li2025 (2.3) and (A.1).

use super::prelude::*;
use super::{ChunkSums, common_divisor, sum};
use crate::clock::{Span, attoseconds};

/// Linear in tokens above a knee, with attention terms; in seconds as described, in attoseconds when built, in the
/// unit of a run during the run.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PiecewiseLinear<Time = f64> {
    /// Time per iteration.
    pub base: Time,
    /// Time per token above the knee.
    pub per_token: Time,
    /// Tokens without additional time.
    #[serde(default)]
    pub knee: u64,
    /// Time per decode.
    #[serde(default)]
    pub per_decode: Time,
    /// β: time per context token of a decode.
    #[serde(default)]
    pub per_context_token: Time,
    /// α: time per squared chunk token.
    #[serde(default)]
    pub per_prefill_square: Time,
    /// ε: time per chunk token and context token.
    #[serde(default)]
    pub per_chunk_context: Time,
}

impl TimingParameters for PiecewiseLinear {
    fn build(&self) -> Result<Box<dyn Timing>> {
        let wide = PiecewiseLinear {
            base: attoseconds(self.base, "base")?,
            per_token: attoseconds(self.per_token, "per_token")?,
            knee: self.knee,
            per_decode: attoseconds(self.per_decode, "per_decode")?,
            per_context_token: attoseconds(self.per_context_token, "per_context_token")?,
            per_prefill_square: attoseconds(self.per_prefill_square, "per_prefill_square")?,
            per_chunk_context: attoseconds(self.per_chunk_context, "per_chunk_context")?,
        };
        Ok(Box::new(PiecewiseLine { short: wide.short(), wide }))
    }
}

impl Sample for PiecewiseLinear {
    fn sample(dice: &mut Dice) -> PiecewiseLinear {
        PiecewiseLinear {
            base: dice.seconds(1000, 9000),
            per_token: dice.seconds(0, 100),
            knee: dice.below(100),
            per_decode: dice.seconds(0, 200),
            per_context_token: dice.seconds(0, 3),
            per_prefill_square: dice.seconds(0, 2000) / 1e3,
            per_chunk_context: dice.seconds(0, 2000) / 1e3,
        }
    }
}

/// The model in the unit of its times, and in 64 bits, which are sufficient for all realistic iterations at a
/// fraction of the cost.
struct PiecewiseLine {
    short: Option<PiecewiseLinear<u64>>,
    wide: PiecewiseLinear<u128>,
}

impl PiecewiseLinear<u128> {
    /// Converts to 64 bits if the times fit. If decodes have no cost of their own, the multiplication is skipped.
    fn short(&self) -> Option<PiecewiseLinear<u64>> {
        let short = |time: u128| u64::try_from(time).ok();
        (self.per_decode == 0).then_some(PiecewiseLinear {
            base: short(self.base)?,
            per_token: short(self.per_token)?,
            knee: self.knee,
            per_decode: 0,
            per_context_token: short(self.per_context_token)?,
            per_prefill_square: short(self.per_prefill_square)?,
            per_chunk_context: short(self.per_chunk_context)?,
        })
    }

    /// Its times.
    fn times(&mut self) -> [&mut u128; 6] {
        [
            &mut self.base,
            &mut self.per_token,
            &mut self.per_decode,
            &mut self.per_context_token,
            &mut self.per_prefill_square,
            &mut self.per_chunk_context,
        ]
    }

    fn line(&self, shape: &Shape) -> Result<Pace> {
        let above = shape.tokens().saturating_sub(self.knee);
        let first = sum(&[
            (self.base, 1),
            (self.per_token, u128::from(above)),
            (self.per_decode, u128::from(shape.decodes)),
            (self.per_context_token, u128::from(shape.decode_context)),
            (self.per_prefill_square, shape.chunk_squares),
            (self.per_chunk_context, shape.chunk_cross),
        ])?;
        // The context of a decode grows by 1, that of a chunk by its own tokens.
        let growth =
            sum(&[(self.per_context_token, u128::from(shape.decodes)), (self.per_chunk_context, shape.chunk_squares)])?;
        Pace::line(first, growth)
    }
}

impl PiecewiseLinear<u64> {
    /// Returns the pace of a batch with these sums over chunks, decodes and their total context, if it fits 64 bits
    /// and is positive.
    #[inline(always)]
    pub(crate) fn pace(&self, chunks: &ChunkSums, decodes: u64, context: u64) -> Option<Pace> {
        let above = (chunks.tokens + decodes).saturating_sub(self.knee);
        let mut first = self
            .base
            .checked_add(self.per_token.checked_mul(above)?)?
            .checked_add(self.per_context_token.checked_mul(context)?)?;
        let mut growth = self.per_context_token.checked_mul(decodes)?;
        if chunks.tokens > 0 {
            let squares = u64::try_from(chunks.squares).ok()?;
            first = first
                .checked_add(self.per_prefill_square.checked_mul(squares)?)?
                .checked_add(self.per_chunk_context.checked_mul(u64::try_from(chunks.cross).ok()?)?)?;
            growth = growth.checked_add(self.per_chunk_context.checked_mul(squares)?)?;
        }
        if first == 0 {
            return None;
        }
        Some(Pace { first: Span(first.into()), growth: growth.into(), holds: u64::MAX })
    }
}

/// base + a·max(0, tokens − knee) + γ·decodes + β·Σ decode contexts + α·Σ c² + ε·Σ c·x.
impl Timing for PiecewiseLine {
    fn pace(&self, shape: &Shape) -> Result<Pace> {
        let short = self.short.as_ref().filter(|_| shape.drafts == 0);
        match short.and_then(|short| short.pace(&shape.sums(), shape.decodes, shape.decode_context)) {
            Some(pace) => Ok(pace),
            None => self.wide.line(shape),
        }
    }

    fn unit(&self) -> u128 {
        common_divisor(&self.wide.clone().times().map(|time| *time))
    }

    fn count_in(&mut self, attoseconds: u128) {
        self.wide.times().into_iter().for_each(|time| *time /= attoseconds);
        self.short = self.wide.short();
    }

    fn short_line(&self) -> Option<&PiecewiseLinear<u64>> {
        self.short.as_ref()
    }
}
