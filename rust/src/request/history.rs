//! The history of a live request, used at arrival, admission and departure.

use super::NOT_ODD;
use crate::clock::{Instant, Long, Span};
use crate::workload::Arrival;

/// The path of a request that did not arrive directly at its replica.
#[derive(Clone, Debug)]
pub(crate) struct Detour {
    /// When it reached the replica.
    pub(crate) reached: Instant,
    /// Number of retries after replica failures.
    pub(crate) retries: u32,
    /// The hand-off, if it arrived with its context.
    pub(crate) hand_off: Option<HandOff>,
}

/// A hand-off from the prefill replica to the decode replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandOff {
    /// The prefill replica.
    pub(crate) from: u32,
    /// End of the last prefill iteration.
    pub(crate) prefilled: Instant,
    /// Start of its first iteration on the decode replica; `NEVER` before.
    pub(crate) resumed: Instant,
}

/// The data of a live request that is used at arrival, admission and departure.
#[derive(Clone, Debug)]
pub struct History {
    /// The arrival.
    pub arrival: Arrival,
    /// Start of its first iteration; `NEVER` before.
    pub(crate) admitted: Instant,
    /// `NEVER` before the first token.
    pub(crate) first_token: Instant,
    pub(crate) last_token: Instant,
    /// Zero before the second token: every gap is longer.
    pub(crate) longest_gap: Span,
    /// Last tick of its group that is included in `longest_gap`.
    pub(crate) gaps_known: u64,
    /// While it decodes: its index among the members with a first gap of their own. `NOT_ODD`: not among them.
    pub(crate) odd: u32,
    pub(crate) preemptions: u32,
    /// Emitted tokens that were discarded.
    pub(crate) discarded_tokens: u64,
    /// Prefix cache hit of its first admission, in tokens.
    pub(crate) cached_tokens: u32,
    /// Set if it did not arrive here directly.
    pub(crate) detour: Option<Box<Detour>>,
}

impl History {
    pub(crate) fn new(arrival: Arrival) -> History {
        History {
            arrival,
            admitted: Instant::NEVER,
            first_token: Instant::NEVER,
            last_token: Instant::ZERO,
            longest_gap: Span::ZERO,
            gaps_known: 0,
            odd: NOT_ODD,
            preemptions: 0,
            discarded_tokens: 0,
            cached_tokens: 0,
            detour: None,
        }
    }

    /// Resets the history in place for another request, which avoids a large copy. The pattern lists every field, so
    /// that none is missed.
    #[inline]
    pub(super) fn begin_anew(&mut self, arrived: &Arrival) {
        let History {
            arrival,
            admitted,
            first_token,
            last_token,
            longest_gap,
            gaps_known,
            odd,
            preemptions,
            discarded_tokens,
            cached_tokens,
            detour,
        } = self;
        *arrival = *arrived;
        (*admitted, *first_token) = (Instant::NEVER, Instant::NEVER);
        (*last_token, *longest_gap, *gaps_known) = (Instant::ZERO, Span::ZERO, 0);
        *odd = NOT_ODD;
        (*preemptions, *discarded_tokens, *cached_tokens) = (0, 0, 0);
        if detour.is_some() {
            drop(detour.take());
        }
    }

    /// The history of a request that reaches another replica at `reached`.
    pub(crate) fn handed_off(self, from: u32, prefilled: Instant, reached: Instant) -> History {
        let hand_off = HandOff { from, prefilled, resumed: Instant::NEVER };
        let retries = self.retries();
        History { detour: Some(Box::new(Detour { reached, retries, hand_off: Some(hand_off) })), ..self }
    }

    /// The history of a request that reaches a replica at `reached` after `retries` retries.
    pub(crate) fn sent(self, retries: u32, reached: Instant) -> History {
        History { detour: Some(Box::new(Detour { reached, retries, hand_off: None })), ..self }
    }

    /// Number of retries after replica failures.
    pub(crate) fn retries(&self) -> u32 {
        self.detour.as_ref().map_or(0, |detour| detour.retries)
    }

    /// The hand-off, if it arrived with its context.
    #[inline]
    pub(crate) fn hand_off(&self) -> Option<&HandOff> {
        self.detour.as_ref()?.hand_off.as_ref()
    }

    /// The field for the start of its first iteration here.
    fn begun(&mut self) -> &mut Instant {
        let hand_off = self.detour.as_mut().and_then(|detour| detour.hand_off.as_mut());
        hand_off.map_or(&mut self.admitted, |hand_off| &mut hand_off.resumed)
    }

    /// Number of preemptions.
    #[inline]
    pub fn preemptions(&self) -> u32 {
        self.preemptions
    }

    /// Whether it was never in a batch.
    #[inline]
    pub(crate) fn is_new(&self) -> bool {
        self.admitted.is_never::<Long>()
    }

    /// Order of arrival at this replica, which is the default order of service.
    #[inline]
    pub(crate) fn order(&self) -> (Instant, u32) {
        let at = self.detour.as_ref().map_or(self.arrival.at, |detour| detour.reached);
        (at, self.arrival.id)
    }

    /// An iteration with this request begins.
    #[inline]
    pub(crate) fn begin(&mut self, now: Instant) {
        if self.detour.is_none() {
            if self.is_new() {
                self.admitted = now;
            }
        } else {
            let begun = self.begun();
            *begun = (*begun).min(now);
        }
    }
}
