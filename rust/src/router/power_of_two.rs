//! The better of two.

use super::random::{DRAWS, below};
use super::{Fleet, Router};
use crate::error::Result;
use crate::random::{Source, Stream};
use crate::workload::Arrival;

/// Two different replicas are drawn; the one with fewer requests is taken, the lower one if they are alike.
#[derive(Debug)]
pub(super) struct PowerOfTwo {
    stream: Stream,
    draw: u64,
}

impl PowerOfTwo {
    pub(super) fn new(seed: u64, pool: u64) -> PowerOfTwo {
        PowerOfTwo { stream: Stream::new(seed, Source::Router), draw: DRAWS * pool }
    }
}

impl Router for PowerOfTwo {
    fn route(&mut self, arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        if fleet.len() == 1 {
            return Ok(0);
        }
        let id = u64::from(arrival.id);
        let one = below(self.stream.word(id, self.draw), fleet.len());
        let other = below(self.stream.word(id, self.draw + 1), fleet.len() - 1);
        let other = other + usize::from(other >= one);
        let (low, high) = (one.min(other), one.max(other));
        Ok(if fleet.requests()[high] < fleet.requests()[low] { high } else { low })
    }
}
