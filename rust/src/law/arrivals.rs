//! When do the requests of a law arrive?
//!
//! The first request arrives one gap after 0. A random gap is rounded once, to a whole number of 2⁻³² nanoseconds (a
//! quarter of an attosecond); gaps are summed in whole numbers and each sum is rounded to the nearest nanosecond, half
//! to even. So arrivals are in order, no rounding of one arrival is handed to the next, and half the rate doubles every
//! arrival (to the nanosecond). With [`Arrivals::Deterministic`] arrival k is (k + 1) / rate for the rate's shortest
//! decimal, rounded once.

use super::column;
use crate::clock::{Instant, decimal};
use crate::error::{Error, Result};
use crate::random::{BATCH, Source, Stream, exponential_quantile, normal_quantile};
use serde::Deserialize;

/// Arrivals lie before this instant: the end of what `arrival_s` may be.
const END_NS: i64 = 9_000_000_000_000_000_000;
/// Rates that the whole arithmetic of this module can hold, in requests per second.
const RATES: (f64, f64) = (1e-9, 1e12);
/// Coefficients of variation for which a gamma law can be told from its limits by 64-bit floats.
const VARIATIONS: (f64, f64) = (1e-6, 1e3);

/// When requests arrive: the law of the gap between two arrivals. Rates are in requests per second.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", deny_unknown_fields)]
pub enum Arrivals {
    /// Independent exponential gaps of mean 1 / rate.
    Poisson {
        /// Requests per second.
        rate: f64,
    },
    /// Independent gamma gaps of mean 1 / rate; `cv` 1 is Poisson's law, less is smoother, more is burstier.
    Gamma {
        /// Requests per second.
        rate: f64,
        /// Coefficient of variation of a gap: its standard deviation over its mean.
        cv: f64,
    },
    /// Equal gaps: arrival k (from 0) at (k + 1) / rate.
    Deterministic {
        /// Requests per second.
        rate: f64,
    },
}

impl Arrivals {
    /// Says which parameter is wrong, if one is.
    pub fn check(&self) -> Result<()> {
        let (Arrivals::Poisson { rate } | Arrivals::Gamma { rate, .. } | Arrivals::Deterministic { rate }) = self;
        within("rate", *rate, RATES)?;
        match self {
            Arrivals::Gamma { cv, .. } => within("cv", *cv, VARIATIONS),
            Arrivals::Poisson { .. } | Arrivals::Deterministic { .. } => Ok(()),
        }
    }

    /// Arrivals of `requests` requests under `seed`, in nanoseconds, never decreasing. An arrival at 9·10⁹ s or later is
    /// an error, because no run takes it.
    pub fn draw(&self, requests: u64, seed: u64) -> Result<Vec<i64>> {
        self.check()?;
        let mut arrival_ns = column(requests)?;
        let stream = Stream::new(seed, Source::Arrivals);
        match *self {
            Arrivals::Poisson { rate } => {
                let mut clock = Clock::new(rate);
                stream.batches(requests, 0, |_, batch| {
                    for value in batch.iter_mut() {
                        *value = exponential_quantile(*value);
                    }
                    arrival_ns.extend(batch.iter().map(|&gap| clock.after(gap)));
                });
            }
            Arrivals::Gamma { rate, cv } => {
                let mut clock = Clock::new(rate);
                let gap = UnitGamma::new(1.0 / (cv * cv));
                gap.draw(stream, requests, |gap| arrival_ns.push(clock.after(gap)));
            }
            Arrivals::Deterministic { rate } => {
                let mut ticks = Ticks::new(rate)?;
                arrival_ns.extend((0..requests).map(|_| ticks.next_ns()));
            }
        }
        if arrival_ns.last().is_some_and(|&last| last >= END_NS) {
            let message = format!("is too low: the last of {requests} requests would arrive after 9e9 s (285 years)");
            return Err(Error::config("rate", message));
        }
        Ok(arrival_ns)
    }
}

/// The float64 number of seconds nearest to an arrival. Up to 2²³ s (97 days) it is read back as the same nanosecond;
/// beyond, floats lie further apart than nanoseconds.
#[inline]
pub fn seconds(arrival_ns: i64) -> f64 {
    const EXACT: i64 = 1 << 53;
    if arrival_ns <= EXACT {
        // Both numbers are exact, so one division rounds once.
        return arrival_ns as f64 / 1e9;
    }
    Instant::from_nanoseconds(arrival_ns.unsigned_abs()).seconds()
}

/// The sum of random gaps, in whole units of 2⁻³² ns.
struct Clock {
    now: u128,
    units_per_mean_gap: f64,
}

impl Clock {
    const FRACTION_BITS: u32 = 32;

    fn new(rate: f64) -> Self {
        let units_per_s = 1e9 * (1_u64 << Self::FRACTION_BITS) as f64;
        Clock { now: 0, units_per_mean_gap: units_per_s / rate }
    }

    /// Moves on by `gaps` mean gaps and gives the nearest nanosecond; `i64::MAX` when it is past all of them.
    #[inline]
    fn after(&mut self, gaps: f64) -> i64 {
        let units = gaps * self.units_per_mean_gap + 0.5;
        let whole = if units < i64::MAX as f64 { units as i64 as u128 } else { units as u128 };
        self.now = self.now.saturating_add(whole);
        let odd = (self.now >> Self::FRACTION_BITS) & 1;
        let half_to_even = (1 << (Self::FRACTION_BITS - 1)) - 1 + odd;
        nanoseconds(self.now.saturating_add(half_to_even) >> Self::FRACTION_BITS)
    }
}

/// The instants 1/rate, 2/rate, … as a whole quotient and a remainder, so that nothing is ever rounded but the answer.
struct Ticks {
    whole_ns: u128,
    remainder: u128,
    step_ns: u128,
    step_remainder: u128,
    divisor: u128,
}

impl Ticks {
    /// A rate has at most 17 digits, so none of `RATES` has more than 26 places; two times the largest divisor, 10³⁸, fits.
    fn new(rate: f64) -> Result<Self> {
        const PLACES: i32 = 26;
        const DIVIDEND: u128 = 1_000_000_000 * 10_u128.pow(PLACES as u32);
        let divisor = decimal(rate, PLACES).filter(|&divisor| divisor > 0);
        let divisor = divisor.ok_or_else(|| Error::overflow("a rate"))?;
        let (step_ns, step_remainder) = (DIVIDEND / divisor, DIVIDEND % divisor);
        Ok(Ticks { whole_ns: 0, remainder: 0, step_ns, step_remainder, divisor })
    }

    fn next_ns(&mut self) -> i64 {
        self.whole_ns += self.step_ns;
        self.remainder += self.step_remainder;
        if self.remainder >= self.divisor {
            self.remainder -= self.divisor;
            self.whole_ns += 1;
        }
        let odd = self.whole_ns & 1;
        nanoseconds(self.whole_ns + u128::from(2 * self.remainder + odd > self.divisor))
    }
}

/// A gamma variable of mean 1: Marsaglia and Tsang, "A simple method for generating gamma variables", ACM TOMS 26
/// (2000). Draw 0 is for the boost of shapes below 1; attempt j takes draws 2j + 1 (normal) and 2j + 2 (uniform).
struct UnitGamma {
    shape: f64,
    /// d and c of the paper.
    d: f64,
    c: f64,
}

impl UnitGamma {
    fn new(shape: f64) -> Self {
        let d = if shape < 1.0 { shape + 1.0 } else { shape } - 1.0 / 3.0;
        UnitGamma { shape, d, c: 1.0 / (9.0 * d).sqrt() }
    }

    /// Hands the gaps of `requests` requests to `use_gap`, in their order.
    fn draw(&self, stream: Stream, requests: u64, mut use_gap: impl FnMut(f64)) {
        let (mut uniforms, mut boosts) = ([0.0; BATCH], [1.0; BATCH]);
        stream.batches(requests, 1, |first, normals| {
            stream.fill(first, 2, &mut uniforms[..normals.len()]);
            for value in normals.iter_mut() {
                *value = normal_quantile(*value);
            }
            if self.shape < 1.0 {
                let boosts = &mut boosts[..normals.len()];
                stream.fill(first, 0, boosts);
                for value in boosts.iter_mut() {
                    *value = libm::exp(libm::log(*value) / self.shape);
                }
            }
            for (request, ((&normal, &uniform), boost)) in (first..).zip(normals.iter().zip(&uniforms).zip(&boosts)) {
                let gamma = self.attempt(normal, uniform).unwrap_or_else(|| self.again(stream, request));
                use_gap(gamma * boost / self.shape);
            }
        });
    }

    /// One attempt of shape d + 1/3; it succeeds with a probability above 0.95.
    #[inline]
    fn attempt(&self, normal: f64, uniform: f64) -> Option<f64> {
        let root = 1.0 + self.c * normal;
        if root <= 0.0 {
            return None;
        }
        let cube = root * root * root;
        let square = normal * normal;
        // The first test implies the second and spares two logarithms.
        let accepted = uniform < 1.0 - 0.0331 * square * square
            || libm::log(uniform) < 0.5 * square + self.d * (1.0 - cube + libm::log(cube));
        accepted.then_some(self.d * cube)
    }

    /// The attempts after the first.
    #[cold]
    fn again(&self, stream: Stream, request: u64) -> f64 {
        let mut draw = 3;
        loop {
            let normal = normal_quantile(stream.uniform(request, draw));
            if let Some(gamma) = self.attempt(normal, stream.uniform(request, draw + 1)) {
                return gamma;
            }
            draw += 2;
        }
    }
}

fn nanoseconds(whole: u128) -> i64 {
    i64::try_from(whole).unwrap_or(i64::MAX)
}

/// Not a number lies in no range, so it fails here too.
fn within(field: &str, value: f64, (low, high): (f64, f64)) -> Result<()> {
    if !(low..=high).contains(&value) {
        return Err(Error::config(field, format!("must be from {low:e} to {high:e}, got {value:?}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::arrival_nanoseconds;

    const REQUESTS: u64 = 200_000;

    fn gaps_s(arrivals: &Arrivals) -> Vec<f64> {
        let arrival_ns = arrivals.draw(REQUESTS, 5).expect("a law");
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

    /// Mean, variance and tail within 5 standard errors; successive gaps are uncorrelated.
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

    /// A gamma of shape 1 is an exponential, one of shape 4 a sum of four: their tails are known.
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
        let draw = |rate: f64, requests: u64| Arrivals::Deterministic { rate }.draw(requests, 0).expect("a law");
        assert_eq!(draw(3.0, 3), [333_333_333, 666_666_667, 1_000_000_000]);
        assert_eq!(draw(0.1, 2), [10_000_000_000, 20_000_000_000]);
        // Ties go to the even nanosecond.
        assert_eq!(draw(2e9, 5), [0, 1, 2, 2, 2]);
        assert_eq!(draw(1e12, 2), [0, 0]);
        assert_eq!(draw(1e-9, 2), [1_000_000_000_000_000_000, 2_000_000_000_000_000_000]);
        // A million gaps of 1/7 s: no error has gathered.
        assert_eq!(draw(7.0, 1_000_000)[999_999], 142_857_142_857_143);
        // The decimal that was typed counts, not its binary neighbour.
        assert_eq!(draw(0.3, 300_000)[299_999], 1_000_000_000_000_000);
    }

    /// Rounding to nanoseconds leaves the long run alone: the sum of a million gaps is the last arrival.
    #[test]
    fn sums_do_not_drift() {
        let rate = 1e8;
        let requests = 1_000_000;
        let last = *Arrivals::Poisson { rate }.draw(requests, 3).expect("a law").last().expect("an arrival");
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
            let (fast, slow) = (fast.draw(1000, 9).expect("a law"), slow.draw(1000, 9).expect("a law"));
            assert!(fast.iter().zip(&slow).all(|(fast, slow)| (2 * fast - slow).abs() <= 1));
            assert!(fast.is_sorted());
        }
    }

    #[test]
    fn extreme_gamma_laws_end() {
        for (rate, cv) in [(1e12, 1e3), (1e-3, 1e-6), (1.0, 1e3), (1.0, 1e-6)] {
            let arrival_ns = Arrivals::Gamma { rate, cv }.draw(1000, 1).expect("a law");
            assert!(arrival_ns.is_sorted());
        }
    }

    #[test]
    fn arrivals_beyond_the_clock_are_an_error() {
        for law in [
            Arrivals::Poisson { rate: 1e-9 },
            Arrivals::Gamma { rate: 1e-9, cv: 1.0 },
            Arrivals::Deterministic { rate: 1e-9 },
        ] {
            let error = law.draw(100_000, 1).err().map(|error| error.to_string());
            assert!(error.is_some_and(|error| error.starts_with("rate: is too low")), "{law:?}");
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
            // All sizes alike, from nanoseconds to 97 days.
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
