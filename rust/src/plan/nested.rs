//! Policies inside a policy: `ClassPriority` runs one policy per class. A policy that fills a token budget must
//! preempt lower-ranked requests before its own.

use super::{Hold, Limit, Plan, Preemption};
use crate::error::Result;
use crate::request::Place;

impl Plan<'_> {
    /// Sets the admitted requests of lower classes, which are preempted before any request of the next policy; the
    /// last one goes first. They must not be in the batch.
    pub(crate) fn set_lower_ranked(&mut self, lower_ranked: Vec<Place>) {
        self.state.batch.lower_ranked = lower_ranked;
    }

    /// Preempts the next lower-ranked request. Returns whether there was one.
    pub(crate) fn preempt_lower_ranked(&mut self, preemption: Preemption) -> Result<bool> {
        let Some(victim) = self.state.batch.lower_ranked.pop() else { return Ok(false) };
        self.preempt(victim, preemption)?;
        self.state.batch.preempted_lower_ranked.push(victim);
        Ok(true)
    }

    /// The lower-ranked requests preempted since the last call, in order.
    pub(crate) fn take_preempted_lower_ranked(&mut self) -> Vec<Place> {
        std::mem::take(&mut self.state.batch.preempted_lower_ranked)
    }

    /// Overrides [`Plan::refused`], which a scheduler with several policies keeps separate for each.
    pub(crate) fn set_refused(&mut self, refused: Option<Limit>) {
        self.state.batch.refused = refused;
    }

    /// Sets the sequence limit of the next inner policy: 0 closes admissions.
    pub(crate) fn set_max_seqs(&mut self, max_seqs: u64) {
        self.state.limits.max_seqs = max_seqs;
    }

    /// The preempted requests, in order.
    pub(crate) fn preempted(&self) -> &[Place] {
        &self.state.batch.preempted
    }

    /// How long this plan holds, as set so far.
    pub(crate) fn held(&self) -> Hold {
        self.state.batch.hold
    }

    /// Requests admitted by this plan, in order.
    #[inline]
    pub(crate) fn admitted(&self) -> &[Place] {
        &self.state.batch.admitted
    }
}
