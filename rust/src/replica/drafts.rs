//! Drafts: tokens that a row computes speculatively, and their verification.
//!
//! A request whose row emits is offered drafts for the end of its next row. The row computes them as if they were
//! right. Settling takes rejected drafts back: `computed` decreases, the blocks stay. The number of accepted drafts
//! differs from row to row. So such rows are not steady decodes, and every iteration is a stretch of its own.
//!
//! A plan made ahead treats all drafts in flight as accepted. So a row is settled in two steps: first with all drafts
//! accepted, as the plan sees it, then with the actual outcome ([`Replica::settle_drafts`]). Without planning ahead,
//! the second step follows at once.
//!
//! An n-gram lookup proposes drafts or none. Without planning ahead, the outcome is known when the next row is planned.
//! A plan made ahead does not know it yet: it reserves budget and blocks for all drafts, and the row runs without
//! them if nothing is proposed ([`State::remove_missing_drafts`]).
//!
//! The prefix cache must never contain a draft. Therefore only this file publishes tokens: at the plan of a row its
//! settled tokens, at its settling what it has computed.

use super::in_flight::{DraftedRow, Drafting, DroppedRow};
use super::state::State;
use super::{Replica, Role};
use crate::clock::{Instant, Long};
use crate::error::Result;
use crate::features::Full;
use crate::finding::{Finding, Kind};
use crate::request::{FirstToken, Phase, Place};
use crate::results::{Recorder, Status};
use crate::scheduler::Notice;

/// The finding if a list of the workload is too short.
const ACCEPTED_TOO_SHORT: &str = "drafts were cut to the token budget or not proposed, so some requests needed more \
                                  rows than their list in the column accepted has; drafts of the additional rows count \
                                  as rejected";

/// A planned row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedRow {
    /// Tokens that the request owes besides drafts.
    pub(crate) owed: u64,
    pub(crate) is_decode: bool,
}

impl State {
    /// Plans a row of `tokens` tokens. Tokens beyond the owed ones are drafts. If the row emits, new drafts are
    /// offered, unless it is known that none will be proposed.
    pub(crate) fn plan_drafts(&mut self, place: Place, tokens: u64, fills: bool) -> PlannedRow {
        let (request, first_token) = (self.requests.at(place), self.requests.first_token);
        let owed = request.owed();
        let emits = tokens >= owed && (first_token == FirstToken::Prefill || request.is_up_to_date());
        let is_decode = emits && owed == 1 && self.requests.is_priced_as_decode(place);
        let Some(drafts) = &mut self.drafts else { return PlannedRow { owed, is_decode } };
        let (most, emissions) = (drafts.parts.drafts as u32, drafts.at(place).emissions);
        let rate = self.recorded_drafts.proposal_rate(place);
        let proposes = |emission| drafts.proposes(rate, request.id, emission);
        let planned = tokens.saturating_sub(owed) as u32;
        let verifies = planned > 0 && (fills || self.ahead.is_none() || proposes(emissions));
        let offers = emits && (self.ahead.is_some() || proposes(emissions + 1));
        let drafting = drafts.at_mut(place);
        drafting.row = DraftedRow { planned, drafts: if verifies { planned } else { 0 }, emits, fills, out: 0 };
        let owed = owed + u64::from(std::mem::replace(&mut drafting.offer, if offers { most } else { 0 }));
        PlannedRow { owed: owed.max(tokens), is_decode }
    }

    /// Removes the drafts from rows of a batch planned ahead for which none were proposed. Their budget and blocks
    /// stay reserved.
    pub(super) fn remove_missing_drafts(&mut self) {
        let Some(drafts) = self.drafts.as_ref().filter(|drafts| drafts.parts.proposals.is_some()) else { return };
        let mut missing = 0;
        for chunk in &mut self.batch.chunks {
            let of_row = drafts.at(chunk.place).row.missing();
            if of_row > 0 {
                chunk.tokens -= of_row;
                chunk.owed = chunk.tokens;
                missing += of_row;
            }
        }
        if missing > 0 {
            self.batch.missing_drafts = missing;
            self.batch.sum_chunks();
        }
    }

    /// Publishes the known part of a request's first `tokens` tokens to the prefix cache. A block that needs the
    /// token after it waits for that token.
    pub(crate) fn publish_known(&mut self, place: Place, tokens: u64) {
        let Some(drafts) = self.drafts.as_ref().filter(|_| self.blocks.has_cache()) else { return };
        let known = self.requests.known(place) - u64::from(drafts.at(place).in_flight);
        let known = tokens.min(known.saturating_sub(u64::from(drafts.parts.beyond_block())));
        self.blocks.scheduled(place, known);
    }

    /// Drops the offered drafts of a preempted request.
    pub(crate) fn drop_offer(&mut self, place: Place) {
        if let Some(drafts) = &mut self.drafts {
            let drafting = drafts.at_mut(place);
            (drafting.offer, drafting.row) = (0, DraftedRow::default());
        }
    }

    /// Number of tokens emitted by a row of the batch; `None` without drafts.
    pub(super) fn tokens_out_of(&self, place: Place) -> Option<u32> {
        self.drafts.as_ref().map(|drafts| drafts.at(place).row.out)
    }

    /// The draft counts of a request that moves to another replica, without offered drafts.
    pub(super) fn drafting_of(&self, place: Place) -> Drafting {
        let Some(drafts) = &self.drafts else { return Drafting::after(self.requests.at(place).emitted) };
        Drafting { offer: 0, row: DraftedRow::default(), ..drafts.at(place).clone() }
    }

    /// The tokens emitted by a row of the batch: the request, and its number of tokens before each.
    pub(super) fn tokens_of_row(&self, place: Place) -> impl Iterator<Item = (u32, u32)> + use<> {
        let (id, before) = (self.requests.at(place).id, self.requests.emitted(place) as u32);
        (0..self.tokens_out_of(place).unwrap_or(0)).map(move |token| (id, before + token))
    }

    /// Records the drafted and accepted counts of a request that leaves.
    pub(super) fn record_drafts(&self, place: Place, results: &mut Recorder) {
        if let Some(drafts) = &self.drafts {
            let Drafting { drafted, accepted, .. } = *drafts.at(place);
            results.drafts(self.requests.arrival(place), drafted, accepted);
        }
    }

    /// Runs the row of a finished request in the planned batch, and drops its result.
    fn compute_dropped_row(&mut self, place: Place) {
        let Some(&chunk) = self.batch.chunks.iter().find(|chunk| chunk.place == place) else { return };
        self.batch.withdraw(place);
        self.batch.single_decodes += 1;
        self.batch.most_iterations = 1;
        let (row, id) = (self.requests.at(place).row, self.requests.at(place).id);
        let row = DroppedRow { row, id, context: chunk.context, tokens: chunk.tokens };
        self.ahead.get_or_insert_default().dropped.push(row);
    }
}

impl Replica {
    /// Determines the number of tokens emitted by each row of the batch.
    pub(super) fn verify_drafts(&mut self) {
        let Some(drafts) = &mut self.state.drafts else { return };
        for chunk in &self.state.batch.chunks {
            let request = self.state.requests.at(chunk.place);
            let Drafting { row, emissions, drafted, accepted, .. } = &mut drafts.requests[chunk.place.index()];
            if !row.emits || row.out > 0 {
                continue;
            }
            let right = match &drafts.parts.distribution {
                _ if row.fills || row.drafts == 0 => 0,
                Some(distribution) => distribution.accepted(request.id, *emissions),
                None => self.state.recorded_drafts.accepted(chunk.place, *emissions).unwrap_or_else(|| {
                    if !self.findings.iter().any(|finding| finding.kind == Kind::AcceptedTooShort) {
                        self.findings.push(Finding::new(Kind::AcceptedTooShort, ACCEPTED_TOO_SHORT, []));
                    }
                    0
                }),
            };
            row.out = (1 + row.drafts.min(right)).min(request.output_tokens - request.emitted);
            *emissions += 1;
            if !row.fills {
                *drafted += row.drafts;
            }
            *accepted += row.out - 1;
        }
    }

    /// Settles the rows of the batch. With planning ahead, rejected drafts are taken back after the next plan.
    pub(super) fn settle_drafted(&mut self, results: &mut Recorder) -> Result<()> {
        self.settle_drafted_rows(results)?;
        if self.state.ahead.is_none() {
            self.ending.clear();
            self.settle_drafts(self.stretch.end, results);
        }
        Ok(())
    }

    /// Settles the rows with all drafts accepted. Emitted tokens have their actual times.
    fn settle_drafted_rows(&mut self, results: &mut Recorder) -> Result<()> {
        self.verify_drafts();
        let end = self.stretch.end;
        let state = &mut self.state;
        let Some(drafts) = &mut state.drafts else { return Ok(()) };
        for chunk in &state.batch.chunks {
            let drafting = &mut drafts.requests[chunk.place.index()];
            let DraftedRow { planned: of_row, emits, out, .. } = drafting.row;
            let tokens = chunk.tokens + drafting.row.missing();
            let (request, history) = state.requests.both_mut(chunk.place);
            request.placed = false;
            request.computed += tokens as u32;
            if !chunk.is_decode {
                let settled = tokens - u64::from(of_row);
                state.prefilled_tokens += settled;
                if request.emitted > 0 {
                    // Tokens that were emitted before and are recomputed count as prefilled already.
                    let emitted = (request.computed - of_row).saturating_sub(request.prompt_tokens);
                    state.brought_tokens += u64::from(emitted).min(settled);
                }
            }
            let mut continues = !emits && request.is_up_to_date();
            if emits {
                let is_measured = state.measured.contains(request.id);
                if history.first_token == Instant::NEVER {
                    history.first_token = end;
                } else {
                    let gap = end.since(history.last_token);
                    history.longest_gap = history.longest_gap.max(gap);
                    if is_measured {
                        results.gap::<Long>(request.class, gap)?;
                        results.zero_gaps(request.class, u64::from(out - 1))?;
                    }
                }
                history.last_token = end;
                state.emitted_tokens += u64::from(out);
                state.preemptions_since_token = 0;
                if request.emitted + 1 == request.output_tokens && history.arrival.end_is_foreseen() {
                    self.ending.push((request.row, chunk.place));
                }
                continues = request.emitted + out < request.output_tokens;
                request.emitted += 1 + of_row;
                drafting.in_flight = 1 + of_row;
                drafts.unsettled.push((chunk.place, 1 + of_row - out));
            }
            if continues && self.role != Role::Whole && history.hand_off().is_none() {
                self.departing.push(chunk.place);
            }
        }
        Ok(())
    }

    /// Keeps the resources of requests with a certain last token, and of departing ones, until the next batch is
    /// planned. Whether other requests are finished is not known yet.
    pub(super) fn hold_back_drafted(&mut self) {
        self.state.ahead.get_or_insert_default().begin_plan();
        let of_rows = self.ending.drain(..).map(|(_, place)| place);
        let places: Vec<Place> = of_rows.chain(self.departing.iter().copied()).collect();
        for place in places {
            self.state.note_ending(place);
            self.scheduler.ending(place);
        }
    }

    /// Takes rejected drafts back, row by row, and removes finished requests. A row of a finished request in the next
    /// batch is dropped.
    pub(super) fn settle_drafts(&mut self, now: Instant, results: &mut Recorder) {
        let unsettled =
            self.state.drafts.as_mut().map(|drafts| std::mem::take(&mut drafts.unsettled)).unwrap_or_default();
        for &(place, surplus) in &unsettled {
            let state = &mut self.state;
            if let Some(drafts) = &mut state.drafts {
                drafts.at_mut(place).in_flight = 0;
            }
            let request = state.requests.at_mut(place);
            request.emitted -= surplus;
            let is_over = request.owes_no_output();
            if request.phase() == Phase::Waiting {
                if is_over {
                    // It was preempted, but needs no further token.
                    let prompt = request.prompt_tokens;
                    state.waiting -= 1;
                    state.running += 1;
                    state.remove_waiting_blocks(prompt);
                    state.brought_tokens -= u64::from(prompt);
                }
            } else {
                request.computed -= surplus;
                let computed = u64::from(request.computed);
                state.publish_known(place, computed);
                if is_over && state.requests.at(place).is_placed() {
                    state.compute_dropped_row(place);
                }
            }
            if is_over {
                self.finish_drafted(place, now, results);
            }
        }
        if let Some(drafts) = &mut self.state.drafts {
            drafts.unsettled = unsettled;
            drafts.unsettled.clear();
        }
        if let Some(ahead) = &mut self.state.ahead {
            ahead.end_plan();
        }
        self.state.end_batch::<Full>();
    }

    fn finish_drafted(&mut self, place: Place, now: Instant, results: &mut Recorder) {
        let state = &mut self.state;
        state.record_drafts(place, results);
        results.leave::<Long>(state.requests.history(place), self.index, Status::Finished, now);
        state.release::<Full>(place, true);
        self.scheduler.notice(Notice::Left(place), &state.requests);
        state.remove::<Full>(place);
        state.running -= 1;
    }
}
