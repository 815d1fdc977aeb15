//! The host's share of an iteration, beside the GPU.
//!
//! Real engines schedule, sample and detokenise between the kernels. An overhead is part of the engine and not of its timing
//! model: the same kernels run under engines that are faster or slower, or that hide this behind the GPU's work.

use serde::Deserialize;

use crate::clock::{Span, attoseconds, greatest_common_divisor};
use crate::error::Result;
use crate::timing::{Pace, Shape};

/// The host's share as a user describes it; nothing unless said otherwise.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overhead {
    /// For every iteration, in seconds.
    #[serde(default)]
    pub base_s: f64,
    /// For every row of its batch, a chunk or a decode, in seconds.
    #[serde(default)]
    pub per_sequence_s: f64,
    /// Is it done while the GPU works? Then the longer of both counts, and not the sum.
    #[serde(default)]
    pub overlapped: bool,
    /// Tokens of the largest batch whose kernels are launched together, as one captured graph; `None`: every batch is.
    #[serde(default)]
    pub largest_graph_tokens: Option<u64>,
    /// What launching kernel by kernel adds to a larger batch, in seconds. It is the GPU that waits: nothing hides it.
    #[serde(default)]
    pub beyond_graph_s: f64,
}

impl Overhead {
    /// The same in attoseconds.
    pub fn build(&self) -> Result<HostTime> {
        Ok(HostTime {
            base: Span(attoseconds(self.base_s, "base_s")?),
            per_sequence: Span(attoseconds(self.per_sequence_s, "per_sequence_s")?),
            overlapped: self.overlapped,
            largest_graph: self.largest_graph_tokens.unwrap_or(u64::MAX),
            beyond_graph: Span(attoseconds(self.beyond_graph_s, "beyond_graph_s")?),
        })
    }
}

/// An [`Overhead`] ready to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostTime {
    base: Span,
    per_sequence: Span,
    overlapped: bool,
    largest_graph: u64,
    beyond_graph: Span,
}

impl HostTime {
    /// Does the host take no time at all?
    pub(crate) fn is_nothing(&self) -> bool {
        self.base == Span::ZERO && self.per_sequence == Span::ZERO && self.beyond_graph == Span::ZERO
    }

    /// A number of attoseconds that divides all of its times; 0: all are 0.
    pub(crate) fn unit(&self) -> u128 {
        [self.base, self.per_sequence, self.beyond_graph]
            .iter()
            .fold(0, |all, time| greatest_common_divisor(all, time.0))
    }

    /// From now on it counts in units of so many attoseconds, which divide [`HostTime::unit`].
    pub(crate) fn count_in(&mut self, attoseconds: u128) {
        for time in [&mut self.base, &mut self.per_sequence, &mut self.beyond_graph] {
            time.0 /= attoseconds;
        }
    }

    /// The pace of an engine whose GPU alone would take `pace`.
    #[inline(never)]
    pub(crate) fn beside(&self, pace: Pace, shape: &Shape) -> Result<Pace> {
        let rows = u128::from(shape.decodes) + shape.chunks.len() as u128;
        let host = self.base.plus(self.per_sequence.times(rows)?)?;
        let host = Pace::constant(host);
        let pace = if self.overlapped { pace.larger(&host) } else { pace.plus(&host)? };
        let tokens = shape.decodes + shape.drafts + shape.chunks.iter().map(|chunk| chunk.tokens).sum::<u64>();
        if tokens > self.largest_graph { pace.plus(&Pace::constant(self.beyond_graph)) } else { Ok(pace) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::ChunkShape;

    fn beside(overhead: &Overhead, pace: Pace) -> Pace {
        let mut shape = Shape::of(&[ChunkShape { tokens: 100, context: 0 }]);
        shape.add_decodes(4, 1000);
        overhead.build().expect("an overhead").beside(pace, &shape).expect("a pace")
    }

    #[test]
    fn it_is_added_or_the_longer_of_both() {
        // Five rows: 10 as + 5 · 2 as = 20 as.
        let added = Overhead { base_s: 10e-18, per_sequence_s: 2e-18, ..Overhead::default() };
        let gpu = Pace { first: Span(15), growth: 2, holds: 9 };
        assert_eq!(beside(&added, gpu), Pace { first: Span(35), ..gpu });
        // The GPU takes 15, 17, 19, 21: the host is the longer of both for three iterations.
        let overlapped = Overhead { overlapped: true, ..added };
        assert_eq!(beside(&overlapped, gpu), Pace { first: Span(20), growth: 0, holds: 3 });
        let longer = Pace { first: Span(21), ..gpu };
        assert_eq!(beside(&overlapped, longer), longer);
        assert_eq!(beside(&Overhead::default(), gpu), gpu);
    }

    #[test]
    fn a_batch_above_the_largest_graph_takes_longer_whatever_is_hidden() {
        // 104 tokens: a chunk of 100 and four decodes.
        let gpu = Pace { first: Span(15), growth: 0, holds: 9 };
        for (largest_graph_tokens, expected) in [(Some(103), 45), (Some(104), 15), (None, 15)] {
            let eager = Overhead { beyond_graph_s: 30e-18, largest_graph_tokens, ..Overhead::default() };
            assert_eq!(beside(&eager, gpu).first, Span(expected));
            let hidden = Overhead { base_s: 10e-18, overlapped: true, ..eager };
            assert_eq!(beside(&hidden, gpu).first, Span(expected));
        }
    }

    #[test]
    fn a_negative_one_is_an_error_that_names_it() {
        let error = Overhead { per_sequence_s: -1.0, ..Overhead::default() }.build().expect_err("a negative time");
        assert!(error.to_string().starts_with("per_sequence_s: -1"), "{error}");
    }
}
