//! The random router.

use super::prelude::*;
use crate::random::{Source, Stream};

/// A random replica.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Random {}

impl RouterParameters for Random {
    fn build(&self, seed: u64, pool: u64) -> Result<Box<dyn Router>> {
        Ok(Box::new(RandomRouter { stream: Stream::new(seed, Source::Router), draw: DRAWS * pool }))
    }
}

/// Each replica has the same probability, with a draw of the request.
#[derive(Debug)]
struct RandomRouter {
    stream: Stream,
    draw: u64,
}

/// Draws per request of a router.
pub(super) const DRAWS: u64 = 2;

impl Router for RandomRouter {
    fn is_timeless(&self) -> bool {
        true
    }

    fn route(&mut self, arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        Ok(fleet.nth_open(below(self.stream.word(u64::from(arrival.id), self.draw), fleet.len())))
    }

    fn uses_state(&self) -> bool {
        false
    }
}

/// Returns a number below `count` from 64 uniform bits: the high half of the product, biased by at most count / 2^64.
pub(super) fn below(word: u64, count: usize) -> usize {
    ((u128::from(word) * count as u128) >> 64) as usize
}
