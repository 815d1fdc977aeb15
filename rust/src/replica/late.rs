//! Tokens in flight that may be dropped, with planning ahead.
//!
//! Some engines drop the token in flight of a request that the next plan preempts. Whether it counts is known only
//! after that plan. Until then these tokens are recorded: tokens of completed prompts always, tokens of steady
//! decodes if the next plan may lack blocks. A stretch of several iterations ends before that point.

use super::Replica;
use super::in_flight::LateToken;
use super::state::State;
use crate::clock::{Instant, Long};
use crate::error::Result;
use crate::request::{NOT_ODD, Phase, Place};
use crate::results::Recorder;

impl State {
    /// Prepares the settling of the last batch before a plan that may drop tokens.
    pub(super) fn begin_late(&mut self, count: u64) {
        let rows = self.steady + self.batch.chunks.len() as u64;
        let is_tight = rows > self.blocks.free();
        let Some(ahead) = &mut self.ahead else { return };
        debug_assert!(ahead.late_tokens.is_empty(), "the last plan settled them");
        debug_assert!(count == 1 || !is_tight, "no preemption follows several iterations");
        ahead.decodes_may_drop = count == 1 && is_tight;
    }

    /// How many of `count` iterations can run so that the next plan finds a block for every steady decode.
    pub(super) fn iterations_without_a_victim(&self, count: u64, growth: u64) -> u64 {
        let rows = self.steady + self.batch.chunks.len() as u64;
        let Some(room) = self.blocks.free().checked_sub(rows) else { return 1 };
        let fits = |count: u64| self.more_blocks(count) - growth <= room;
        if fits(count) {
            return count;
        }
        let (mut least, mut most) = (1, count);
        while most - least > 1 {
            let middle = least + (most - least) / 2;
            if fits(middle) { least = middle } else { most = middle }
        }
        least
    }

    /// Records the tokens of a group's steady decodes in the single iteration that ends at `end`.
    pub(super) fn note_late_decodes(&mut self, group: usize, end: Instant) {
        let tick = self.requests.ticks[group];
        let decodes = &mut self.groups[group];
        let members: Vec<Place> = decodes.due.members().collect();
        debug_assert_eq!(members.len() as u64, decodes.count, "every member has a due tick");
        decodes.odd.clear();
        for place in members {
            let (request, history) = self.requests.both_mut(place);
            let mut token = LateToken::after(place, history);
            if history.odd == NOT_ODD {
                token.last_token = decodes.last_end;
            } else {
                history.odd = NOT_ODD;
                history.gaps_known = tick + 1;
                decodes.measured.add(request.class, u64::from(self.measured.contains(request.id)));
            }
            history.first_token = history.first_token.min(end);
            if let Some(ahead) = &mut self.ahead {
                ahead.late_tokens.push(token);
            }
        }
    }

    /// Output tokens of a request (0 or 1) that come with the batch that runs during the plan.
    #[inline]
    pub(crate) fn tokens_in_flight(&self, place: Place) -> u64 {
        match &self.ahead {
            Some(ahead) if ahead.is_planning => u64::from(self.is_in_flight(place)),
            _ => 0,
        }
    }

    fn is_in_flight(&self, place: Place) -> bool {
        let (request, history) = (self.requests.at(place), self.requests.history(place));
        let last = match request.phase() {
            Phase::Waiting | Phase::Swapped => return false,
            Phase::Decoding if self.requests.tick(request) > request.joined => {
                self.groups[request.group as usize].last_end
            }
            Phase::Started if request.placed => return false,
            Phase::Started | Phase::Decoding => history.last_token,
        };
        history.first_token != Instant::NEVER && last == self.last_end
    }

    /// Whether preemption drops the token in flight of a request.
    #[inline]
    pub(crate) fn drops_token_of(&self, place: Place) -> bool {
        self.ahead.as_ref().is_some_and(|ahead| ahead.drops) && self.tokens_in_flight(place) > 0
    }

    /// Drops the token in flight of a preempted request.
    pub(crate) fn drop_token(&mut self, place: Place) {
        let Some(ahead) = &mut self.ahead else { return };
        let index = ahead.late_tokens.iter().position(|token| token.place == place);
        debug_assert!(index.is_some(), "a token that may be dropped is recorded");
        let Some(index) = index else { return };
        let token = ahead.late_tokens.swap_remove(index);
        let (request, history) = self.requests.both_mut(place);
        ahead.dropped_tokens.push(request.id);
        request.emitted -= 1;
        (history.first_token, history.last_token) = (token.first_token, token.last_token);
        self.emitted_tokens -= 1;
    }
}

impl Replica {
    /// Counts the tokens that the plan did not drop, and their gaps.
    pub(super) fn settle_late(&mut self, results: &mut Recorder) -> Result<()> {
        let state = &mut self.state;
        let Some(ahead) = &mut state.ahead else { return Ok(()) };
        for id in ahead.dropped_tokens.drain(..) {
            if let Some(events) = results.live_events() {
                events.drop_last_token(id);
            }
        }
        for LateToken { place, first_token, last_token } in ahead.late_tokens.drain(..) {
            if first_token == Instant::NEVER {
                continue;
            }
            let gap = state.last_end.since(last_token);
            let (request, history) = state.requests.both_mut(place);
            history.longest_gap = history.longest_gap.max(gap);
            if state.measured.contains(request.id) {
                results.gap::<Long>(request.class, gap)?;
            }
        }
        Ok(())
    }
}
