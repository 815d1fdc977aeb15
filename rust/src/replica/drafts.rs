//! Drafts: what a row computes ahead of what is known, and what becomes of it.
//!
//! A request whose row emits is offered drafts, which are the tail of its next row. The row computes them as if they were
//! right; when it is settled, those that are rejected are taken back: `computed` falls, blocks stay. How many are accepted
//! differs from row to row, so such rows are no standing decodes, and every iteration is a stretch of its own.
//!
//! A plan that is made ahead takes all drafts in flight as accepted. So a row is settled in two steps: first as if they
//! were, which is what the plan sees, then as it is ([`Replica::settle_drafts`]). Without planning ahead the second step
//! follows at once.
//!
//! The prefix cache must never hear of a draft. So it is told here what is known, and nowhere else: when a row is planned,
//! what it fills of the tokens that are settled; when it is settled, what it has computed.

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

/// A list of the workload was too short.
const ACCEPTED_TOO_SHORT: &str = "drafts were cut to the token budget, so some requests needed more rows than their list in \
                                  the column accepted has; drafts of the additional rows count as rejected";

/// A row as it is planned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedRow {
    /// Tokens that the request owes beside drafts.
    pub(crate) owed: u64,
    pub(crate) is_decode: bool,
}

impl State {
    /// A request gets a row of so many tokens: what is beyond those that it owes is drafts, and if it emits, it is offered new
    /// ones. Decodes come out of it with their context in the plan.
    pub(crate) fn plan_drafts(&mut self, place: Place, tokens: u64, fills: bool) -> PlannedRow {
        let (request, first_token) = (self.requests.at(place), self.requests.first_token);
        let owed = request.owed();
        let emits = tokens >= owed && (first_token == FirstToken::Prefill || request.is_up_to_date());
        let is_decode = emits && owed == 1 && self.requests.is_priced_as_decode(place);
        let Some(drafts) = &mut self.drafts else { return PlannedRow { owed, is_decode } };
        let most = drafts.parts.drafts as u32;
        let drafting = drafts.at_mut(place);
        drafting.row = DraftedRow { drafts: tokens.saturating_sub(owed) as u32, emits, fills, out: 0 };
        let owed = owed + u64::from(std::mem::replace(&mut drafting.offer, if emits { most } else { 0 }));
        PlannedRow { owed: owed.max(tokens), is_decode }
    }

    /// The prefix cache hears what a request knows of its first `tokens` tokens: of a block that needs the token behind it,
    /// once that is known.
    pub(crate) fn publish_known(&mut self, place: Place, tokens: u64) {
        let Some(drafts) = self.drafts.as_ref().filter(|_| self.blocks.has_cache()) else { return };
        let known = self.requests.known(place) - u64::from(drafts.at(place).in_flight);
        let known = tokens.min(known.saturating_sub(u64::from(drafts.parts.beyond_block())));
        self.blocks.scheduled(place, known);
    }

    /// A request is preempted: its offer is dropped with the rest.
    pub(crate) fn drop_offer(&mut self, place: Place) {
        if let Some(drafts) = &mut self.drafts {
            let drafting = drafts.at_mut(place);
            (drafting.offer, drafting.row) = (0, DraftedRow::default());
        }
    }

    /// Tokens that come out of a row of the batch; `None`: there are no drafts here.
    pub(super) fn tokens_out_of(&self, place: Place) -> Option<u32> {
        self.drafts.as_ref().map(|drafts| drafts.at(place).row.out)
    }

    /// How it stands with the drafts of a request that goes elsewhere: nothing is on offer there.
    pub(super) fn drafting_of(&self, place: Place) -> Drafting {
        let Some(drafts) = &self.drafts else { return Drafting::after(self.requests.at(place).emitted) };
        Drafting { offer: 0, row: DraftedRow::default(), ..drafts.at(place).clone() }
    }

    /// The tokens that come out of a row of the batch: the request, and how many it had before each.
    pub(super) fn tokens_of_row(&self, place: Place) -> impl Iterator<Item = (u32, u32)> + use<> {
        let (id, before) = (self.requests.at(place).id, self.requests.emitted(place) as u32);
        (0..self.tokens_out_of(place).unwrap_or(0)).map(move |one| (id, before + one))
    }

    /// How many drafts a request that leaves had, and how many of them were accepted.
    pub(super) fn record_drafts(&self, place: Place, results: &mut Recorder) {
        if let Some(drafts) = &self.drafts {
            let Drafting { drafted, accepted, .. } = *drafts.at(place);
            results.drafts(self.requests.arrival(place), drafted, accepted);
        }
    }

    /// The row of a finished request in the batch that was just planned runs, and is dropped.
    fn compute_row_in_vain(&mut self, place: Place) {
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
    /// What comes out of each row of the batch that ends.
    pub(super) fn verify_drafts(&mut self) {
        let Some(drafts) = &mut self.state.drafts else { return };
        for chunk in &self.state.batch.chunks {
            let request = self.state.requests.at(chunk.place);
            let Drafting { row, emissions, drafted, accepted, .. } = &mut drafts.requests[chunk.place.index()];
            if !row.emits || row.out > 0 {
                continue;
            }
            let right = match &drafts.parts.law {
                _ if row.fills || row.drafts == 0 => 0,
                Some(law) => law.accepted(request.id, *emissions),
                None => self.accepted.of(chunk.place, *emissions).unwrap_or_else(|| {
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

    /// The rows of the batch that ends. Where the next one is planned ahead, what is rejected is taken back after the plan.
    pub(super) fn settle_drafted(&mut self, results: &mut Recorder) -> Result<()> {
        self.settle_drafted_rows(results)?;
        if self.state.ahead.is_none() {
            self.ending.clear();
            self.settle_drafts(self.stretch.end, results);
        }
        Ok(())
    }

    /// The rows of the batch that ends, all of their drafts taken as accepted; tokens that come out are timed as they are.
    fn settle_drafted_rows(&mut self, results: &mut Recorder) -> Result<()> {
        self.verify_drafts();
        let end = self.stretch.end;
        let state = &mut self.state;
        let Some(drafts) = &mut state.drafts else { return Ok(()) };
        for chunk in &state.batch.chunks {
            let drafting = &mut drafts.requests[chunk.place.index()];
            let DraftedRow { drafts: of_row, emits, out, .. } = drafting.row;
            let (request, history) = state.requests.both_mut(chunk.place);
            request.placed = false;
            request.computed += chunk.tokens as u32;
            if !chunk.is_decode {
                let settled = chunk.tokens - u64::from(of_row);
                state.prefilled_tokens += settled;
                if request.emitted > 0 {
                    // Tokens that were emitted before, and are computed again, are behind already.
                    let emitted = (request.computed - of_row).saturating_sub(request.prompt_tokens);
                    state.brought_tokens += u64::from(emitted).min(settled);
                }
            }
            let mut goes_on = !emits && request.is_up_to_date();
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
                state.fruitless_preemptions = 0;
                if request.emitted + 1 == request.output_tokens && history.arrival.end_is_foreseen() {
                    self.ending.push((request.row, chunk.place));
                }
                goes_on = request.emitted + out < request.output_tokens;
                request.emitted += 1 + of_row;
                drafting.in_flight = 1 + of_row;
                drafts.unsettled.push((chunk.place, 1 + of_row - out));
            }
            if goes_on && self.role != Role::Whole && history.hand_off().is_none() {
                self.departing.push(chunk.place);
            }
        }
        Ok(())
    }

    /// Requests whose last token is certain to have come hold what they have until the next batch is planned, and so do those
    /// that go on elsewhere. Others may or may not be over.
    pub(super) fn hold_back_drafted(&mut self) {
        self.state.ahead.get_or_insert_default().begin_plan();
        let of_rows = self.ending.drain(..).map(|(_, place)| place);
        let places: Vec<Place> = of_rows.chain(self.departing.iter().copied()).collect();
        for place in places {
            self.state.hold_seat(place);
            self.scheduler.ending(place);
        }
    }

    /// What was taken as accepted and is not is taken back, row by row, and the finished leave. One of which the next batch
    /// has a row computes that in vain.
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
                    // It was preempted, and waits for nothing.
                    let prompt = request.prompt_tokens;
                    state.waiting -= 1;
                    state.running += 1;
                    state.waits_no_more(prompt);
                    state.brought_tokens -= u64::from(prompt);
                }
            } else {
                request.computed -= surplus;
                let computed = u64::from(request.computed);
                state.publish_known(place, computed);
                if is_over && state.requests.at(place).is_placed() {
                    state.compute_row_in_vain(place);
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

/// What the workload says of the drafts of requests, by place.
#[derive(Debug, Default)]
pub(super) struct AcceptedDrafts(Vec<Vec<u16>>);

impl AcceptedDrafts {
    /// A request comes, of which this is said.
    pub(super) fn put(&mut self, place: Place, accepted: Vec<u16>) {
        if self.0.len() <= place.index() {
            self.0.resize_with(place.index() + 1, Vec::new);
        }
        self.0[place.index()] = accepted;
    }

    /// What was said of a request that goes.
    pub(super) fn take(&mut self, place: Place) -> Vec<u16> {
        self.0.get_mut(place.index()).map(std::mem::take).unwrap_or_default()
    }

    /// Drafts that are accepted of the row that is this one of those that emit; `None`: nothing is said of it.
    fn of(&self, place: Place, emission: u32) -> Option<u32> {
        self.0.get(place.index())?.get(emission as usize).copied().map(u32::from)
    }
}
