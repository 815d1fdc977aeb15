//! Constant iteration time: nie2026 §3, li2025 §4.3.

use super::prelude::*;
use crate::clock::{Span, attoseconds};

/// The same duration for every iteration; in seconds as described, a span when built.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Constant<Time = f64> {
    /// Length of every iteration.
    pub seconds: Time,
}

impl TimingParameters for Constant {
    fn build(&self) -> Result<Box<dyn Timing>> {
        Ok(Box::new(Constant { seconds: Span(attoseconds(self.seconds, "seconds")?) }))
    }
}

impl Sample for Constant {
    fn sample(dice: &mut Dice) -> Constant {
        Constant { seconds: dice.seconds(100, 20_000) }
    }
}

impl Timing for Constant<Span> {
    fn pace(&self, _shape: &Shape) -> Result<Pace> {
        Ok(Pace::constant(self.seconds))
    }

    fn unit(&self) -> u128 {
        self.seconds.0
    }

    fn count_in(&mut self, attoseconds: u128) {
        self.seconds.0 /= attoseconds;
    }
}
