//! The power-of-two-choices router.

use super::prelude::*;
use super::random::{DRAWS, below};
use crate::random::{Source, Stream};

/// The one of two random replicas with fewer requests.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PowerOfTwo {}

impl RouterParameters for PowerOfTwo {
    fn build(&self, seed: u64, pool: u64) -> Result<Box<dyn Router>> {
        Ok(Box::new(PowerOfTwoRouter { stream: Stream::new(seed, Source::Router), draw: DRAWS * pool }))
    }
}

/// Draws two different replicas and takes the one with fewer requests; ties go to the lower one.
#[derive(Debug)]
struct PowerOfTwoRouter {
    stream: Stream,
    draw: u64,
}

impl Router for PowerOfTwoRouter {
    fn is_timeless(&self) -> bool {
        true
    }

    fn route(&mut self, arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        if fleet.len() == 1 {
            return Ok(fleet.nth_open(0));
        }
        let id = u64::from(arrival.id);
        let first = below(self.stream.word(id, self.draw), fleet.len());
        let second = below(self.stream.word(id, self.draw + 1), fleet.len() - 1);
        let second = second + usize::from(second >= first);
        let (low, high) = (fleet.nth_open(first.min(second)), fleet.nth_open(first.max(second)));
        Ok(if fleet.requests()[high] < fleet.requests()[low] { high } else { low })
    }
}
