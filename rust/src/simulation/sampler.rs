//! The instants at which the timeline is sampled.

use super::{Options, Timeline};
use crate::clock::{Instant, NANOSECOND, Span};
use crate::error::Result;
use crate::replica::Replica;
use crate::results::{MOST_SAMPLES, Recorder, Sample, too_many_samples};

/// Takes the samples of the timeline: at whole multiples of an interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampler {
    pub(super) next: Instant,
    interval: Span,
    /// The samples of a replica from which on every second goes; `None`: all stay.
    most: Option<u128>,
}

/// Samples of an automatic timeline when the span of the arrivals tells the length of the run.
const SAMPLES: u128 = 500;

impl Sampler {
    /// `last` is the last arrival by the horizon.
    pub(super) fn new(last: Instant, options: &Options, replicas: usize) -> Result<Sampler> {
        // A large fleet is sampled less often, so that its samples fit as well.
        let most = (MOST_SAMPLES as u128 / 2 / replicas.max(1) as u128).clamp(1, SAMPLES) * 2;
        let (interval, most) = match options.timeline {
            Timeline::Every(interval) => (interval, None),
            Timeline::Automatic => (Span((last.0 / (most / 2)).max(NANOSECOND)), Some(most)),
        };
        Ok(Sampler { next: Instant::ZERO.after(interval)?, interval, most })
    }

    /// Takes the samples that are due before `instant`: nothing happens between the last event and then.
    pub(super) fn sample_before(
        &mut self,
        instant: Instant,
        replicas: &[Replica],
        results: &mut Recorder,
    ) -> Result<()> {
        while self.next < instant {
            results.make_room_for_samples(replicas.len())?;
            for replica in replicas {
                results.results.timeline.push(replica.sample(self.next)?);
            }
            self.next = self.next.after(self.interval)?;
            let timeline = &mut results.results.timeline;
            let (each, instants) = (replicas.len(), timeline.len() / replicas.len());
            if self.most.is_some_and(|most| instants as u128 >= most) {
                for instant in 0..instants / 2 {
                    let second = (2 * instant + 1) * each;
                    timeline.copy_within(second..second + each, instant * each);
                }
                timeline.truncate(instants / 2 * each);
                self.interval = self.interval.times(2)?;
                self.next = timeline.last().map_or(Instant::ZERO, |sample| sample.at).after(self.interval)?;
            }
        }
        Ok(())
    }

    /// The timeline of replicas that were sampled apart, up to `end`, as if they had been sampled together: `parts` are
    /// the samples of each, and its state at the end of its own run, which stays.
    pub(super) fn merge(&self, parts: &[(Vec<Sample>, Sample)], end: Instant) -> Result<Vec<Sample>> {
        let mut interval = self.interval;
        // Samples lie strictly before the end; as soon as there are twice too many, every second goes.
        while self.most.is_some_and(|most| end.0.saturating_sub(1) / interval.0 >= most) {
            interval = interval.times(2)?;
        }
        if (end.0 / interval.0).saturating_mul(parts.len() as u128) > MOST_SAMPLES as u128 {
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
