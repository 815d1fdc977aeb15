//! What can be seen of a replica at an instant, without going there.

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
    /// When something happens here next by itself: a stretch ends, or the scheduler wants to be asked.
    #[inline]
    pub(crate) fn next_instant(&self) -> Instant {
        self.next
    }

    /// Do 64 bits hold all of its times so far?
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.state.variant.is_short()
    }

    /// Its number in the results.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.index
    }

    /// Is no iteration under way?
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// Does it hold no request?
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.state.requests.is_empty()
    }

    /// Requests in its queue, preempted and swapped ones included.
    #[inline]
    pub(crate) fn waiting(&self) -> u64 {
        self.state.waiting
    }

    /// Requests here, waiting and running.
    #[inline]
    pub(crate) fn requests(&self) -> u64 {
        self.state.waiting + self.state.running
    }

    /// Prompt tokens not computed and output tokens not emitted at an instant, without going there.
    pub(crate) fn tokens_ahead(&self, at: Instant) -> Result<u64> {
        Ok(self.tokens_ahead_after(self.over(at)?))
    }

    /// The same after so many iterations of the running stretch.
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

    /// Iterations of the running stretch that are over at an instant; 0 if none runs.
    #[inline]
    fn over(&self, at: Instant) -> Result<u64> {
        match self.stretch() {
            Some(stretch) => stretch.pace.count_within(at.since(stretch.start), stretch.count),
            None => Ok(0),
        }
    }

    /// Blocks that no request holds at an instant, before batches are formed at it, and those that requests hold.
    pub(crate) fn free_and_used_blocks(&self, at: Instant) -> Result<(u64, u64)> {
        let state = &self.state;
        let grown = match self.stretch() {
            Some(stretch) => self.more_blocks_of(stretch, stretch.begun_before(at)?.min(stretch.count)),
            None => 0,
        };
        Ok((state.blocks.free() - grown, state.blocks.used() + grown))
    }

    /// Blocks that so many iterations of the running stretch take beside those of the first, which are taken already.
    fn more_blocks_of(&self, stretch: &Stretch, begun: u64) -> u64 {
        if begun > 1 { self.state.more_blocks(begun) - stretch.growth } else { 0 }
    }

    /// Blocks in use at an instant, before batches are formed at it, and those that the waiting prompts will take.
    pub(crate) fn blocks_ahead(&self, at: Instant) -> Result<u64> {
        Ok(self.free_and_used_blocks(at)?.1 + self.state.blocks_of_queue())
    }

    /// The instant before which fewer than `by` of the tokens ahead are gone since `now`, if nothing happens here.
    pub(crate) fn has_tokens_ahead_until(&self, by: u64, now: Instant) -> Result<Instant> {
        let Some(stretch) = self.stretch() else { return Ok(Instant::NEVER) };
        let each = stretch.decodes + self.state.batch.chunks.iter().map(|chunk| chunk.tokens).sum::<u64>();
        let over = stretch.pace.count_within(now.since(stretch.start), stretch.count)?;
        stretch.end_of(over.saturating_add(by.div_ceil(each.max(1))))
    }

    /// The instant before which fewer than `by` blocks ahead are added since `now`, if nothing happens here.
    pub(crate) fn has_blocks_ahead_until(&self, by: u64, now: Instant) -> Result<Instant> {
        let Some(stretch) = self.stretch() else { return Ok(Instant::NEVER) };
        let begun = stretch.begun_before(now)?.min(stretch.count);
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
        // They are taken when that iteration begins, and seen after that instant.
        stretch.end_of(most - 1)?.after(Span(1))
    }

    /// Has its cache anything that begins with this content, or had it at its last report; or a request here?
    pub(crate) fn has_content(&self, content: u64) -> bool {
        self.state.blocks.has_content(content)
    }

    /// Tokens in a block.
    pub(crate) fn block_tokens(&self) -> u64 {
        self.state.blocks.block_tokens()
    }

    /// Most preemptions of one request so far.
    pub(crate) fn most_preempted(&self) -> u32 {
        self.state.most_preempted
    }

    /// Where its batches went beyond what its timing model was measured for.
    pub(crate) fn beyond(&self) -> Beyond {
        let of_drafter = self.state.drafts.as_ref().map_or(Beyond::default(), |drafts| drafts.beyond());
        self.timing.beyond().and(of_drafter)
    }

    /// What its prefix cache did so far, if it has one.
    pub(crate) fn block_operations(&self) -> Option<BlockOperations> {
        self.state.blocks.operations(self.index)
    }

    /// Findings of its scheduler.
    pub(crate) fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Iterations that it has run.
    pub(crate) fn iterations(&self) -> u64 {
        self.state.iterations
    }

    /// Requests that its scheduler may admit at once.
    pub(crate) fn seats(&self) -> u64 {
        self.state.limits.max_seqs
    }

    /// The tokens that an iteration loads if so many can be loaded; no number where batches are planned ahead, which by
    /// design leave out what came since.
    pub(crate) fn budget_to_fill(&self) -> u64 {
        if self.state.ahead.is_some() { Limits::NONE } else { self.state.limits.token_budget }
    }

    /// Why this replica can never serve a request, if that is so (rule 11).
    #[inline]
    pub(crate) fn refuses(&self, arrival: &Arrival) -> Option<&'static str> {
        if self.is_too_long(arrival) { self.refuses_too_long(arrival) } else { self.refuses_in_length(arrival) }
    }

    /// The same for a request that is not too long.
    fn refuses_in_length(&self, arrival: &Arrival) -> Option<&'static str> {
        if self.longest_context(arrival) > self.state.blocks.tokens() {
            return Some("its largest context is larger than the KV cache");
        }
        self.scheduler.refuses(arrival, &self.state.blocks)
    }

    #[cold]
    fn refuses_too_long(&self, arrival: &Arrival) -> Option<&'static str> {
        if arrival.prompt_tokens >= self.max_model_len {
            return Some("its prompt leaves no room for an output within max_model_len");
        }
        self.refuses_in_length(&self.cut_to_length(arrival))
    }

    /// Would prompt and output together be longer than the longest request?
    #[inline]
    pub(super) fn is_too_long(&self, arrival: &Arrival) -> bool {
        arrival.prompt_tokens + arrival.output_tokens > self.max_model_len
    }

    /// The request whose output ends with the longest length. Its end is foreseen: nothing is allowed beyond it.
    #[cold]
    pub(super) fn cut_to_length(&self, arrival: &Arrival) -> Arrival {
        let output_tokens = self.max_model_len - arrival.prompt_tokens;
        Arrival { output_tokens, max_output_tokens: output_tokens, ..*arrival }
    }

    /// The longest context that a request has here.
    pub(super) fn longest_context(&self, arrival: &Arrival) -> u64 {
        let longest = match self.role {
            Role::Prefill => u64::from(arrival.prompt_tokens),
            Role::Whole | Role::Slots => {
                longest_context(arrival, self.state.requests.first_token).min(u64::from(self.max_model_len))
            }
        };
        // With drafts the longest request fills the cache, its last token too.
        longest + u64::from(self.state.drafts.is_some())
    }

    /// Does a request go on elsewhere after its prompt? One that is over with its prompt does not.
    pub(crate) fn sends_on(&self, arrival: &Arrival) -> bool {
        let is_last = arrival.output_tokens == 1 || arrival.prompt_tokens + 1 == self.max_model_len;
        let is_over = is_last && self.state.requests.first_token == FirstToken::Prefill;
        self.role != Role::Whole && !is_over
    }

    /// Blocks of the cache, and how many of them the longest context of a request takes.
    pub(crate) fn capacity_and_need(&self, arrival: &Arrival) -> (u64, u64) {
        (self.state.blocks.capacity(), self.state.blocks.need(self.longest_context(arrival)))
    }

    /// The place of a request, if it is here.
    pub(crate) fn place_of(&self, id: u32) -> Option<Place> {
        self.state.live().find(|&place| self.state.requests.at(place).id == id)
    }

    /// The requests that are here now.
    pub(crate) fn ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.state.live().map(|place| self.state.requests.at(place).id).collect();
        ids.sort_unstable();
        ids
    }

    /// The state at an instant, without going there.
    #[inline(always)]
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
            // The iteration that runs now took its blocks when it began.
            let begun = (over + 1).min(stretch.count);
            sample.kv_used_tokens += self.more_blocks_of(stretch, begun) * state.blocks.block_tokens();
            sample.emitted_tokens += over * stretch.decodes;
            sample.prefilled_tokens += over * (batch.chunk_tokens - batch.single_decodes);
        }
        Ok(sample)
    }

    /// The stretch as a row, before anything of it is settled.
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

    /// The tokens of the running stretch; `None` while none runs.
    pub(crate) fn running_emissions(&self) -> Option<Emissions> {
        if self.is_idle { None } else { self.emissions() }
    }

    /// The tokens of the stretch, before anything of it is settled; `None`: it brings none.
    pub(super) fn emissions(&self) -> Option<Emissions> {
        let state = &self.state;
        let gets_one = |place: &Place| {
            let request = state.requests.at(*place);
            request.phase() == Phase::Decoding && !state.groups[request.group as usize].rests
        };
        let emits = |chunk: &&Chunk| chunk.tokens == chunk.owed && state.chunk_emits(chunk);
        let chunks = state.batch.chunks.iter().filter(emits).map(|chunk| chunk.place);
        let of = |place| (state.requests.at(place).id, state.requests.emitted(place) as u32);
        let requests: Vec<(u32, u32)> = match &state.drafts {
            None => state.live().filter(gets_one).chain(chunks).map(of).collect(),
            Some(_) => state.batch.chunks.iter().flat_map(|chunk| state.tokens_of_row(chunk.place)).collect(),
        };
        let Stretch { start, pace, count, .. } = self.stretch;
        (!requests.is_empty()).then_some(Emissions { replica: self.index, start, pace, count, requests })
    }

    /// Lists the rows of the running batch in their order.
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
    /// Does a chunk that completes what its request owes bring a token (rule 7)?
    fn chunk_emits(&self, chunk: &Chunk) -> bool {
        self.requests.first_token == FirstToken::Prefill || chunk.context == self.requests.known(chunk.place)
    }
}
