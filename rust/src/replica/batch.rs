//! The part of a batch that each plan rebuilds.

use super::blocks::LookedUp;
use crate::clock::Instant;
use crate::features::Features;
use crate::plan::{Hold, Limit};
use crate::request::Place;
use crate::timing::{ChunkShape, ChunkSums};

/// A row planned for this iteration: a prefill chunk, or the last token of a recomputation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub(crate) place: Place,
    pub(crate) tokens: u64,
    pub(crate) context: u64,
    pub(crate) owed: u64,
    /// Priced and reported as a decode (R6).
    pub(crate) is_decode: bool,
}

/// The part of a batch that each plan rebuilds.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) chunks: Vec<Chunk>,
    /// Chunks priced as decodes.
    pub(crate) single_decodes: u64,
    /// Sums over the other chunks.
    pub(crate) sums: ChunkSums,
    /// The other chunks, if the timing model needs each of them.
    pub(crate) priced: Vec<ChunkShape>,
    pub(crate) chunk_tokens: u64,
    /// Planned draft tokens that no proposal filled.
    pub(crate) missing_drafts: u64,
    /// Number of identical iterations. The iteration that completes a request's owed tokens is a stretch of its own,
    /// because it emits and earlier ones do not.
    pub(crate) most_iterations: u64,
    /// Whether a request owes more tokens than its chunk computes.
    pub(crate) is_cut_short: bool,
    pub(crate) admitted: Vec<Place>,
    /// Whether each admitted request has a row.
    pub(crate) is_each_placed: bool,
    pub(crate) refused: Option<Limit>,
    /// Admitted requests to preempt before any request of the present policy, last one first. Only a policy with
    /// inner policies sets them, anew for each inner policy.
    pub(crate) lower_ranked: Vec<Place>,
    /// Lower-ranked requests that were preempted.
    pub(crate) preempted_lower_ranked: Vec<Place>,
    pub(crate) preempted: Vec<Place>,
    /// Requests looked up in the prefix cache.
    pub(crate) looked_up: Vec<LookedUp>,
    /// Number of block transfers by plans.
    pub(crate) exchanges: u64,
    /// Free blocks that every iteration reserves before its decodes take theirs.
    pub(crate) reserved_each: u64,
    /// Iterations of the batch whose chunks the prefix cache has, because a router read it.
    pub(crate) cached_iterations: u64,
    pub(crate) hold: Hold,
    pub(crate) wake_at: Option<Instant>,
}

impl Batch {
    pub(crate) fn new() -> Batch {
        Batch {
            chunks: Vec::new(),
            single_decodes: 0,
            sums: ChunkSums::default(),
            priced: Vec::new(),
            chunk_tokens: 0,
            missing_drafts: 0,
            most_iterations: u64::MAX,
            is_cut_short: false,
            admitted: Vec::new(),
            is_each_placed: true,
            refused: None,
            lower_ranked: Vec::new(),
            preempted_lower_ranked: Vec::new(),
            preempted: Vec::new(),
            looked_up: Vec::new(),
            exchanges: 0,
            reserved_each: 0,
            cached_iterations: 0,
            hold: Hold::ONCE,
            wake_at: None,
        }
    }

    pub(crate) fn clear<F: Features>(&mut self) {
        self.chunks.clear();
        self.single_decodes = 0;
        self.sums = ChunkSums::default();
        self.chunk_tokens = 0;
        self.most_iterations = u64::MAX;
        self.is_cut_short = false;
        self.admitted.clear();
        self.is_each_placed = true;
        self.refused = None;
        self.preempted.clear();
        if F::FULL {
            self.looked_up.clear();
            self.missing_drafts = 0;
            self.reserved_each = 0;
            self.cached_iterations = 0;
        }
        self.hold = Hold::ONCE;
        self.wake_at = None;
    }

    /// Adds a row.
    #[inline(always)]
    pub(crate) fn push(&mut self, chunk: Chunk) {
        self.chunks.push(chunk);
        let Chunk { tokens, context, owed, is_decode, .. } = chunk;
        if is_decode {
            self.single_decodes += 1;
        } else {
            self.sums.add(ChunkShape { tokens, context });
        }
        self.chunk_tokens += tokens;
        self.is_cut_short |= tokens < owed;
        let iterations = if tokens == owed { 1 } else { (owed - 1) / tokens };
        self.most_iterations = self.most_iterations.min(iterations);
    }

    /// Lists the chunks that are not priced as decodes.
    pub(super) fn list_priced(&mut self) {
        self.priced.clear();
        let chunks = self.chunks.iter().filter(|chunk| !chunk.is_decode);
        self.priced.extend(chunks.map(|chunk| ChunkShape { tokens: chunk.tokens, context: chunk.context }));
    }

    /// Removes a request's row. Returns whether it had one.
    pub(crate) fn withdraw(&mut self, place: Place) -> bool {
        let Some(index) = self.chunks.iter().position(|chunk| chunk.place == place) else { return false };
        self.chunks.remove(index);
        self.sum_chunks();
        true
    }

    /// Computes the sums over the rows anew.
    pub(crate) fn sum_chunks(&mut self) {
        (self.single_decodes, self.sums, self.chunk_tokens) = (0, ChunkSums::default(), 0);
        (self.most_iterations, self.is_cut_short) = (u64::MAX, false);
        for chunk in std::mem::take(&mut self.chunks) {
            self.push(chunk);
        }
    }
}
