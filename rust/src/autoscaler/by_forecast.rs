//! As many as the load will need when they are there.

use std::collections::VecDeque;

use super::prelude::*;

/// As many replicas as the arrivals will need that a line through the last two windows foretells.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ByForecast {
    /// Requests a second that a replica serves.
    pub requests_per_s: f64,
    /// Seconds over which arrivals are counted.
    pub window_s: f64,
    /// How many seconds the forecast lies ahead.
    pub ahead_s: f64,
}

impl ScalingParameters for ByForecast {
    fn build(&self) -> Result<Box<dyn ScalingPolicy>> {
        let ByForecast { requests_per_s, window_s, ahead_s } = *self;
        if !(requests_per_s.is_finite() && requests_per_s > 0.0) {
            let what = format!("{requests_per_s}: must be a finite number above 0");
            return Err(Error::config("requests_per_s", what));
        }
        attoseconds(ahead_s, "ahead_s")?;
        let window = seconds_above_0(window_s, "window_s")?;
        Ok(Box::new(Forecast { parameters: self.clone(), window, looks: VecDeque::new() }))
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

/// With c₁ arrivals in the window before the look and c₀ in the one before that, (c₁ + (c₁ − c₀) · ahead / window) / window
/// are expected a second. What had come by an instant is what had come at the last look up to then.
struct Forecast {
    parameters: ByForecast,
    window: Span,
    /// What had come at each look, the last two windows and one look before them.
    looks: VecDeque<(Instant, u64)>,
}

impl Forecast {
    /// What had come at the last look that is at least so many windows ago.
    fn arrived_before(&self, now: Instant, windows: u128) -> u64 {
        let Some(at) = self.window.0.checked_mul(windows).and_then(|span| now.0.checked_sub(span)) else { return 0 };
        self.looks.iter().rev().find(|look| look.0.0 <= at).map_or(0, |look| look.1)
    }
}

impl ScalingPolicy for Forecast {
    fn wanted(&mut self, figures: &Figures) -> Result<usize> {
        let (now, arrived) = (figures.now, figures.arrived);
        let (one, two) = (self.arrived_before(now, 1), self.arrived_before(now, 2));
        self.looks.push_back((now, arrived));
        let first_needed = now.0.saturating_sub(self.window.0.saturating_mul(2));
        while self.looks.get(1).is_some_and(|second| second.0.0 <= first_needed) {
            self.looks.pop_front();
        }
        let (last, before) = ((arrived - one) as f64, (one - two) as f64);
        let ByForecast { requests_per_s, window_s, ahead_s } = self.parameters;
        let expected = (last + (last - before) * (ahead_s / window_s)) / window_s;
        Ok(replicas_for(expected, requests_per_s))
    }
}
