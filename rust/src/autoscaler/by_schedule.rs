//! Scaling by time of day.

use super::prelude::*;

/// A fixed number of replicas per time interval.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BySchedule {
    /// Start in seconds and number of replicas of each step, in order of time.
    pub steps: Vec<(f64, usize)>,
    /// Period of the schedule, in seconds. `None`: it does not repeat, and the last step stays.
    #[serde(default)]
    pub period_s: Option<f64>,
}

impl ScalingParameters for BySchedule {
    fn build(&self) -> Result<Box<dyn ScalingPolicy>> {
        if self.steps.is_empty() {
            return Err(Error::config("steps", "must have at least one step, got none"));
        }
        let period = self.period_s.map(|seconds| seconds_above_0(seconds, "period_s")).transpose()?;
        let mut steps: Vec<(u128, usize)> = Vec::new();
        for (place, &(seconds, replicas)) in self.steps.iter().enumerate() {
            let field = format!("steps[{place}]");
            let at = attoseconds(seconds, &field)?;
            if steps.last().is_some_and(|last| last.0 >= at) {
                return Err(Error::config(field, format!("must be later than the previous step, got {seconds} s")));
            }
            if let Some(period) = period.filter(|period| at >= period.0) {
                let what = format!("must be before the period of {} s, got {seconds} s", period.seconds());
                return Err(Error::config(field, what));
            }
            if replicas == 0 {
                return Err(Error::config(field, "must have at least 1 replica, got 0"));
            }
            steps.push((at, replicas));
        }
        Ok(Box::new(Schedule { steps, period }))
    }
}

impl Sample for BySchedule {
    fn sample(dice: &mut Dice) -> BySchedule {
        let mut counts = || dice.below(4) as usize + 1;
        let steps = vec![(0.02, counts()), (0.1, counts()), (0.35, counts())];
        BySchedule { steps, period_s: dice.one_of(&[None, Some(0.4)]) }
    }
}

/// The number of replicas of the last step that has begun. Before the first step it is the last step of the previous
/// period; without a period, the present number.
struct Schedule {
    steps: Vec<(u128, usize)>,
    period: Option<Span>,
}

impl ScalingPolicy for Schedule {
    fn wanted(&mut self, figures: &Figures) -> Result<usize> {
        let at = self.period.map_or(figures.now.0, |period| figures.now.0 % period.0);
        let begun = self.steps.partition_point(|step| step.0 <= at);
        let last = self.period.and_then(|_| self.steps.last());
        let step = begun.checked_sub(1).map(|place| &self.steps[place]).or(last);
        Ok(step.map_or(figures.open + figures.starting, |step| step.1))
    }
}
