//! The router of lin2026 section 4.1: solo slots first, one buffer, first come, first served.

use super::{DRAW_REPLICA, Line, Place, Router, Slots, Stream, Waiting};

/// Any solo replica with a free slot, all alike; else any mixed one; else the buffer. A freed slot takes its head. Without
/// a plan, the replicas that run no prefill now stand for the solo ones.
#[derive(Debug)]
pub(super) struct Greedy {
    pub(super) draws: Stream,
    pub(super) line: Line,
}

impl Router for Greedy {
    fn join(&mut self, decode: Waiting) -> Place {
        Place { line: 0, place: self.line.push(decode) }
    }

    fn leave(&mut self, place: Place) {
        self.line.leave(place.place);
    }

    fn place(&mut self, slots: &Slots) -> Option<(Waiting, u32)> {
        let open = if slots.solo.is_empty() { &slots.beside_prefill } else { &slots.solo };
        let request = self.line.first()?.request;
        let replica = open.pick(self.draws.word(u64::from(request), DRAW_REPLICA))?;
        Some((self.line.pop()?, replica))
    }
}
