//! What a run tells while it goes on, where it is asked to: which request got a token when, and which left without its last.

use super::Status;
use crate::clock::Instant;
use crate::error::Result;
use crate::timing::Pace;

/// The output tokens of a stretch of identical iterations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Emissions {
    pub(crate) replica: u32,
    pub(crate) start: Instant,
    pub(crate) pace: Pace,
    pub(crate) count: u64,
    /// Which request gets one in each of them, and how many it had before the first: a policy that restarts a request makes it
    /// emit the same ones again.
    pub(crate) requests: Vec<(u32, u32)>,
}

impl Emissions {
    /// When so many of the iterations are over.
    pub(crate) fn end_of(&self, count: u64) -> Result<Instant> {
        self.start.after(self.pace.total(count)?)
    }
}

/// What has happened since this was read last.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Stretches that are over.
    pub(crate) emissions: Vec<Emissions>,
    /// Requests that left without their last token.
    pub(crate) left: Vec<(u32, Status)>,
    /// Requests whose outputs end so many tokens early.
    pub(crate) cut: Vec<(u32, u32)>,
}

impl Told {
    /// The token that a request got with the stretch told last is dropped.
    pub(crate) fn take_back(&mut self, id: u32) {
        if let Some(last) = self.emissions.last_mut() {
            last.requests.retain(|&(other, _)| other != id);
        }
    }
}
