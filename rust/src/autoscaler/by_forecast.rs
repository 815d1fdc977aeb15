//! Scaling by a forecast of the arrival rate.

use std::collections::VecDeque;

use super::prelude::*;

/// Enough replicas for the arrival rate that a line through the last two windows predicts.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ByForecast {
    /// Requests per second that one replica serves.
    pub requests_per_s: f64,
    /// Length of a window, in seconds.
    pub window_s: f64,
    /// Forecast horizon, in seconds.
    pub ahead_s: f64,
}

impl ScalingParameters for ByForecast {
    fn build(&self) -> Result<Box<dyn ScalingPolicy>> {
        let ByForecast { requests_per_s, window_s, ahead_s } = *self;
        if !(requests_per_s.is_finite() && requests_per_s > 0.0) {
            let what = format!("must be finite and above 0, got {requests_per_s}");
            return Err(Error::config("requests_per_s", what));
        }
        attoseconds(ahead_s, "ahead_s")?;
        let window = seconds_above_0(window_s, "window_s")?;
        Ok(Box::new(Forecast { parameters: self.clone(), window, evaluations: VecDeque::new() }))
    }
}

impl Sample for ByForecast {
    fn sample(dice: &mut Dice) -> ByForecast {
        ByForecast {
            requests_per_s: dice.one_of(&[50.0, 3.0, 400.0]),
            window_s: dice.one_of(&[0.05, 0.3]),
            ahead_s: dice.one_of(&[0.0, 0.1, 1.0]),
        }
    }
}

/// With c₁ arrivals in the last window and c₀ in the one before, the expected rate is (c₁ + (c₁ − c₀) · ahead /
/// window) / window per second. Arrivals are counted at evaluations: the count at an instant is the count of the last
/// evaluation up to it.
struct Forecast {
    parameters: ByForecast,
    window: Span,
    /// Arrivals counted at each evaluation of the last two windows, and at one evaluation before them.
    evaluations: VecDeque<(Instant, u64)>,
}

impl Forecast {
    /// Arrivals counted at the last evaluation that is at least `windows` windows ago.
    fn arrived_before(&self, now: Instant, windows: u128) -> u64 {
        let Some(at) = self.window.0.checked_mul(windows).and_then(|span| now.0.checked_sub(span)) else { return 0 };
        self.evaluations.iter().rev().find(|evaluation| evaluation.0.0 <= at).map_or(0, |evaluation| evaluation.1)
    }
}

impl ScalingPolicy for Forecast {
    fn wanted(&mut self, figures: &Figures) -> Result<usize> {
        let (now, arrived) = (figures.now, figures.arrived);
        let (one_window_ago, two_windows_ago) = (self.arrived_before(now, 1), self.arrived_before(now, 2));
        self.evaluations.push_back((now, arrived));
        let first_needed = now.0.saturating_sub(self.window.0.saturating_mul(2));
        while self.evaluations.get(1).is_some_and(|second| second.0.0 <= first_needed) {
            self.evaluations.pop_front();
        }
        let (last, before) = ((arrived - one_window_ago) as f64, (one_window_ago - two_windows_ago) as f64);
        let ByForecast { requests_per_s, window_s, ahead_s } = self.parameters;
        let expected = (last + (last - before) * (ahead_s / window_s)) / window_s;
        Ok(replicas_for(expected, requests_per_s))
    }
}
