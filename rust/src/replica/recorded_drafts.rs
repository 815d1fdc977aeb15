//! Drafts as the workload describes them.

use crate::request::Place;
use crate::speculation::{ProposalRate, RequestDrafts};

/// Described drafts, by request place.
#[derive(Debug, Default)]
pub(super) struct RecordedDrafts(Vec<RequestDrafts>);

impl RecordedDrafts {
    /// Stores the drafts of a new request.
    pub(super) fn put(&mut self, place: Place, recorded: RequestDrafts) {
        if self.0.len() <= place.index() {
            self.0.resize_with(place.index() + 1, RequestDrafts::default);
        }
        self.0[place.index()] = recorded;
    }

    /// Removes and returns the drafts of a request.
    pub(super) fn take(&mut self, place: Place) -> RequestDrafts {
        self.0.get_mut(place.index()).map(std::mem::take).unwrap_or_default()
    }

    /// The rate of proposals of a request, if given.
    pub(super) fn proposal_rate(&self, place: Place) -> Option<ProposalRate> {
        self.0.get(place.index())?.proposal_rate
    }

    /// The accepted drafts of a request's `emission`-th emitting row; `None` if the list is too short.
    pub(super) fn accepted(&self, place: Place, emission: u32) -> Option<u32> {
        self.0.get(place.index())?.accepted.get(emission as usize).copied().map(u32::from)
    }
}
