//! Events of a live run: emitted tokens and requests that left early.

use super::Status;
use crate::clock::Instant;
use crate::error::Result;
use crate::timing::Pace;

/// Output tokens of a stretch of identical iterations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Emissions {
    pub(crate) replica: u32,
    pub(crate) start: Instant,
    pub(crate) pace: Pace,
    pub(crate) count: u64,
    /// Requests that emit a token in each iteration, with their tokens before the first iteration: a policy that
    /// restarts a request makes it emit the same tokens again.
    pub(crate) requests: Vec<(u32, u32)>,
}

impl Emissions {
    /// End of the iteration after which `count` iterations are complete.
    pub(crate) fn end_of(&self, count: u64) -> Result<Instant> {
        self.start.after(self.pace.total(count)?)
    }
}

/// Events since the last read.
#[derive(Debug, Default)]
pub(crate) struct LiveEvents {
    /// Completed stretches.
    pub(crate) emissions: Vec<Emissions>,
    /// Requests that left without their last token.
    pub(crate) left: Vec<(u32, Status)>,
    /// Requests whose outputs were cut, with the number of tokens.
    pub(crate) cut: Vec<(u32, u32)>,
}

impl LiveEvents {
    /// Drops the token of a request in the last recorded stretch.
    pub(crate) fn drop_last_token(&mut self, id: u32) {
        if let Some(last) = self.emissions.last_mut() {
            last.requests.retain(|&(other, _)| other != id);
        }
    }
}
