//! The end of a stretch: what its iterations have done.

use super::stretch::Stretch;
use super::{Departure, Held, Replica, Role, end_after};
use crate::clock::Instant;
use crate::error::Result;
use crate::request::{FirstToken, Phase, Place};
use crate::results::{Recorder, Status};
use crate::scheduler::Notice;
use crate::timing::Pace;

impl Replica {
    /// Settles the stretch that ends now: tokens come out, contexts grow, finished requests leave.
    pub fn settle(&mut self, results: &mut Recorder) -> Result<()> {
        let Some(stretch) = self.stretch else { return Ok(()) };
        self.report(stretch.end)?;
        self.stretch = None;
        self.settle_stretch(&stretch, results)
    }

    fn settle_stretch(&mut self, stretch: &Stretch, results: &mut Recorder) -> Result<()> {
        results.count_stretch(stretch.count);
        self.state.iterations += stretch.count;
        self.state.busy = self.state.busy.plus(stretch.end.since(stretch.start))?;
        self.state.last_end = stretch.end;
        stretch.audit(&self.state, results);
        let emitted = self.emitted_tokens;
        if results.wants_iterations() {
            results.iteration(self.row(stretch));
            self.list_batch(results);
        }
        if stretch.decodes > 0 {
            for group in 0..self.state.groups.len() {
                if self.state.groups[group].active() > 0 {
                    self.settle_decodes(group, stretch, results)?;
                }
            }
            self.emitted_tokens += stretch.count * stretch.decodes;
            self.state.tokens_ahead -= stretch.count * stretch.decodes;
        }
        if !self.state.batch.chunks.is_empty() {
            self.settle_chunks(stretch, results)?;
        }
        if self.emitted_tokens > emitted {
            self.state.fruitless_preemptions = 0;
        }
        if !self.due.is_empty() {
            self.settle_due();
        }
        if !self.ending.is_empty() {
            self.end_rows(stretch.end, results)?;
        }
        if self.role != Role::Whole {
            self.depart(stretch.end);
            self.free_arrived();
        }
        Ok(())
    }

    /// Every standing decode of a group emitted a token in each iteration.
    // Not inlined: inside the loop over groups its set-up would be paid before the loop, by every stretch.
    #[inline(never)]
    fn settle_decodes(&mut self, group: usize, stretch: &Stretch, results: &mut Recorder) -> Result<()> {
        let Stretch { start, pace, count, end, .. } = *stretch;
        let state = &mut self.state;
        let decodes = &mut state.groups[group];
        let tick = state.requests.ticks[group];
        if decodes.odd.is_empty() && decodes.last_end == start {
            results.gaps(&decodes.measured, pace.first, pace.growth, count)?;
            decodes.note_gap(tick + count, pace.longest(count)?);
        } else {
            // The first gap is not the first iteration's length: the last token came before the iteration began.
            let first_end = start.after(pace.first)?;
            let gap = first_end.since(decodes.last_end);
            results.gaps(&decodes.measured, gap, 0, 1)?;
            decodes.note_gap(tick + 1, gap);
            while let Some(place) = decodes.odd.pop() {
                let (request, history) = state.requests.both_mut(place);
                let measured = state.measured.contains(&request.id);
                if history.first_token == Instant::NEVER {
                    history.first_token = first_end;
                } else {
                    let gap = first_end.since(request.last_token);
                    history.longest_gap = history.longest_gap.max(gap);
                    if measured {
                        results.gap(request.class, gap)?;
                    }
                }
                history.gaps_known = tick + 1;
                decodes.measured[request.class as usize] += u64::from(measured);
            }
            if count > 1 {
                let second = pace.length(1)?;
                results.gaps(&decodes.measured, second, pace.growth, count - 1)?;
                decodes.note_gap(tick + count, Pace { first: second, ..pace }.longest(count - 1)?);
            }
        }
        decodes.last_end = end;
        if count > 1 {
            let reserved = if state.blocks.has_cache() { state.batch.reserved_each } else { 0 };
            let (first, growth) = (decodes.growth.next_growth(), decodes.growth.growth(count));
            if reserved > 0 {
                // Demands only rise from one iteration to the next, so the last one's is all that matters.
                let before_last = decodes.growth.growth(count - 1);
                state.blocks.take(before_last - first);
                state.blocks.reserve(reserved);
                state.blocks.take(growth - before_last);
            } else {
                state.blocks.take(growth - first);
            }
        }
        decodes.advance(count);
        state.requests.ticks[group] += count;
        decodes.due.advance(tick + count, &mut self.due);
        Ok(())
    }

    /// Chunks are computed; a request with everything computed emits (rule 7), and can decode.
    fn settle_chunks(&mut self, stretch: &Stretch, results: &mut Recorder) -> Result<()> {
        let state = &mut self.state;
        for &chunk in &state.batch.chunks {
            let tokens = chunk.tokens * stretch.count;
            self.prefilled_tokens += if chunk.is_decode { 0 } else { tokens };
            let request = state.requests.at_mut(chunk.place);
            request.placed = false;
            let known = u64::from(request.prompt_tokens + request.emitted);
            let before = request.computed.min(request.prompt_tokens);
            request.computed += tokens as u32;
            state.tokens_ahead -= u64::from(request.computed.min(request.prompt_tokens) - before);
            if stretch.count > 1 {
                let more = state.blocks.need(u64::from(request.computed)).saturating_sub(request.blocks);
                state.blocks.take(more);
                request.blocks += more;
            }
            if tokens < chunk.owed {
                if !state.blocks.has_cache() {
                    continue;
                }
                let is_last = state.caches_in_row_order;
                let news = state.batch.cached_iterations + 1..=stretch.count - u64::from(is_last);
                state.blocks.computed_in_steps(chunk.place, chunk.context, chunk.tokens, news);
                if is_last {
                    self.ending.push((u64::MAX, chunk.place));
                }
                continue;
            }
            if state.requests.first_token == FirstToken::Prefill || chunk.context == known {
                let (request, history) = state.requests.both_mut(chunk.place);
                if history.first_token == Instant::NEVER {
                    history.first_token = stretch.end;
                } else {
                    let gap = stretch.end.since(request.last_token);
                    history.longest_gap = history.longest_gap.max(gap);
                    if state.measured.contains(&request.id) {
                        results.gap(request.class, gap)?;
                    }
                }
                request.last_token = stretch.end;
                request.emitted += 1;
                self.emitted_tokens += 1;
                state.tokens_ahead -= 1;
                if request.emitted == request.output_tokens {
                    self.ending.push((request.row, chunk.place));
                    continue;
                }
            }
            if self.role != Role::Whole && state.requests.history(chunk.place).hand_off.is_none() {
                self.departing.push(chunk.place);
                continue;
            }
            let request = state.requests.at_mut(chunk.place);
            let was_ready = std::mem::replace(&mut request.ready, true);
            if state.blocks.has_cache() && !was_ready {
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

    /// Standing decodes whose time has come: the last token is out, or the blocks taken ahead are full.
    fn settle_due(&mut self) {
        let state = &mut self.state;
        for place in self.due.drain(..) {
            let emitted = state.requests.emitted(place);
            let context = state.requests.context(place);
            let tick = state.requests.tick(state.requests.at(place));
            let request = state.requests.at_mut(place);
            let decodes = &mut state.groups[request.group as usize];
            let left = u64::from(request.output_tokens) - emitted;
            if left == 0 {
                self.ending.push((request.row, place));
            } else {
                request.grows = true;
                decodes.growth.join(context);
                decodes.due.insert(place, tick + left);
            }
        }
    }

    /// The finished leave in the order of the batch, with their blocks; where the cache hears of rows in that order, so do
    /// requests that go on.
    fn end_rows(&mut self, now: Instant, results: &mut Recorder) -> Result<()> {
        if self.ending.len() > 1 {
            self.ending.sort_unstable_by_key(|&(row, _)| row);
        }
        let state = &mut self.state;
        for (_, place) in self.ending.drain(..) {
            if state.requests.at(place).phase() == Phase::Decoding {
                state.left_decodes(place);
            }
            let request = state.requests.at(place);
            if request.emitted < request.output_tokens {
                debug_assert!(state.caches_in_row_order, "L5: exactly o tokens, once");
                state.blocks.computed(place, u64::from(request.computed));
                continue;
            }
            results.leave(state.requests.history(place), self.index, Status::Finished, now);
            if state.limits.frees_with_batch {
                let kept = state.keep(place);
                state.kept.add(kept);
            } else {
                state.release(place, true);
            }
            self.scheduler.notice(Notice::Left(place), &state.requests);
            state.remove(place);
            state.running -= 1;
        }
        state.end_batch();
        Ok(())
    }

    /// Those whose prompts are computed go, in order of their ids. What they hold stays taken until it has arrived.
    fn depart(&mut self, now: Instant) {
        let state = &mut self.state;
        self.departing.sort_unstable_by_key(|&place| state.requests.at(place).id);
        for place in self.departing.drain(..) {
            self.scheduler.notice(Notice::Left(place), &state.requests);
            let blocks = state.requests.at(place).blocks;
            let held = Held { blocks, kept: state.keep(place) };
            let content = match self.prefixes.get_mut(place.index()) {
                Some(content) => std::mem::take(content),
                None => state.blocks.content(place),
            };
            let (request, history) = state.take_out(place);
            state.tokens_ahead -= u64::from(request.output_tokens - request.emitted);
            state.sent_blocks += blocks;
            state.running -= 1;
            self.departures.push(Departure { request, history, from: self.index, at: now, held, content });
        }
        state.end_batch();
    }

    /// Ends the run: what was emitted by then counts, the running iteration emits nothing, and a request that is
    /// still here stays unfinished. What the cache knows of them counts too, whether or not it was asked for.
    pub fn stop(&mut self, end: Instant, results: &mut Recorder) -> Result<()> {
        let mut under_way = u64::from(self.stretch.is_some());
        if let Some(mut stretch) = self.stretch.take() {
            let whole = stretch.pace.count_within(end.since(stretch.start), stretch.count)?;
            if whole > 0 {
                let goes_on = whole < stretch.count;
                under_way = u64::from(goes_on);
                stretch.count = whole;
                stretch.end = end_after(stretch.start, &stretch.pace, whole)?;
                self.settle_stretch(&stretch, results)?;
                if goes_on && self.state.blocks.has_cache() {
                    self.state.begin_again();
                }
            }
        }
        let live: Vec<Place> = self.state.live().collect();
        for place in live {
            self.state.publish_decodes(place, under_way);
            if self.state.requests.at(place).phase() == Phase::Decoding {
                self.state.leave_decodes(place);
            }
            results.leave(self.state.requests.history(place), self.index, Status::Unfinished, end);
        }
        Ok(())
    }
}
