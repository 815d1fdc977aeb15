//! Arrival processes: the distributions of the gaps between requests.
//!
//! The first request arrives one gap after 0. A random gap is rounded once, to a multiple of 2⁻³² nanoseconds (a
//! quarter of an attosecond). Gaps are summed as integers, and each sum is rounded to the nearest nanosecond, half to
//! even. So arrivals are in order, rounding errors do not accumulate, and half the rate doubles every arrival (to the
//! nanosecond). With [`Arrivals::Deterministic`] arrival k is (k + 1) / rate for the rate's shortest decimal, rounded
//! once.

use super::gaps::{Clock, Ticks, UNITS_PER_S, UnitGamma, UnitWeibull};
use super::varying::{Phases, Rates, Table, Walk};
use super::{column, within};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::random::{Source, Stream, exponential_quantile};
use serde::Deserialize;

/// Upper bound of arrivals, which is the limit of `arrival_s`.
pub(super) const END_NS: i64 = 9_000_000_000_000_000_000;
/// Rates for which the arithmetic of gaps does not overflow, in requests per second.
pub(super) const RATES: (f64, f64) = (1e-9, 1e12);
/// Coefficients of variation for which 64-bit floats distinguish a gamma distribution from its limits.
const VARIATIONS: (f64, f64) = (1e-6, 1e3);
/// Shapes for which 64-bit floats distinguish a Weibull distribution from its limits: coefficients of variation up to
/// 429.
const SHAPES: (f64, f64) = (0.1, 1e6);

/// Arrival processes, given by the distribution of the gap between two arrivals. Rates are in requests per second.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", deny_unknown_fields)]
pub enum Arrivals {
    /// Independent exponential gaps of mean 1 / rate.
    Poisson {
        /// Requests per second.
        rate: f64,
    },
    /// Independent gamma gaps of mean 1 / rate; `cv` 1 is the Poisson process, lower is smoother, higher is burstier.
    Gamma {
        /// Requests per second.
        rate: f64,
        /// Coefficient of variation of a gap: its standard deviation over its mean.
        cv: f64,
    },
    /// Independent Weibull gaps of mean 1 / rate; `shape` 1 is the Poisson process, lower is burstier, higher is
    /// smoother.
    Weibull {
        /// Requests per second.
        rate: f64,
        /// Shape of the distribution; the scale is 1 / (rate · Γ(1 + 1/shape)).
        shape: f64,
    },
    /// Equal gaps: arrival k (from 0) at (k + 1) / rate.
    Deterministic {
        /// Requests per second.
        rate: f64,
    },
    /// A Poisson process whose rate switches between two values after exponential times, started in its stationary
    /// distribution.
    OnOff {
        /// Requests per second while on.
        on_rate: f64,
        /// Requests per second while off.
        off_rate: f64,
        /// Mean length of an on phase, in seconds.
        mean_on_s: f64,
        /// Mean length of an off phase, in seconds.
        mean_off_s: f64,
    },
    /// A Poisson process with rate `rates[i]` from `times_s[i]` on.
    TimeVarying {
        /// Starts of the pieces in seconds, the first 0, ascending.
        times_s: Vec<f64>,
        /// Requests per second in each piece; 0 for none.
        rates: Vec<f64>,
        /// Period in seconds after which the pieces repeat. Default: the last rate stays.
        period_s: Option<f64>,
    },
}

impl Arrivals {
    /// Returns an error that names the invalid parameter, if any.
    pub fn check(&self) -> Result<()> {
        match self {
            Arrivals::Poisson { rate } | Arrivals::Deterministic { rate } => within("rate", *rate, RATES),
            Arrivals::Gamma { rate, cv } => {
                within("rate", *rate, RATES)?;
                within("cv", *cv, VARIATIONS)
            }
            Arrivals::Weibull { rate, shape } => {
                within("rate", *rate, RATES)?;
                within("shape", *shape, SHAPES)
            }
            Arrivals::OnOff { on_rate, off_rate, mean_on_s, mean_off_s } => {
                Phases::check(*on_rate, *off_rate, *mean_on_s, *mean_off_s)
            }
            Arrivals::TimeVarying { times_s, rates, period_s } => Table::new(times_s, rates, *period_s).map(drop),
        }
    }

    /// Draws the arrivals of `requests` requests in nanoseconds, in ascending order. An arrival at 9·10⁹ s or later
    /// is an error, because no run accepts it.
    pub fn draw(&self, requests: u64, seed: u64) -> Result<Vec<i64>> {
        let mut arrival_ns = column(requests)?;
        let mut process = self.process(seed)?;
        process.append(requests, &mut arrival_ns);
        self.check_last(&arrival_ns, requests)?;
        Ok(arrival_ns)
    }

    /// Returns the arrival process of a seed, to be drawn in parts.
    pub(super) fn process(&self, seed: u64) -> Result<Process> {
        self.check()?;
        let units = |rate: &f64| UNITS_PER_S / rate;
        let clock = Clock::default();
        let kind = match self {
            Arrivals::Poisson { rate } => ArrivalKind::Poisson { clock, units: units(rate) },
            Arrivals::Gamma { rate, cv } => {
                ArrivalKind::Gamma { clock, units: units(rate), gap: UnitGamma::new(1.0 / (cv * cv)) }
            }
            Arrivals::Weibull { rate, shape } => {
                ArrivalKind::Weibull { clock, units: units(rate), gap: UnitWeibull::new(*shape) }
            }
            Arrivals::Deterministic { rate } => ArrivalKind::Deterministic(Ticks::new(*rate)?),
            Arrivals::OnOff { on_rate, off_rate, mean_on_s, mean_off_s } => {
                let phases = Phases::new(seed, (*on_rate, *mean_on_s), (*off_rate, *mean_off_s));
                ArrivalKind::OnOff(Walk::new(phases))
            }
            Arrivals::TimeVarying { times_s, rates, period_s } => {
                ArrivalKind::TimeVarying(Walk::new(Table::new(times_s, rates, *period_s)?))
            }
        };
        Ok(Process { kind, stream: Stream::new(seed, Source::Arrivals), last_ns: 0 })
    }

    /// Arrivals ascend, so checking the last one is enough.
    pub(super) fn check_last(&self, arrival_ns: &[i64], requests: u64) -> Result<()> {
        if arrival_ns.last().is_some_and(|&last| last >= END_NS) {
            let message = format!("is too low: the last of {requests} requests would arrive after 9e9 s (285 years)");
            return Err(Error::config(self.rate_name(), message));
        }
        Ok(())
    }

    /// Name of the parameter that determines the rate.
    fn rate_name(&self) -> &'static str {
        match self {
            Arrivals::OnOff { .. } => "on_rate",
            Arrivals::TimeVarying { .. } => "rates",
            _ => "rate",
        }
    }
}

/// State of an arrival process between parts.
pub(super) struct Process {
    kind: ArrivalKind,
    /// Draws of the next requests.
    stream: Stream,
    last_ns: i64,
}

enum ArrivalKind {
    Poisson { clock: Clock, units: f64 },
    Gamma { clock: Clock, units: f64, gap: UnitGamma },
    Weibull { clock: Clock, units: f64, gap: UnitWeibull },
    Deterministic(Ticks),
    OnOff(Walk<Phases>),
    TimeVarying(Walk<Table>),
}

impl Process {
    /// Appends the next `requests` arrivals. Every part except the last is a multiple of four.
    pub(super) fn append(&mut self, requests: u64, arrival_ns: &mut Vec<i64>) {
        let stream = self.stream;
        match &mut self.kind {
            ArrivalKind::Poisson { clock, units } => exponentials(stream, requests, |gaps| {
                arrival_ns.extend(gaps.iter().map(|&gap| {
                    *clock = clock.after(gap, *units);
                    clock.nanoseconds()
                }));
            }),
            ArrivalKind::Gamma { clock, units, gap } => gap.draw(stream, requests, |gap| {
                *clock = clock.after(gap, *units);
                arrival_ns.push(clock.nanoseconds());
            }),
            ArrivalKind::Weibull { clock, units, gap } => stream.batches(requests, 0, |_, batch| {
                for value in batch.iter_mut() {
                    *value = gap.of(*value);
                }
                arrival_ns.extend(batch.iter().map(|&gap| {
                    *clock = clock.after(gap, *units);
                    clock.nanoseconds()
                }));
            }),
            ArrivalKind::Deterministic(ticks) => arrival_ns.extend((0..requests).map(|_| ticks.next_ns())),
            ArrivalKind::OnOff(phases) => walk(phases, stream, requests, self.last_ns, arrival_ns),
            ArrivalKind::TimeVarying(table) => walk(table, stream, requests, self.last_ns, arrival_ns),
        }
        self.last_ns = arrival_ns.last().copied().unwrap_or(self.last_ns);
        self.stream = stream.from(requests.next_multiple_of(4));
    }
}

/// Passes independent exponential gaps of mean 1 to `use_gaps`, one per request.
fn exponentials(stream: Stream, requests: u64, mut use_gaps: impl FnMut(&[f64])) {
    stream.batches(requests, 0, |_, batch| {
        for value in batch.iter_mut() {
            *value = exponential_quantile(*value);
        }
        use_gaps(batch);
    });
}

/// Appends the arrivals of a Poisson process with these rates, up to the first arrival beyond the end of time.
fn walk(walk: &mut Walk<impl Rates>, stream: Stream, requests: u64, last_ns: i64, arrival_ns: &mut Vec<i64>) {
    let mut over = last_ns >= END_NS;
    exponentials(stream, requests, |gaps| {
        arrival_ns.extend(gaps.iter().map(|&gap| {
            let arrival = if over { i64::MAX } else { walk.after(gap) };
            over = arrival >= END_NS;
            arrival
        }));
    });
}

/// Returns the float64 number of seconds nearest to an arrival. Up to 2²³ s (97 days) it converts back to the same
/// nanosecond; beyond, floats are coarser than nanoseconds.
#[inline]
pub fn seconds(arrival_ns: i64) -> f64 {
    const EXACT: i64 = 1 << 53;
    if arrival_ns <= EXACT {
        // Both numbers are exact, so one division rounds once.
        return arrival_ns as f64 / 1e9;
    }
    Instant::from_nanoseconds(arrival_ns.unsigned_abs()).seconds()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::arrival_nanoseconds;

    const REQUESTS: u64 = 200_000;

    fn gaps_s(arrivals: &Arrivals) -> Vec<f64> {
        let arrival_ns = arrivals.draw(REQUESTS, 5).expect("a distribution");
        let before = std::iter::once(&0).chain(&arrival_ns);
        arrival_ns.iter().zip(before).map(|(now, before)| (now - before) as f64 / 1e9).collect()
    }

    fn close(sample: f64, expected: f64, variance: f64, what: &str) {
        let bound = 5.0 * (variance / REQUESTS as f64).sqrt();
        assert!((sample - expected).abs() <= bound, "{what}: {sample} against {expected} ± {bound}");
    }

    fn mean(values: impl Iterator<Item = f64>) -> f64 {
        values.sum::<f64>() / REQUESTS as f64
    }

    /// Mean, variance and tail are within 5 standard errors; successive gaps are uncorrelated.
    #[test]
    fn poisson_gaps_are_exponential() {
        let gaps = gaps_s(&Arrivals::Poisson { rate: 4.0 });
        close(mean(gaps.iter().copied()), 0.25, 1.0 / 16.0, "mean");
        // The fourth central moment of an exponential is 9 σ⁴.
        close(mean(gaps.iter().map(|gap| (gap - 0.25).powi(2))), 1.0 / 16.0, 8.0 / 256.0, "variance");
        for multiple in [0.1, 1.0, 3.0] {
            let above = f64::exp(-multiple);
            let share = mean(gaps.iter().map(|&gap| f64::from(gap > multiple / 4.0)));
            close(share, above, above * (1.0 - above), "share of long gaps");
        }
        let products = gaps.windows(2).map(|pair| (pair[0] - 0.25) * (pair[1] - 0.25));
        close(mean(products), 0.0, 1.0 / 256.0, "covariance");
    }

    #[test]
    fn gamma_gaps_have_their_mean_and_variation() {
        for cv in [0.05, 0.5, 0.9, 1.0, 1.3, 2.0, 5.0] {
            let gaps = gaps_s(&Arrivals::Gamma { rate: 2.0, cv });
            let variance = (cv / 2.0).powi(2);
            close(mean(gaps.iter().copied()), 0.5, variance, "mean");
            // Excess kurtosis of a gamma variable: 6 / shape = 6 cv².
            let of_variance = (2.0 + 6.0 * cv * cv) * variance * variance;
            close(mean(gaps.iter().map(|gap| (gap - 0.5).powi(2))), variance, of_variance, &format!("cv {cv}"));
        }
    }

    /// A gamma of shape 1 is an exponential, a gamma of shape 4 a sum of four: both tails are known.
    #[test]
    fn gamma_gaps_have_their_tail() {
        for multiple in [0.02, 0.3, 1.0, 2.5] {
            let above = f64::exp(-multiple);
            let gaps = gaps_s(&Arrivals::Gamma { rate: 1.0, cv: 1.0 });
            close(mean(gaps.iter().map(|&gap| f64::from(gap > multiple))), above, above * (1.0 - above), "shape 1");

            let x = 4.0 * multiple;
            let above = (-x).exp() * (1.0 + x + x * x / 2.0 + x * x * x / 6.0);
            let gaps = gaps_s(&Arrivals::Gamma { rate: 1.0, cv: 0.5 });
            close(mean(gaps.iter().map(|&gap| f64::from(gap > multiple))), above, above * (1.0 - above), "shape 4");
        }
    }

    #[test]
    fn deterministic_arrivals_are_exact() {
        let draw =
            |rate: f64, requests: u64| Arrivals::Deterministic { rate }.draw(requests, 0).expect("a distribution");
        assert_eq!(draw(3.0, 3), [333_333_333, 666_666_667, 1_000_000_000]);
        assert_eq!(draw(0.1, 2), [10_000_000_000, 20_000_000_000]);
        // Ties go to the even nanosecond.
        assert_eq!(draw(2e9, 5), [0, 1, 2, 2, 2]);
        assert_eq!(draw(1e12, 2), [0, 0]);
        assert_eq!(draw(1e-9, 2), [1_000_000_000_000_000_000, 2_000_000_000_000_000_000]);
        // No error accumulates over a million gaps of 1/7 s.
        assert_eq!(draw(7.0, 1_000_000)[999_999], 142_857_142_857_143);
        // The typed decimal counts, not the nearest binary number.
        assert_eq!(draw(0.3, 300_000)[299_999], 1_000_000_000_000_000);
    }

    /// Rounding to nanoseconds does not accumulate: the sum of a million gaps is the last arrival.
    #[test]
    fn sums_do_not_drift() {
        let rate = 1e8;
        let requests = 1_000_000;
        let last = *Arrivals::Poisson { rate }.draw(requests, 3).expect("a distribution").last().expect("an arrival");
        let stream = Stream::new(3, Source::Arrivals);
        let sum_ns: f64 = (0..requests).map(|k| exponential_quantile(stream.uniform(k, 0)) * 1e9 / rate).sum();
        assert!((last as f64 - sum_ns).abs() < 1.0, "{last} against {sum_ns}");
    }

    #[test]
    fn half_the_rate_doubles_every_arrival() {
        for (fast, slow) in [
            (Arrivals::Poisson { rate: 6.0 }, Arrivals::Poisson { rate: 3.0 }),
            (Arrivals::Gamma { rate: 6.0, cv: 2.0 }, Arrivals::Gamma { rate: 3.0, cv: 2.0 }),
        ] {
            let (fast, slow) =
                (fast.draw(1000, 9).expect("a distribution"), slow.draw(1000, 9).expect("a distribution"));
            assert!(fast.iter().zip(&slow).all(|(fast, slow)| (2 * fast - slow).abs() <= 1));
            assert!(fast.is_sorted());
        }
    }

    #[test]
    fn extreme_weibull_distributions_end() {
        for (rate, shape) in [(1e12, 0.1), (1e-3, 1e6), (1.0, 0.1), (1.0, 1e6)] {
            assert!(Arrivals::Weibull { rate, shape }.draw(1000, 1).expect("a distribution").is_sorted());
        }
        for shape in [0.0, -1.0, 0.09, f64::NAN, f64::INFINITY] {
            let error = Arrivals::Weibull { rate: 1.0, shape }.draw(1, 1).expect_err("no shape").to_string();
            assert!(error.starts_with("shape: must be from"), "{error}");
        }
    }

    #[test]
    fn extreme_gamma_distributions_end() {
        for (rate, cv) in [(1e12, 1e3), (1e-3, 1e-6), (1.0, 1e3), (1.0, 1e-6)] {
            let arrival_ns = Arrivals::Gamma { rate, cv }.draw(1000, 1).expect("a distribution");
            assert!(arrival_ns.is_sorted());
        }
    }

    #[test]
    fn arrivals_beyond_the_clock_are_an_error() {
        for distribution in [
            Arrivals::Poisson { rate: 1e-9 },
            Arrivals::Gamma { rate: 1e-9, cv: 1.0 },
            Arrivals::Deterministic { rate: 1e-9 },
        ] {
            let error = distribution.draw(100_000, 1).err().map(|error| error.to_string());
            assert!(error.is_some_and(|error| error.starts_with("rate: is too low")), "{distribution:?}");
        }
    }

    #[test]
    fn seconds_read_back_to_the_same_nanosecond() {
        let stream = Stream::new(2, Source::Service);
        let end = (1_i64 << 23) * 1_000_000_000;
        for arrival_ns in [0, 1, 2, 999_999_999, 1_000_000_001, end - 1, end] {
            assert_eq!(arrival_nanoseconds(seconds(arrival_ns)), Some(arrival_ns as u64));
        }
        for draw in 0..20_000 {
            // Log-uniform sizes from nanoseconds to 97 days.
            let arrival_ns = (stream.word(draw, 0) % end as u64) as i64 >> (draw % 50);
            assert_eq!(arrival_nanoseconds(seconds(arrival_ns)), Some(arrival_ns as u64));
        }
    }

    #[test]
    fn seconds_never_decrease_beyond() {
        let start = (1_i64 << 53) - 1000;
        let column: Vec<f64> = (start..start + 2000).map(seconds).collect();
        assert!(column.is_sorted());
        assert_eq!(seconds(i64::MAX), 9_223_372_036.854_776);
    }
}
