//! The part of a batch that each plan makes anew.

use super::blocks::LookedUp;
use crate::clock::Instant;
use crate::features::Features;
use crate::plan::{Hold, Limit};
use crate::request::Place;
use crate::timing::{ChunkShape, ChunkSums};

/// A row of the batch that is asked for by the iteration: a prefill chunk, or the one-token tail of a recomputation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub(crate) place: Place,
    pub(crate) tokens: u64,
    pub(crate) context: u64,
    pub(crate) owed: u64,
    /// Priced and reported as a decode (rule 6).
    pub(crate) is_decode: bool,
}

/// The part of the batch that each plan makes anew.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) chunks: Vec<Chunk>,
    /// How many of them are priced as decodes.
    pub(crate) single_decodes: u64,
    /// Sums over the others.
    pub(crate) sums: ChunkSums,
    /// The others one by one, where the timing model looks at them.
    pub(crate) priced: Vec<ChunkShape>,
    pub(crate) chunk_tokens: u64,
    /// Identical iterations before a chunk is another one: the iteration that completes what a request owes is a stretch
    /// of its own, since it emits and the ones before do not.
    pub(crate) most_iterations: u64,
    /// Does a request owe more than its chunk computes?
    pub(crate) is_cut_short: bool,
    pub(crate) admitted: Vec<Place>,
    /// Has each of them a row already?
    pub(crate) is_each_placed: bool,
    pub(crate) refused: Option<Limit>,
    /// Admitted requests that give up their blocks before any request of the policy that plans now, the last one first: only
    /// a policy that lets others plan names some, and names them anew for each of these.
    pub(crate) juniors: Vec<Place>,
    /// Juniors that did.
    pub(crate) dismissed: Vec<Place>,
    pub(crate) preempted: Vec<Place>,
    /// Requests that were looked up in the prefix cache.
    pub(crate) looked_up: Vec<LookedUp>,
    /// How often plans made blocks change hands.
    pub(crate) exchanges: u64,
    /// Free blocks that every iteration claims before its decodes take theirs.
    pub(crate) reserved_each: u64,
    /// Iterations of it of which the prefix cache knows the chunks as computed, because a router asked.
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
            most_iterations: u64::MAX,
            is_cut_short: false,
            admitted: Vec::new(),
            is_each_placed: true,
            refused: None,
            juniors: Vec::new(),
            dismissed: Vec::new(),
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
        if F::ANY {
            self.looked_up.clear();
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

    /// Takes a request's row out, if it has one; says whether it had.
    pub(crate) fn withdraw(&mut self, place: Place) -> bool {
        let Some(index) = self.chunks.iter().position(|chunk| chunk.place == place) else { return false };
        self.chunks.remove(index);
        (self.single_decodes, self.sums, self.chunk_tokens) = (0, ChunkSums::default(), 0);
        (self.most_iterations, self.is_cut_short) = (u64::MAX, false);
        for chunk in std::mem::take(&mut self.chunks) {
            self.push(chunk);
        }
        true
    }
}
