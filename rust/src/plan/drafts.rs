//! Speculative decoding: rows that verify drafts. Policies without speculation do not need this.

use super::{NO_BLOCK, Plan};
use crate::error::Result;
use crate::replica::Chunk;
use crate::request::{Phase, Place};

impl Plan<'_> {
    /// Drafts offered for the next row of a request. They follow its owed tokens and may be cut.
    #[inline]
    pub(crate) fn offered(&self, place: Place) -> u64 {
        self.state.drafts.as_ref().map_or(0, |drafts| drafts.offer(place))
    }

    /// Drafts offered after an emitting row.
    #[inline]
    pub(crate) fn most_drafts(&self) -> u64 {
        self.state.drafts.as_ref().map_or(0, |drafts| drafts.most())
    }

    /// Whether the last row of a request emits, including a row in flight.
    #[inline]
    pub(crate) fn last_row_emits(&self, place: Place) -> bool {
        self.state.drafts.as_ref().is_some_and(|drafts| drafts.emitted(place))
    }

    /// Maximum length of a request, prompt and output.
    #[inline]
    pub(crate) fn longest_request(&self) -> u64 {
        self.state.drafts.as_ref().map_or(u64::MAX, |drafts| drafts.longest())
    }

    /// Tokens whose blocks a row takes when it computes up to `tokens`, including the drafter's lookahead.
    #[inline]
    pub(crate) fn slots(&self, tokens: u64) -> u64 {
        self.state.drafts.as_ref().map_or(tokens, |drafts| drafts.slots(tokens))
    }

    /// Whether the row with the last owed token of a request emits.
    #[inline]
    pub(crate) fn emits_next(&self, place: Place) -> bool {
        let requests = self.requests();
        requests.owed(place) == 1 && requests.until_next_token(place) == requests.context(place) + 1
    }

    /// Computes the next `tokens` tokens of an admitted request: owed tokens, then drafts.
    pub(crate) fn verify(&mut self, place: Place, tokens: u64) -> Result<()> {
        let request = self.state.requests.at(place);
        if request.phase != Phase::Started || request.placed {
            return Err(self.broken("only an admitted request can have a chunk in a batch, and only one", place));
        }
        let owed = request.owed() + self.offered(place);
        self.add_drafted(place, tokens, owed, false)
    }

    /// Admits a waiting request and computes its next `tokens` tokens. With `fills`, the row may exceed its owed
    /// tokens: it is padded with drafts that are never accepted.
    pub(crate) fn admit_to_verify(&mut self, place: Place, tokens: u64, fills: bool) -> Result<()> {
        let held = self.slots(self.state.requests.context(place) + tokens);
        self.admit(place, held)?;
        let most = if fills { 1 + self.most_drafts() } else { self.state.requests.at(place).owed() };
        self.add_drafted(place, tokens, most, fills)
    }

    fn add_drafted(&mut self, place: Place, tokens: u64, most: u64, fills: bool) -> Result<()> {
        let budget = self.budget_left();
        if tokens == 0 || tokens > most {
            return Err(self
                .broken("a row must have at least 1 token and at most the owed tokens and the offered drafts", place));
        }
        if tokens > budget {
            return Err(self.broken("an iteration must not load more tokens than the budget", place));
        }
        let request = self.state.requests.at(place);
        let (context, held) = (u64::from(request.computed), request.blocks);
        if context + tokens > self.longest_request() {
            return Err(self.broken("a row must not exceed the maximum request length", place));
        }
        let blocks = self.state.blocks.need(self.slots(context + tokens)).saturating_sub(held);
        if !self.state.has_free(blocks) {
            return Err(self.broken(NO_BLOCK, place));
        }
        self.state.take(place, blocks);
        self.state.publish_known(place, context + tokens);
        let row = self.state.plan_drafts(place, tokens, fills);
        self.state.requests.at_mut(place).placed = true;
        self.state.batch.push(Chunk { place, tokens, context, owed: row.owed, is_decode: row.is_decode });
        Ok(())
    }
}
