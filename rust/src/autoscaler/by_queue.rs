//! Scaling by requests per replica.

use super::prelude::*;

/// Enough replicas for the requests in the system.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ByQueue {
    /// Target number of requests per replica, waiting and running.
    pub requests: f64,
}

impl ScalingParameters for ByQueue {
    fn build(&self) -> Result<Box<dyn ScalingPolicy>> {
        if !(self.requests.is_finite() && self.requests > 0.0) {
            return Err(Error::config("requests", format!("must be finite and above 0, got {}", self.requests)));
        }
        Ok(Box::new(self.clone()))
    }
}

impl Sample for ByQueue {
    fn sample(dice: &mut Dice) -> ByQueue {
        ByQueue { requests: dice.one_of(&[1.0, 0.5, 2.5, 7.0]) }
    }
}

/// ⌈(waiting + running) / requests⌉: the concurrency target of Knative's autoscaler.
impl ScalingPolicy for ByQueue {
    fn wanted(&mut self, figures: &Figures) -> Result<usize> {
        Ok(replicas_for((figures.waiting + figures.running) as f64, self.requests))
    }
}
