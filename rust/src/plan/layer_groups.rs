//! Rows of an engine whose layers form several groups (`KvCache::groups`).

use super::{Limit, NO_BLOCK, Plan};
use crate::error::Result;
use crate::request::{Phase, Place};

impl Plan<'_> {
    /// Whether the layers form several groups: every row then takes its blocks with [`Plan::take_row`] or
    /// [`Plan::try_admit_row`].
    #[inline]
    pub(crate) fn has_layer_groups(&self) -> bool {
        self.state.blocks.has_layer_groups()
    }

    /// Starts the rows of this plan. Call this before any other query about rows.
    pub(crate) fn begin_rows(&mut self) {
        self.state.begin_rows();
    }

    /// Looks up the next request of the queue, like [`Plan::look_up`].
    pub(crate) fn look_up_row(&mut self, place: Place) {
        self.state.look_up_in_groups(place);
    }

    /// The tokens of a request's next row if it must end where a state can be kept; 0: no row is possible now.
    /// `longest`: the most tokens of any row.
    pub(crate) fn cut_row(&self, place: Place, tokens: u64, longest: u64) -> u64 {
        self.state.cut_row(place, tokens, longest)
    }

    /// Frees the blocks that left the windows of a running request, and returns the blocks that its next row takes.
    pub(crate) fn blocks_of_row(&mut self, place: Place, tokens: u64) -> u64 {
        self.state.free_unreachable(place);
        self.state.row_blocks(place, tokens)
    }

    /// Takes the blocks of a running request's next row.
    pub(crate) fn take_row(&mut self, place: Place, tokens: u64) -> Result<()> {
        if self.state.row_blocks(place, tokens) > self.state.blocks.free() {
            return Err(self.broken(NO_BLOCK, place));
        }
        self.state.take_row(place, tokens);
        Ok(())
    }

    /// Admits the next request of the queue, which was looked up, with a row of `tokens` tokens, if there is room for
    /// the row; `checks_input`: and for its whole input. Returns whether it is admitted.
    pub(crate) fn try_admit_row(&mut self, place: Place, tokens: u64, checks_input: bool) -> Result<bool> {
        if self.state.requests.at(place).phase != Phase::Waiting {
            return Err(self.broken("only a waiting request can be admitted", place));
        }
        if self.sequences_left() == 0 {
            self.state.batch.refused = Some(Limit::MaxSeqs);
            return Ok(false);
        }
        if !self.state.row_has_room(place, tokens, checks_input) {
            self.state.batch.refused = Some(Limit::Blocks);
            return Ok(false);
        }
        self.take_sequence(place)?;
        self.state.remove_waiting_blocks(self.state.requests.at(place).prompt_tokens);
        self.state.batch.admitted.push(place);
        self.state.batch.is_each_placed = false;
        self.state.take_first_row(place, tokens);
        self.state.requests.history_mut(place).begin(self.begins);
        self.chunk(place, tokens)?;
        Ok(true)
    }
}
