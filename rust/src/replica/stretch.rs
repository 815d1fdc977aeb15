//! A running stretch of identical iterations: its end, and its audit of work conservation.

use super::batch::Chunk;
use super::state::State;
use crate::clock::{Instant, Span};
use crate::error::Result;
use crate::features::Features;
use crate::plan::Limit;
use crate::request::{Phase, Place};
use crate::results::{Bound, Recorder};
use crate::scheduler::Scheduler;
use crate::timing::Pace;

/// A stretch of identical iterations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stretch {
    pub(crate) start: Instant,
    pub(crate) pace: Pace,
    pub(crate) count: u64,
    pub(crate) end: Instant,
    pub(crate) through_arrivals: bool,
    /// Steady decodes per iteration.
    pub(crate) decodes: u64,
    /// Blocks that the steady decodes took for the first iteration.
    pub(crate) growth: u64,
    /// Tokens loaded per iteration.
    pub(crate) load: u64,
    /// Whether a block is known to be free in every iteration.
    pub(crate) is_roomy: bool,
    /// Number of iterations that begin before a request waits in the queue.
    pub(crate) before_a_request_waits: u64,
}

impl Stretch {
    /// Number of iterations that begin before `now`.
    #[inline(always)]
    pub(crate) fn begun_before(&self, now: Instant) -> Result<u64> {
        let elapsed = now.since(self.start);
        if elapsed <= self.pace.first { Ok(1) } else { self.several_begun_within(elapsed) }
    }

    /// The end of `count` iterations; `NEVER` if there are fewer.
    pub(crate) fn end_of(&self, count: u64) -> Result<Instant> {
        if count > self.count { Ok(Instant::NEVER) } else { self.start.after(self.pace.total(count)?) }
    }

    fn several_begun_within(&self, elapsed: Span) -> Result<u64> {
        // The iterations that end before that instant, and the one that runs then.
        Ok(self.pace.count_within(Span(elapsed.0 - 1), self.count)? + 1)
    }

    /// Audits work conservation before the stretch is settled: whether each iteration could have loaded another
    /// token, and if not, why.
    #[inline(always)]
    pub(crate) fn audit<F: Features>(&self, state: &State, scheduler: &dyn Scheduler, results: &mut Recorder) {
        let chunks = &state.batch.chunks;
        let in_batch = self.decodes + chunks.len() as u64;
        let has_started = state.running > in_batch || state.batch.is_cut_short;
        if !has_started && self.before_a_request_waits >= self.count {
            results.work(self.load, Bound::Work, self.count);
        } else if has_started && self.is_roomy {
            results.work(self.load, Bound::Policy, self.count);
        } else if F::AHEAD && !has_started && self.is_roomy {
            // A request that arrived during the previous batch: no plan could include it.
            let without = self.before_a_request_waits;
            results.work(self.load, Bound::Work, without);
            results.work(self.load, self.bound_of_queue(state, true), self.count - without);
        } else {
            self.audit_the_rest(state, scheduler, has_started, results);
        }
    }

    /// The audit if a request had another token to load.
    fn audit_the_rest(&self, state: &State, scheduler: &dyn Scheduler, has_started: bool, results: &mut Recorder) {
        let Stretch { count, load, before_a_request_waits, .. } = *self;
        let with_free_block = if self.is_roomy { count } else { self.iterations_with_free_block(state) };
        let of_queue = |index: u64| match index < before_a_request_waits {
            true => Bound::Work,
            false => self.bound_of_queue(state, index < with_free_block),
        };
        let of_iteration = |index: u64| {
            if has_started && (index < with_free_block || has_slack(state, scheduler, index)) {
                return Bound::Policy;
            }
            match of_queue(index) {
                Bound::Work if has_started => Bound::Blocks,
                bound => bound,
            }
        };
        if self.is_roomy && before_a_request_waits == 0 {
            results.work(load, of_iteration(0), count);
            return;
        }
        // Between these marks, all iterations have the same bound, except for the slack of chunks without a free
        // block.
        let mut marks = [0, before_a_request_waits.min(count), with_free_block, count];
        marks.sort_unstable();
        for pair in marks.windows(2) {
            if has_started && pair[0] >= with_free_block {
                (pair[0]..pair[1]).for_each(|index| results.work(load, of_iteration(index), 1));
            } else {
                results.work(load, of_iteration(pair[0]), pair[1] - pair[0]);
            }
        }
    }

    /// The limit that prevents admissions from the queue.
    fn bound_of_queue(&self, state: &State, has_free_block: bool) -> Bound {
        match state.batch.refused {
            _ if !state.batch.preempted.is_empty() => Bound::Blocks,
            Some(Limit::MaxSeqs) => Bound::MaxSeqs,
            Some(Limit::Blocks) => Bound::Blocks,
            None if state.running >= state.limits.max_seqs => Bound::MaxSeqs,
            None if has_free_block => Bound::Policy,
            None => Bound::Blocks,
        }
    }

    /// Number of iterations of the running stretch with a free block.
    fn iterations_with_free_block(&self, state: &State) -> u64 {
        let free = state.blocks.free();
        let is_left_by = |count: u64| state.more_blocks(count) - self.growth < free;
        if free == 0 || is_left_by(self.count) {
            return if free == 0 { 0 } else { self.count };
        }
        let (mut left, mut none) = (0, self.count);
        while none - left > 1 {
            let middle = left + (none - left) / 2;
            if is_left_by(middle) { left = middle } else { none = middle }
        }
        left
    }
}

/// Whether a started request could load another token in iteration `index` of the stretch without a new block.
fn has_slack(state: &State, scheduler: &dyn Scheduler, index: u64) -> bool {
    let holds = |place: Place, tokens: u64| {
        state.blocks.need(tokens) <= state.blocks_of(place) && state.groups_cover(place, tokens)
    };
    let is_cut_short = |chunk: &Chunk| {
        let loaded = chunk.context + chunk.tokens * (index + 1);
        if !state.groups_cover(chunk.place, loaded + 1) {
            return false;
        }
        let blocks = state.blocks_of(chunk.place).max(state.blocks.need(loaded));
        chunk.tokens < chunk.owed && state.blocks.need(loaded + 1) <= blocks
    };
    // In a resting group, a request that needs no block for its next token has slack.
    let resting = || state.groups.iter().filter(|group| group.rests);
    let in_groups = resting().map(|group| group.count).sum::<u64>();
    let paused = state.running - state.steady - state.batch.chunks.len() as u64 - in_groups;
    state.batch.chunks.iter().any(is_cut_short)
        || resting().any(|group| group.count > group.growth.next_growth())
        || paused > 0 && {
            let has_slack = |place: &Place| {
                let request = state.requests.at(*place);
                let is_paused = request.phase() == Phase::Started && !request.placed;
                is_paused && holds(*place, state.requests.context(*place) + 1)
            };
            match scheduler.admitted() {
                Some(admitted) => admitted.iter_back().any(|place| has_slack(&place)),
                None => state.live().any(|place| has_slack(&place)),
            }
        }
}
