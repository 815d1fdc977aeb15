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
use crate::plan::{Plan, broken};
use crate::request::{FirstToken, Phase, Request, Requests, Slot, longest_context};
use crate::results::{IterationRow, Recorder, Sample, Status};
use crate::scheduler::{Notice, Scheduler};
use crate::state::{Batch, Chunk, State};
use crate::stretch::Stretch;
use crate::timing::{Pace, Timing};
use crate::workload::Arrival;

/// One engine on one GPU group.
pub struct Replica {
    index: u32,
    scheduler: Box<dyn Scheduler>,
    timing: Box<dyn Timing>,
    state: State,
    stretch: Option<Stretch>,
    wake_at: Instant,
    stepping: bool,
    role: Role,
    /// Those who are about to.
    departing: Vec<Slot>,
    departures: Vec<Departure>,
    /// Of the blocks sent, those whose keys and values arrived while an iteration ran here.
    arrived_blocks: u64,
    due: Vec<Slot>,
    leaving: Vec<(u64, Slot)>,
    prefilled_tokens: u64,
    emitted_tokens: u64,
}

/// What a replica does for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// All of it.
    Whole,
    /// The prompt; then the request goes on elsewhere.
    Prefill,
    /// The prompt, after which the request leaves; and the decodes of any request that comes with its context.
    Slots,
}

/// A request that has its prompt computed and goes to another replica.
pub struct Departure {
    pub(crate) request: Request,
    /// The replica that it leaves, and when.
    pub(crate) from: u32,
    pub(crate) at: Instant,
    /// What it still holds there.
    pub(crate) blocks: u64,
}

/// Preemptions without a token between them after which a policy is taken to be caught in a circle: more than a policy
/// needs that preempts its requests one plan at a time.
const MOST_FRUITLESS_PREEMPTIONS: u64 = 1 << 16;

/// When `count` iterations are over.
#[inline]
fn end_after(start: Instant, pace: &Pace, count: u64) -> Result<Instant> {
    start.after(pace.total(count)?)
}

impl Replica {
    /// An idle replica. Requests outside `measured` are in no histogram; with `stepping` every stretch is one iteration.
    pub fn new(
        index: u32,
        engine: EngineParts,
        role: Role,
        classes: usize,
        measured: std::ops::Range<u32>,
        stepping: bool,
    ) -> Replica {
        let pool = BlockPool::new(&engine.kv);
        let moduli = engine.timing.moduli().to_vec();
        Replica {
            index,
            state: State {
                requests: Requests::new(engine.first_token),
                standing: 0,
                groups: vec![Decodes::new(pool.block_tokens(), classes, &moduli)],
                pool,
                moduli,
                limits: engine.scheduler.limits(),
                batch: Batch::new(),
                running: 0,
                waiting: 0,
                admissions: 0,
                tokens_ahead: 0,
                waiting_blocks: 0,
                kept_blocks: 0,
                sent_blocks: 0,
                fruitless_preemptions: 0,
                iterations: 0,
                busy: Span::ZERO,
                swap_charge: Span::ZERO,
                most_preempted: 0,
                measured,
            },
            scheduler: engine.scheduler,
            timing: engine.timing,
            stretch: None,
            wake_at: Instant::NEVER,
            stepping,
            role,
            departing: Vec::new(),
            departures: Vec::new(),
            arrived_blocks: 0,
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

    /// Its number in the results.
    #[inline]
    pub fn number(&self) -> u32 {
        self.index
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

    /// Requests here, waiting and running.
    #[inline]
    pub fn requests(&self) -> u64 {
        self.state.waiting + self.state.running
    }

    /// Prompt tokens not computed and output tokens not emitted at an instant, without going there.
    pub fn tokens_ahead(&self, at: Instant) -> Result<u64> {
        let state = &self.state;
        let Some(stretch) = &self.stretch else { return Ok(state.tokens_ahead) };
        let over = stretch.pace.count_within(at.since(stretch.start), stretch.count)?;
        let computed = |chunk: &Chunk| {
            let prompt = u64::from(state.requests.at(chunk.slot).arrival.prompt_tokens);
            (chunk.context + chunk.tokens * over).min(prompt) - chunk.context.min(prompt)
        };
        Ok(state.tokens_ahead - over * stretch.decodes - state.batch.chunks.iter().map(computed).sum::<u64>())
    }

    /// Blocks that nobody holds at an instant, before batches are formed at it, and those that somebody does.
    pub fn free_and_used_blocks(&self, at: Instant) -> Result<(u64, u64)> {
        let state = &self.state;
        let grown = match &self.stretch {
            Some(stretch) => state.more_blocks(stretch.begun_before(at)?.min(stretch.count)) - stretch.growth,
            None => 0,
        };
        Ok((state.pool.free() - grown, state.pool.used() + grown))
    }

    /// Blocks in use at an instant, before batches are formed at it, and those that the waiting prompts will take.
    pub fn blocks_ahead(&self, at: Instant) -> Result<u64> {
        Ok(self.free_and_used_blocks(at)?.1 + self.state.waiting_blocks)
    }

    /// Most preemptions of one request so far.
    pub fn most_preempted(&self) -> u32 {
        self.state.most_preempted
    }

    /// Has it never served anybody?
    pub fn is_unused(&self) -> bool {
        self.state.iterations == 0
    }

    /// The tokens that its scheduler may load in an iteration.
    pub fn token_budget(&self) -> u64 {
        self.state.limits.token_budget
    }

    /// Why this replica can never serve a request, if that is so (rule 11).
    pub fn refuses(&self, arrival: &Arrival) -> Option<&'static str> {
        if self.state.pool.need(self.longest_context(arrival)) > self.state.pool.capacity() {
            return Some("its largest context is larger than the KV cache");
        }
        self.scheduler.refuses(arrival, &self.state.pool)
    }

    /// The longest context that a request has here.
    fn longest_context(&self, arrival: &Arrival) -> u64 {
        match self.role {
            Role::Prefill => u64::from(arrival.prompt_tokens),
            Role::Whole | Role::Slots => longest_context(arrival, self.state.requests.first_token),
        }
    }

    /// Does a request go on elsewhere after its prompt? One that is over with its prompt does not.
    pub fn sends_on(&self, arrival: &Arrival) -> bool {
        let is_over = arrival.output_tokens == 1 && self.state.requests.first_token == FirstToken::Prefill;
        self.role != Role::Whole && !is_over
    }

    /// Blocks of the cache, and how many of them the longest context of a request takes.
    pub fn capacity_and_need(&self, arrival: &Arrival) -> (u64, u64) {
        (self.state.pool.capacity(), self.state.pool.need(self.longest_context(arrival)))
    }

    /// A request arrives. One that can never fit is rejected at once.
    #[inline]
    pub fn arrive(&mut self, arrival: Arrival, results: &mut Recorder) -> Result<Option<Slot>> {
        if let Some(reason) = self.refuses(&arrival) {
            results.reject(&arrival, self.index, reason);
            return Ok(None);
        }
        self.state.tokens_ahead += u64::from(arrival.prompt_tokens) + u64::from(arrival.output_tokens);
        let slot = self.state.requests.insert(arrival);
        self.queue(slot, arrival.at)?;
        Ok(Some(slot))
    }

    /// A request comes from another replica with its context, which is kept on the host until it is admitted.
    pub fn receive(&mut self, departure: Departure, now: Instant) -> Result<()> {
        let request = departure.request.handed_off(departure.from, departure.at, now);
        self.state.tokens_ahead += u64::from(request.arrival.output_tokens - request.emitted);
        let slot = self.state.requests.put(request);
        self.queue(slot, now)
    }

    /// A request joins the queue.
    #[inline]
    fn queue(&mut self, slot: Slot, now: Instant) -> Result<()> {
        let prompt = self.state.requests.at(slot).arrival.prompt_tokens;
        self.state.waiting_blocks += self.state.pool.need(u64::from(prompt));
        self.state.waiting += 1;
        self.scheduler.notice(Notice::Arrived(slot), &self.state.requests);
        if let Some(stretch) = &mut self.stretch {
            if !stretch.through_arrivals {
                self.cut(now)?;
            } else if stretch.before_anybody_waits == u64::MAX {
                stretch.before_anybody_waits = stretch.begun_before(now)?;
            }
        }
        Ok(())
    }

    /// Those who left for another replica since this was asked last, in order of their ids.
    pub fn departures(&mut self) -> std::vec::Drain<'_, Departure> {
        self.departures.drain(..)
    }

    /// The keys and values that `blocks` hold have arrived elsewhere: the next batch that is formed finds them free.
    pub fn release(&mut self, blocks: u64, now: Instant) -> Result<()> {
        self.arrived_blocks += blocks;
        if self.stretch.is_none() {
            self.free_arrived();
        }
        self.cut(now)
    }

    fn free_arrived(&mut self) {
        let blocks = std::mem::take(&mut self.arrived_blocks);
        self.state.sent_blocks -= blocks;
        self.state.pool.give(blocks);
    }

    /// Does this request still wait for its first admission? A place that is empty or taken by another is told from one
    /// where `id` still waits, since whoever left before had been admitted.
    pub fn awaits_admission(&self, slot: Slot, id: u32) -> bool {
        let request = self.state.requests.at(slot);
        request.arrival.id == id && request.phase() == Phase::Waiting && request.admitted == Instant::NEVER
    }

    /// A request runs out of patience, if it still waits for its first admission.
    pub fn abandon(&mut self, slot: Slot, id: u32, now: Instant, results: &mut Recorder) -> Result<bool> {
        if !self.awaits_admission(slot, id) {
            return Ok(false);
        }
        results.leave(self.state.requests.at(slot), self.index, Status::Abandoned, now);
        self.scheduler.notice(Notice::Left(slot), &self.state.requests);
        let arrival = self.state.requests.at(slot).arrival;
        self.state.tokens_ahead -= u64::from(arrival.prompt_tokens) + u64::from(arrival.output_tokens);
        self.state.waiting_blocks -= self.state.pool.need(u64::from(arrival.prompt_tokens));
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
        // An iteration that ends at the very instant is over; otherwise the running one is the last.
        stretch.count = stretch.begun_before(now)?;
        stretch.end = end_after(stretch.start, &stretch.pace, stretch.count)?;
        Ok(())
    }

    /// Forms the next batch, if the scheduler asks for one. Says whether an iteration runs now.
    pub fn form(&mut self, now: Instant, drain: bool) -> Result<bool> {
        debug_assert!(self.stretch.is_none(), "an iteration cannot be interrupted");
        self.wake_at = Instant::NEVER;
        loop {
            self.state.clear_batch();
            self.scheduler.plan(&mut Plan::new(&mut self.state, now, drain))?;
            self.check_plan(now)?;
            let batch = &self.state.batch;
            self.state.fruitless_preemptions += batch.preempted.len() as u64;
            if self.state.fruitless_preemptions >= MOST_FRUITLESS_PREEMPTIONS {
                let what = format!("{} preemptions without a token", self.state.fruitless_preemptions);
                return Err(broken(now, "a policy that preempts comes to an end", what));
            }
            if !batch.chunks.is_empty() || self.state.standing > 0 {
                break;
            }
            if batch.preempted.is_empty() {
                self.wake_at = batch.wake_at.filter(|&at| at > now).unwrap_or(Instant::NEVER);
                return Ok(false);
            }
        }
        self.run(now)?;
        Ok(true)
    }

    /// What a plan asked in pieces must hold as a whole (rule 6).
    fn check_plan(&self, now: Instant) -> Result<()> {
        let state = &self.state;
        let standing = state.standing;
        if standing + state.batch.chunk_tokens > state.limits.token_budget {
            let what = format!("{} tokens", standing + state.batch.chunk_tokens);
            return Err(broken(now, "no iteration loads more tokens than the budget", what));
        }
        if state.standing_growth() > state.pool.free() {
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
        let shape = state.shape();
        let load = shape.tokens();
        let mut pace = self.timing.pace(&shape)?;
        let batch = &state.batch;
        let mut count = batch.hold.iterations.min(pace.holds).min(self.scheduler.holds(&pace));
        if self.stepping {
            count = 1;
        }
        for chunk in &batch.chunks {
            // The iteration that completes a prompt is a stretch of its own: it emits, the ones before do not.
            count = if chunk.tokens == chunk.owed { 1 } else { count.min((chunk.owed - 1) / chunk.tokens) };
        }
        for (group, &tick) in state.groups.iter().zip(&state.requests.ticks).filter(|(group, _)| group.active() > 0) {
            let due = group.due.next();
            debug_assert!(due.is_some(), "every decode has a last token");
            count = count.min(due.unwrap_or(tick + 1) - tick);
        }
        if state.swap_charge > Span::ZERO {
            pace.first = pace.first.plus(state.swap_charge)?;
            state.swap_charge = Span::ZERO;
            count = 1;
        }
        let mut count = count.max(1);
        let growth = state.standing_growth();
        state.pool.take(growth);
        let free = state.pool.free();
        let state = &*state;
        let more = |count| state.more_blocks(count) - growth;
        let growth_at_most = |group: &Decodes| group.growth.growth_at_most(count);
        // A token takes one block at most, so this many are never exceeded.
        let bound = state.groups.iter().map(growth_at_most).fold(0, u64::saturating_add);
        let is_roomy = bound.saturating_add(batch.chunk_tokens.saturating_mul(count)) < free;
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
        let before_anybody_waits = if state.waiting > 0 { 0 } else { u64::MAX };
        let decodes = state.standing;
        let state = &mut self.state;
        for place in 0..state.batch.admitted.len() {
            state.requests.at_mut(state.batch.admitted[place]).begin(now);
        }
        self.stretch = Some(Stretch {
            start: now,
            pace,
            count,
            end: end_after(now, &pace, count)?,
            through_arrivals,
            decodes,
            growth,
            load,
            is_roomy,
            before_anybody_waits,
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
        self.state.iterations += stretch.count;
        self.state.busy = self.state.busy.plus(stretch.end.since(stretch.start))?;
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
        if !self.leaving.is_empty() {
            self.leave(stretch.end, results)?;
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
            state.pool.take(decodes.growth.growth(count) - decodes.growth.next_growth());
        }
        decodes.advance(count);
        state.requests.ticks[group] += count;
        decodes.due.advance(tick + count, &mut self.due);
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
            let prompt = request.arrival.prompt_tokens;
            let before = request.computed.min(prompt);
            request.computed += tokens as u32;
            state.tokens_ahead -= u64::from(request.computed.min(prompt) - before);
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
                state.tokens_ahead -= 1;
                if request.emitted == request.arrival.output_tokens {
                    self.leaving.push((request.admission, chunk.slot));
                    continue;
                }
            }
            if self.role != Role::Whole && request.hand_off.is_none() {
                self.departing.push(chunk.slot);
                continue;
            }
            request.ready = true;
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
            let tick = state.requests.tick(state.requests.at(slot));
            let request = state.requests.at_mut(slot);
            let decodes = &mut state.groups[request.group as usize];
            let left = u64::from(request.arrival.output_tokens) - emitted;
            if left == 0 {
                self.leaving.push((request.admission, slot));
            } else {
                request.grows = true;
                decodes.growth.join(context);
                decodes.due.insert(slot, tick + left);
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
            if state.limits.frees_with_batch {
                state.kept_blocks += request.blocks;
            } else {
                state.pool.give(request.blocks);
            }
            results.leave(request, self.index, Status::Finished, now);
            self.scheduler.notice(Notice::Left(slot), &state.requests);
            state.requests.remove(slot);
            state.running -= 1;
        }
        state.end_batch();
        Ok(())
    }

    /// Those whose prompts are computed go, in order of their ids. What they hold stays taken until it has arrived.
    fn depart(&mut self, now: Instant) {
        let state = &mut self.state;
        self.departing.sort_unstable_by_key(|&slot| state.requests.at(slot).arrival.id);
        for slot in self.departing.drain(..) {
            self.scheduler.notice(Notice::Left(slot), &state.requests);
            let request = state.requests.take(slot);
            let blocks = request.blocks;
            state.tokens_ahead -= u64::from(request.arrival.output_tokens - request.emitted);
            state.sent_blocks += blocks;
            state.running -= 1;
            self.departures.push(Departure { request, from: self.index, at: now, blocks });
        }
        state.end_batch();
    }

    /// Ends the run: what was emitted by then counts, the running iteration emits nothing, and whoever is still here
    /// stays unfinished.
    pub fn stop(&mut self, end: Instant, results: &mut Recorder) -> Result<()> {
        if let Some(mut stretch) = self.stretch.take() {
            let whole = stretch.pace.count_within(end.since(stretch.start), stretch.count)?;
            if whole > 0 {
                stretch.count = whole;
                stretch.end = end_after(stretch.start, &stretch.pace, whole)?;
                self.settle_stretch(&stretch, results)?;
            }
        }
        let live: Vec<Slot> = self.state.live().collect();
        for slot in live {
            if self.state.requests.at(slot).phase() == Phase::Decoding {
                self.state.leave_decodes(slot);
            }
            results.leave(self.state.requests.at(slot), self.index, Status::Unfinished, end);
        }
        Ok(())
    }

    /// The requests that are here now.
    pub fn ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.state.live().map(|slot| self.state.requests.at(slot).arrival.id).collect();
        ids.sort_unstable();
        ids
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
            sample.kv_used_tokens += (state.more_blocks(begun) - stretch.growth) * state.pool.block_tokens();
            sample.emitted_tokens += over * stretch.decodes;
            sample.prefilled_tokens += over * state.shape().chunk_tokens;
        }
        Ok(sample)
    }

    /// The stretch as a row, before anything of it is settled.
    fn row(&self, stretch: &Stretch) -> IterationRow {
        let state = &self.state;
        let shape = state.shape();
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
        let takes_part = |slot: &Slot| {
            let request = state.requests.at(*slot);
            request.phase() == Phase::Decoding && !state.groups[request.group as usize].rests
        };
        let decoding = state.live().filter(takes_part).map(|slot| state.requests.at(slot));
        rows.extend(decoding.map(|request| (request.admission, request.arrival.id, 1, true)));
        rows.sort_unstable_by_key(|row| row.0);
        for (_, id, tokens, emits) in rows {
            results.batch_row(id, tokens, emits);
        }
    }
}
