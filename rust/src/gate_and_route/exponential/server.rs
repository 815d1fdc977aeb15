//! One replica with exponential services: its prefill and its decodes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::{Instant, Span};
use crate::error::{Error, Result};
use crate::gate_and_route::IterationLengths;

/// A request in service: its id and its handle in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Served {
    pub(super) id: u32,
    pub(super) handle: u32,
}

/// The prefill and the decodes of a replica. All decodes emit tokens at one rate, so each does the same work in any
/// interval: one work clock serves them all, and a switch of the mode changes its rate without touching the decodes.
/// Work is in attoseconds at the solo speed. The clock is rounded down at each switch and each start next to a
/// prefill, so a decode ends at most that many attoseconds late.
#[derive(Debug)]
pub(super) struct Server {
    prefill: Option<(Instant, Served)>,
    /// Decodes by the work at which each is done.
    decodes: BinaryHeap<Reverse<(u128, Served)>>,
    /// Time of the last switch, and the work clock at that time.
    since: Instant,
    work: u128,
}

impl Server {
    pub(super) fn new() -> Server {
        Server { prefill: None, decodes: BinaryHeap::new(), since: Instant::ZERO, work: 0 }
    }

    /// Whether a prefill is running.
    pub(super) fn is_mixed(&self) -> bool {
        self.prefill.is_some()
    }

    fn work_at(&self, now: Instant, pace: IterationLengths) -> Result<u128> {
        let span = now.since(self.since).0;
        let done = if self.is_mixed() { scaled(span, pace.solo, pace.mixed, false)? } else { span };
        self.work.checked_add(done).ok_or_else(overflow)
    }

    fn switch(&mut self, now: Instant, pace: IterationLengths) -> Result<()> {
        self.work = self.work_at(now, pace)?;
        self.since = now;
        Ok(())
    }

    pub(super) fn start_prefill(
        &mut self,
        now: Instant,
        span: Span,
        served: Served,
        pace: IterationLengths,
    ) -> Result<()> {
        self.switch(now, pace)?;
        self.prefill = Some((now.after(span)?, served));
        Ok(())
    }

    /// Starts a decode with this work.
    pub(super) fn start_decode(
        &mut self,
        now: Instant,
        work: u128,
        served: Served,
        pace: IterationLengths,
    ) -> Result<()> {
        let done_at = self.work_at(now, pace)?.checked_add(work).ok_or_else(overflow)?;
        self.decodes.push(Reverse((done_at, served)));
        Ok(())
    }

    /// Returns the next end of a service.
    pub(super) fn next(&self, pace: IterationLengths) -> Result<Instant> {
        let prefill = self.prefill.map_or(Instant::NEVER, |(end, _)| end);
        let Some(Reverse((done_at, _))) = self.decodes.peek() else {
            return Ok(prefill);
        };
        let rest = done_at.saturating_sub(self.work);
        let span = if self.is_mixed() { scaled(rest, pace.mixed, pace.solo, true)? } else { rest };
        Ok(prefill.min(self.since.after(Span(span))?))
    }

    /// Ends the prefill if it is due.
    pub(super) fn end_prefill(&mut self, now: Instant, pace: IterationLengths) -> Result<Option<Served>> {
        match self.prefill {
            Some((end, served)) if end <= now => {
                self.switch(now, pace)?;
                self.prefill = None;
                Ok(Some(served))
            }
            _ => Ok(None),
        }
    }

    /// Ends one due decode: the one with the least work, then the lowest id.
    pub(super) fn end_decode(&mut self, now: Instant, pace: IterationLengths) -> Result<Option<Served>> {
        match self.decodes.peek() {
            Some(&Reverse((done_at, served))) if done_at <= self.work_at(now, pace)? => {
                self.decodes.pop();
                Ok(Some(served))
            }
            _ => Ok(None),
        }
    }
}

/// span · times / over, rounded down or up; `over` times `times` fits 128 bits.
fn scaled(span: u128, times: u128, over: u128, up: bool) -> Result<u128> {
    let (whole, rest) = (span / over, span % over);
    let rest = rest * times;
    let rest = if up { rest.div_ceil(over) } else { rest / over };
    whole.checked_mul(times).and_then(|whole| whole.checked_add(rest)).ok_or_else(overflow)
}

fn overflow() -> Error {
    Error::overflow("the work of a replica")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: IterationLengths = IterationLengths { mixed: 30, solo: 20 };

    fn request(id: u32) -> Served {
        Served { id, handle: id }
    }

    /// ```text
    ///   0        100            400        450
    ///   | solo    | mixed           | solo  |
    ///   a: 100 of work + 300·20/30 = 200 + 50 = 350
    ///          b, from 160: 240·20/30 = 160 + 50 = 210
    /// ```
    #[test]
    fn a_prefill_slows_every_decode_and_nothing_else() {
        let mut server = Server::new();
        server.start_decode(Instant(0), 350, request(1), PACE).expect("fits");
        assert_eq!(server.next(PACE).expect("fits"), Instant(350));
        server.start_prefill(Instant(100), Span(300), request(2), PACE).expect("fits");
        assert_eq!(server.next(PACE).expect("fits"), Instant(400));
        server.start_decode(Instant(160), 210, request(3), PACE).expect("fits");
        assert_eq!(server.end_decode(Instant(400), PACE).expect("fits"), None);
        assert_eq!(server.end_prefill(Instant(400), PACE).expect("fits"), Some(request(2)));
        assert_eq!(server.next(PACE).expect("fits"), Instant(450));
        // Both are due with equal work: the lower id first.
        assert_eq!(server.end_decode(Instant(450), PACE).expect("fits"), Some(request(1)));
        assert_eq!(server.end_decode(Instant(450), PACE).expect("fits"), Some(request(3)));
        assert_eq!(server.next(PACE).expect("fits"), Instant::NEVER);
    }

    #[test]
    fn an_end_is_the_first_attosecond_at_which_the_work_is_done() {
        for (mixed, solo) in [(7, 3), (3, 7), (5, 5), (1_000_003, 999)] {
            let pace = IterationLengths { mixed, solo };
            for work in 0..50 {
                let mut server = Server::new();
                server.start_prefill(Instant(0), Span(1 << 60), request(1), pace).expect("fits");
                server.start_decode(Instant(0), work, request(2), pace).expect("fits");
                let end = server.next(pace).expect("fits");
                assert!(server.work_at(end, pace).expect("fits") >= work);
                assert!(end.0 == 0 || server.work_at(Instant(end.0 - 1), pace).expect("fits") < work);
            }
        }
    }
}
