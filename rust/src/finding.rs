//! Findings: observations about a run that qualify its numbers.

use std::borrow::Cow;
use std::fmt;

/// An observation about a run: its kind, a text for people, and the numbers in that text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// What was observed.
    pub kind: Kind,
    /// How much, what it means, and what to do.
    pub message: Cow<'static, str>,
    /// The numbers and names in the message, by name.
    pub data: Vec<(&'static str, Value)>,
}

/// A number or a name in a message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// A count.
    Count(u64),
    /// A name.
    Text(String),
}

impl Finding {
    /// A finding with the numbers in its message.
    pub(crate) fn new(
        kind: Kind,
        message: impl Into<Cow<'static, str>>,
        data: impl Into<Vec<(&'static str, Value)>>,
    ) -> Finding {
        Finding { kind, message: message.into(), data: data.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.message)
    }
}

/// Declares the kinds of findings, one a line: variant, stable name.
macro_rules! finding_kinds {
    ($($(#[$meta:meta])* $Kind:ident: $name:literal,)*) => {
        /// Kinds of findings that the core reports. Their names are stable; severities are assigned in the Python package.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind {
            $($(#[$meta])* $Kind,)*
        }

        impl Kind {
            /// Every kind.
            pub const ALL: &[Kind] = &[$(Kind::$Kind),*];

            /// The stable name: lower-case words joined by hyphens.
            pub fn name(self) -> &'static str {
                match self {
                    $(Kind::$Kind => $name,)*
                }
            }
        }
    };
}

finding_kinds! {
    /// The scheduler left requests in the queue and nothing else was left to happen.
    Stalled: "stalled",
    /// Requests waited for a replica when none was left to start.
    Stranded: "stranded",
    /// Requests could not be admitted at all.
    Rejected: "rejected",
    /// Outputs ended at the longest request that the engine accepts.
    Truncated: "truncated",
    /// One request was preempted again and again.
    Thrashing: "thrashing",
    /// The token budget is smaller than a row with all its drafts.
    DraftsOverBudget: "drafts-over-budget",
    /// The workload's lists of accepted drafts were too short.
    AcceptedTooShort: "accepted-too-short",
    /// Longest-prefix matching without a prefix cache.
    LpmWithoutCache: "lpm-without-cache",
    /// Mixed batches without chunked prefill.
    MixedWithoutChunks: "mixed-without-chunks",
    /// The queue grew until the last arrival.
    Overload: "overload",
    /// Iterations were larger than the measured ones.
    BeyondTable: "beyond-table",
    /// Requests were served below a policy's thresholds because no others were left.
    Drained: "drained",
    /// Replicas served nothing.
    IdleReplicas: "idle-replicas",
    /// Iterations were smaller than they could have been.
    NotWorkConserving: "not-work-conserving",
    /// Requests depended on requests that did not finish.
    NeverArrived: "never-arrived",
    /// Requests were due while the limit on requests in flight was reached.
    NeverSent: "never-sent",
    /// Requests ran out of patience.
    Abandoned: "abandoned",
    /// Clients canceled requests.
    Canceled: "canceled",
    /// Requests were lost with their replicas.
    Lost: "lost",
    /// Scheduled fleet events named replicas to which they did not apply.
    EventsIgnored: "events-ignored",
}
