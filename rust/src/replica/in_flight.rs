//! Tokens, rows and drafts in flight.

use crate::clock::{Instant, Span};
use crate::error::Result;
use crate::kv::KvBlocks;
use crate::plan::Ahead;
use crate::request::{FirstToken, History, Place};
use crate::speculation::SpeculationParts;
use crate::timing::{Beyond, Shape};

/// What is in flight where batches are planned ahead.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// Is the token in flight of a request that is preempted dropped?
    pub(super) drops: bool,
    /// Is a batch planned while one runs?
    pub(super) is_planning: bool,
    /// May the next plan drop tokens of standing decodes?
    pub(super) decodes_may_drop: bool,
    /// Tokens of the batch that runs, as far as the next plan may drop them.
    pub(super) late_tokens: Vec<LateToken>,
    /// Requests of which the plan has dropped such a token.
    pub(super) dropped_tokens: Vec<u32>,
    /// Requests whose last token comes with the batch that runs while the next one is planned, and is foreseen.
    pub(super) ending: Vec<Place>,
    /// Are there seats or blocks that the plan counts as taken, and that are free when its batch begins?
    pub(super) frees: bool,
    /// Rows of the batch whose outcome is dropped.
    pub(super) dropped: Vec<DroppedRow>,
    /// Of the requests that take part in the standing decodes: tokens that they have computed by the end of the batch that is
    /// planned, and that the prefix cache cannot know when it is planned, since one of them is being computed.
    pub(super) unknown: u64,
    /// The same of those that lost their place since the batch before it was planned.
    pub(super) late: u64,
    pub(super) left_decodes: Vec<Place>,
}

/// A row behind the last token of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct DroppedRow {
    pub(super) row: u64,
    pub(super) id: u32,
    pub(super) context: u64,
    pub(super) tokens: u64,
}

impl InFlight {
    pub(super) fn new(ahead: Ahead) -> InFlight {
        InFlight { drops: ahead.drops, ..InFlight::default() }
    }

    /// The next batch is about to be planned, while one runs.
    pub(super) fn begin_plan(&mut self) {
        self.dropped.clear();
    }

    /// Those whose last token has come are gone.
    pub(super) fn end_plan(&mut self) {
        self.ending.clear();
    }

    /// The number of rows whose outcome is dropped, and Σ contexts of them.
    pub(super) fn dropped_sums(&self) -> (u64, u64) {
        (self.dropped.len() as u64, self.dropped.iter().map(|row| row.context).sum())
    }

    /// Adds the rows whose outcome is dropped to a batch's shape.
    pub(super) fn add_dropped_to(&self, shape: &mut Shape, moduli: &[u64]) {
        for row in &self.dropped {
            shape.add_decode(row.context, row.tokens, moduli);
        }
    }
}

/// A token that came with the batch that runs while the next one is planned; how it stood with its request before.
#[derive(Clone, Copy, Debug)]
pub(super) struct LateToken {
    pub(super) place: Place,
    pub(super) first_token: Instant,
    pub(super) last_token: Instant,
}

impl LateToken {
    /// The next token of a request with this history.
    pub(super) fn after(place: Place, history: &History) -> LateToken {
        LateToken { place, first_token: history.first_token, last_token: history.last_token }
    }
}

/// Speculation of one replica.
pub(crate) struct Drafts {
    pub(super) parts: SpeculationParts,
    /// Tokens of the longest request: no longer than the cache, so that no request can lack blocks when it is alone.
    pub(super) longest: u64,
    /// By place.
    pub(super) requests: Vec<Drafting>,
    /// Requests of which a row has emitted, and the tokens taken as emitted that were not, until these are taken back.
    pub(super) unsettled: Vec<(Place, u32)>,
}

/// How it stands with a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drafting {
    /// Drafts that its next row verifies.
    pub(super) offer: u32,
    /// The row that it has in a batch.
    pub(super) row: DraftedRow,
    /// Tokens taken as emitted, of a row in flight while the next batch is planned.
    pub(super) in_flight: u32,
    /// Of its rows those that emitted, over its whole life.
    pub(super) emissions: u32,
    /// Drafts that were verified, and those that became tokens of its output.
    pub(super) drafted: u32,
    pub(super) accepted: u32,
}

/// A row with drafts, or without.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DraftedRow {
    pub(super) drafts: u32,
    pub(super) emits: bool,
    /// Its drafts only fill it up: none is accepted.
    pub(super) fills: bool,
    /// Tokens that come out of it, once that is known.
    pub(super) out: u32,
}

impl Drafts {
    pub(super) fn new(
        parts: SpeculationParts,
        max_model_len: u32,
        first_token: FirstToken,
        blocks: &KvBlocks,
    ) -> Drafts {
        let longest = u64::from(max_model_len) + u64::from(first_token == FirstToken::Decode);
        let longest = longest.min(blocks.capacity().saturating_mul(blocks.block_tokens()));
        Drafts { parts, longest, requests: Vec::new(), unsettled: Vec::new() }
    }

    /// A request comes to a place, as it left another replica if it did.
    pub(super) fn open(&mut self, place: Place, drafting: Drafting) {
        if self.requests.len() <= place.index() {
            self.requests.resize_with(place.index() + 1, Drafting::default);
        }
        *self.at_mut(place) = drafting;
    }

    #[inline]
    pub(super) fn at(&self, place: Place) -> &Drafting {
        &self.requests[place.index()]
    }

    #[inline]
    pub(super) fn at_mut(&mut self, place: Place) -> &mut Drafting {
        &mut self.requests[place.index()]
    }

    /// Drafts on offer after a row that emitted.
    pub(crate) fn most(&self) -> u64 {
        self.parts.drafts
    }

    /// Drafts that the next row of a request verifies.
    pub(crate) fn offer(&self, place: Place) -> u64 {
        u64::from(self.at(place).offer)
    }

    /// Did the last row of a request that was planned emit?
    pub(crate) fn emitted(&self, place: Place) -> bool {
        self.at(place).row.emits
    }

    /// How long the drafter takes beside an iteration of this shape and length.
    pub(super) fn drafting(&self, length: Span, shape: &Shape) -> Result<Span> {
        self.parts.drafting(length, shape)
    }

    /// Where batches went beyond what the drafter's model was measured for.
    pub(super) fn beyond(&self) -> Beyond {
        self.parts.beyond()
    }

    /// Tokens of the longest request.
    pub(crate) fn longest(&self) -> u64 {
        self.longest
    }

    /// Tokens for which a row takes blocks that computes up to so many.
    pub(crate) fn slots(&self, tokens: u64) -> u64 {
        (tokens + self.parts.lookahead()).min(self.longest)
    }
}

impl std::fmt::Debug for Drafts {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.debug_struct("Drafts").field("requests", &self.requests).finish_non_exhaustive()
    }
}

impl Drafting {
    /// Of a request that so far had no drafts.
    pub(super) fn after(emitted: u32) -> Drafting {
        Drafting { emissions: emitted, ..Drafting::default() }
    }
}
