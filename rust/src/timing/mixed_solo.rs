//! Two iteration times, with and without a prefill: lin2026 (2), (3).

use super::prelude::*;
use super::{common_divisor, sum};
use crate::clock::{Span, attoseconds};

/// Two iteration times, with and without a chunk in the batch; in seconds as described, in attoseconds when built.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MixedSolo<Time = f64> {
    /// Time of an iteration with a chunk.
    pub alpha: Time,
    /// Time per chunk token.
    pub beta: Time,
    /// Time of an iteration without a chunk.
    pub solo: Time,
}

impl TimingParameters for MixedSolo {
    fn build(&self) -> Result<Box<dyn Timing>> {
        Ok(Box::new(MixedSolo {
            alpha: attoseconds(self.alpha, "alpha")?,
            beta: attoseconds(self.beta, "beta")?,
            solo: attoseconds(self.solo, "solo")?,
        }))
    }
}

impl Sample for MixedSolo {
    fn sample(dice: &mut Dice) -> MixedSolo {
        MixedSolo { alpha: dice.seconds(1000, 20_000), beta: dice.seconds(1, 100), solo: dice.seconds(1000, 9000) }
    }
}

/// α + β·(prefill tokens) with a chunk, otherwise 1/γ.
impl Timing for MixedSolo<u128> {
    fn pace(&self, shape: &Shape) -> Result<Pace> {
        if shape.chunks.is_empty() {
            return Ok(Pace::constant(Span(self.solo)));
        }
        let length = sum(&[(self.alpha, 1), (self.beta, u128::from(shape.chunk_tokens))])?;
        Ok(Pace::constant(Span(length)))
    }

    fn unit(&self) -> u128 {
        common_divisor(&[self.alpha, self.beta, self.solo])
    }

    fn count_in(&mut self, attoseconds: u128) {
        for time in [&mut self.alpha, &mut self.beta, &mut self.solo] {
            *time /= attoseconds;
        }
    }
}
