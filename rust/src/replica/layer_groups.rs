//! Rows of an engine whose layers form several groups.
//!
//! The pool counts blocks row by row: each row frees what left its request's windows, then takes its blocks. So the
//! steady decodes take no blocks by themselves, and every running request takes a row in each plan.

use super::state::State;
use crate::kv::NextRow;
use crate::request::Place;

/// Blocks of an admitted request in [`crate::request::Request::blocks`]: more than any row needs. The pool counts its
/// blocks.
const COUNTED_BY_POOL: u64 = 1 << 40;

impl State {
    fn next_row(&self, place: Place, tokens: u64) -> NextRow {
        let in_flight = self.blocks.layer_groups().map_or(0, |pool| pool.outputs_in_flight(place));
        let emits = tokens == self.requests.owed(place);
        NextRow { tokens, known: self.requests.known(place) - in_flight, emits }
    }

    /// Starts the rows of a plan.
    pub(crate) fn begin_rows(&mut self) {
        self.blocks.change_layer_groups(|pool| pool.begin_rows());
    }

    /// Looks up a waiting request in the cache. The hit counts as its context during the plan.
    pub(crate) fn look_up_in_groups(&mut self, place: Place) {
        let limit = self.requests.known(place) - 1;
        let tokens = self.blocks.change_layer_groups(|pool| pool.look_up(place, limit));
        self.requests.at_mut(place).computed = tokens as u32;
    }

    /// The tokens of a request's next row if it must end where a state can be kept; 0: no row is possible now.
    /// `longest`: the most tokens of any row.
    pub(crate) fn cut_row(&self, place: Place, tokens: u64, longest: u64) -> u64 {
        let row = self.next_row(place, tokens);
        self.blocks.layer_groups().map_or(tokens, |pool| pool.cut_row(place, row, longest))
    }

    /// Frees the blocks of a running request that no later row reads.
    pub(crate) fn free_unreachable(&mut self, place: Place) {
        self.blocks.change_layer_groups(|pool| pool.free_unreachable(place));
    }

    /// Blocks that a running request's next row takes.
    pub(crate) fn row_blocks(&self, place: Place, tokens: u64) -> u64 {
        let row = self.next_row(place, tokens);
        self.blocks.layer_groups().map_or(0, |pool| pool.row_blocks(place, row))
    }

    /// Takes the blocks of a request's next row.
    pub(crate) fn take_row(&mut self, place: Place, tokens: u64) {
        let row = self.next_row(place, tokens);
        self.blocks.change_layer_groups(|pool| pool.take_row(place, row));
    }

    /// Whether a waiting request that was looked up can be admitted with a row; `checks_input`: and its whole input
    /// has room.
    pub(crate) fn row_has_room(&mut self, place: Place, tokens: u64, checks_input: bool) -> bool {
        let row = self.next_row(place, tokens);
        self.blocks.change_layer_groups(|pool| pool.has_room(place, row, checks_input))
    }

    /// Gives a waiting request its hit and the blocks of its first row.
    pub(crate) fn take_first_row(&mut self, place: Place, tokens: u64) {
        self.blocks.change_layer_groups(|pool| pool.take_hit(place));
        let (request, history) = self.requests.both_mut(place);
        request.blocks = COUNTED_BY_POOL;
        let hit = request.computed;
        if history.is_new() {
            history.cached_tokens = hit;
        }
        self.brought_tokens -= u64::from(hit.min(request.prompt_tokens));
        self.cached_tokens += u64::from(hit);
        self.take_row(place, tokens);
    }

    /// Whether an admission of the last plan failed only because a state that it hit was named too recently. The next
    /// plan can hit it.
    pub(crate) fn hit_is_too_fresh(&self) -> bool {
        self.blocks.layer_groups().is_some_and(|pool| pool.hit_is_too_fresh())
    }

    /// Ends a plan: a request that was looked up and not admitted has no context. If the last batch ran during the
    /// plan, its rows are settled now.
    #[cold]
    pub(crate) fn end_plan_of_groups(&mut self) {
        let settles = self.ahead.as_ref().is_some_and(|ahead| ahead.is_planning);
        if let Some(place) = self.blocks.change_layer_groups(|pool| pool.end_plan(settles)) {
            self.requests.at_mut(place).computed = 0;
        }
    }

    /// How many of `count` iterations of the batch leave a block free: several only if all rows are decodes.
    #[cold]
    pub(crate) fn iterations_of_groups(&self, count: u64) -> u64 {
        let pool = self.blocks.layer_groups().filter(|_| self.batch.chunks.is_empty());
        pool.map_or(1, |pool| pool.iterations_that_fit(count))
    }

    /// Takes and frees the blocks of the first `count` iterations of the running stretch.
    #[cold]
    pub(crate) fn advance_groups(&mut self, count: u64) {
        self.blocks.change_layer_groups(|pool| pool.advance(count));
    }

    /// Whether a request has all blocks for its first `tokens` tokens.
    pub(crate) fn groups_cover(&self, place: Place, tokens: u64) -> bool {
        self.blocks.layer_groups().is_none_or(|pool| pool.covers(place, tokens))
    }
}
