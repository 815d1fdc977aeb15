//! The better of two.

use super::random::below;
use super::{Fleet, Router};
use crate::error::Result;
use crate::random::{Source, Stream};
use crate::workload::Arrival;

/// Two different replicas are drawn; the one with fewer requests is taken, the lower one if they are alike.
#[derive(Debug)]
pub(super) struct PowerOfTwo {
    stream: Stream,
}

impl PowerOfTwo {
    pub(super) fn new(seed: u64) -> PowerOfTwo {
        PowerOfTwo { stream: Stream::new(seed, Source::Router) }
    }
}

impl Router for PowerOfTwo {
    fn route(&mut self, arrival: &Arrival, fleet: &Fleet) -> Result<usize> {
        if fleet.len() == 1 {
            return Ok(0);
        }
        let id = u64::from(arrival.id);
        let one = below(self.stream.word(id, 0), fleet.len());
        let other = below(self.stream.word(id, 1), fleet.len() - 1);
        let other = other + usize::from(other >= one);
        let (low, high) = (one.min(other), one.max(other));
        Ok(if fleet.requests()[high] < fleet.requests()[low] { high } else { low })
    }
}
