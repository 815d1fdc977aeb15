//! Linear in the KV cache that the batch touches: ao2025 (1).

use super::{Pace, Shape, Timing, sum};
use crate::error::Result;

/// d0 + d1·(Σ (x + c) over chunks + Σ (context + 1) over decodes), all in attoseconds. Paused requests cost nothing.
#[derive(Debug)]
pub(super) struct MemoryLinear {
    pub(super) base: u128,
    pub(super) per_kv_token: u128,
}

impl Timing for MemoryLinear {
    fn pace(&self, shape: &Shape) -> Result<Pace> {
        let tokens = u128::from(shape.tokens());
        let first = sum(&[(self.base, 1), (self.per_kv_token, shape.chunk_context + shape.decode_context + tokens)])?;
        Pace::line(first, sum(&[(self.per_kv_token, tokens)])?)
    }
}
