//! Requests by stage, current and averaged, and revenue.

use crate::clock::{Instant, product};
use crate::error::{Error, Result};

/// Stages of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Waits for its prefill: Q_p.
    PrefillQueue = 0,
    /// Its prefill runs: X.
    Prefill = 1,
    /// Waits for its decode: Q_d.
    DecodeQueue = 2,
    /// Decodes on a replica that runs a prefill: Y_m.
    Mixed = 3,
    /// Decodes on a replica that runs no prefill: Y_s.
    Solo = 4,
}

/// Number of stages.
pub const STAGES: usize = 5;

/// A number per class and stage.
pub(crate) type ByStage<T> = Vec<[T; STAGES]>;

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    now: u64,
    since: Instant,
    area: u128,
}

impl Count {
    /// ∫ number dt so far.
    fn area_at(&self, at: Instant) -> Result<u128> {
        let more = product(at.since(self.since).0, u128::from(self.now))?;
        self.area.checked_add(more).ok_or_else(|| Error::overflow("∫ number of requests dt"))
    }
}

/// Numbers by class and stage with their exact integrals, and the revenue.
#[derive(Debug)]
pub(super) struct Tally {
    counts: Vec<[Count; STAGES]>,
    /// Recognized when a request finishes: lin2026 (22). In units of 10⁻¹⁸.
    pub(super) bundled: u128,
    /// Recognized at the end of each prefill and each decode: (23).
    pub(super) separate: u128,
}

impl Tally {
    pub(super) fn new(classes: usize) -> Tally {
        Tally { counts: vec![[Count::default(); STAGES]; classes], bundled: 0, separate: 0 }
    }

    /// Adds requests to a stage.
    #[inline]
    pub(super) fn enter(&mut self, class: u32, stage: Stage, number: u64, now: Instant) -> Result<()> {
        let count = &mut self.counts[class as usize][stage as usize];
        *count = Count { area: count.area_at(now)?, since: now, now: count.now + number };
        Ok(())
    }

    /// Removes requests from a stage.
    #[inline]
    pub(super) fn leave(&mut self, class: u32, stage: Stage, number: u64, now: Instant) -> Result<()> {
        let count = &mut self.counts[class as usize][stage as usize];
        debug_assert!(count.now >= number, "a stage never has a negative number of requests");
        *count = Count { area: count.area_at(now)?, since: now, now: count.now - number };
        Ok(())
    }

    /// Recognizes the revenue of a prefill.
    pub(super) fn earn_prefill(&mut self, prefill: u128) -> Result<()> {
        self.separate = add(self.separate, prefill)?;
        Ok(())
    }

    /// Recognizes the revenue of a decode.
    pub(super) fn earn_decode(&mut self, prefill: u128, decode: u128) -> Result<()> {
        self.separate = add(self.separate, decode)?;
        self.bundled = add(self.bundled, add(prefill, decode)?)?;
        Ok(())
    }

    /// Returns requests by class and stage.
    pub(super) fn numbers(&self) -> ByStage<u64> {
        self.counts.iter().map(|stages| stages.map(|count| count.now)).collect()
    }

    /// ∫ number dt from the start to an instant, in attoseconds.
    pub(super) fn areas(&self, at: Instant) -> Result<ByStage<u128>> {
        let of_class = |stages: &[Count; STAGES]| {
            let mut areas = [0; STAGES];
            for (area, count) in areas.iter_mut().zip(stages) {
                *area = count.area_at(at)?;
            }
            Ok(areas)
        };
        self.counts.iter().map(of_class).collect()
    }
}

fn add(left: u128, right: u128) -> Result<u128> {
    left.checked_add(right).ok_or_else(|| Error::overflow("the revenue"))
}
