//! Settling: the effects of a stretch at its end.

use super::batch::Chunk;
use super::in_flight::LateToken;
use super::state::State;
use super::stretch::Stretch;
use super::{Departure, HeldBlocks, Replica, Role, Stranded, end_after};
use crate::clock::{Instant, Long, Short, Width};
use crate::error::Result;
use crate::features::{Features, Full, Plain, PlainAhead, Variant};
use crate::request::{FirstToken, NOT_ODD, Phase, Place};
use crate::results::{Recorder, Status};
use crate::scheduler::Notice;
use crate::timing::Pace;

impl Replica {
    /// Settles the stretch that ends now, if any: tokens are emitted, contexts grow, finished requests leave.
    pub(crate) fn settle(&mut self, results: &mut Recorder) -> Result<()> {
        self.settle_here::<Long>(results)
    }

    /// [`Replica::settle`] inlined into the hottest caller, for times of this width.
    #[inline(always)]
    pub(crate) fn settle_here<W: Width>(&mut self, results: &mut Recorder) -> Result<()> {
        if self.is_idle {
            // A wake-up of the scheduler: no iteration ran.
            return Ok(());
        }
        match self.state.variant {
            Variant::Plain if W::IS_SHORT => self.settle_with::<Plain<Short>>(results),
            Variant::PlainLong if !W::IS_SHORT => self.settle_with::<Plain<Long>>(results),
            Variant::Ahead => self.settle_ahead(results),
            _ => self.settle_rarer(results),
        }
    }

    fn settle_ahead(&mut self, results: &mut Recorder) -> Result<()> {
        self.settle_with::<PlainAhead<Short>>(results)
    }

    fn settle_rarer(&mut self, results: &mut Recorder) -> Result<()> {
        match self.state.variant {
            Variant::Plain => self.settle_with::<Plain<Short>>(results),
            Variant::PlainLong => self.settle_with::<Plain<Long>>(results),
            Variant::Ahead => self.settle_ahead(results),
            Variant::AheadLong => self.settle_with::<PlainAhead<Long>>(results),
            Variant::Full => self.settle_with::<Full<Short>>(results),
            Variant::FullLong => self.settle_with::<Full<Long>>(results),
        }
    }

    #[inline(always)]
    fn settle_with<F: Features>(&mut self, results: &mut Recorder) -> Result<()> {
        if F::FULL {
            self.report(self.stretch.end)?;
        }
        self.is_idle = true;
        self.next = Instant::NEVER;
        self.settle_stretch::<F>(results)
    }

    #[inline(always)]
    fn settle_stretch<F: Features>(&mut self, results: &mut Recorder) -> Result<()> {
        let stretch = &self.stretch;
        let (count, end) = (stretch.count, stretch.end.within::<F::Width>());
        results.count_stretch(count);
        self.state.iterations += count;
        self.state.last_end = end;
        stretch.audit::<F>(&self.state, &*self.scheduler, results);
        if F::FULL && results.wants_iterations() {
            self.list_iteration(results);
        }
        if F::AHEAD && self.state.ahead.as_ref().is_some_and(|ahead| ahead.drops) {
            self.state.begin_late(count);
        }
        if self.stretch.decodes > 0 {
            if F::FULL && self.state.groups.only().is_none() {
                self.settle_groups::<F>(results)?;
            } else {
                self.settle_decodes::<F>(0, results)?;
            }
            let tokens = count * self.stretch.decodes;
            self.state.emitted_tokens += tokens;
            self.state.preemptions_since_token = 0;
        }
        if self.state.batch.chunk_tokens > 0 {
            if F::FULL && self.state.drafts.is_some() {
                self.settle_drafted(results)?;
            } else {
                self.settle_chunks::<F>(results)?;
            }
        }
        if !self.due.is_empty() {
            self.due.drain(..).for_each(|place| self.state.start_growth(place));
        }
        if F::AHEAD && self.state.ahead.is_some() {
            return self.plan_next_ahead::<F>(results);
        }
        if !self.ending.is_empty() {
            self.end_rows::<F>(end, results)?;
        }
        if F::FULL && self.role != Role::Whole {
            self.depart(end);
            self.free_arrived(end);
        }
        Ok(())
    }

    fn settle_groups<F: Features>(&mut self, results: &mut Recorder) -> Result<()> {
        for group in 0..self.state.groups.len() {
            if self.state.groups[group].active() > 0 {
                self.settle_decodes::<F>(group, results)?;
            }
        }
        Ok(())
    }

    fn list_iteration(&mut self, results: &mut Recorder) {
        self.verify_drafts();
        if results.keeps_iterations() {
            results.iteration(self.row(&self.stretch));
            self.list_batch(results);
        }
        if let Some(events) = results.live_events() {
            events.emissions.extend(self.emissions());
        }
    }

    /// Settles a group of steady decodes: one token each per iteration.
    #[inline(always)]
    fn settle_decodes<F: Features>(&mut self, group: usize, results: &mut Recorder) -> Result<()> {
        let count = self.stretch.count;
        let (start, end) = (self.stretch.start.within::<F::Width>(), self.stretch.end.within::<F::Width>());
        let pace = self.stretch.pace.within::<F::Width>();
        let state = &mut self.state;
        let decodes = &mut state.groups[group];
        let tick = state.requests.ticks[group];
        if F::AHEAD && state.ahead.as_ref().is_some_and(|ahead| ahead.decodes_may_drop) {
            state.note_late_decodes(group, end);
        } else if decodes.odd.is_empty() && decodes.last_end.within::<F::Width>() == start {
            results.gaps::<F::Width>(&decodes.measured, pace.first, pace.growth, count)?;
            decodes.note_gap::<F::Width>(tick + count, pace.longest::<F::Width>(count)?);
        } else {
            state.settle_first_gaps::<F::Width>(group, &self.stretch, results)?;
        }
        let decodes = &mut state.groups[group];
        decodes.last_end = end;
        if count > 1 {
            state.take_further_growth::<F>(group, count);
        }
        let decodes = &mut state.groups[group];
        decodes.advance::<F>(count);
        if F::FULL {
            state.further_growth.take();
        }
        state.requests.ticks[group] = tick + count;
        let (requests, ending, due) = (&state.requests, &mut self.ending, &mut self.due);
        decodes.due.advance(tick + count, |place| {
            let request = requests.at(place);
            if request.ends_at(tick + count) { ending.push((request.row, place)) } else { due.push(place) }
        });
        Ok(())
    }

    /// Settles chunks. A fully computed request emits (R7) and can decode.
    #[inline(always)]
    fn settle_chunks<F: Features>(&mut self, results: &mut Recorder) -> Result<()> {
        let (count, end) = (self.stretch.count, self.stretch.end.within::<F::Width>());
        let mut state = &mut self.state;
        let first_token = state.requests.first_token;
        for index in 0..state.batch.chunks.len() {
            let chunk = state.batch.chunks[index];
            let tokens = chunk.tokens * count;
            state.prefilled_tokens += if chunk.is_decode { 0 } else { tokens };
            let (request, history) = state.requests.both_mut(chunk.place);
            request.placed = false;
            let known = u64::from(request.prompt_tokens + request.emitted);
            request.computed += tokens as u32;
            if request.emitted > 0 && !chunk.is_decode {
                // Tokens that were emitted before and are recomputed count as prefilled already.
                let emitted = request.computed.saturating_sub(request.prompt_tokens);
                state.brought_tokens += u64::from(emitted).min(tokens);
            }
            if count > 1 {
                let more = state.blocks.need(u64::from(request.computed)).saturating_sub(request.blocks);
                request.blocks += more;
                state.blocks.take_for::<F>(more);
            }
            if tokens < chunk.owed {
                if F::FULL && state.blocks.has_cache() {
                    self.settle_part(chunk);
                    state = &mut self.state;
                }
                continue;
            }
            if !F::FULL || first_token == FirstToken::Prefill || chunk.context == known {
                if F::AHEAD
                    && let Some(ahead) = state.ahead.as_mut().filter(|ahead| ahead.drops)
                {
                    ahead.late_tokens.push(LateToken::after(chunk.place, history));
                    history.first_token = history.first_token.min(end);
                } else if history.first_token.is_never::<F::Width>() {
                    history.first_token = end;
                } else {
                    let gap = end.since(history.last_token.within::<F::Width>()).within::<F::Width>();
                    history.longest_gap = history.longest_gap.within::<F::Width>().max(gap);
                    if state.measured.contains(request.id) {
                        results.gap::<F::Width>(request.class, gap)?;
                    }
                }
                history.last_token = end;
                request.emitted += 1;
                state.emitted_tokens += 1;
                state.preemptions_since_token = 0;
                if request.emitted == request.output_tokens {
                    self.ending.push((request.row, chunk.place));
                    continue;
                }
            }
            if F::FULL && self.role != Role::Whole && history.hand_off().is_none() {
                self.departing.push(chunk.place);
                continue;
            }
            let was_ready = std::mem::replace(&mut request.ready, true);
            if F::FULL && state.blocks.has_cache() && !was_ready {
                if state.caches_in_row_order {
                    self.ending.push((request.row, chunk.place));
                } else {
                    state.blocks.computed(chunk.place, u64::from(request.computed));
                }
            }
            self.scheduler.notice(Notice::Ready(chunk.place), &state.requests);
        }
        Ok(())
    }

    /// Publishes a partial prefill to the prefix cache.
    fn settle_part(&mut self, chunk: Chunk) {
        let state = &mut self.state;
        let is_last = state.caches_in_row_order;
        let news = state.batch.cached_iterations + 1..=self.stretch.count - u64::from(is_last);
        state.blocks.computed_in_steps(chunk.place, chunk.context, chunk.tokens, news);
        if is_last {
            self.ending.push((u64::MAX, chunk.place));
        }
    }

    /// Removes finished requests in the order of the batch. If the cache processes rows in order, it also publishes
    /// the rows of requests that continue.
    #[inline(always)]
    fn end_rows<F: Features>(&mut self, now: Instant, results: &mut Recorder) -> Result<()> {
        if self.ending.len() > 1 {
            self.ending.sort_unstable_by_key(|&(row, _)| row);
        }
        let state = &mut self.state;
        for index in 0..self.ending.len() {
            let (_, place) = self.ending[index];
            if state.requests.at(place).phase() == Phase::Decoding {
                state.finish_decoding::<F>(place);
            }
            if F::FULL && state.caches_in_row_order && state.continues(place) {
                continue;
            }
            debug_assert!(state.requests.at(place).owes_no_output(), "L5: a request emits exactly its output tokens");
            results.leave::<F::Width>(state.requests.history(place), self.index, Status::Finished, now);
            if F::FULL && state.limits.frees_with_batch {
                let kept = state.keep(place);
                state.kept.add(kept);
            } else {
                state.release::<F>(place, true);
            }
            self.scheduler.notice(Notice::Left(place), &state.requests);
            state.remove::<F>(place);
            state.running -= 1;
        }
        self.ending.clear();
        state.end_batch::<F>();
        Ok(())
    }

    /// Sends requests with complete prompts to other replicas, in order of ids. Their blocks stay taken until the
    /// transfer ends.
    pub(super) fn depart(&mut self, now: Instant) {
        let state = &mut self.state;
        self.departing.sort_unstable_by_key(|&place| state.requests.at(place).id);
        for place in self.departing.drain(..) {
            self.scheduler.notice(Notice::Left(place), &state.requests);
            let blocks = state.requests.at(place).blocks;
            let held = HeldBlocks { blocks, kept: state.keep(place) };
            let content = match self.prefixes.get_mut(place.index()) {
                Some(content) => std::mem::take(content),
                None => state.blocks.content(place),
            };
            let drafting = state.drafting_of(place);
            let recorded = state.recorded_drafts.take(place);
            let (request, history) = state.take_out(place);
            state.brought_tokens -= u64::from(request.output_tokens - request.emitted);
            state.sent_blocks += blocks;
            state.running -= 1;
            self.departures.push(Departure {
                request,
                history,
                from: self.index,
                at: now,
                held,
                content,
                drafting,
                recorded,
            });
        }
        state.end_batch::<Full>();
    }

    /// Ends the run: emitted tokens count, the running iteration emits nothing, and the remaining requests are
    /// unfinished. Their cached content counts too.
    pub(crate) fn stop(&mut self, end: Instant, results: &mut Recorder) -> Result<()> {
        // Batches are formed at `end` too.
        let under_way = self.break_off(end, self.stretch.count, results)?;
        let live: Vec<Place> = self.state.live().collect();
        for place in live {
            self.state.publish_decodes(place, under_way);
            if self.state.requests.at(place).phase() == Phase::Decoding {
                self.state.leave_decodes(place);
            }
            self.state.record_drafts(place, results);
            results.leave::<Long>(self.state.requests.history(place), self.index, Status::Unfinished, end);
        }
        Ok(())
    }

    /// Settles the iterations of the running stretch that have ended at `end`, and stops it. At most `begun` of its
    /// iterations have begun. Returns the number of running iterations.
    fn break_off(&mut self, end: Instant, begun: u64, results: &mut Recorder) -> Result<u64> {
        if self.is_idle {
            return Ok(0);
        }
        self.is_idle = true;
        let Stretch { start, pace, count, .. } = self.stretch;
        let whole = pace.count_within(end.since(start), count)?;
        if whole > 0 {
            (self.stretch.count, self.stretch.end) = (whole, end_after(start, &pace, whole)?);
            if self.state.blocks.has_layer_groups() {
                self.state.advance_groups(begun.min(whole + 1));
            }
            // No further batch is planned. Tokens in flight keep their delay.
            let ahead = self.state.ahead.take();
            self.settle_stretch::<Full>(results)?;
            self.state.ahead = ahead;
            if whole < begun && self.state.blocks.has_cache() {
                self.state.begin_again();
            }
        }
        Ok(u64::from(whole < begun))
    }

    /// The replica fails: emitted tokens count, everything else is lost. Returns its requests, unordered; a new
    /// replica takes its place.
    pub(crate) fn kill(&mut self, now: Instant, results: &mut Recorder) -> Result<Vec<Stranded>> {
        // Replicas fail before batches are formed.
        let under_way = self.break_off(now, self.begun(now)?, results)?;
        let live: Vec<Place> = self.state.live().collect();
        let mut stranded = Vec::with_capacity(live.len());
        for place in live {
            self.state.publish_decodes(place, under_way);
            if self.state.requests.at(place).phase() == Phase::Decoding {
                self.state.leave_decodes(place);
            }
            let content = match self.prefixes.get_mut(place.index()) {
                Some(content) => std::mem::take(content),
                None => self.state.blocks.content(place),
            };
            let drafting = self.state.drafting_of(place);
            let recorded = self.state.recorded_drafts.take(place);
            let (request, mut history) = self.state.requests.take(place);
            if history.admitted == now {
                // Batches are formed last at an instant, so a batch formed at `now` has not begun.
                (history.admitted, history.cached_tokens) = (Instant::NEVER, 0);
            }
            stranded.push(Stranded { emitted: request.emitted, history, content, drafting, recorded });
        }
        Ok(stranded)
    }
}

impl State {
    /// Settles the gaps of a group with members whose last token came before the start of the stretch. Their first
    /// gap is not the length of the first iteration.
    fn settle_first_gaps<W: Width>(&mut self, group: usize, stretch: &Stretch, results: &mut Recorder) -> Result<()> {
        let (start, pace, count) = (stretch.start.within::<W>(), stretch.pace.within::<W>(), stretch.count);
        let decodes = &mut self.groups[group];
        let tick = self.requests.ticks[group];
        let first_end = start.after(pace.first)?.within::<W>();
        let gap = first_end.since(decodes.last_end.within::<W>()).within::<W>();
        results.gaps::<W>(&decodes.measured, gap, 0, 1)?;
        decodes.note_gap::<W>(tick + 1, gap);
        while let Some(place) = decodes.odd.pop() {
            let (request, history) = self.requests.both_mut(place);
            history.odd = NOT_ODD;
            let measured = self.measured.contains(request.id);
            if history.first_token.is_never::<W>() {
                history.first_token = first_end;
            } else {
                let gap = first_end.since(history.last_token.within::<W>()).within::<W>();
                history.longest_gap = history.longest_gap.within::<W>().max(gap);
                if measured {
                    results.gap::<W>(request.class, gap)?;
                }
            }
            history.gaps_known = tick + 1;
            decodes.measured.add(request.class, u64::from(measured));
        }
        if count > 1 {
            let second = pace.length(1)?;
            results.gaps::<W>(&decodes.measured, second, pace.growth, count - 1)?;
            decodes.note_gap::<W>(tick + count, Pace { first: second, ..pace }.longest::<W>(count - 1)?);
        }
        Ok(())
    }

    /// Whether a request continues after its row. If so, publishes the row to the prefix cache.
    pub(super) fn continues(&mut self, place: Place) -> bool {
        let request = self.requests.at(place);
        let continues = !request.owes_no_output();
        if continues {
            self.blocks.computed(place, u64::from(request.computed));
        }
        continues
    }

    /// Takes the blocks of a group for all iterations after the first.
    #[inline]
    fn take_further_growth<F: Features>(&mut self, group: usize, count: u64) {
        if F::FULL && self.blocks.has_layer_groups() {
            return self.advance_groups(count);
        }
        let growth = &self.groups[group].growth;
        let (first, all) = (growth.next_growth(), growth.growth(count));
        if F::FULL && self.batch.reserved_each > 0 && self.blocks.has_cache() {
            // Reservations only increase, so only the last iteration's matters.
            let before_last = growth.growth(count - 1);
            self.blocks.take(before_last - first);
            self.blocks.reserve(self.batch.reserved_each);
            self.blocks.take(all - before_last);
        } else {
            self.blocks.take_for::<F>(all - first);
        }
    }

    /// The blocks that a steady decode took ahead are full: it grows like the others from now on.
    fn start_growth(&mut self, place: Place) {
        let context = self.requests.context(place);
        let left = u64::from(self.requests.at(place).output_tokens) - self.requests.emitted(place);
        let tick = self.requests.tick(self.requests.at(place));
        let request = self.requests.at_mut(place);
        request.grows = true;
        let decodes = &mut self.groups[request.group as usize];
        decodes.growth.join(context);
        self.further_growth.take();
        decodes.due.insert(place, tick + left);
    }
}
