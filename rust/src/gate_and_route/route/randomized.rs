//! The SLI-aware router of lin2026 section 5.1: each class is split between the pools as planned.

use super::{BufferPlace, DecodeRouter, Line, Pools, Slots, Waiting};

/// When its prefill ends, a decode of class i goes to the solo pool with probability p_s,i, otherwise to the mixed
/// pool; there to any replica with a free slot, or into the pool's first-come, first-served buffer.
#[derive(Debug)]
pub(super) struct RandomizedRouter {
    pools: Pools,
    lines: [Line; 2],
}

impl RandomizedRouter {
    pub(super) fn new(pools: Pools) -> RandomizedRouter {
        RandomizedRouter { pools, lines: Default::default() }
    }
}

impl DecodeRouter for RandomizedRouter {
    fn join(&mut self, decode: Waiting) -> BufferPlace {
        let pool = self.pools.draw(&decode);
        BufferPlace { line: pool as u32, place: self.lines[pool].push(decode) }
    }

    fn leave(&mut self, place: BufferPlace) {
        self.lines[place.line as usize].leave(place.place);
    }

    fn place(&mut self, slots: &Slots) -> Option<(Waiting, u32)> {
        for (pool, line) in self.lines.iter_mut().enumerate() {
            if let Some(replica) = line.first().and_then(|first| self.pools.replica(pool, first, slots)) {
                return line.pop().map(|decode| (decode, replica));
            }
        }
        None
    }
}
