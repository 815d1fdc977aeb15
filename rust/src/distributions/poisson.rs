//! Poisson variables, drawn exactly for any mean.

use super::within;
use crate::error::Result;
use crate::random::{BATCH, Stream};

/// A Poisson variable. Below a mean of 10 by inversion (draw 0); otherwise by transformed rejection (PTRS of Hörmann,
/// "The transformed rejection method for generating Poisson random variables", Insurance: Mathematics and Economics
/// 12, 1993), where attempt j uses draws 2j and 2j + 1 and is accepted with a probability above 0.85.
pub(super) enum Poisson {
    Inversion { mean: f64, none: f64 },
    Rejection(Rejection),
}

pub(super) struct Rejection {
    mean: f64,
    log_mean: f64,
    /// a, b, ln(1/α) and v_r of the paper.
    a: f64,
    b: f64,
    log_inverse_alpha: f64,
    accepted: f64,
}

impl Poisson {
    pub(super) fn check(mean: f64) -> Result<()> {
        within("mean", mean, (1e-9, 1e6))
    }

    pub(super) fn new(mean: f64) -> Self {
        if mean < 10.0 {
            return Poisson::Inversion { mean, none: libm::exp(-mean) };
        }
        let b = 0.931 + 2.53 * mean.sqrt();
        Poisson::Rejection(Rejection {
            mean,
            log_mean: libm::log(mean),
            a: -0.059 + 0.02483 * b,
            b,
            log_inverse_alpha: libm::log(1.1239 + 1.1328 / (b - 3.4)),
            accepted: 0.9277 - 3.6224 / (b - 2.0),
        })
    }

    /// Passes the values of `requests` requests to `use_value`, in order. All values are integers.
    pub(super) fn draw(&self, stream: Stream, requests: u64, mut use_value: impl FnMut(f64)) {
        match self {
            Poisson::Inversion { mean, none } => stream.batches(requests, 0, |_, batch| {
                batch.iter().for_each(|&uniform| use_value(inverse(*mean, *none, uniform)));
            }),
            Poisson::Rejection(rejection) => {
                let mut seconds = [0.0; BATCH];
                stream.batches(requests, 0, |first, batch| {
                    stream.fill(first, 1, &mut seconds[..batch.len()]);
                    for (request, (&first, &second)) in (first..).zip(batch.iter().zip(&seconds)) {
                        use_value(rejection.attempt(first, second).unwrap_or_else(|| rejection.retry(stream, request)));
                    }
                });
            }
        }
    }
}

/// Returns the least k with P(at most k) ≥ `uniform`, given P(0).
fn inverse(mean: f64, none: f64, uniform: f64) -> f64 {
    let (mut value, mut probability, mut sum) = (0.0, none, none);
    while sum < uniform {
        value += 1.0;
        probability *= mean / value;
        let next = sum + probability;
        if next == sum {
            break; // further terms do not change the sum
        }
        sum = next;
    }
    value
}

impl Rejection {
    #[inline]
    fn attempt(&self, first: f64, second: f64) -> Option<f64> {
        let centered = first - 0.5;
        let edge = 0.5 - centered.abs();
        let value = ((2.0 * self.a / edge + self.b) * centered + self.mean + 0.43).floor();
        // The first test implies the last and saves three logarithms.
        if edge >= 0.07 && second <= self.accepted {
            return Some(value);
        }
        if value < 0.0 || (edge < 0.013 && second > edge) {
            return None;
        }
        let left = libm::log(second) + self.log_inverse_alpha - libm::log(self.a / (edge * edge) + self.b);
        (left <= value * self.log_mean - self.mean - libm::lgamma(value + 1.0)).then_some(value)
    }

    /// Repeats attempts after the first.
    fn retry(&self, stream: Stream, request: u64) -> f64 {
        let mut draw = 2;
        loop {
            if let Some(value) = self.attempt(stream.uniform(request, draw), stream.uniform(request, draw + 1)) {
                return value;
            }
            draw += 2;
        }
    }
}
