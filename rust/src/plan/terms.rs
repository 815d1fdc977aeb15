//! The terms of a plan: limits, how long a plan holds, and planning ahead.

use crate::clock::Span;

/// The limits that a replica enforces for its scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Token budget of an iteration.
    pub token_budget: u64,
    /// Sequence limit.
    pub max_seqs: u64,
    /// Whether the blocks of finished requests are freed only when no request is admitted (R10, `free="batch"`).
    pub frees_with_batch: bool,
}

impl Limits {
    /// No limit: more tokens and requests than any batch has.
    pub const NONE: u64 = 1 << 40;
}

/// The limit that prevents the admission of the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// The sequence limit.
    MaxSeqs,
    /// The free blocks that the policy checks at admission (R11).
    Blocks,
}

/// How long a plan stays the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Maximum number of iterations. A completion, a shortage of blocks or an event ends the plan earlier.
    pub iterations: u64,
    /// Whether the plan stays the same when requests arrive.
    pub through_arrivals: bool,
}

impl Hold {
    /// One iteration: correct for every policy, and the slowest.
    pub const ONCE: Hold = Hold { iterations: 1, through_arrivals: false };
    /// Until something changes, including arrivals.
    pub const UNTIL_ARRIVAL: Hold = Hold { iterations: u64::MAX, through_arrivals: false };
    /// Until something other than an arrival changes.
    pub const THROUGH_ARRIVALS: Hold = Hold { iterations: u64::MAX, through_arrivals: true };

    /// Until something changes; arrivals count unless they can only wait.
    pub(crate) fn while_arrivals_wait(arrivals_wait: bool) -> Hold {
        Hold { through_arrivals: arrivals_wait, ..Hold::UNTIL_ARRIVAL }
    }
}

/// Planning ahead: each batch is planned while the one before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Pause of the engine after a batch if the plan made during it was empty.
    pub pause: Span,
    /// Whether preemption drops the token in flight of the victim, so that it is computed again.
    pub drops: bool,
}
