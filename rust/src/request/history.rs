//! What became of a live request so far: what is looked at when it comes, when it is admitted, and when it leaves.

use super::NOT_ODD;
use crate::clock::{Instant, Long, Span};
use crate::workload::Arrival;

/// The way of a request that came to its replica otherwise than by its arrival.
#[derive(Clone, Debug)]
pub(crate) struct Detour {
    /// When it came there.
    pub(crate) reached: Instant,
    /// How often it was sent again, because its replica had died.
    pub(crate) retries: u32,
    /// If it came with its context.
    pub(crate) hand_off: Option<HandOff>,
}

/// A hand-off: the way of a request from the replica that computed its prompt to the one that emits the rest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandOff {
    /// The replica that computed the prompt.
    pub(crate) from: u32,
    /// The end of the prompt's last iteration.
    pub(crate) prefilled: Instant,
    /// The start of its first iteration on the other replica; `NEVER` before.
    pub(crate) resumed: Instant,
}

/// What of a live request is looked at when it comes, when it is admitted, and when it leaves.
#[derive(Clone, Debug)]
pub struct History {
    /// What arrived.
    pub arrival: Arrival,
    /// Start of its first iteration; `NEVER` before.
    pub(crate) admitted: Instant,
    /// `NEVER` before it.
    pub(crate) first_token: Instant,
    pub(crate) last_token: Instant,
    /// No time at all before the second token: no gap is that short.
    pub(crate) longest_gap: Span,
    /// The last tick of its group whose gap is in `longest_gap`.
    pub(crate) gaps_known: u64,
    /// While it decodes, its place among those of its group whose next gap is their own; `NOT_ODD`: not among them.
    pub(crate) odd: u32,
    pub(crate) preemptions: u32,
    /// Tokens that it emitted and that were thrown away.
    pub(crate) discarded_tokens: u64,
    /// Tokens of it that were found in the prefix cache when it was first admitted.
    pub(crate) cached_tokens: u32,
    /// If it came here otherwise than by its arrival.
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

    /// Makes it that of another request, where it stands: it is large, and copied nowhere. Every field is named, so that none is
    /// forgotten.
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

    /// The history of a request that waited for a replica until `reached`, and was sent again so often.
    pub(crate) fn sent(self, retries: u32, reached: Instant) -> History {
        History { detour: Some(Box::new(Detour { reached, retries, hand_off: None })), ..self }
    }

    /// How often it was sent again, because its replica had died.
    pub(crate) fn retries(&self) -> u32 {
        self.detour.as_ref().map_or(0, |detour| detour.retries)
    }

    /// If it came here with its context.
    #[inline]
    pub(crate) fn hand_off(&self) -> Option<&HandOff> {
        self.detour.as_ref()?.hand_off.as_ref()
    }

    /// Where the start of its first iteration here is written down.
    #[inline(never)]
    fn begun(&mut self) -> &mut Instant {
        let hand_off = self.detour.as_mut().and_then(|detour| detour.hand_off.as_mut());
        hand_off.map_or(&mut self.admitted, |hand_off| &mut hand_off.resumed)
    }

    /// How often it was preempted.
    #[inline]
    pub fn preemptions(&self) -> u32 {
        self.preemptions
    }

    /// Was it never in a batch?
    #[inline]
    pub(crate) fn is_new(&self) -> bool {
        self.admitted.is_never::<Long>()
    }

    /// Order of arrival at this replica, which is the order of service unless a policy says otherwise.
    #[inline]
    pub(crate) fn order(&self) -> (Instant, u32) {
        let at = self.detour.as_ref().map_or(self.arrival.at, |detour| detour.reached);
        (at, self.arrival.id)
    }

    /// An iteration that it is admitted to begins.
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
