//! Any replica.

use super::prelude::*;
use crate::random::{Source, Stream};

/// Any replica, all alike.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Random {}

impl RouterParameters for Random {
    fn build(&self, seed: u64, pool: u64) -> Result<Box<dyn Router>> {
        Ok(Box::new(RandomRouter { stream: Stream::new(seed, Source::Router), draw: DRAWS * pool }))
    }
}

/// Each replica with the same probability, by a draw that belongs to the request.
#[derive(Debug)]
struct RandomRouter {
    stream: Stream,
    draw: u64,
}

/// Draws that a router takes of a request.
pub(super) const DRAWS: u64 = 2;

impl Router for RandomRouter {
    fn is_timeless(&self) -> bool {
        true
    }

    fn route(&mut self, arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        Ok(fleet.nth_open(below(self.stream.word(u64::from(arrival.id), self.draw), fleet.len())))
    }

    fn looks(&self) -> bool {
        false
    }
}

/// A number below `count` from 64 uniform bits: the high half of the product, off by count / 2^64 at most.
pub(super) fn below(word: u64, count: usize) -> usize {
    ((u128::from(word) * count as u128) >> 64) as usize
}
