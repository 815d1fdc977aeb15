//! Gaps between arrivals, and their sums.

use super::arrivals::RATES;
use crate::clock::decimal;
use crate::error::{Error, Result};
use crate::random::{BATCH, Stream, exponential_quantile, normal_quantile};

/// Times are summed in units of 2⁻³² ns.
const FRACTION_BITS: u32 = 32;
/// Units per second.
pub(super) const UNITS_PER_S: f64 = 1e9 * (1_u64 << FRACTION_BITS) as f64;

/// The sum of random gaps, in units of 2⁻³² ns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    pub(super) now: u128,
}

impl Clock {
    /// Returns the instant `gaps` mean gaps later.
    #[inline]
    pub(super) fn after(self, gaps: f64, units_per_mean_gap: f64) -> Clock {
        let units = gaps * units_per_mean_gap + 0.5;
        let whole = if units < i64::MAX as f64 { units as i64 as u128 } else { units as u128 };
        Clock { now: self.now.saturating_add(whole) }
    }

    /// Returns the nearest nanosecond, half to even; `i64::MAX` if it does not fit.
    #[inline]
    pub(super) fn nanoseconds(self) -> i64 {
        let odd = (self.now >> FRACTION_BITS) & 1;
        let half_to_even = (1 << (FRACTION_BITS - 1)) - 1 + odd;
        nanoseconds(self.now.saturating_add(half_to_even) >> FRACTION_BITS)
    }

    /// Returns the instant of a decimal number of seconds after 0, or `None` if it is out of range.
    pub(super) fn at(seconds: f64) -> Option<Clock> {
        // Attoseconds below 9·10²⁷ leave room for 32 further bits.
        let attoseconds = decimal(seconds, 18).filter(|_| (0.0..=9e9).contains(&seconds))?;
        Some(Clock { now: ((attoseconds << FRACTION_BITS) + 500_000_000) / 1_000_000_000 })
    }
}

/// The instants 1/rate, 2/rate, … as an integer quotient and remainder, so that only the results are rounded.
pub(super) struct Ticks {
    whole_ns: u128,
    remainder: u128,
    step_ns: u128,
    step_remainder: u128,
    divisor: u128,
}

impl Ticks {
    /// A rate has at most 17 digits, so a rate within [`RATES`] has at most 26 decimal places. Twice the largest
    /// divisor, 10³⁸, fits.
    pub(super) fn new(rate: f64) -> Result<Self> {
        const PLACES: i32 = 26;
        const DIVIDEND: u128 = 1_000_000_000 * 10_u128.pow(PLACES as u32);
        debug_assert!((RATES.0..=RATES.1).contains(&rate), "the rate is within RATES");
        let divisor = decimal(rate, PLACES).filter(|&divisor| divisor > 0);
        let divisor = divisor.ok_or_else(|| Error::overflow("a rate"))?;
        let (step_ns, step_remainder) = (DIVIDEND / divisor, DIVIDEND % divisor);
        Ok(Ticks { whole_ns: 0, remainder: 0, step_ns, step_remainder, divisor })
    }

    pub(super) fn next_ns(&mut self) -> i64 {
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

/// A Weibull variable of mean 1, by inversion: (−ln u)^(1/shape) / Γ(1 + 1/shape). Shape 1 is the exponential, bit for bit.
#[derive(Clone, Debug)]
pub(super) struct UnitWeibull {
    power: f64,
    scale: f64,
}

impl UnitWeibull {
    pub(super) fn new(shape: f64) -> Self {
        let power = 1.0 / shape;
        UnitWeibull { power, scale: 1.0 / libm::tgamma(1.0 + power) }
    }

    #[inline]
    pub(super) fn of(&self, uniform: f64) -> f64 {
        libm::pow(exponential_quantile(uniform), self.power) * self.scale
    }
}

/// A gamma variable of mean 1: Marsaglia and Tsang, "A simple method for generating gamma variables", ACM TOMS 26
/// (2000). Draw 0 is for the boost of shapes below 1; attempt j uses draws 2j + 1 (normal) and 2j + 2 (uniform).
#[derive(Clone, Debug)]
pub(super) struct UnitGamma {
    shape: f64,
    /// d and c of the paper.
    d: f64,
    c: f64,
}

impl UnitGamma {
    pub(super) fn new(shape: f64) -> Self {
        let d = if shape < 1.0 { shape + 1.0 } else { shape } - 1.0 / 3.0;
        UnitGamma { shape, d, c: 1.0 / (9.0 * d).sqrt() }
    }

    /// Passes the gaps of `requests` requests to `use_gap`, in order.
    pub(super) fn draw(&self, stream: Stream, requests: u64, mut use_gap: impl FnMut(f64)) {
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
                let gamma = self.attempt(normal, uniform).unwrap_or_else(|| self.retry(stream, request, 3));
                use_gap(gamma * boost / self.shape);
            }
        });
    }

    /// Returns the gap of one request, equal to the one that [`UnitGamma::draw`] passes for it.
    pub(super) fn draw_one(&self, stream: Stream, request: u64) -> f64 {
        let boost = if self.shape < 1.0 { libm::exp(libm::log(stream.uniform(request, 0)) / self.shape) } else { 1.0 };
        self.retry(stream, request, 1) * boost / self.shape
    }

    /// One attempt for shape d + 1/3, accepted with a probability above 0.95.
    #[inline]
    fn attempt(&self, normal: f64, uniform: f64) -> Option<f64> {
        let root = 1.0 + self.c * normal;
        if root <= 0.0 {
            return None;
        }
        let cube = root * root * root;
        let square = normal * normal;
        // The first test implies the second and saves two logarithms.
        let accepted = uniform < 1.0 - 0.0331 * square * square
            || libm::log(uniform) < 0.5 * square + self.d * (1.0 - cube + libm::log(cube));
        accepted.then_some(self.d * cube)
    }

    /// Repeats attempts from draw number `draw` on.
    fn retry(&self, stream: Stream, request: u64, mut draw: u64) -> f64 {
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
