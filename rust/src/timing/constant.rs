//! One slot, whatever is in it: nie2026 §3, li2025 §4.3.

use super::{Pace, Shape, Timing};
use crate::clock::Span;
use crate::error::Result;

#[derive(Debug)]
pub(super) struct Constant {
    pub(super) length: Span,
}

impl Timing for Constant {
    fn pace(&self, _shape: &Shape) -> Result<Pace> {
        Ok(Pace::constant(self.length))
    }
}
