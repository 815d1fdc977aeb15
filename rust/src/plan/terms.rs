//! The terms of a plan: limits, how long a plan holds, and planning ahead.

use crate::clock::Span;

/// What a replica enforces for its scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens that one iteration may load.
    pub token_budget: u64,
    /// Requests that may be admitted at once.
    pub max_seqs: u64,
    /// Are the blocks of finished requests freed only when no request is admitted any more (rule 10, `free="batch"`)?
    pub frees_with_batch: bool,
}

impl Limits {
    /// More tokens, and more requests, than any batch has: no limit.
    pub const NONE: u64 = 1 << 40;
}

/// What kept the next request in the queue from being admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Every seat is taken.
    Seats,
    /// Too few blocks are free, as the policy counts them at admission (rule 11).
    Blocks,
}

/// For how long a scheduler would ask the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Iterations, unless something happens before: a completion, a shortage of blocks, an event.
    pub iterations: u64,
    /// Would it ask the same if requests arrived meanwhile?
    pub through_arrivals: bool,
}

impl Hold {
    /// Ask again after every iteration: right for any policy, and the slowest.
    pub const ONCE: Hold = Hold { iterations: 1, through_arrivals: false };
    /// The same until something changes, an arrival included.
    pub const UNTIL_ARRIVAL: Hold = Hold { iterations: u64::MAX, through_arrivals: false };
    /// The same until something other than an arrival changes.
    pub const THROUGH_ARRIVALS: Hold = Hold { iterations: u64::MAX, through_arrivals: true };

    /// The same until something changes; whether an arrival is such a change depends on whether it could only wait.
    pub(crate) fn while_arrivals_wait(arrivals_wait: bool) -> Hold {
        Hold { through_arrivals: arrivals_wait, ..Hold::UNTIL_ARRIVAL }
    }
}

/// A policy plans each batch while the one before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// How long the engine sleeps, when a batch has ended, if the plan that was made while it ran was empty.
    pub pause: Span,
    /// Is the token in flight of a request that is preempted dropped, so that it is computed again? Otherwise it counts.
    pub drops: bool,
}
