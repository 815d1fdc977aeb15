//! Distributions of the lengths of prompts and outputs.
//!
//! Lengths are integers from 1 to 2³¹ − 1. The mean of a distribution is its mean before the cap and before rounding.

use super::poisson::Poisson;
use super::{LONGEST, check_tokens, column};
use crate::error::{Error, Result};
use crate::random::{Source, Stream, below, exponential_quantile, normal_quantile};
use serde::Deserialize;
use std::str::FromStr;

/// Distributions of lengths, in tokens.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", deny_unknown_fields)]
pub enum Length {
    /// A constant length.
    Fixed {
        /// Tokens.
        tokens: i64,
    },
    /// Uniform over the integers from `low` to `high`, both included.
    Uniform {
        /// Fewest tokens.
        low: i64,
        /// Most tokens.
        high: i64,
    },
    /// ⌊X⌋ with ln X uniform between ln `low` and ln(`high` + 1): k tokens have a probability proportional to ln(1 +
    /// 1/k), both ends included.
    LogUniform {
        /// Fewest tokens.
        low: i64,
        /// Most tokens.
        high: i64,
    },
    /// exp(μ + σ·Z) with μ = ln `median` and σ² = 2 ln(`mean` / `median`), rounded to the nearest integer, at least
    /// 1.
    Lognormal {
        /// Mean, in tokens.
        mean: f64,
        /// Median, in tokens; the ratio of mean to median determines the tail.
        median: f64,
        /// Maximum; longer lengths are truncated to it.
        cap: Option<i64>,
    },
    /// Poisson distributed; 0 becomes 1.
    PoissonLength {
        /// Mean, in tokens.
        mean: f64,
        /// Maximum; longer lengths are truncated to it.
        cap: Option<i64>,
    },
    /// Geometric from 1 with success probability 1 / `mean`: each token is the last with the same probability.
    Geometric {
        /// Mean, in tokens.
        mean: f64,
        /// Maximum; longer lengths are truncated to it.
        cap: Option<i64>,
    },
}

/// Prompt or output. Each has its own random stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The prompt.
    Prompt,
    /// The output.
    Output,
}

impl Length {
    /// Returns an error that names the invalid parameter, if any.
    pub fn check(&self) -> Result<()> {
        match *self {
            Length::Fixed { tokens } => check_tokens("tokens", tokens),
            Length::Uniform { low, high } | Length::LogUniform { low, high } => {
                check_tokens("low", low)?;
                check_tokens("high", high)?;
                if low > high {
                    return Err(Error::config("low", format!("must be at most high ({high}), got {low}")));
                }
                Ok(())
            }
            Length::Lognormal { mean, median, cap } => {
                check_number("median", median, 1e-9)?;
                check_number("mean", mean, 1e-9)?;
                if mean < median {
                    let message = format!("must be at least the median ({median:?}) of a lognormal, got {mean:?}");
                    return Err(Error::config("mean", message));
                }
                cap.map_or(Ok(()), |cap| check_tokens("cap", cap))
            }
            Length::Geometric { mean, cap } => {
                check_number("mean", mean, 1.0)?;
                cap.map_or(Ok(()), |cap| check_tokens("cap", cap))
            }
            Length::PoissonLength { mean, cap } => {
                Poisson::check(mean)?;
                cap.map_or(Ok(()), |cap| check_tokens("cap", cap))
            }
        }
    }

    /// Draws the lengths of `requests` requests in tokens. Without a cap, a length of 2³¹ − 1 or more is an error,
    /// because truncation would change the distribution silently.
    pub fn draw(&self, requests: u64, seed: u64, side: Side) -> Result<Vec<i32>> {
        self.draw_from(Stream::new(seed, side.source()), requests)
    }

    /// Draws lengths from a given stream.
    pub fn draw_from(&self, stream: Stream, requests: u64) -> Result<Vec<i32>> {
        self.check()?;
        let mut tokens = column(requests)?;
        self.append(stream, requests, &mut tokens)?;
        Ok(tokens)
    }

    /// Appends the lengths of requests `0..requests` of a stream. The distribution has been checked.
    pub(super) fn append(&self, stream: Stream, requests: u64, tokens: &mut Vec<i32>) -> Result<()> {
        let first = tokens.len();
        // `check` bounds every parameter to the range of i32, so the casts below drop only the fraction.
        match *self {
            Length::Fixed { tokens: length } => tokens.resize(first + requests as usize, length as i32),
            Length::Uniform { low, high } => {
                let values = (high - low + 1) as u64;
                stream.extend(tokens, requests, |word| (low + below(word, values) as i64) as i32);
            }
            Length::LogUniform { low, high } => {
                let span = libm::log((high + 1) as f64 / low as f64);
                let (low, high) = (low as i32, high as i32);
                stream.batches(requests, 0, |_, batch| {
                    for value in batch.iter_mut() {
                        *value = f64::from(low) * libm::exp(span * *value);
                    }
                    tokens.extend(batch.iter().map(|value| (*value as i32).clamp(low, high)));
                });
            }
            Length::Lognormal { mean, median, cap } => {
                let (mu, sigma) = (libm::log(median), (2.0 * libm::log(mean / median)).sqrt());
                let cap = cap.unwrap_or(LONGEST) as i32;
                stream.batches(requests, 0, |_, batch| {
                    for value in batch.iter_mut() {
                        *value = normal_quantile(*value);
                    }
                    for value in batch.iter_mut() {
                        *value = libm::exp(mu + sigma * *value);
                    }
                    tokens.extend(batch.iter().map(|value| ((value + 0.5) as i32).clamp(1, cap)));
                });
            }
            Length::Geometric { mean, cap } => {
                // P(more than k) = (1 − 1/mean)^k, so the length is 1 + ⌊ln u / ln(1 − 1/mean)⌋; `scale` is 0 for mean 1.
                let scale = -1.0 / libm::log1p(-1.0 / mean);
                let cap = cap.unwrap_or(LONGEST) as i32;
                stream.batches(requests, 0, |_, batch| {
                    for value in batch.iter_mut() {
                        *value = scale * exponential_quantile(*value);
                    }
                    tokens.extend(batch.iter().map(|value| (*value as i32).saturating_add(1).min(cap)));
                });
            }
            Length::PoissonLength { mean, cap } => {
                let cap = cap.unwrap_or(LONGEST) as i32;
                Poisson::new(mean).draw(stream, requests, |value| tokens.push((value as i32).clamp(1, cap)));
            }
        }
        let endless = matches!(self, Length::Lognormal { cap: None, .. } | Length::Geometric { cap: None, .. });
        if endless && tokens[first..].contains(&i32::MAX) {
            let message = "must be set: this distribution drew a length beyond 2147483647 tokens";
            return Err(Error::config("cap", message));
        }
        Ok(())
    }
}

impl Side {
    /// Name in paths and columns.
    pub fn name(self) -> &'static str {
        match self {
            Side::Prompt => "prompt",
            Side::Output => "output",
        }
    }

    /// The random source.
    pub(super) fn source(self) -> Source {
        match self {
            Side::Prompt => Source::Prompt,
            Side::Output => Source::Output,
        }
    }
}

impl FromStr for Side {
    type Err = Error;

    fn from_str(name: &str) -> Result<Side> {
        match name {
            "prompt" => Ok(Side::Prompt),
            "output" => Ok(Side::Output),
            _ => Err(Error::config("source", format!("must be \"prompt\" or \"output\", got {name:?}"))),
        }
    }
}

/// Checks a number against `low` and the longest length. NaN fails too.
fn check_number(field: &str, value: f64, low: f64) -> Result<()> {
    if !(low..=LONGEST as f64).contains(&value) {
        return Err(Error::config(field, format!("must be from {low:?} to {LONGEST} tokens, got {value:?}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUESTS: u64 = 200_000;

    /// Compares draws from `length` with the distribution given by `more(k)` = P(more than k tokens), which is 0 from
    /// `top` on: the mean, the second moment and the share above several k must be within 5 standard errors.
    fn agrees(length: &Length, top: i64, more: impl Fn(i64) -> f64) {
        let drawn = length.draw(REQUESTS, 11, Side::Prompt).expect("a distribution");
        let probability = |k: i64| more(k - 1) - more(k);
        let moment = |power: i32| -> f64 { (1..=top).map(|k| probability(k) * (k as f64).powi(power)).sum() };
        for power in [1, 2] {
            let sample = drawn.iter().map(|&k| f64::from(k).powi(power)).sum::<f64>() / REQUESTS as f64;
            let variance = (moment(2 * power) - moment(power).powi(2)).max(0.0);
            close(sample, moment(power), variance, &format!("{length:?}, moment {power}"));
        }
        for k in [1, 2, 3, 10, 50, 149, 150, 400, 1000, top - 1, top].into_iter().filter(|&k| k <= top) {
            let share = drawn.iter().filter(|&&drawn| i64::from(drawn) > k).count() as f64 / REQUESTS as f64;
            close(share, more(k), more(k) * (1.0 - more(k)), &format!("{length:?}, more than {k}"));
        }
    }

    fn close(sample: f64, expected: f64, variance: f64, what: &str) {
        // The last term allows for rounding in float sums.
        let bound = 5.0 * (variance / REQUESTS as f64).sqrt() + 1e-9 * expected;
        assert!((sample - expected).abs() <= bound, "{what}: {sample} against {expected} ± {bound}");
    }

    #[test]
    fn fixed_is_fixed() {
        agrees(&Length::Fixed { tokens: 7 }, 7, |k| f64::from(k < 7));
    }

    #[test]
    fn uniform_has_its_distribution() {
        let more = |k: i64| ((9 - k.max(2)) as f64 / 7.0).max(0.0);
        agrees(&Length::Uniform { low: 3, high: 9 }, 9, more);
        agrees(&Length::Uniform { low: 5, high: 5 }, 5, |k| f64::from(k < 5));
    }

    #[test]
    fn log_uniform_has_its_distribution() {
        for (low, high) in [(1, 1000), (10, 4000), (6, 6)] {
            let span = ((high + 1) as f64 / low as f64).ln();
            let more = |k: i64| {
                let above = (high + 1) as f64 / (k + 1) as f64;
                if k < low { 1.0 } else { above.ln() / span }
            };
            agrees(&Length::LogUniform { low, high }, high, more);
        }
    }

    #[test]
    fn lognormal_has_its_distribution() {
        for (mean, median, cap) in [(230.0, 90.0, 4096), (250.0, 150.0, 4096), (1.5, 1.0, 60), (300.0, 200.0, 150)] {
            let sigma = (2.0 * f64::ln(mean / median)).sqrt();
            // A length is above k if the normal variable is above ln(k + ½); all lengths are above 0, none above the
            // cap.
            let more = |k: i64| match k {
                0 => 1.0,
                k if k >= cap => 0.0,
                k => libm::erfc(((k as f64 + 0.5) / median).ln() / sigma / 2_f64.sqrt()) / 2.0,
            };
            agrees(&Length::Lognormal { mean, median, cap: Some(cap) }, cap, more);
        }
    }

    /// Far below the cap, mean and median match the parameters: only the cap and the rounding change them.
    #[test]
    fn lognormal_keeps_mean_and_median() {
        let distribution = Length::Lognormal { mean: 4000.0, median: 3000.0, cap: None };
        let mut drawn = distribution.draw(REQUESTS, 1, Side::Output).expect("a distribution");
        let variance = 4000_f64.powi(2) * ((4.0_f64 / 3.0).powi(2) - 1.0);
        let mean = drawn.iter().map(|&tokens| f64::from(tokens)).sum::<f64>() / REQUESTS as f64;
        close(mean, 4000.0, variance, "mean");
        drawn.sort_unstable();
        let above = drawn.iter().filter(|&&tokens| tokens > 3000).count() as f64 / REQUESTS as f64;
        close(above, 0.5, 0.25, "share above the median");
        let all_alike = Length::Lognormal { mean: 90.0, median: 90.0, cap: None };
        assert_eq!(all_alike.draw(3, 1, Side::Output), Ok(vec![90; 3]));
    }

    #[test]
    fn geometric_has_its_distribution() {
        for (mean, cap) in [(1.0, None), (1.25, None), (250.0, None), (250.0, Some(300)), (3.0, Some(1))] {
            let top = cap.unwrap_or((60.0 * mean) as i64);
            let more = |k: i64| {
                if cap.is_some_and(|cap| k >= cap) { 0.0 } else { f64::powi(1.0 - 1.0 / mean, k as i32) }
            };
            agrees(&Length::Geometric { mean, cap }, top, more);
        }
    }

    /// Compares moments and shares with sums of the probabilities e^−m m^k / k!, where 0 counts as 1.
    #[test]
    fn poisson_has_its_distribution() {
        for (mean, cap) in
            [(1e-3, None), (0.7, None), (9.99, None), (10.0, None), (32.0, None), (512.0, None), (32.0, Some(35))]
        {
            let top = cap.unwrap_or((mean + 40.0 * f64::sqrt(mean) + 40.0) as i64);
            let mut probability = f64::exp(-mean);
            let mut more = vec![1.0 - probability];
            for k in 1..=top {
                probability *= mean / k as f64;
                more.push((more[k as usize - 1] - probability).max(0.0));
            }
            let more = |k: i64| match k {
                k if cap.is_some_and(|cap| k >= cap) || k >= top => 0.0,
                0 => 1.0,
                k => more[k as usize],
            };
            agrees(&Length::PoissonLength { mean, cap }, top, more);
        }
    }

    /// Pearson's test over about 40 cells of equal width: the statistic is below the 1 − 10⁻⁶ quantile of χ² (Wilson
    /// and Hilferty).
    #[test]
    fn poisson_has_its_probabilities() {
        for mean in [3.0, 9.9, 10.0, 32.0, 512.0, 20_000.0, 1e6] {
            let drawn =
                Length::PoissonLength { mean, cap: None }.draw(REQUESTS, 17, Side::Output).expect("a distribution");
            let (low, width) = ((mean - 4.0 * mean.sqrt()).max(1.0).floor(), (mean.sqrt() / 5.0).ceil());
            let cells = (8.0 * mean.sqrt() / width).ceil() as usize;
            let cell = |k: f64| (((k - low) / width).floor().max(0.0) as usize).min(cells - 1);
            let mut expected = vec![0.0; cells];
            let log_mean = mean.ln();
            for k in 0..(mean + 12.0 * mean.sqrt() + 30.0) as i64 {
                let k = k as f64;
                expected[cell(k.max(1.0))] += f64::exp(k * log_mean - mean - libm::lgamma(k + 1.0)) * REQUESTS as f64;
            }
            assert!((expected.iter().sum::<f64>() / REQUESTS as f64 - 1.0).abs() < 1e-6, "mean {mean}");
            let mut seen = vec![0.0; cells];
            drawn.iter().for_each(|&k| seen[cell(f64::from(k))] += 1.0);
            let likely = || seen.iter().zip(&expected).filter(|(_, expected)| **expected >= 5.0);
            let statistic: f64 = likely().map(|(seen, expected)| (seen - expected).powi(2) / expected).sum();
            let freedom = (likely().count() - 1) as f64;
            let spread = 2.0 / (9.0 * freedom);
            let limit = freedom * (1.0 - spread + 4.753 * spread.sqrt()).powi(3);
            assert!(statistic < limit, "mean {mean}: {statistic} above {limit}");
        }
    }

    #[test]
    fn prompts_and_outputs_have_independent_draws() {
        let distribution = Length::Uniform { low: 1, high: 1_000_000 };
        let (prompt, output) = (distribution.draw(100, 1, Side::Prompt), distribution.draw(100, 1, Side::Output));
        assert_ne!(prompt, output);
    }

    #[test]
    fn the_longest_and_widest_distributions_fit() {
        let longest = i64::from(i32::MAX);
        let alike = |length: Length| length.draw(5, 1, Side::Prompt).expect("a distribution") == [i32::MAX; 5];
        assert!(alike(Length::Fixed { tokens: longest }));
        assert!(alike(Length::Uniform { low: longest, high: longest }));
        assert!(alike(Length::LogUniform { low: longest, high: longest }));
        let widest = Length::Lognormal { mean: longest as f64, median: 1e-9, cap: Some(longest) };
        assert!(widest.draw(1000, 1, Side::Prompt).expect("a distribution").iter().all(|&tokens| tokens >= 1));
    }

    /// Without a cap, lengths are never truncated silently.
    #[test]
    fn a_length_beyond_the_largest_is_an_error() {
        let lognormal = Length::Lognormal { mean: 1e9, median: 1.0, cap: None };
        let geometric = Length::Geometric { mean: 2e9, cap: None };
        for distribution in [lognormal, geometric] {
            let error = distribution.draw(100_000, 1, Side::Output).err().map(|error| error.to_string());
            assert!(error.is_some_and(|error| error.starts_with("cap: must be set")), "{distribution:?}");
        }
    }
}
