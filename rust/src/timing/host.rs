//! The host's share of iteration times.
//!
//! Real engines schedule, sample and detokenize between kernels. Overhead is part of the engine, not of its timing
//! model: different engines run the same kernels with different overheads, or overlap them with GPU execution.

use serde::Deserialize;

use crate::clock::{Span, attoseconds, greatest_common_divisor};
use crate::error::Result;
use crate::timing::{Pace, Shape};

/// Host overhead as described by the user. Default: none.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overhead {
    /// Seconds per iteration.
    #[serde(default)]
    pub base_s: f64,
    /// Seconds per row of the batch (a chunk or a decode).
    #[serde(default)]
    pub per_sequence_s: f64,
    /// Whether it overlaps with GPU execution. If so, the longer of both counts instead of the sum.
    #[serde(default)]
    pub overlapped: bool,
    /// Tokens of the largest batch with a captured graph; `None`: all batches have one.
    #[serde(default)]
    pub largest_graph_tokens: Option<u64>,
    /// Additional seconds of larger batches for launching kernels individually. The GPU waits for it, so it is never
    /// overlapped.
    #[serde(default)]
    pub beyond_graph_s: f64,
    /// Seconds in which the host launches the kernels of an iteration without a graph. The GPU runs a kernel while the
    /// host launches the next, so this is a floor, to which the host time above is added.
    #[serde(default)]
    pub launch_s: f64,
    /// Seconds per iteration in which the GPU waits for the host, never overlapped.
    #[serde(default)]
    pub exposed_s: f64,
}

impl Overhead {
    /// Converts it to attoseconds.
    pub fn build(&self) -> Result<HostTime> {
        Ok(HostTime {
            base: Span(attoseconds(self.base_s, "base_s")?),
            per_sequence: Span(attoseconds(self.per_sequence_s, "per_sequence_s")?),
            overlapped: self.overlapped,
            largest_graph: self.largest_graph_tokens.unwrap_or(u64::MAX),
            beyond_graph: Span(attoseconds(self.beyond_graph_s, "beyond_graph_s")?),
            launch: Span(attoseconds(self.launch_s, "launch_s")?),
            exposed: Span(attoseconds(self.exposed_s, "exposed_s")?),
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
    launch: Span,
    exposed: Span,
}

impl HostTime {
    /// Whether the host takes no time.
    pub(crate) fn is_zero(&self) -> bool {
        self.times().iter().all(|&time| time == Span::ZERO)
    }

    /// Returns a divisor of all of its times in attoseconds; 0: all are 0.
    pub(crate) fn unit(&self) -> u128 {
        self.times().iter().fold(0, |all, time| greatest_common_divisor(all, time.0))
    }

    fn times(&self) -> [Span; 5] {
        [self.base, self.per_sequence, self.beyond_graph, self.launch, self.exposed]
    }

    /// Switches to units of `attoseconds`, a divisor of [`HostTime::unit`].
    pub(crate) fn count_in(&mut self, attoseconds: u128) {
        let Self { base, per_sequence, beyond_graph, launch, exposed, .. } = self;
        for time in [base, per_sequence, beyond_graph, launch, exposed] {
            time.0 /= attoseconds;
        }
    }

    /// Returns the pace of an engine whose GPU alone takes `pace`.
    pub(crate) fn add_to(&self, pace: Pace, shape: &Shape) -> Result<Pace> {
        let rows = u128::from(shape.decodes) + shape.chunks.len() as u128;
        let own = self.base.plus(self.per_sequence.times(rows)?)?;
        let host = Pace::constant(own);
        let mut pace = if self.overlapped { pace.larger(&host) } else { pace.plus(&host)? };
        let tokens = shape.decodes + shape.drafts + shape.chunks.iter().map(|chunk| chunk.tokens).sum::<u64>();
        if tokens > self.largest_graph {
            pace = pace.plus(&Pace::constant(self.beyond_graph))?;
        }
        if self.launch != Span::ZERO {
            pace = pace.larger(&Pace::constant(self.launch.plus(own)?));
        }
        if self.exposed == Span::ZERO { Ok(pace) } else { pace.plus(&Pace::constant(self.exposed)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::ChunkShape;

    fn with_overhead(overhead: &Overhead, pace: Pace) -> Pace {
        let mut shape = Shape::of(&[ChunkShape { tokens: 100, context: 0 }]);
        shape.add_decodes(4, 1000);
        overhead.build().expect("an overhead").add_to(pace, &shape).expect("a pace")
    }

    #[test]
    fn overhead_is_added_or_overlapped() {
        // Five rows: 10 as + 5 · 2 as = 20 as.
        let added = Overhead { base_s: 10e-18, per_sequence_s: 2e-18, ..Overhead::default() };
        let gpu = Pace { first: Span(15), growth: 2, holds: 9 };
        assert_eq!(with_overhead(&added, gpu), Pace { first: Span(35), ..gpu });
        // The GPU takes 15, 17, 19, 21: the host is longer for three iterations.
        let overlapped = Overhead { overlapped: true, ..added };
        assert_eq!(with_overhead(&overlapped, gpu), Pace { first: Span(20), growth: 0, holds: 3 });
        let longer = Pace { first: Span(21), ..gpu };
        assert_eq!(with_overhead(&overlapped, longer), longer);
        assert_eq!(with_overhead(&Overhead::default(), gpu), gpu);
    }

    #[test]
    fn a_batch_above_the_largest_graph_takes_longer_even_if_overlapped() {
        // 104 tokens: a chunk of 100 and four decodes.
        let gpu = Pace { first: Span(15), growth: 0, holds: 9 };
        for (largest_graph_tokens, expected) in [(Some(103), 45), (Some(104), 15), (None, 15)] {
            let eager = Overhead { beyond_graph_s: 30e-18, largest_graph_tokens, ..Overhead::default() };
            assert_eq!(with_overhead(&eager, gpu).first, Span(expected));
            let hidden = Overhead { base_s: 10e-18, overlapped: true, ..eager };
            assert_eq!(with_overhead(&hidden, gpu).first, Span(expected));
        }
    }

    #[test]
    fn launching_kernels_one_by_one_is_a_floor() {
        // Five rows: 10 as + 5 · 2 as = 20 as of other host work, and 30 as of launches: at least 50 as.
        let eager = Overhead { base_s: 10e-18, per_sequence_s: 2e-18, launch_s: 30e-18, ..Overhead::default() };
        let beyond = Overhead { largest_graph_tokens: Some(0), beyond_graph_s: 4e-18, ..eager.clone() };
        // After the GPU: 29 + 20 = 49 and 31 + 20 = 51; with 4 as for gaps between kernels 53 and 55.
        for (gpu, expected, with_gaps) in [(29, 50, 53), (31, 51, 55), (3, 50, 50)] {
            let gpu = Pace::constant(Span(gpu));
            assert_eq!(with_overhead(&eager, gpu).first, Span(expected));
            assert_eq!(with_overhead(&beyond, gpu).first, Span(with_gaps));
        }
        // At the same time as the GPU: the longer of 45 and 50, of 55 and 50.
        let overlapped = Overhead { overlapped: true, ..eager };
        for (gpu, expected) in [(45, 50), (55, 55)] {
            assert_eq!(with_overhead(&overlapped, Pace::constant(Span(gpu))).first, Span(expected));
        }
    }

    #[test]
    fn exposed_time_is_added_to_every_iteration() {
        // Five rows: 10 as + 5 · 2 as = 20 as of other host work, hidden behind 45 as of the GPU and longer than 15 as.
        let exposed = Overhead { base_s: 10e-18, per_sequence_s: 2e-18, exposed_s: 7e-18, ..Overhead::default() };
        let overlapped = Overhead { overlapped: true, ..exposed.clone() };
        let eager = Overhead { launch_s: 30e-18, ..overlapped.clone() };
        for (gpu, added, hidden, launched) in [(45, 72, 52, 57), (15, 42, 27, 57)] {
            let gpu = Pace::constant(Span(gpu));
            for (overhead, expected) in [(&exposed, added), (&overlapped, hidden), (&eager, launched)] {
                assert_eq!(with_overhead(overhead, gpu).first, Span(expected));
            }
        }
    }

    #[test]
    fn a_negative_overhead_is_an_error_that_names_the_field() {
        let error = Overhead { per_sequence_s: -1.0, ..Overhead::default() }.build().expect_err("a negative time");
        assert!(error.to_string().starts_with("per_sequence_s: must be"), "{error}");
    }
}
