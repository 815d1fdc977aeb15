//! The router of lin2026 section 4.1: solo slots first, one first-come, first-served buffer.

use super::{BufferPlace, DRAW_REPLICA, DecodeRouter, Line, Slots, Stream, Waiting};

/// Any solo replica with a free slot, uniformly; otherwise any mixed one; otherwise the buffer, whose head takes the
/// next freed slot. Without a plan, replicas that run no prefill at the moment count as solo.
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
        let open = if slots.solo.is_empty() { &slots.with_prefill } else { &slots.solo };
        let request = self.line.first()?.request;
        let replica = open.pick(self.draws.word(u64::from(request), DRAW_REPLICA))?;
        Some((self.line.pop()?, replica))
    }
}
