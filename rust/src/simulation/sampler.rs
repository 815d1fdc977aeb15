//! Sampling of the timeline.

use super::options::{Options, Timeline};
use crate::clock::{Instant, NANOSECOND, Span, Unit};
use crate::error::Result;
use crate::replica::Replica;
use crate::results::{MAX_SAMPLES, Recorder, Sample, too_many_samples};

/// The sampler of the timeline. Samples are at multiples of an interval in attoseconds, independent of the run's
/// unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampler {
    next: Instant,
    /// The first instant of the run after the next sample. A sample includes the events of its own instant.
    pub(super) seen: Instant,
    interval: Span,
    /// The time unit of the run.
    pub(super) unit: Unit,
    /// Number of samples per replica at which every second one is dropped; `None`: all are kept.
    most: Option<u128>,
}

/// Number of samples of an automatic timeline if the run is as long as its arrivals.
const SAMPLES: u128 = 500;

impl Sampler {
    /// `last` is the last arrival by the horizon, in attoseconds.
    pub(super) fn new(last: Instant, options: &Options, replicas: usize, unit: Unit) -> Result<Sampler> {
        // A large fleet has fewer samples per replica, so that they fit.
        let most = (MAX_SAMPLES as u128 / 2 / replicas.max(1) as u128).clamp(1, SAMPLES) * 2;
        let (interval, most) = match options.timeline {
            Timeline::Every(interval) => (interval, None),
            Timeline::Automatic => (Span((last.0 / (most / 2)).max(NANOSECOND)), Some(most)),
        };
        let mut sampler = Sampler { next: Instant::ZERO, seen: Instant::ZERO, interval, unit, most };
        sampler.schedule_next(Instant::ZERO)?;
        Ok(sampler)
    }

    /// Schedules the next sample one interval after `sampled`.
    fn schedule_next(&mut self, sampled: Instant) -> Result<()> {
        self.next = sampled.after(self.interval)?;
        self.seen = Instant(self.unit.count(self.next.0).saturating_add(1));
        Ok(())
    }

    /// Takes the samples due before `instant`. No event may lie in between.
    pub(super) fn sample_before(
        &mut self,
        instant: Instant,
        replicas: &[Replica],
        results: &mut Recorder,
    ) -> Result<()> {
        let instant = self.unit.instant(instant);
        while self.next < instant {
            results.make_room_for_samples(replicas.len())?;
            let reached = Instant(self.unit.count(self.next.0));
            for replica in replicas {
                results.results.timeline.push(Sample { at: self.next, ..replica.sample(reached)? });
            }
            self.schedule_next(self.next)?;
            let timeline = &mut results.results.timeline;
            let (each, instants) = (replicas.len(), timeline.len() / replicas.len());
            if self.most.is_some_and(|most| instants as u128 >= most) {
                for instant in 0..instants / 2 {
                    let second = (2 * instant + 1) * each;
                    timeline.copy_within(second..second + each, instant * each);
                }
                timeline.truncate(instants / 2 * each);
                self.interval = self.interval.times(2)?;
                let last = timeline.last().map_or(Instant::ZERO, |sample| sample.at);
                self.schedule_next(last)?;
            }
        }
        Ok(())
    }

    /// Merges the timelines of independent replicas up to `end`, as if they had been sampled together. `parts` has
    /// the samples of each replica, and its final state, which stays constant.
    pub(super) fn merge(&self, parts: &[(Vec<Sample>, Sample)], end: Instant) -> Result<Vec<Sample>> {
        let mut interval = self.interval;
        // Samples are strictly before the end. With twice too many samples, every second one is dropped.
        while self.most.is_some_and(|most| end.0.saturating_sub(1) / interval.0 >= most) {
            interval = interval.times(2)?;
        }
        if (end.0 / interval.0).saturating_mul(parts.len() as u128) > MAX_SAMPLES as u128 {
            return Err(too_many_samples());
        }
        let mut merged = Vec::new();
        let mut taken = vec![0; parts.len()];
        let mut at = Instant::ZERO.after(interval)?;
        while at < end {
            for ((samples, last), taken) in parts.iter().zip(&mut taken) {
                while samples.get(*taken).is_some_and(|sample| sample.at < at) {
                    *taken += 1;
                }
                merged.push(Sample { at, ..*samples.get(*taken).unwrap_or(last) });
            }
            at = at.after(interval)?;
        }
        Ok(merged)
    }
}
