//! Distributions of durations: thinking, tools, patience.
//!
//! Durations are drawn in whole nanoseconds, the grid of arrivals, so that sums of arrivals and durations are exact.

use super::{column, within};
use crate::clock::arrival_nanoseconds;
use crate::error::{Error, Result};
use crate::random::{Stream, exponential_quantile};
use serde::Deserialize;

/// The distribution of one duration, in seconds.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", deny_unknown_fields)]
pub enum Duration {
    /// Always the same.
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
    /// Says which parameter is wrong, if one is.
    pub fn check(&self) -> Result<()> {
        match *self {
            Duration::Fixed { seconds } => within("seconds", seconds, (0.0, 1e9)),
            Duration::Exponential { mean_s } => within("mean_s", mean_s, (1e-9, 1e8)),
        }
    }

    /// Durations of `requests` requests from `stream`, in nanoseconds. Each takes draw 0.
    pub fn draw(&self, stream: Stream, requests: u64) -> Result<Vec<i64>> {
        self.check()?;
        let mut durations_ns = column(requests)?;
        self.append(stream, requests, &mut durations_ns)?;
        Ok(durations_ns)
    }

    /// Appends the durations of the requests `0..requests` of a stream; the distribution was checked.
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

    const DRAWS: u64 = 200_000;

    fn stream() -> Stream {
        Stream::new(4, Source::Think)
    }

    #[test]
    fn fixed_is_the_decimal_that_was_typed() {
        assert_eq!(Duration::Fixed { seconds: 0.3 }.draw(stream(), 2), Ok(vec![300_000_000; 2]));
        assert_eq!(Duration::Fixed { seconds: 0.0 }.draw(stream(), 1), Ok(vec![0]));
    }

    /// Mean, variance and tails within 5 standard errors.
    #[test]
    fn exponential_has_its_distribution() {
        let drawn = Duration::Exponential { mean_s: 2.5 }.draw(stream(), DRAWS).expect("a distribution");
        let mean = |value: &dyn Fn(f64) -> f64| {
            drawn.iter().map(|&duration| value(duration as f64 / 1e9)).sum::<f64>() / DRAWS as f64
        };
        let close = |sample: f64, expected: f64, variance: f64| {
            assert!((sample - expected).abs() <= 5.0 * (variance / DRAWS as f64).sqrt(), "{sample} {expected}");
        };
        close(mean(&|value| value), 2.5, 6.25);
        // The fourth central moment of an exponential is 9 σ⁴.
        close(mean(&|value| (value - 2.5).powi(2)), 6.25, 8.0 * 6.25 * 6.25);
        for multiple in [0.05, 1.0, 4.0] {
            let above = f64::exp(-multiple);
            close(mean(&|value| f64::from(value > 2.5 * multiple)), above, above * (1.0 - above));
        }
    }

    #[test]
    fn twice_the_mean_is_twice_each_draw() {
        let draw = |mean_s| Duration::Exponential { mean_s }.draw(stream(), 1000).expect("a distribution");
        assert!(draw(1.5).iter().zip(draw(3.0)).all(|(short, long)| (2 * short - long).abs() <= 1));
    }

    #[test]
    fn bad_durations_are_named() {
        for (distribution, field) in [
            (Duration::Fixed { seconds: -1.0 }, "seconds"),
            (Duration::Fixed { seconds: f64::NAN }, "seconds"),
            (Duration::Exponential { mean_s: 0.0 }, "mean_s"),
            (Duration::Exponential { mean_s: f64::INFINITY }, "mean_s"),
        ] {
            let error = distribution.draw(stream(), 1).expect_err("a bad distribution").to_string();
            assert!(error.starts_with(field), "{error}");
        }
        let widest = Duration::Exponential { mean_s: 1e8 }.draw(stream(), DRAWS).expect("a distribution");
        assert!(widest.iter().all(|&duration| duration < 9_000_000_000_000_000_000));
    }
}
