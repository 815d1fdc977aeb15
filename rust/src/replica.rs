//! What does one engine do, from one batch to the next?
//!
//! `plan → price → advance → settle`: the scheduler plans a batch, the timing model prices it, the clock advances over a
//! *stretch* of k identical iterations at once, and at its end everything that they did is settled. Whoever holds the
//! replica may cut a running stretch at an event; because time is whole, no result depends on where stretches end (law L8).

use crate::clock::{Instant, Span};
use crate::decodes::Decodes;
use crate::engine::EngineParts;
use crate::error::{Kind, Result};
use crate::kv::BlockPool;
use crate::plan::{Batch, Chunk, Plan, State, broken};
use crate::request::{FirstToken, Phase, Requests, Slot, longest_context};
use crate::results::{IterationRow, Recorder, Sample, Status};
use crate::scheduler::{Notice, Scheduler};
use crate::timing::{Pace, Timing};
use crate::workload::Arrival;

/// Identical iterations under way.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    start: Instant,
    pace: Pace,
    count: u64,
    end: Instant,
    through_arrivals: bool,
    /// Decodes of each iteration among the standing ones.
    decodes: u64,
    /// Blocks that the standing decodes took for the first iteration.
    growth: u64,
}

/// One engine on one GPU group.
pub struct Replica {
    index: u32,
    scheduler: Box<dyn Scheduler>,
    timing: Box<dyn Timing>,
    state: State,
    stretch: Option<Stretch>,
    wake_at: Instant,
    stepping: bool,
    due: Vec<Slot>,
    leaving: Vec<(u64, Slot)>,
    prefilled_tokens: u64,
    emitted_tokens: u64,
}

/// Empty plans in a row at one instant, each of which preempted somebody, after which a policy is taken to be caught in a
/// circle: more than a policy needs that preempts its requests one plan at a time.
const MOST_EMPTY_PLANS: u32 = 1 << 16;

/// The running iteration of a stretch cannot be cut.
#[inline]
fn end_after(start: Instant, pace: &Pace, count: u64) -> Result<Instant> {
    start.after(pace.total(count)?)
}

impl Replica {
    /// An idle replica. Requests outside `measured` are in no histogram; with `stepping` every stretch is one iteration.
    pub fn new(
        index: u32,
        engine: EngineParts,
        classes: usize,
        measured: std::ops::Range<u32>,
        stepping: bool,
    ) -> Replica {
        let pool = BlockPool::new(&engine.kv);
        Replica {
            index,
            state: State {
                requests: Requests::new(engine.first_token),
                decodes: Decodes::new(pool.block_tokens(), classes),
                pool,
                limits: engine.scheduler.limits(),
                batch: Batch::new(),
                running: 0,
                waiting: 0,
                admissions: 0,
                swap_charge: Span::ZERO,
                most_preempted: 0,
                measured,
            },
            scheduler: engine.scheduler,
            timing: engine.timing,
            stretch: None,
            wake_at: Instant::NEVER,
            stepping,
            due: Vec::new(),
            leaving: Vec::new(),
            prefilled_tokens: 0,
            emitted_tokens: 0,
        }
    }

    /// When something happens here next without anybody's doing: a stretch ends, or the scheduler wants to be asked.
    #[inline]
    pub fn next_instant(&self) -> Instant {
        self.stretch.as_ref().map_or(self.wake_at, |stretch| stretch.end)
    }

    /// Is no iteration under way?
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.stretch.is_none()
    }

    /// Does it hold no request?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.state.requests.is_empty()
    }

    /// Requests in its queue, preempted and swapped ones included.
    #[inline]
    pub fn waiting(&self) -> u64 {
        self.state.waiting
    }

    /// Most preemptions of one request so far.
    pub fn most_preempted(&self) -> u32 {
        self.state.most_preempted
    }

    /// A request arrives. One that can never fit is rejected at once (rule 11).
    pub fn arrive(&mut self, arrival: Arrival, results: &mut Recorder) -> Result<Option<Slot>> {
        let longest = longest_context(&arrival, self.state.requests.first_token);
        if self.state.pool.need(longest) > self.state.pool.capacity() {
            results.reject(&arrival, self.index, "its largest context is larger than the KV cache");
            return Ok(None);
        }
        if let Some(reason) = self.scheduler.refuses(&arrival) {
            results.reject(&arrival, self.index, reason);
            return Ok(None);
        }
        let slot = self.state.requests.insert(arrival);
        self.state.waiting += 1;
        self.scheduler.notice(Notice::Arrived(slot), &self.state.requests);
        if self.stretch.is_some_and(|stretch| !stretch.through_arrivals) {
            self.cut(arrival.at)?;
        }
        Ok(Some(slot))
    }

    /// A request that was never admitted runs out of patience. Does nothing if it was admitted, or left: whoever left
    /// before had been admitted, so a place that is empty or taken by another is told from one where `id` still waits.
    pub fn abandon(&mut self, slot: Slot, id: u32, now: Instant, results: &mut Recorder) -> Result<bool> {
        let request = self.state.requests.at(slot);
        let waits = request.phase() == Phase::Waiting && request.admitted == Instant::NEVER;
        if request.arrival.id != id || !waits {
            return Ok(false);
        }
        results.leave(self.state.requests.at(slot), self.index, Status::Abandoned, now);
        self.scheduler.notice(Notice::Left(slot), &self.state.requests);
        self.state.requests.remove(slot);
        self.state.waiting -= 1;
        self.cut(now)?;
        Ok(true)
    }

    /// Ends the running stretch with the iteration that runs at `now`.
    fn cut(&mut self, now: Instant) -> Result<()> {
        let Some(stretch) = &mut self.stretch else { return Ok(()) };
        if stretch.count == 1 || stretch.end <= now {
            return Ok(());
        }
        let elapsed = now.since(stretch.start);
        stretch.count = if elapsed <= stretch.pace.first {
            1
        } else {
            // An iteration that ends at the very instant is over; otherwise the running one is the last.
            let whole = stretch.pace.count_within(elapsed, stretch.count)?;
            if stretch.pace.total(whole)? == elapsed { whole } else { whole + 1 }
        };
        stretch.end = end_after(stretch.start, &stretch.pace, stretch.count)?;
        Ok(())
    }

    /// Forms the next batch, if the scheduler asks for one. Says whether an iteration runs now.
    pub fn form(&mut self, now: Instant, drain: bool) -> Result<bool> {
        debug_assert!(self.stretch.is_none(), "an iteration cannot be interrupted");
        self.wake_at = Instant::NEVER;
        let mut asked_in_vain = 0;
        loop {
            self.state.batch.clear();
            self.scheduler.plan(&mut Plan { state: &mut self.state, now, drain })?;
            self.check_plan(now)?;
            let batch = &self.state.batch;
            if !batch.chunks.is_empty() || (self.state.decodes.count > 0 && !batch.decodes_rest) {
                break;
            }
            if batch.preempted == 0 {
                self.wake_at = batch.wake_at.filter(|&at| at > now).unwrap_or(Instant::NEVER);
                return Ok(false);
            }
            asked_in_vain += 1;
            if asked_in_vain == MOST_EMPTY_PLANS {
                let what = format!("{asked_in_vain} empty plans");
                return Err(broken(now, "a policy that only preempts and swaps in comes to an end", what));
            }
        }
        self.run(now)?;
        Ok(true)
    }

    /// What a plan asked in pieces must hold as a whole (rule 6).
    fn check_plan(&self, now: Instant) -> Result<()> {
        let state = &self.state;
        let standing = if state.batch.decodes_rest { 0 } else { state.decodes.count };
        if standing + state.batch.chunk_tokens > state.limits.token_budget {
            let what = format!("{} tokens", standing + state.batch.chunk_tokens);
            return Err(broken(now, "no iteration loads more tokens than the budget", what));
        }
        if standing > 0 && state.decodes.growth.next_growth() > state.pool.free() {
            let what = format!("{} decodes, {} free blocks", standing, state.pool.free());
            return Err(broken(now, "no more blocks are taken than are free", what));
        }
        for &slot in &state.batch.admitted {
            let request = state.requests.at(slot);
            if !request.placed && request.phase() != Phase::Decoding {
                let what = format!("request {}", request.arrival.id);
                return Err(broken(now, "a request is admitted by the batch that it is in", what));
            }
        }
        Ok(())
    }

    /// Prices the batch and sets it going for as long as nothing changes.
    fn run(&mut self, now: Instant) -> Result<()> {
        let state = &mut self.state;
        let tick = state.requests.tick;
        let batch = &state.batch;
        let shape = batch.shape(&state.decodes, tick);
        let mut pace = self.timing.pace(&shape)?;
        let decodes = if batch.decodes_rest { 0 } else { state.decodes.count };
        let mut count = batch.hold.iterations.min(pace.holds).min(self.scheduler.holds(&pace));
        if self.stepping {
            count = 1;
        }
        for chunk in &batch.chunks {
            // The iteration that completes a prompt is a stretch of its own: it emits, the ones before do not.
            count = if chunk.tokens == chunk.owed { 1 } else { count.min((chunk.owed - 1) / chunk.tokens) };
        }
        if decodes > 0 {
            let due = state.decodes.due.next();
            debug_assert!(due.is_some(), "every decode has a last token");
            count = count.min(due.unwrap_or(tick + 1) - tick);
        }
        if state.swap_charge > Span::ZERO {
            pace.first = pace.first.plus(state.swap_charge)?;
            state.swap_charge = Span::ZERO;
            count = 1;
        }
        let mut count = count.max(1);
        let growth = if decodes > 0 { state.decodes.growth.next_growth() } else { 0 };
        state.pool.take(growth);
        let free = state.pool.free();
        let more =
            |count| more_blocks(&state.decodes, &state.pool, &state.requests, &batch.chunks, decodes, count) - growth;
        let is_roomy = batch.chunks.is_empty() && state.decodes.growth.growth_at_most(count) <= free;
        if count > 1 && !is_roomy && more(count) > free {
            // Blocks only grow with the number of iterations: the last number that fits lies between.
            let (mut fits, mut fails) = (1, count);
            while fails - fits > 1 {
                let middle = fits + (fails - fits) / 2;
                if more(middle) > free { fails = middle } else { fits = middle }
            }
            count = fits;
        }
        if pace.first == Span::ZERO || (pace.growth < 0 && pace.length(count - 1)? == Span::ZERO) {
            return Err(Kind::EmptyIteration(now.seconds().to_string()).into());
        }
        let through_arrivals = batch.hold.through_arrivals;
        for place in 0..state.batch.admitted.len() {
            let request = state.requests.at_mut(state.batch.admitted[place]);
            request.admitted = request.admitted.min(now);
        }
        self.stretch = Some(Stretch {
            start: now,
            pace,
            count,
            end: end_after(now, &pace, count)?,
            through_arrivals,
            decodes,
            growth,
        });
        Ok(())
    }

    /// Settles the stretch that ends now: tokens come out, contexts grow, who is done leaves.
    pub fn settle(&mut self, results: &mut Recorder) -> Result<()> {
        let Some(stretch) = self.stretch else { return Ok(()) };
        self.stretch = None;
        self.settle_stretch(&stretch, results)
    }

    fn settle_stretch(&mut self, stretch: &Stretch, results: &mut Recorder) -> Result<()> {
        results.count_stretch(stretch.count);
        if results.wants_iterations() {
            results.iteration(self.row(stretch));
            self.list_batch(results);
        }
        if stretch.decodes > 0 {
            self.settle_decodes(stretch, results)?;
        }
        if !self.state.batch.chunks.is_empty() {
            self.settle_chunks(stretch, results)?;
        }
        if !self.due.is_empty() {
            self.settle_due();
        }
        if !self.leaving.is_empty() {
            self.leave(stretch.end, results)?;
        }
        Ok(())
    }

    /// Every standing decode emitted a token in each iteration.
    fn settle_decodes(&mut self, stretch: &Stretch, results: &mut Recorder) -> Result<()> {
        let Stretch { start, pace, count, end, .. } = *stretch;
        let state = &mut self.state;
        let decodes = &mut state.decodes;
        let tick = state.requests.tick;
        if decodes.odd.is_empty() && decodes.last_end == start {
            results.gaps(&decodes.measured, pace.first, pace.growth, count)?;
            decodes.note_gap(tick + count, pace.longest(count)?);
        } else {
            // The first gap is not the first iteration's length: the last token came before the iteration began.
            let first_end = start.after(pace.first)?;
            let gap = first_end.since(decodes.last_end);
            results.gaps(&decodes.measured, gap, 0, 1)?;
            decodes.note_gap(tick + 1, gap);
            while let Some(slot) = decodes.odd.pop() {
                let measured = state.measured.contains(&state.requests.at(slot).arrival.id);
                let request = state.requests.at_mut(slot);
                if request.first_token == Instant::NEVER {
                    request.first_token = first_end;
                } else {
                    let gap = first_end.since(request.last_token);
                    request.longest_gap = request.longest_gap.max(gap);
                    if measured {
                        results.gap(request.arrival.class, gap)?;
                    }
                }
                request.gaps_known = tick + 1;
                if measured {
                    decodes.measured[request.arrival.class as usize] += 1;
                }
            }
            if count > 1 {
                let second = pace.length(1)?;
                results.gaps(&decodes.measured, second, pace.growth, count - 1)?;
                decodes.note_gap(tick + count, Pace { first: second, ..pace }.longest(count - 1)?);
            }
        }
        decodes.last_end = end;
        if count > 1 {
            state.pool.take(decodes.growth.growth(count) - stretch.growth);
        }
        decodes.growth.advance(count);
        state.requests.tick += count;
        decodes.due.advance(state.requests.tick, &mut self.due);
        self.emitted_tokens += count * stretch.decodes;
        Ok(())
    }

    /// Chunks are computed; who has everything computed emits (rule 7), and can decode.
    fn settle_chunks(&mut self, stretch: &Stretch, results: &mut Recorder) -> Result<()> {
        let state = &mut self.state;
        for &chunk in &state.batch.chunks {
            let tokens = chunk.tokens * stretch.count;
            self.prefilled_tokens += if chunk.is_decode { 0 } else { tokens };
            let known = state.requests.known(chunk.slot);
            let measured = state.measured.contains(&state.requests.at(chunk.slot).arrival.id);
            let first_token = state.requests.first_token;
            let request = state.requests.at_mut(chunk.slot);
            request.placed = false;
            request.computed += tokens as u32;
            if stretch.count > 1 {
                let more = state.pool.need(u64::from(request.computed)).saturating_sub(request.blocks);
                state.pool.take(more);
                request.blocks += more;
            }
            if tokens < chunk.owed {
                continue;
            }
            if first_token == FirstToken::Prefill || chunk.context == known {
                if request.first_token == Instant::NEVER {
                    request.first_token = stretch.end;
                } else {
                    let gap = stretch.end.since(request.last_token);
                    request.longest_gap = request.longest_gap.max(gap);
                    if measured {
                        results.gap(request.arrival.class, gap)?;
                    }
                }
                request.last_token = stretch.end;
                request.emitted += 1;
                self.emitted_tokens += 1;
                if request.emitted == request.arrival.output_tokens {
                    self.leaving.push((request.admission, chunk.slot));
                    continue;
                }
            }
            self.scheduler.notice(Notice::Ready(chunk.slot), &state.requests);
        }
        Ok(())
    }

    /// Standing decodes whose time has come: the last token is out, or the blocks taken ahead are full.
    fn settle_due(&mut self) {
        let state = &mut self.state;
        for slot in self.due.drain(..) {
            let emitted = state.requests.emitted(slot);
            let context = state.requests.context(slot);
            let tick = state.requests.tick;
            let request = state.requests.at_mut(slot);
            let left = u64::from(request.arrival.output_tokens) - emitted;
            if left == 0 {
                self.leaving.push((request.admission, slot));
            } else {
                request.grows = true;
                state.decodes.growth.join(context);
                state.decodes.due.insert(slot, tick + left);
            }
        }
    }

    /// The finished leave in the order of the batch, with their blocks.
    fn leave(&mut self, now: Instant, results: &mut Recorder) -> Result<()> {
        if self.leaving.len() > 1 {
            self.leaving.sort_unstable_by_key(|&(admission, _)| admission);
        }
        let state = &mut self.state;
        for (_, slot) in self.leaving.drain(..) {
            if state.requests.at(slot).phase() == Phase::Decoding {
                state.left_decodes(slot);
            }
            let request = state.requests.at(slot);
            debug_assert_eq!(request.emitted, request.arrival.output_tokens, "L5: exactly o tokens, once");
            state.pool.give(request.blocks);
            results.leave(request, self.index, Status::Finished, now);
            self.scheduler.notice(Notice::Left(slot), &state.requests);
            state.requests.remove(slot);
            state.running -= 1;
        }
        debug_assert!(
            !state.requests.is_empty() || state.pool.used() == 0,
            "L4: nothing is held after the last request"
        );
        Ok(())
    }

    /// Ends the run at `horizon`: what was emitted by then counts, the running iteration emits nothing, and
    /// whoever is still here stays unfinished.
    pub fn stop(&mut self, horizon: Option<Instant>, results: &mut Recorder) -> Result<()> {
        if let (Some(mut stretch), Some(horizon)) = (self.stretch.take(), horizon) {
            let whole = stretch.pace.count_within(horizon.since(stretch.start), stretch.count)?;
            if whole > 0 {
                stretch.count = whole;
                stretch.end = end_after(stretch.start, &stretch.pace, whole)?;
                self.settle_stretch(&stretch, results)?;
            }
        }
        let mut vacant = vec![false; self.state.requests.slots().count()];
        for slot in self.state.requests.vacant() {
            vacant[slot.index()] = true;
        }
        for slot in self.state.requests.slots().filter(|slot| !vacant[slot.index()]) {
            if self.state.requests.at(slot).phase() == Phase::Decoding {
                self.state.leave_decodes(slot);
            }
            results.leave(self.state.requests.at(slot), self.index, Status::Unfinished, Instant::NEVER);
        }
        Ok(())
    }

    /// The state at an instant, without going there.
    pub fn sample(&self, at: Instant) -> Result<Sample> {
        let state = &self.state;
        let mut sample = Sample {
            at,
            replica: self.index,
            waiting: state.waiting,
            running: state.running,
            kv_used_tokens: state.pool.used() * state.pool.block_tokens(),
            prefilled_tokens: self.prefilled_tokens,
            emitted_tokens: self.emitted_tokens,
        };
        if let Some(stretch) = &self.stretch {
            let over = stretch.pace.count_within(at.since(stretch.start), stretch.count)?;
            // The iteration that runs now took its blocks when it began.
            let begun = (over + 1).min(stretch.count);
            let chunks = &state.batch.chunks;
            let more = more_blocks(&state.decodes, &state.pool, &state.requests, chunks, stretch.decodes, begun);
            sample.kv_used_tokens += (more - stretch.growth) * state.pool.block_tokens();
            sample.emitted_tokens += over * stretch.decodes;
            sample.prefilled_tokens += over * state.batch.shape(&state.decodes, state.requests.tick).chunk_tokens;
        }
        Ok(sample)
    }

    /// The stretch as a row, before anything of it is settled.
    fn row(&self, stretch: &Stretch) -> IterationRow {
        let state = &self.state;
        let shape = state.batch.shape(&state.decodes, state.requests.tick);
        IterationRow {
            start: stretch.start,
            replica: self.index,
            count: stretch.count,
            pace: stretch.pace,
            prefill_tokens: shape.chunk_tokens,
            decodes: shape.decodes,
            context_tokens: shape.decode_context,
            kv_used_tokens: state.pool.used() * state.pool.block_tokens(),
        }
    }

    /// Lists the rows of the running batch in the order of admission.
    fn list_batch(&self, results: &mut Recorder) {
        if !results.wants_batches() {
            return;
        }
        let state = &self.state;
        let chunks = state.batch.chunks.iter();
        let mut rows: Vec<(u64, u32, u64, bool)> = chunks
            .map(|chunk| {
                let request = state.requests.at(chunk.slot);
                let emits = chunk.tokens == chunk.owed
                    && (state.requests.first_token == FirstToken::Prefill
                        || chunk.context == state.requests.known(chunk.slot));
                (request.admission, request.arrival.id, chunk.tokens, emits)
            })
            .collect();
        if !state.batch.decodes_rest {
            let all = state.requests.slots().map(|slot| state.requests.at(slot));
            let decoding = all.filter(|request| request.phase() == Phase::Decoding);
            rows.extend(decoding.map(|request| (request.admission, request.arrival.id, 1, true)));
        }
        rows.sort_unstable_by_key(|row| row.0);
        for (_, id, tokens, emits) in rows {
            results.batch_row(id, tokens, emits);
        }
    }
}

/// Blocks that `count` iterations take in all, those of the standing decodes' first included.
fn more_blocks(
    decodes: &Decodes,
    pool: &BlockPool,
    requests: &Requests,
    chunks: &[Chunk],
    standing: u64,
    count: u64,
) -> u64 {
    let growth = if standing > 0 { decodes.growth.growth(count) } else { 0 };
    let by_chunks = chunks.iter().map(|chunk| {
        let held = requests.at(chunk.slot).blocks;
        pool.need(chunk.context + chunk.tokens * count).saturating_sub(held)
    });
    growth + by_chunks.sum::<u64>()
}
