//! The instants at which the timeline is sampled.

use super::options::{Options, Timeline};
use crate::clock::{Instant, NANOSECOND, Span, Unit};
use crate::error::Result;
use crate::replica::Replica;
use crate::results::{MAX_SAMPLES, Recorder, Sample, too_many_samples};

/// Takes the samples of the timeline: at whole multiples of an interval, which lie between the instants of a run as they may,
/// in attoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampler {
    next: Instant,
    /// The first instant of the run after the next sample, which sees the end of what happens at its own.
    pub(super) seen: Instant,
    interval: Span,
    /// What the run counts its instants in.
    pub(super) unit: Unit,
    /// The samples of a replica from which on every second goes; `None`: all stay.
    most: Option<u128>,
}

/// Samples of an automatic timeline when the span of the arrivals tells the length of the run.
const SAMPLES: u128 = 500;

impl Sampler {
    /// `last` is the last arrival by the horizon, in attoseconds.
    pub(super) fn new(last: Instant, options: &Options, replicas: usize, unit: Unit) -> Result<Sampler> {
        // A large fleet is sampled less often, so that its samples fit as well.
        let most = (MAX_SAMPLES as u128 / 2 / replicas.max(1) as u128).clamp(1, SAMPLES) * 2;
        let (interval, most) = match options.timeline {
            Timeline::Every(interval) => (interval, None),
            Timeline::Automatic => (Span((last.0 / (most / 2)).max(NANOSECOND)), Some(most)),
        };
        let mut sampler = Sampler { next: Instant::ZERO, seen: Instant::ZERO, interval, unit, most };
        sampler.go_on(Instant::ZERO)?;
        Ok(sampler)
    }

    /// The next sample is one interval after this instant.
    fn go_on(&mut self, sampled: Instant) -> Result<()> {
        self.next = sampled.after(self.interval)?;
        self.seen = Instant(self.unit.count(self.next.0).saturating_add(1));
        Ok(())
    }

    /// Takes the samples that are due before `instant`: nothing happens between the last event and then.
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
            self.go_on(self.next)?;
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
                self.go_on(last)?;
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
