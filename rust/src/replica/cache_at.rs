//! What a replica's prefix cache has at an instant of a prompt that has not come here.
//!
//! Between two events a cache changes too: iterations of a running stretch begin and end, take blocks, and make known what
//! they compute. [`Replica::catch_up`] lets the cache go through what has happened by an instant. It has happened, so it
//! changes no result (law L8): only what is asked here sees it before the stretch is settled.
//!
//! - The *live* view is that of the instant itself: iterations that end at it are over, batches formed at it are not yet.
//! - A *report* at an instant tells of what was before: nothing that happens at the instant itself is in it. Only the last
//!   report before something changes is made, so that those at which no router looked and nothing happened cost nothing.

use super::Replica;
use crate::clock::{Instant, Span};
use crate::error::Result;
use crate::kv::Segment;

/// When a cache reports what it knows.
#[derive(Debug)]
pub(super) struct Reports {
    every: Span,
    /// The first instant that needs another report.
    next: Instant,
}

impl Replica {
    /// The cache reports what it knows at every multiple of a span.
    pub(crate) fn report_every(&mut self, every: Span) {
        if self.state.blocks.has_cache() && every > Span::ZERO {
            self.state.blocks.report();
            self.reports = Some(Reports { every, next: Instant(every.0) });
        }
    }

    /// Makes the last report that was due by an instant, if it has not been made: before anything happens at it.
    #[inline]
    pub(super) fn report(&mut self, now: Instant) -> Result<()> {
        if self.reports.as_ref().is_some_and(|reports| now >= reports.next) { self.report_late(now) } else { Ok(()) }
    }

    #[cold]
    fn report_late(&mut self, now: Instant) -> Result<()> {
        let Some(Reports { every, .. }) = self.reports else { return Ok(()) };
        let at = Instant(now.0 - now.0 % every.0);
        let begun = self.begun(at)?;
        self.catch_up(begun, begun.saturating_sub(1));
        for place in self.state.live().collect::<Vec<_>>() {
            self.state.publish_decodes(place, begun);
        }
        self.state.blocks.report();
        self.reports = Some(Reports { every, next: at.after(every).unwrap_or(Instant::NEVER) });
        Ok(())
    }

    /// How many of the first `most` tokens of a prompt that begins with this content the cache had at its last report.
    pub(crate) fn reported_tokens(&mut self, content: &[Segment], most: u64, now: Instant) -> Result<u64> {
        if content.is_empty() || !self.state.blocks.has_cache() {
            return Ok(0);
        }
        self.report(now)?;
        Ok(self.state.blocks.reported(content, most))
    }

    /// How many of the first `most` tokens of a prompt that begins with this content the cache has, before batches are
    /// formed at this instant.
    pub(crate) fn cached_tokens(&mut self, content: &[Segment], most: u64, now: Instant) -> Result<u64> {
        if content.is_empty() || !self.state.blocks.has_cache() {
            return Ok(0);
        }
        let begun = self.begun(now)?;
        let over = match self.stretch() {
            Some(stretch) => stretch.pace.count_within(now.since(stretch.start), stretch.count)?,
            None => 0,
        };
        self.catch_up(begun, over);
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

    /// Iterations of the running stretch that have begun before an instant.
    fn begun(&self, at: Instant) -> Result<u64> {
        self.stretch().map_or(Ok(0), |stretch| Ok(stretch.begun_before(at)?.min(stretch.count)))
    }

    /// Of the running stretch so many iterations have begun, and so many are over: the blocks that they took are
    /// forgotten, and what they computed is known.
    fn catch_up(&mut self, begun: u64, over: u64) {
        let (state, growth) = (&mut self.state, self.stretch.growth);
        // With drafts every batch is told when it is planned and when it is settled.
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
