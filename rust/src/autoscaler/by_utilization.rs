//! Scaling by utilization.

use super::prelude::*;
use crate::kv::UNLIMITED;
use crate::plan::Limits;

/// The resource whose utilization counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Of {
    /// Sequence slots (`max_seqs`).
    Seats,
    /// Blocks of the KV cache.
    Kv,
}

/// Enough replicas to bring the utilization to a target.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ByUtilization {
    /// Target utilization.
    pub target: f64,
    /// The resource.
    pub of: Of,
    /// Relative deviation from the target that causes no change.
    pub tolerance: f64,
}

impl ScalingParameters for ByUtilization {
    fn build(&self) -> Result<Box<dyn ScalingPolicy>> {
        if !(self.target > 0.0 && self.target <= 1.0) {
            return Err(Error::config("target", format!("must be above 0 and at most 1, got {}", self.target)));
        }
        if !(self.tolerance >= 0.0 && self.tolerance < 1.0) {
            return Err(Error::config("tolerance", format!("must be at least 0 and below 1, got {}", self.tolerance)));
        }
        Ok(Box::new(self.clone()))
    }
}

impl Sample for ByUtilization {
    fn sample(dice: &mut Dice) -> ByUtilization {
        let (target, tolerance) = (dice.one_of(&[0.5, 0.9, 0.1]), dice.one_of(&[0.1, 0.0, 0.5]));
        ByUtilization { target, of: dice.one_of(&[Of::Seats, Of::Kv]), tolerance }
    }
}

/// ⌈open · utilization / target⌉ if the utilization is off by more than the tolerance, otherwise the present number:
/// the rule of Kubernetes' horizontal autoscaler, over the open replicas.
impl ScalingPolicy for ByUtilization {
    fn wanted(&mut self, figures: &Figures) -> Result<usize> {
        let (used, all) = match self.of {
            Of::Seats => (figures.running, figures.seats),
            Of::Kv => (figures.used_blocks, figures.blocks),
        };
        if all == 0 {
            return Ok(figures.open + figures.starting);
        }
        let ratio = used as f64 / all as f64 / self.target;
        if (ratio - 1.0).abs() <= self.tolerance {
            return Ok(figures.open + figures.starting);
        }
        Ok(replicas_for(figures.open as f64 * ratio, 1.0))
    }

    fn check(&self, engine: &EngineParts) -> Result<()> {
        let is_endless = match self.of {
            Of::Seats => engine.scheduler.limits().max_seqs >= Limits::NONE,
            Of::Kv => engine.kv.tokens.is_none_or(|tokens| tokens >= UNLIMITED),
        };
        if is_endless {
            let (name, owner) = match self.of {
                Of::Seats => ("seats", "scheduler"),
                Of::Kv => ("kv", "cache"),
            };
            let what = format!("must be a limited resource, got {name:?}: the {owner} has no limit");
            return Err(Error::config("of", what));
        }
        Ok(())
    }
}
