//! The router of lin2026 section 4.1: solo slots first, one buffer, first come, first served.

use super::{BufferPlace, DRAW_REPLICA, DecodeRouter, Line, Slots, Stream, Waiting};

/// Any solo replica with a free slot, all alike; else any mixed one; else the buffer. A freed slot takes its head. Without
/// a plan, the replicas that run no prefill now stand for the solo ones.
#[derive(Debug)]
pub(super) struct GreedyRouter {
    pub(super) draws: Stream,
    pub(super) line: Line,
}

impl DecodeRouter for GreedyRouter {
    fn join(&mut self, decode: Waiting) -> BufferPlace {
        BufferPlace { line: 0, place: self.line.push(decode) }
    }

    fn leave(&mut self, place: BufferPlace) {
        self.line.leave(place.place);
    }

    fn place(&mut self, slots: &Slots) -> Option<(Waiting, u32)> {
        let open = if slots.solo.is_empty() { &slots.beside_prefill } else { &slots.solo };
        let request = self.line.first()?.request;
        let replica = open.pick(self.draws.word(u64::from(request), DRAW_REPLICA))?;
        Some((self.line.pop()?, replica))
    }
}
