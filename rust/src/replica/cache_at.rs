//! Queries of a replica's prefix cache at an instant, for prompts that are not here.
//!
//! The cache also changes between two events: iterations of a running stretch begin and end, take blocks, and publish
//! content. [`Replica::catch_up`] applies these changes up to an instant. They have happened, so no result changes
//! (invariant L8). Only queries here see them before the stretch is settled.
//!
//! - The *live* view is that of the instant: iterations that end at it are included, batches that idle replicas form at
//!   it are not. A batch planned ahead begins with the end of the previous one, so it is included.
//! - A *report* at an instant excludes everything that happens at that instant. Only the last report before a change
//!   is made, so reports that no router reads are free.

use super::Replica;
use crate::clock::{Instant, Span};
use crate::error::{Error, Result};
use crate::kv::Segment;

/// Periodic reports of the cache content.
#[derive(Debug)]
pub(super) struct Reports {
    every: Span,
    /// The next instant that needs a report.
    next: Instant,
}

impl Replica {
    /// Enables reports at every multiple of `every`.
    pub(crate) fn report_every(&mut self, every: Span) {
        if self.state.blocks.has_cache() && every > Span::ZERO {
            self.state.blocks.report();
            self.reports = Some(Reports { every, next: Instant(every.0) });
        }
    }

    /// Makes the last due report, before the events of `now`.
    #[inline]
    pub(super) fn report(&mut self, now: Instant) -> Result<()> {
        if self.reports.as_ref().is_some_and(|reports| now >= reports.next) { self.report_late(now) } else { Ok(()) }
    }

    fn report_late(&mut self, now: Instant) -> Result<()> {
        let Some(Reports { every, .. }) = self.reports else { return Ok(()) };
        let at = Instant(now.0 - now.0 % every.0);
        let begun = match self.stretch() {
            Some(stretch) => stretch.begun_before(at)?.min(stretch.count),
            None => 0,
        };
        self.catch_up(begun, begun.saturating_sub(1));
        for place in self.state.live().collect::<Vec<_>>() {
            self.state.publish_decodes(place, begun);
        }
        self.state.blocks.report();
        self.reports = Some(Reports { every, next: at.after(every).unwrap_or(Instant::NEVER) });
        Ok(())
    }

    /// How many of the first `most` tokens of a prompt with this content the last report has.
    pub(crate) fn reported_tokens(&mut self, content: &[Segment], most: u64, now: Instant) -> Result<u64> {
        self.check_readable()?;
        if content.is_empty() || !self.state.blocks.has_cache() {
            return Ok(0);
        }
        self.report(now)?;
        Ok(self.state.blocks.reported(content, most))
    }

    /// How many of the first `most` tokens of a prompt with this content are cached, before batches are formed at
    /// this instant.
    pub(crate) fn cached_tokens(&mut self, content: &[Segment], most: u64, now: Instant) -> Result<u64> {
        self.check_readable()?;
        if content.is_empty() || !self.state.blocks.has_cache() {
            return Ok(0);
        }
        let begun = self.begun(now)?;
        self.catch_up(begun, self.over(now)?);
        let (mut tokens, mut owner) = self.state.blocks.cached_prefix(content, most);
        while let Some(place) = owner {
            self.state.publish_decodes(place, begun);
            let before = tokens;
            (tokens, owner) = self.state.blocks.cached_prefix(content, most);
            if tokens == before {
                break;
            }
        }
        Ok(tokens)
    }

    fn check_readable(&self) -> Result<()> {
        if self.state.blocks.has_layer_groups() {
            let what =
                "is not supported with a router that reads prefix caches; set groups to None or use another router";
            return Err(Error::config("kv.groups", what));
        }
        Ok(())
    }

    /// Applies the running stretch after `begun` started and `over` ended iterations: takes their blocks and
    /// publishes their content.
    fn catch_up(&mut self, begun: u64, over: u64) {
        let (state, growth) = (&mut self.state, self.stretch.growth);
        // With drafts, every batch is published at its plan and at its settling.
        if !self.is_idle && state.drafts.is_none() {
            if begun > 1 {
                let before = state.more_blocks(begun - 1) - growth;
                state.blocks.reserve(before + state.batch.reserved_each);
                state.blocks.reserve(state.more_blocks(begun) - growth);
                for chunk in &state.batch.chunks {
                    state.blocks.scheduled(chunk.place, chunk.context + chunk.tokens * begun);
                }
            }
            for iteration in state.batch.cached_iterations + 1..=over {
                for chunk in &state.batch.chunks {
                    state.blocks.computed(chunk.place, chunk.context + chunk.tokens * iteration);
                }
            }
            state.batch.cached_iterations = state.batch.cached_iterations.max(over);
        }
        state.publish_followed(begun);
    }
}
