//! GF-WSP of lin2026 section 6.3: a free slot serves a new prefill first, then the decode that has waited longest.

use super::{BufferPlace, DRAW_REPLICA, DecodeRouter, Line, Slots, Stream, Waiting};

/// Any replica with a free slot, uniformly, once no prefill can begin; one first-come, first-served buffer.
#[derive(Debug)]
pub(super) struct FcfsRouter {
    pub(super) draws: Stream,
    pub(super) line: Line,
}

impl DecodeRouter for FcfsRouter {
    fn join(&mut self, decode: Waiting) -> BufferPlace {
        BufferPlace { line: 0, place: self.line.push(decode) }
    }

    fn leave(&mut self, place: BufferPlace) {
        self.line.leave(place.place);
    }

    fn place(&mut self, slots: &Slots) -> Option<(Waiting, u32)> {
        let word = self.draws.word(u64::from(self.line.first()?.request), DRAW_REPLICA);
        let replica = slots.solo.pick_of_union(&slots.with_prefill, word)?;
        Some((self.line.pop()?, replica))
    }

    fn prefers_prefills(&self) -> bool {
        true
    }
}
