//! FI-WSP and GI-WSP of lin2026 section 6.3: a decode stays on the slot where its prefill ran.

use super::{Line, Place, Router, Slots, Waiting};

/// The slot of the prefill, at once: it has just become free, and every other decode has its own.
#[derive(Debug, Default)]
pub(super) struct Immediate {
    line: Line,
}

impl Router for Immediate {
    fn join(&mut self, decode: Waiting) -> Place {
        Place { line: 0, place: self.line.push(decode) }
    }

    fn leave(&mut self, place: Place) {
        self.line.leave(place.place);
    }

    fn place(&mut self, _slots: &Slots) -> Option<(Waiting, u32)> {
        self.line.pop().map(|decode| (decode, decode.from))
    }
}
