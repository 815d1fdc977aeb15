//! How long requests wait before they give up.

use crate::clock::Span;
use crate::random::{Source, Stream, exponential_quantile};

/// Exponential patience, by class; drawn anew for each of the two queues.
#[derive(Clone, Debug)]
pub struct Patience {
    /// Of each class the mean in attoseconds; `None`: without end.
    means: Vec<Option<f64>>,
    draws: Stream,
}

/// A queue in which patience runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueKind {
    /// For a prefill.
    Prefill = 0,
    /// For a slot to decode in.
    Decode = 1,
}

impl Patience {
    pub(super) fn new(means: &[Option<f64>], seed: u64) -> Patience {
        Patience { means: means.to_vec(), draws: Stream::new(seed, Source::Patience) }
    }

    /// How long a request of a class waits in a queue before it gives up; `None`: for ever.
    pub(crate) fn draw(&self, request: u32, class: u32, queue: QueueKind) -> Option<Span> {
        let mean = self.means[class as usize]?;
        let units = exponential_quantile(self.draws.uniform(u64::from(request), queue as u64));
        Some(Span((units * mean).round_ties_even() as u128))
    }
}
