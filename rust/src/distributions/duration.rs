//! Distributions of durations: think time, tool time, patience.
//!
//! Durations are drawn in whole nanoseconds, the resolution of arrivals, so that sums of arrivals and durations are
//! exact.

use super::{column, within};
use crate::clock::arrival_nanoseconds;
use crate::error::{Error, Result};
use crate::random::{Stream, exponential_quantile};
use serde::Deserialize;

/// The distribution of one duration, in seconds.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", deny_unknown_fields)]
pub enum Duration {
    /// A constant duration.
    Fixed {
        /// Seconds, 0 or more.
        seconds: f64,
    },
    /// Exponential, rounded to the nearest nanosecond.
    Exponential {
        /// Mean, in seconds.
        mean_s: f64,
    },
}

impl Duration {
    /// Returns an error that names the invalid parameter, if any.
    pub fn check(&self) -> Result<()> {
        match *self {
            Duration::Fixed { seconds } => within("seconds", seconds, (0.0, 1e9)),
            Duration::Exponential { mean_s } => within("mean_s", mean_s, (1e-9, 1e8)),
        }
    }

    /// Draws the durations of `requests` requests from `stream`, in nanoseconds. Each uses draw 0.
    pub fn draw(&self, stream: Stream, requests: u64) -> Result<Vec<i64>> {
        self.check()?;
        let mut durations_ns = column(requests)?;
        self.append(stream, requests, &mut durations_ns)?;
        Ok(durations_ns)
    }

    /// Appends the durations of requests `0..requests` of a stream. The distribution has been checked.
    pub(super) fn append(&self, stream: Stream, requests: u64, durations_ns: &mut Vec<i64>) -> Result<()> {
        match *self {
            Duration::Fixed { seconds } => {
                let nanoseconds = arrival_nanoseconds(seconds).ok_or_else(|| Error::overflow("a duration"))?;
                durations_ns.resize(durations_ns.len() + requests as usize, nanoseconds as i64);
            }
            Duration::Exponential { mean_s } => stream.batches(requests, 0, |_, batch| {
                for value in batch.iter_mut() {
                    // A draw is below 37 means, so it fits.
                    *value = exponential_quantile(*value) * (mean_s * 1e9);
                }
                durations_ns.extend(batch.iter().map(|value| value.round_ties_even() as i64));
            }),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Source;

    fn stream() -> Stream {
        Stream::new(4, Source::Think)
    }

    #[test]
    fn fixed_is_the_decimal_that_was_typed() {
        assert_eq!(Duration::Fixed { seconds: 0.3 }.draw(stream(), 2), Ok(vec![300_000_000; 2]));
        assert_eq!(Duration::Fixed { seconds: 0.0 }.draw(stream(), 1), Ok(vec![0]));
    }

    #[test]
    fn twice_the_mean_doubles_each_draw() {
        let draw = |mean_s| Duration::Exponential { mean_s }.draw(stream(), 1000).expect("a distribution");
        assert!(draw(1.5).iter().zip(draw(3.0)).all(|(short, long)| (2 * short - long).abs() <= 1));
    }

    #[test]
    fn the_longest_durations_fit() {
        let widest = Duration::Exponential { mean_s: 1e8 }.draw(stream(), 200_000).expect("a distribution");
        assert!(widest.iter().all(|&duration| duration < 9_000_000_000_000_000_000));
    }
}
