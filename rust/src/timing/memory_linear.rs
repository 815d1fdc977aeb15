//! Iteration time linear in the KV tokens of the batch: ao2025 (1).

use super::prelude::*;
use super::{common_divisor, sum};
use crate::clock::attoseconds;

/// Linear in the KV tokens that the iteration reads and writes; in seconds as described, in attoseconds when built.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryLinear<Time = f64> {
    /// Time per iteration.
    pub base: Time,
    /// Time per token in the cache.
    pub per_kv_token: Time,
}

impl TimingParameters for MemoryLinear {
    fn build(&self) -> Result<Box<dyn Timing>> {
        Ok(Box::new(MemoryLinear {
            base: attoseconds(self.base, "base")?,
            per_kv_token: attoseconds(self.per_kv_token, "per_kv_token")?,
        }))
    }
}

impl Sample for MemoryLinear {
    fn sample(dice: &mut Dice) -> MemoryLinear {
        MemoryLinear { base: dice.seconds(1000, 9000), per_kv_token: dice.seconds(0, 30) }
    }
}

/// d0 + d1·(Σ (x + c) over chunks + Σ (context + 1) over decodes). Paused requests cost nothing.
impl Timing for MemoryLinear<u128> {
    fn pace(&self, shape: &Shape) -> Result<Pace> {
        let tokens = u128::from(shape.tokens());
        let first = sum(&[
            (self.base, 1),
            (self.per_kv_token, u128::from(shape.chunk_context) + u128::from(shape.decode_context) + tokens),
        ])?;
        Pace::line(first, sum(&[(self.per_kv_token, tokens)])?)
    }

    fn unit(&self) -> u128 {
        common_divisor(&[self.base, self.per_kv_token])
    }

    fn count_in(&mut self, attoseconds: u128) {
        self.base /= attoseconds;
        self.per_kv_token /= attoseconds;
    }
}
