//! Policies inside a policy: `ClassPriority` lets one plan for each class. Others may ignore this, but that a policy which
//! fills a token budget dismisses juniors before it preempts a request of its own.

use super::{Hold, Limit, Plan, Preemption};
use crate::error::Result;
use crate::request::Place;

impl Plan<'_> {
    /// Names the admitted requests that give up their blocks before any request of the policy that plans next; the
    /// last one goes first. They must not be in the batch.
    pub(crate) fn set_juniors(&mut self, juniors: Vec<Place>) {
        self.state.batch.juniors = juniors;
    }

    /// Preempts a junior, if there is one left.
    pub(crate) fn dismiss_junior(&mut self, preemption: Preemption) -> Result<bool> {
        let Some(junior) = self.state.batch.juniors.pop() else { return Ok(false) };
        self.preempt(junior, preemption)?;
        self.state.batch.dismissed.push(junior);
        Ok(true)
    }

    /// The juniors that were preempted since this was asked last, in order.
    pub(crate) fn dismissed(&mut self) -> Vec<Place> {
        std::mem::take(&mut self.state.batch.dismissed)
    }

    /// Sets what [`Plan::refused`] answers: a scheduler that lets several policies plan keeps them apart.
    pub(crate) fn set_refused(&mut self, refused: Option<Limit>) {
        self.state.batch.refused = refused;
    }

    /// For how long this plan is to hold, as far as it was said.
    pub(crate) fn held(&self) -> Hold {
        self.state.batch.hold
    }

    /// Requests that this plan has admitted, in order.
    #[inline]
    pub(crate) fn admitted(&self) -> &[Place] {
        &self.state.batch.admitted
    }
}
