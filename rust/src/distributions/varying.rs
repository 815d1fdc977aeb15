//! Arrivals with time-varying rates.
//!
//! The rate is piecewise constant. A gap is drawn as an amount of operational time: the expected number of requests
//! during the gap. The next arrival is where the cumulative rate has grown by that amount. With exponential gaps this
//! is exactly the non-homogeneous Poisson process (Çinlar, "Introduction to Stochastic Processes", 1975, section
//! 4.7). On a piece the arithmetic is that of a constant rate, so a single piece yields the arrivals of `Poisson` bit
//! for bit.

use super::arrivals::{END_NS, RATES};
use super::gaps::{Clock, UNITS_PER_S};
use crate::error::{Error, Result};
use crate::random::{Source, Stream, exponential_quantile};

/// An interval with one rate, in requests per second; it begins at the end of the previous piece.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Piece {
    pub(super) rate: f64,
    /// In units of the clock.
    pub(super) start: u128,
    pub(super) end: u128,
}

/// An endless sequence of pieces.
pub(super) trait Rates {
    /// Returns the next piece. `gaps` is the remaining operational time to the next arrival; an implementation may
    /// subtract whole periods from it at once.
    fn next(&mut self, gaps: &mut f64) -> Piece;
}

/// Successive arrivals along the pieces of a rate.
pub(super) struct Walk<R> {
    clock: Clock,
    piece: Piece,
    rates: R,
}

impl<R: Rates> Walk<R> {
    pub(super) fn new(mut rates: R) -> Self {
        let piece = rates.next(&mut 0.0);
        Walk { clock: Clock::default(), piece, rates }
    }

    /// Returns the rates in their current state.
    pub(super) fn rates(&self) -> &R {
        &self.rates
    }

    /// Advances by `gaps` of operational time and returns the nearest nanosecond; `i64::MAX` if it does not fit.
    pub(super) fn after(&mut self, mut gaps: f64) -> i64 {
        // The first instant beyond the limit of runs, in units.
        const END: u128 = (END_NS as u128) << 32;
        loop {
            let Piece { rate, end, .. } = self.piece;
            if rate > 0.0 {
                let units_per_mean_gap = UNITS_PER_S / rate;
                let arrival = self.clock.after(gaps, units_per_mean_gap);
                if arrival.now <= end {
                    self.clock = arrival;
                    return arrival.nanoseconds();
                }
                gaps = (gaps - (end - self.clock.now) as f64 / units_per_mean_gap).max(0.0);
            }
            if end >= END {
                return i64::MAX;
            }
            self.piece = self.rates.next(&mut gaps);
            self.clock.now = self.piece.start;
        }
    }
}

/// A rate from a table, which is repeated or keeps its last rate.
pub(super) struct Table {
    starts: Vec<u128>,
    rates: Vec<f64>,
    period: Option<Period>,
    /// Start of the current period.
    origin: u128,
    place: usize,
}

struct Period {
    units: u128,
    /// Expected requests per period.
    requests: f64,
}

impl Table {
    /// Builds a table. The error names the invalid parameter: `times_s`, `rates` or `period_s`.
    pub(super) fn new(times_s: &[f64], rates: &[f64], period_s: Option<f64>) -> Result<Self> {
        if times_s.is_empty() || times_s[0] != 0.0 {
            return Err(Error::config("times_s", "must begin with 0"));
        }
        if rates.len() != times_s.len() {
            let message = format!("must have one rate per time, got {} rates and {} times", rates.len(), times_s.len());
            return Err(Error::config("rates", message));
        }
        let units = |field: &str, seconds: f64| {
            let bad = || Error::config(field, format!("must be from 0 to 9e9 s, got {seconds:?}"));
            Clock::at(seconds).map(|clock| clock.now).ok_or_else(bad)
        };
        let mut starts = Vec::with_capacity(times_s.len());
        for (place, &time) in times_s.iter().enumerate() {
            let start = units(&format!("times_s[{place}]"), time)?;
            if starts.last().is_some_and(|&before| start <= before) {
                let message = format!("must be greater than the previous time, got {time:?}");
                return Err(Error::config(format!("times_s[{place}]"), message));
            }
            starts.push(start);
        }
        for (place, &rate) in rates.iter().enumerate() {
            check_rate(&format!("rates[{place}]"), rate)?;
        }
        let last = starts[starts.len() - 1];
        let period = match period_s {
            None => None,
            Some(seconds) => {
                let end = units("period_s", seconds)?;
                if end <= last {
                    let message = format!("must be greater than the last of times_s, got {seconds:?}");
                    return Err(Error::config("period_s", message));
                }
                let ends = starts[1..].iter().chain([&end]);
                let pieces = starts.iter().zip(ends).zip(rates);
                let requests = pieces.map(|((start, end), rate)| (end - start) as f64 * (rate / UNITS_PER_S)).sum();
                Some(Period { units: end, requests })
            }
        };
        let stops =
            if period.is_some() { rates.iter().all(|&rate| rate == 0.0) } else { rates[rates.len() - 1] == 0.0 };
        if stops {
            let message = "must be positive in some piece of the period, or in the last piece without a period; otherwise no \
                           further request arrives";
            return Err(Error::config("rates", message));
        }
        Ok(Table { starts, rates: rates.to_vec(), period, origin: 0, place: 0 })
    }
}

impl Rates for Table {
    fn next(&mut self, gaps: &mut f64) -> Piece {
        if self.place == self.rates.len() {
            self.place = 0;
            if let Some(period) = &self.period {
                self.origin = self.origin.saturating_add(period.units);
                // Skip periods without an arrival: the rest is below one period's requests.
                let rounds = (*gaps / period.requests).floor();
                if rounds >= 1.0 {
                    *gaps = (*gaps - rounds * period.requests).max(0.0);
                    self.origin = self.origin.saturating_add((rounds as u128).saturating_mul(period.units));
                }
            }
        }
        let place = self.place;
        self.place += 1;
        let end = match (self.starts.get(self.place), &self.period) {
            (Some(&next), _) => self.origin.saturating_add(next),
            (None, Some(period)) => self.origin.saturating_add(period.units),
            (None, None) => u128::MAX,
        };
        Piece { rate: self.rates[place], start: self.origin.saturating_add(self.starts[place]), end }
    }
}

/// Two alternating rates with exponential durations: a Markov-modulated Poisson process. The first phase is drawn
/// from the stationary distribution; its remaining duration is again exponential. Phase j uses draw 0 of j in its own
/// source; the choice of the first phase uses draw 1 of phase 0.
pub(super) struct Phases {
    stream: Stream,
    /// Rates and mean durations of the on and off phases.
    kinds: [(f64, f64); 2],
    /// 0 for on.
    kind: usize,
    phase: u64,
    end: u128,
}

/// Lower bound of the requests in a pair of phases; below it, each request would need too many phases.
const MIN_REQUESTS: f64 = 1e-3;
/// Range of mean phase durations, in seconds.
const PHASES: (f64, f64) = (1e-9, 1e9);

impl Phases {
    /// Returns an error that names the invalid parameter, if any.
    pub(super) fn check(on_rate: f64, off_rate: f64, mean_on_s: f64, mean_off_s: f64) -> Result<()> {
        check_rate("on_rate", on_rate)?;
        check_rate("off_rate", off_rate)?;
        for (field, mean) in [("mean_on_s", mean_on_s), ("mean_off_s", mean_off_s)] {
            super::within(field, mean, PHASES)?;
        }
        if on_rate == 0.0 && off_rate == 0.0 {
            return Err(Error::config("on_rate", "must be positive if off_rate is 0; otherwise no request arrives"));
        }
        let requests = on_rate * mean_on_s + off_rate * mean_off_s;
        if requests < MIN_REQUESTS {
            let message = format!(
                "must be longer: an on and an off phase together have {requests:e} requests on average, fewer than \
                 {MIN_REQUESTS:e}; with such short phases use Poisson"
            );
            return Err(Error::config("mean_on_s", message));
        }
        Ok(())
    }

    pub(super) fn new(seed: u64, on: (f64, f64), off: (f64, f64)) -> Self {
        let stream = Stream::new(seed, Source::Phase);
        let share_on = on.1 / (on.1 + off.1);
        let kind = usize::from(stream.uniform(0, 1) >= share_on);
        Phases { stream, kinds: [on, off], kind, phase: 0, end: 0 }
    }
}

impl Rates for Phases {
    fn next(&mut self, _gaps: &mut f64) -> Piece {
        let (rate, mean_s) = self.kinds[self.kind];
        let start = Clock { now: self.end };
        let length = exponential_quantile(self.stream.uniform(self.phase, 0));
        self.end = start.after(length, mean_s * UNITS_PER_S).now;
        self.phase += 1;
        self.kind = 1 - self.kind;
        Piece { rate, start: start.now, end: self.end }
    }
}

/// Checks that a rate is 0 or within [`RATES`].
pub(super) fn check_rate(field: &str, rate: f64) -> Result<()> {
    if rate == 0.0 {
        return Ok(());
    }
    let (low, high) = RATES;
    if !(low..=high).contains(&rate) {
        return Err(Error::config(field, format!("must be 0, or from {low:e} to {high:e}, got {rate:?}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Arrivals;

    const REQUESTS: u64 = 200_000;

    fn varying(times_s: &[f64], rates: &[f64], period_s: Option<f64>) -> Arrivals {
        Arrivals::TimeVarying { times_s: times_s.to_vec(), rates: rates.to_vec(), period_s }
    }

    fn draw(distribution: &Arrivals) -> Vec<i64> {
        distribution.draw(REQUESTS, 5).expect("a distribution")
    }

    /// Arrivals before the second piece do not depend on it.
    #[test]
    fn the_past_does_not_depend_on_the_future() {
        let (constant, stepped) =
            (draw(&varying(&[0.0], &[4.0], None)), draw(&varying(&[0.0, 500.0], &[4.0, 11.0], None)));
        let before = constant.iter().filter(|&&at| at <= 500_000_000_000).count();
        assert!(before > 1500);
        assert_eq!(constant[..before], stepped[..before]);
        assert_ne!(constant[before..], stepped[before..]);
    }

    /// Equal rates on all pieces are one Poisson process: the residue of a gap is carried across each edge without
    /// loss.
    #[test]
    fn pieces_of_one_rate_are_one_process() {
        let whole = draw(&Arrivals::Poisson { rate: 4.0 });
        for distribution in [
            varying(&[0.0, 0.1, 0.7, 12.0], &[4.0; 4], None),
            varying(&[0.0, 0.01], &[4.0; 2], Some(0.05)),
            varying(&[0.0], &[4.0], Some(1e-7)),
        ] {
            // Float sums of 200,000 gaps differ slightly: the error is below 1 part in 10¹⁵ of a gap's residue.
            assert!(
                draw(&distribution).iter().zip(&whole).all(|(at, expected)| (at - expected).abs() <= 1),
                "{distribution:?}"
            );
        }
    }

    /// In operational time, arrivals are a Poisson process of rate 1: mean and variance of the gaps are within 5
    /// standard errors (the fourth central moment of an exponential is 9 σ⁴).
    #[test]
    fn operational_time_is_a_poisson_process() {
        // Each period of 10 s has 3·2 + 0 + 5·1 = 11 expected requests.
        let arrivals = draw(&varying(&[0.0, 3.0, 5.0], &[2.0, 0.0, 1.0], Some(10.0)));
        let passed = |at: i64| {
            let (rounds, at_s) = ((at / 10_000_000_000) as f64, (at % 10_000_000_000) as f64 / 1e9);
            rounds * 11.0 + 2.0 * at_s.min(3.0) + (at_s - 5.0).max(0.0)
        };
        assert!(arrivals.iter().all(|&at| !(3_000_000_001..5_000_000_000).contains(&(at % 10_000_000_000))));
        let mut last = 0.0;
        let gaps: Vec<f64> = arrivals.iter().map(|&at| passed(at) - std::mem::replace(&mut last, passed(at))).collect();
        let (n, mean) = (REQUESTS as f64, last / REQUESTS as f64);
        let variance = gaps.iter().map(|gap| (gap - 1.0).powi(2)).sum::<f64>() / n;
        assert!((mean - 1.0).abs() < 5.0 / n.sqrt(), "{mean}");
        assert!((variance - 1.0).abs() < 5.0 * (8.0 / n).sqrt(), "{variance}");
    }

    #[test]
    fn equal_phases_are_a_poisson_process() {
        let distribution = Arrivals::OnOff { on_rate: 4.0, off_rate: 4.0, mean_on_s: 0.3, mean_off_s: 2.0 };
        let whole = draw(&Arrivals::Poisson { rate: 4.0 });
        assert!(draw(&distribution).iter().zip(&whole).all(|(at, expected)| (at - expected).abs() <= 1));
    }

    /// Counts in windows of a stationary on-off process with rates r and 0: mean r·p·t and variance r p t + 2 r² p (1
    /// − p) (t/s − (1 − e^(−s t))/s²), where p is the share of on and s the sum of the two switching rates (Fischer
    /// and Meier-Hellstern, "The Markov-modulated Poisson process cookbook", 1993). Independent replications, 5
    /// standard errors; that of the variance comes from the sample's fourth moment.
    #[test]
    fn counts_of_an_on_off_process_have_their_moments() {
        let (r, on, off, t) = (5.0, 2.0, 6.0, 4.0);
        let distribution = Arrivals::OnOff { on_rate: r, off_rate: 0.0, mean_on_s: on, mean_off_s: off };
        let counts: Vec<f64> = (0..20_000)
            .map(|seed| {
                distribution
                    .draw(120, seed)
                    .expect("a distribution")
                    .iter()
                    .filter(|&&at| (at as f64) < t * 1e9)
                    .count() as f64
            })
            .collect();
        assert!(counts.iter().all(|&count| count < 120.0), "every window is complete");
        let (p, s) = (on / (on + off), 1.0 / on + 1.0 / off);
        let mean = r * p * t;
        let variance = mean + 2.0 * r * r * p * (1.0 - p) * (t / s - (1.0 - f64::exp(-s * t)) / (s * s));
        let n = counts.len() as f64;
        let moment = |power: i32| counts.iter().map(|count| (count - mean).powi(power)).sum::<f64>() / n;
        assert!(moment(1).abs() < 5.0 * (variance / n).sqrt(), "{} ", moment(1));
        let error = ((moment(4) - moment(2).powi(2)) / n).sqrt();
        assert!((moment(2) - variance).abs() < 5.0 * error, "{} against {variance} ± {error}", moment(2));
    }

    #[test]
    fn long_silences_cost_nothing() {
        let distribution = varying(&[0.0, 1e-6], &[1e-3, 0.0], Some(1e-3));
        assert!(distribution.draw(1000, 1).expect("a distribution").is_sorted());
        let error = distribution.draw(100_000, 1).expect_err("arrivals beyond the clock").to_string();
        assert!(error.starts_with("rates: is too low"), "{error}");
    }

    #[test]
    fn bad_rates_are_named() {
        let on_off =
            |on_rate, off_rate, mean_on_s, mean_off_s| Arrivals::OnOff { on_rate, off_rate, mean_on_s, mean_off_s };
        for (distribution, expected) in [
            (varying(&[], &[], None), "times_s: must begin with 0"),
            (varying(&[0.0, f64::NAN], &[1.0; 2], None), "times_s[1]: must be from 0"),
            (varying(&[0.0, 2.0], &[1.0], None), "rates: must have one rate per time"),
            (on_off(-1.0, 0.0, 1.0, 1.0), "on_rate: must be 0, or from"),
            (on_off(1.0, f64::NAN, 1.0, 1.0), "off_rate: must be 0, or from"),
            (on_off(1.0, 0.0, 1.0, f64::INFINITY), "mean_off_s: must be from"),
            (on_off(1e-3, 0.0, 1e-3, 1e-3), "mean_on_s: must be longer"),
        ] {
            let error = distribution.draw(1, 0).expect_err("a bad distribution").to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
