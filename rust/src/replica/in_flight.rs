//! Tokens, rows and drafts in flight.

use crate::clock::{Instant, Span};
use crate::error::Result;
use crate::kv::KvBlocks;
use crate::plan::Ahead;
use crate::request::{FirstToken, History, Place};
use crate::speculation::{ProposalRate, SpeculationParts};
use crate::timing::{Beyond, Shape};

/// Data in flight with planning ahead.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// Whether preemption drops the token in flight of the victim.
    pub(super) drops: bool,
    /// Whether a batch is being planned while one runs.
    pub(super) is_planning: bool,
    /// Whether the next plan may drop tokens of steady decodes.
    pub(super) decodes_may_drop: bool,
    /// Tokens of the running batch that the next plan may drop.
    pub(super) late_tokens: Vec<LateToken>,
    /// Requests whose token in flight the plan has dropped.
    pub(super) dropped_tokens: Vec<u32>,
    /// Requests whose last token is foreseen and comes with the running batch.
    pub(super) ending: Vec<Place>,
    /// Whether sequences or blocks that count as taken in the plan are free when its batch begins.
    pub(super) frees: bool,
    /// Rows of the batch whose result is dropped.
    pub(super) dropped: Vec<DroppedRow>,
    /// For active steady decodes: tokens computed by the end of the planned batch that the prefix cache does not have
    /// at the time of the plan, because one of them is being computed.
    pub(super) unknown: u64,
    /// The same number for requests that stopped decoding since the previous plan.
    pub(super) late: u64,
    pub(super) left_decodes: Vec<Place>,
}

/// A row after the last token of a request.
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

    /// Starts the plan of the next batch while one runs.
    pub(super) fn begin_plan(&mut self) {
        self.dropped.clear();
    }

    /// Drops finished requests.
    pub(super) fn end_plan(&mut self) {
        self.ending.clear();
    }

    /// The number of dropped rows and Σ of their contexts.
    pub(super) fn dropped_sums(&self) -> (u64, u64) {
        (self.dropped.len() as u64, self.dropped.iter().map(|row| row.context).sum())
    }

    /// Adds the dropped rows to a batch's shape.
    pub(super) fn add_dropped_to(&self, shape: &mut Shape, moduli: &[u64]) {
        for row in &self.dropped {
            shape.add_decode(row.context, row.tokens, moduli);
        }
    }
}

/// A token of the batch that runs during the plan, with the state of its request before it.
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

/// Speculative decoding of one replica.
pub(crate) struct Drafts {
    pub(super) parts: SpeculationParts,
    /// Maximum length of a request: at most the cache, so that a request alone never lacks blocks.
    pub(super) longest: u64,
    /// By request place.
    pub(super) requests: Vec<Drafting>,
    /// Requests whose row emitted, and the number of tokens wrongly counted as emitted, until they are settled.
    pub(super) unsettled: Vec<(Place, u32)>,
}

/// The drafts of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drafting {
    /// Drafts that its next row verifies.
    pub(super) offer: u32,
    /// Its row in a batch.
    pub(super) row: DraftedRow,
    /// Tokens counted as emitted while their row is in flight during the next plan.
    pub(super) in_flight: u32,
    /// Number of its emitting rows.
    pub(super) emissions: u32,
    /// Drafts verified, and drafts accepted.
    pub(super) drafted: u32,
    pub(super) accepted: u32,
}

/// A row, with or without drafts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DraftedRow {
    /// Draft tokens that the plan counts.
    pub(super) planned: u32,
    /// Drafts that it verifies: none if nothing is proposed.
    pub(super) drafts: u32,
    pub(super) emits: bool,
    /// Whether its drafts are padding, none of which is accepted.
    pub(super) fills: bool,
    /// Number of tokens it emits, once known.
    pub(super) out: u32,
}

impl DraftedRow {
    /// Planned draft tokens without a proposal.
    pub(super) fn missing(&self) -> u64 {
        u64::from(self.planned - self.drafts)
    }
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

    /// Sets the drafts of a new request; one from another replica keeps its counts.
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

    /// Drafts offered after an emitting row.
    pub(crate) fn most(&self) -> u64 {
        self.parts.drafts
    }

    /// Whether drafts are proposed for a request's `emission`-th emitting row.
    pub(super) fn proposes(&self, rate: Option<ProposalRate>, request: u32, emission: u32) -> bool {
        let proposals = self.parts.proposals.as_ref();
        proposals.is_none_or(|proposals| proposals.proposes(rate, request, emission))
    }

    /// Drafts that the next row of a request verifies.
    pub(crate) fn offer(&self, place: Place) -> u64 {
        u64::from(self.at(place).offer)
    }

    /// Whether the last planned row of a request emits.
    pub(crate) fn emitted(&self, place: Place) -> bool {
        self.at(place).row.emits
    }

    /// Time of the drafter for an iteration of this shape and length.
    pub(super) fn drafting(&self, length: Span, shape: &Shape) -> Result<Span> {
        self.parts.drafting(length, shape)
    }

    /// Batches beyond the measured range of the drafter's model.
    pub(super) fn beyond(&self) -> Beyond {
        self.parts.beyond()
    }

    /// Maximum length of a request in tokens.
    pub(crate) fn longest(&self) -> u64 {
        self.longest
    }

    /// Tokens whose blocks a row takes when it computes up to `tokens`.
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
    /// The state of a request without drafts so far.
    pub(super) fn after(emitted: u32) -> Drafting {
        Drafting { emissions: emitted, ..Drafting::default() }
    }
}
