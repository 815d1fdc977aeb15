//! FI-WSP and GI-WSP of lin2026 section 6.3: a decode stays on the slot where its prefill ran.

use super::{BufferPlace, DecodeRouter, Line, Slots, Waiting};

/// The slot of its prefill, immediately: it has just been freed, and every other decode has its own.
#[derive(Debug, Default)]
pub(super) struct ImmediateRouter {
    line: Line,
}

impl DecodeRouter for ImmediateRouter {
    fn join(&mut self, decode: Waiting) -> BufferPlace {
        BufferPlace { line: 0, place: self.line.push(decode) }
    }

    fn leave(&mut self, place: BufferPlace) {
        self.line.leave(place.place);
    }

    fn place(&mut self, _slots: &Slots) -> Option<(Waiting, u32)> {
        self.line.pop().map(|decode| (decode, decode.from))
    }
}
