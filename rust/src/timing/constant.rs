//! One slot, whatever is in it: nie2026 §3, li2025 §4.3.

use super::prelude::*;
use crate::clock::{Span, attoseconds};

/// Every iteration takes as long as every other.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// Length of every iteration.
    pub seconds: f64,
}

impl TimingParameters for Constant {
    fn build(&self) -> Result<Box<dyn Timing>> {
        Ok(Box::new(ConstantTiming { length: Span(attoseconds(self.seconds, "seconds")?) }))
    }
}

impl Sample for Constant {
    fn sample(dice: &mut Dice) -> Constant {
        Constant { seconds: dice.seconds(100, 20_000) }
    }
}

#[derive(Debug)]
struct ConstantTiming {
    length: Span,
}

impl Timing for ConstantTiming {
    fn pace(&self, _shape: &Shape) -> Result<Pace> {
        Ok(Pace::constant(self.length))
    }
}
