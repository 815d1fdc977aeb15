//! Patience of waiting requests.

use crate::clock::Span;
use crate::random::{Source, Stream, exponential_quantile};

/// Exponential patience by class, drawn separately for each of the two queues.
#[derive(Clone, Debug)]
pub struct Patience {
    /// Mean of each class in attoseconds; `None`: infinite.
    means: Vec<Option<f64>>,
    draws: Stream,
}

/// Queues with patience.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueKind {
    /// Waits for a prefill.
    Prefill = 0,
    /// Waits for a decode slot.
    Decode = 1,
}

impl Patience {
    pub(super) fn new(means: &[Option<f64>], seed: u64) -> Patience {
        Patience { means: means.to_vec(), draws: Stream::new(seed, Source::Patience) }
    }

    /// Draws how long a request waits in a queue before it abandons; `None`: forever.
    pub(crate) fn draw(&self, request: u32, class: u32, queue: QueueKind) -> Option<Span> {
        let mean = self.means[class as usize]?;
        let units = exponential_quantile(self.draws.uniform(u64::from(request), queue as u64));
        Some(Span((units * mean).round_ties_even() as u128))
    }
}
