//! Queries of a replica at an instant, without advancing it.

use super::batch::Chunk;
use super::state::State;
use super::stretch::Stretch;
use super::{Replica, Role};
use crate::clock::{Instant, Span};
use crate::error::Result;
use crate::finding::Finding;
use crate::plan::Limits;
use crate::request::{FirstToken, Phase, Place, longest_context};
use crate::results::{BlockOperations, Emissions, IterationRow, Recorder, Sample};
use crate::timing::Beyond;
use crate::workload::Arrival;

impl Replica {
    /// The next event of this replica: the end of a stretch, or the wake-up instant of its scheduler.
    #[inline]
    pub(crate) fn next_instant(&self) -> Instant {
        self.next
    }

    /// Whether all its times so far fit 64 bits.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.state.variant.is_short()
    }

    /// Its number in the results.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.index
    }

    /// Whether no iteration runs.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// Whether it has no requests.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.state.requests.is_empty()
    }

    /// Requests in its queue, including preempted and swapped ones.
    #[inline]
    pub(crate) fn waiting(&self) -> u64 {
        self.state.waiting
    }

    /// Waiting and running requests.
    #[inline]
    pub(crate) fn requests(&self) -> u64 {
        self.state.waiting + self.state.running
    }

    /// Prompt tokens not computed and output tokens not emitted, at an instant.
    pub(crate) fn tokens_ahead(&self, at: Instant) -> Result<u64> {
        Ok(self.tokens_ahead_after(self.over(at)?))
    }

    /// The same number after `over` iterations of the running stretch.
    #[inline]
    fn tokens_ahead_after(&self, over: u64) -> u64 {
        let state = &self.state;
        if over == 0 {
            return state.tokens_ahead();
        }
        let computed = |chunk: &Chunk| {
            let prompt = u64::from(state.requests.at(chunk.place).prompt_tokens);
            (chunk.context + chunk.tokens * over).min(prompt) - chunk.context.min(prompt)
        };
        state.tokens_ahead() - over * self.stretch.decodes - state.batch.chunks.iter().map(computed).sum::<u64>()
    }

    /// Iterations of the running stretch that have ended at an instant; 0 if none runs.
    #[inline]
    pub(super) fn over(&self, at: Instant) -> Result<u64> {
        match self.stretch() {
            Some(stretch) => stretch.pace.count_within(at.since(stretch.start), stretch.count),
            None => Ok(0),
        }
    }

    /// Iterations of the running stretch that have begun at an instant, before idle replicas form batches at it; 0 if
    /// none runs. With planning ahead, an iteration begins at the instant at which the previous one ends.
    pub(super) fn begun(&self, at: Instant) -> Result<u64> {
        let Some(stretch) = self.stretch() else { return Ok(0) };
        let begun = match self.state.ahead {
            Some(_) => self.over(at)? + 1,
            None => stretch.begun_before(at)?,
        };
        Ok(begun.min(stretch.count))
    }

    /// Free and used blocks at an instant, before idle replicas form batches at it.
    pub(crate) fn free_and_used_blocks(&self, at: Instant) -> Result<(u64, u64)> {
        let state = &self.state;
        let used = match self.stretch() {
            Some(stretch) => self.used_blocks(stretch, self.begun(at)?),
            None => state.blocks.used(),
        };
        Ok((state.blocks.capacity() - used, used))
    }

    /// Used blocks after `begun` iterations of the running stretch have begun.
    fn used_blocks(&self, stretch: &Stretch, begun: u64) -> u64 {
        let blocks = &self.state.blocks;
        blocks
            .layer_groups()
            .map_or_else(|| blocks.used() + self.more_blocks_of(stretch, begun), |pool| pool.used_after(begun))
    }

    /// Blocks that the first `begun` iterations of the running stretch take, without the first iteration.
    fn more_blocks_of(&self, stretch: &Stretch, begun: u64) -> u64 {
        if begun > 1 { self.state.more_blocks(begun) - stretch.growth } else { 0 }
    }

    /// Used blocks at an instant, before idle replicas form batches at it, plus the blocks of waiting prompts.
    pub(crate) fn blocks_ahead(&self, at: Instant) -> Result<u64> {
        Ok(self.free_and_used_blocks(at)?.1 + self.state.blocks_of_queue())
    }

    /// The instant before which the tokens ahead decrease by fewer than `by` from `now` on, without further events.
    pub(crate) fn has_tokens_ahead_until(&self, by: u64, now: Instant) -> Result<Instant> {
        let Some(stretch) = self.stretch() else { return Ok(Instant::NEVER) };
        let each = stretch.decodes + self.state.batch.chunks.iter().map(|chunk| chunk.tokens).sum::<u64>();
        let over = stretch.pace.count_within(now.since(stretch.start), stretch.count)?;
        stretch.end_of(over.saturating_add(by.div_ceil(each.max(1))))
    }

    /// The instant before which the blocks ahead increase by fewer than `by` from `now` on, without further events.
    pub(crate) fn has_blocks_ahead_until(&self, by: u64, now: Instant) -> Result<Instant> {
        let Some(stretch) = self.stretch() else { return Ok(Instant::NEVER) };
        let begun = self.begun(now)?;
        if self.state.blocks.has_layer_groups() {
            // Blocks that leave a window are freed, so the number may change with every iteration.
            return stretch.end_of(begun);
        }
        let enough = self.more_blocks_of(stretch, begun) + by;
        if self.more_blocks_of(stretch, stretch.count) < enough {
            return Ok(Instant::NEVER);
        }
        // Blocks only grow with the number of iterations.
        let (mut fewer, mut most) = (begun, stretch.count);
        while most - fewer > 1 {
            let middle = fewer + (most - fewer) / 2;
            if self.more_blocks_of(stretch, middle) < enough { fewer = middle } else { most = middle }
        }
        // Blocks are taken at the start of an iteration, which events of that instant precede unless it was planned
        // ahead.
        let begins = stretch.end_of(most - 1)?;
        if self.state.ahead.is_some() { Ok(begins) } else { begins.after(Span(1)) }
    }

    /// Whether its cache, its last report or a request here has content that begins like this.
    pub(crate) fn has_content(&self, content: u64) -> bool {
        self.state.blocks.has_content(content)
    }

    /// Tokens per block.
    pub(crate) fn block_tokens(&self) -> u64 {
        self.state.blocks.block_tokens()
    }

    /// Maximum number of preemptions of one request.
    pub(crate) fn most_preempted(&self) -> u32 {
        self.state.most_preempted
    }

    /// Batches beyond the measured range of its timing model.
    pub(crate) fn beyond(&self) -> Beyond {
        let of_drafter = self.state.drafts.as_ref().map_or(Beyond::default(), |drafts| drafts.beyond());
        self.timing.beyond().and(of_drafter)
    }

    /// Operations of its prefix cache, if it has one.
    pub(crate) fn block_operations(&self) -> Option<BlockOperations> {
        self.state.blocks.operations(self.index)
    }

    /// Findings about its configuration.
    pub(crate) fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Iterations that it has run.
    pub(crate) fn iterations(&self) -> u64 {
        self.state.iterations
    }

    /// Sequence limit of its scheduler.
    pub(crate) fn max_seqs(&self) -> u64 {
        self.state.limits.max_seqs
    }

    /// The token budget that work-conserving batches fill. No limit with planning ahead, which excludes recent
    /// arrivals by design.
    pub(crate) fn budget_to_fill(&self) -> u64 {
        if self.state.ahead.is_some() { Limits::NONE } else { self.state.limits.token_budget }
    }

    /// Why this replica can never serve a request (R11), if so.
    #[inline]
    pub(crate) fn refuses(&self, arrival: &Arrival) -> Option<&'static str> {
        if self.is_too_long(arrival) { self.refuses_too_long(arrival) } else { self.refuses_in_length(arrival) }
    }

    /// The same check for a request that is not too long.
    fn refuses_in_length(&self, arrival: &Arrival) -> Option<&'static str> {
        if self.longest_context(arrival) > self.state.blocks.tokens() {
            return Some("its longest context exceeds the KV cache");
        }
        self.scheduler.refuses(arrival, &self.state.blocks)
    }

    fn refuses_too_long(&self, arrival: &Arrival) -> Option<&'static str> {
        if arrival.prompt_tokens >= self.max_model_len {
            return Some("its prompt leaves no room for an output within max_model_len");
        }
        self.refuses_in_length(&self.cut_to_length(arrival))
    }

    /// Whether prompt and output exceed the maximum length.
    #[inline]
    pub(super) fn is_too_long(&self, arrival: &Arrival) -> bool {
        arrival.prompt_tokens + arrival.output_tokens > self.max_model_len
    }

    /// The request with its output cut to the maximum length. Its end is foreseen.
    pub(super) fn cut_to_length(&self, arrival: &Arrival) -> Arrival {
        let output_tokens = self.max_model_len - arrival.prompt_tokens;
        Arrival { output_tokens, max_output_tokens: output_tokens, ..*arrival }
    }

    /// The request with a foreseen end if its output reaches the maximum length.
    pub(super) fn with_limit_in_length(&self, arrival: &Arrival) -> Arrival {
        let room = self.max_model_len - arrival.prompt_tokens;
        let is_at_limit = arrival.output_tokens == room;
        Arrival { max_output_tokens: if is_at_limit { room } else { arrival.max_output_tokens }, ..*arrival }
    }

    /// The longest context of a request here.
    pub(super) fn longest_context(&self, arrival: &Arrival) -> u64 {
        let longest = match self.role {
            Role::Prefill => u64::from(arrival.prompt_tokens),
            Role::Whole | Role::Slots => {
                longest_context(arrival, self.state.requests.first_token).min(u64::from(self.max_model_len))
            }
        };
        // With drafts, the last token of the longest request takes a slot too.
        longest + u64::from(self.state.drafts.is_some())
    }

    /// Whether a request continues elsewhere after prefill. A request that ends with its prefill does not.
    pub(crate) fn sends_on(&self, arrival: &Arrival) -> bool {
        let is_last = arrival.output_tokens == 1 || arrival.prompt_tokens + 1 == self.max_model_len;
        let is_over = is_last && self.state.requests.first_token == FirstToken::Prefill;
        self.role != Role::Whole && !is_over
    }

    /// Capacity in blocks, and the blocks of a request's longest context.
    pub(crate) fn capacity_and_need(&self, arrival: &Arrival) -> (u64, u64) {
        (self.state.blocks.capacity(), self.state.blocks.need(self.longest_context(arrival)))
    }

    /// The place of a request, if it is here.
    pub(crate) fn place_of(&self, id: u32) -> Option<Place> {
        self.state.live().find(|&place| self.state.requests.at(place).id == id)
    }

    /// Ids of the requests here, sorted.
    pub(crate) fn ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.state.live().map(|place| self.state.requests.at(place).id).collect();
        ids.sort_unstable();
        ids
    }

    /// A sample of the state at an instant.
    pub(crate) fn sample(&self, at: Instant) -> Result<Sample> {
        let (state, over) = (&self.state, self.over(at)?);
        let mut sample = Sample {
            at,
            replica: self.index,
            waiting: state.waiting,
            running: state.running,
            kv_used_tokens: state.blocks.used() * state.blocks.block_tokens(),
            tokens_in_system: self.tokens_ahead_after(over),
            prefilled_tokens: state.prefilled_tokens,
            emitted_tokens: state.emitted_tokens,
            cached_tokens: state.cached_tokens,
        };
        if over > 0 {
            let (stretch, batch) = (&self.stretch, &state.batch);
            // The running iteration took its blocks when it began.
            let begun = (over + 1).min(stretch.count);
            sample.kv_used_tokens = self.used_blocks(stretch, begun) * state.blocks.block_tokens();
            sample.emitted_tokens += over * stretch.decodes;
            sample.prefilled_tokens += over * (batch.chunk_tokens - batch.single_decodes);
        }
        Ok(sample)
    }

    /// The result row of a stretch that is not settled yet.
    pub(super) fn row(&self, stretch: &Stretch) -> IterationRow {
        let state = &self.state;
        let shape = state.shape(&[]);
        IterationRow {
            start: stretch.start,
            replica: self.index,
            count: stretch.count,
            pace: stretch.pace,
            prefill_tokens: shape.chunk_tokens,
            decodes: shape.decodes,
            context_tokens: u128::from(shape.decode_context),
            kv_used_tokens: state.blocks.used() * state.blocks.block_tokens(),
        }
    }

    /// The tokens of the running stretch, if any.
    pub(crate) fn running_emissions(&self) -> Option<Emissions> {
        if self.is_idle { None } else { self.emissions() }
    }

    /// The tokens of the stretch, which is not settled yet, if any.
    pub(super) fn emissions(&self) -> Option<Emissions> {
        let state = &self.state;
        let emits_token = |place: &Place| {
            let request = state.requests.at(*place);
            request.phase() == Phase::Decoding && !state.groups[request.group as usize].rests
        };
        let emits = |chunk: &&Chunk| chunk.tokens == chunk.owed && state.chunk_emits(chunk);
        let chunks = state.batch.chunks.iter().filter(emits).map(|chunk| chunk.place);
        let of = |place| (state.requests.at(place).id, state.requests.emitted(place) as u32);
        let requests: Vec<(u32, u32)> = match &state.drafts {
            None => state.live().filter(emits_token).chain(chunks).map(of).collect(),
            Some(_) => state.batch.chunks.iter().flat_map(|chunk| state.tokens_of_row(chunk.place)).collect(),
        };
        let Stretch { start, pace, count, .. } = self.stretch;
        (!requests.is_empty()).then_some(Emissions { replica: self.index, start, pace, count, requests })
    }

    /// Records the rows of the running batch in order.
    pub(super) fn list_batch(&self, results: &mut Recorder) {
        if !results.wants_batches() {
            return;
        }
        let state = &self.state;
        let chunks = state.batch.chunks.iter();
        let mut rows: Vec<(u64, u32, u64, bool, u32)> = chunks
            .map(|chunk| {
                let request = state.requests.at(chunk.place);
                let emits = chunk.tokens == chunk.owed && state.chunk_emits(chunk);
                match state.tokens_out_of(chunk.place) {
                    Some(out) => (request.row, request.id, chunk.tokens, out > 0, out),
                    None => (request.row, request.id, chunk.tokens, emits, u32::from(emits)),
                }
            })
            .collect();
        let takes_part = |place: &Place| {
            let request = state.requests.at(*place);
            request.phase() == Phase::Decoding && !state.groups[request.group as usize].rests
        };
        let decoding = state.live().filter(takes_part).map(|place| state.requests.at(place));
        rows.extend(decoding.map(|request| (request.row, request.id, 1, true, 1)));
        let dropped = state.ahead.iter().flat_map(|ahead| &ahead.dropped);
        rows.extend(dropped.map(|dropped| (dropped.row, dropped.id, dropped.tokens, true, 0)));
        rows.sort_unstable_by_key(|row| row.0);
        for (_, id, tokens, emits, emitted) in rows {
            results.batch_row(id, tokens, emits, emitted);
        }
    }
}

impl State {
    /// Whether a chunk that completes a request's owed tokens emits one (R7).
    fn chunk_emits(&self, chunk: &Chunk) -> bool {
        self.requests.first_token == FirstToken::Prefill || chunk.context == self.requests.known(chunk.place)
    }
}
