//! What a replica holds between one event and the next.
//!
//! [`State`] is the one truth that plans move and that settling moves on: requests, blocks, standing decodes, the batch.

use super::blocks::LookedUp;
use super::standing::Decodes;
use crate::clock::{Instant, Span};
use crate::kv::{Kept, KvBlocks};
use crate::plan::{Hold, Limit, Limits};
use crate::request::{Phase, Place, Requests};
use crate::timing::{ChunkShape, Shape};

/// Rows are counted up from here, or down, by requests that go before all others.
pub(crate) const FIRST_ROW: u64 = 1 << 63;

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
    /// Those of them that are no decodes, as the timing model prices them.
    pub(crate) priced: Vec<ChunkShape>,
    pub(crate) chunk_tokens: u64,
    pub(crate) admitted: Vec<Place>,
    pub(crate) refused: Option<Limit>,
    /// Admitted requests that give up their blocks before any request of the policy that plans now, the last one first.
    pub(crate) juniors: Vec<Place>,
    /// Juniors that did.
    pub(crate) dismissed: Vec<Place>,
    pub(crate) preempted: Vec<Place>,
    /// Requests that were looked up in the prefix cache.
    pub(crate) looked_up: Vec<LookedUp>,
    /// How often this plan made blocks change hands.
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
            priced: Vec::new(),
            chunk_tokens: 0,
            admitted: Vec::new(),
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

    pub(crate) fn clear(&mut self) {
        self.chunks.clear();
        self.priced.clear();
        self.chunk_tokens = 0;
        self.admitted.clear();
        self.refused = None;
        self.juniors.clear();
        self.dismissed.clear();
        self.preempted.clear();
        self.looked_up.clear();
        self.exchanges = 0;
        self.reserved_each = 0;
        self.cached_iterations = 0;
        self.hold = Hold::ONCE;
        self.wake_at = None;
    }
}

/// All of a replica that its scheduler's plan may move.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) requests: Requests,
    pub(crate) blocks: KvBlocks,
    /// Those of the timing model.
    pub(crate) moduli: Vec<u64>,
    /// The standing decodes; there is always a first group.
    pub(crate) groups: Vec<Decodes>,
    /// Those of them that take part in the batch.
    pub(crate) standing: u64,
    pub(crate) limits: Limits,
    pub(crate) caches_in_row_order: bool,
    pub(crate) batch: Batch,
    /// Admitted requests: decoding, computing or paused.
    pub(crate) running: u64,
    /// Requests in the queue, preempted and swapped ones included.
    pub(crate) waiting: u64,
    /// The places of the first row and of the last one, as far as there are any.
    pub(crate) first_row: u64,
    pub(crate) last_row: u64,
    /// Prompt tokens not computed and output tokens not emitted, over all requests.
    pub(crate) tokens_ahead: u64,
    /// Blocks of the prompts in the queue.
    pub(crate) waiting_blocks: u64,
    /// Blocks of requests that are done, kept until their batch ends.
    pub(crate) kept: Kept,
    /// Blocks of requests that went to another replica, kept until their keys and values are there.
    pub(crate) sent_blocks: u64,
    /// Tokens that admissions found in the prefix cache.
    pub(crate) cached_tokens: u64,
    /// Preemptions since the last token.
    pub(crate) fruitless_preemptions: u64,
    /// Iterations run, and the sum of their lengths.
    pub(crate) iterations: u64,
    pub(crate) busy: Span,
    /// When the last one ended.
    pub(crate) last_end: Instant,
    /// Time that swapping added, owed to the next iteration.
    pub(crate) swap_charge: Span,
    /// Most preemptions of one request so far.
    pub(crate) most_preempted: u32,
    pub(crate) measured: std::ops::Range<u32>,
}

impl State {
    /// Blocks that the standing decodes take when the batch is formed.
    #[inline]
    pub(crate) fn standing_growth(&self) -> u64 {
        self.groups.iter().map(Decodes::next_growth).sum()
    }

    /// An empty group of standing decodes more.
    pub(crate) fn add_group(&mut self) {
        let classes = self.groups[0].measured.len();
        self.groups.push(Decodes::new(self.blocks.block_tokens(), classes, &self.moduli));
        self.requests.ticks.push(0);
    }

    /// Makes the batch empty, with every group of the standing decodes in it.
    pub(crate) fn clear_batch(&mut self) {
        self.batch.clear();
        self.standing = 0;
        for group in &mut self.groups {
            group.rests = false;
            self.standing += group.count;
        }
    }

    /// When no request is admitted any more, the blocks that were kept until then are free (`free="batch"`).
    pub(crate) fn end_batch(&mut self) {
        if self.running == 0 {
            self.blocks.let_go(std::mem::take(&mut self.kept));
        }
        debug_assert!(
            !self.requests.is_empty()
                || (self.blocks.used() <= self.sent_blocks && self.tokens_ahead == 0 && self.waiting_blocks == 0),
            "L4: nothing is held after the last request"
        );
    }

    /// The shape that the timing model prices.
    #[inline]
    pub(crate) fn shape(&self) -> Shape<'_> {
        let mut shape = Shape::of(&self.batch.priced);
        if self.batch.priced.len() < self.batch.chunks.len() {
            for chunk in self.batch.chunks.iter().filter(|chunk| chunk.is_decode) {
                shape.add_decodes(1, u128::from(chunk.context));
                for (ceiling, modulus) in shape.ceilings.iter_mut().zip(&self.moduli) {
                    *ceiling += u128::from((chunk.context + 1).div_ceil(*modulus));
                }
            }
        }
        for (group, &tick) in self.groups.iter().zip(&self.requests.ticks) {
            group.add_to(&mut shape, tick);
        }
        shape
    }

    /// A request begins to decode in every iteration of its group.
    pub(crate) fn join_decodes(&mut self, place: Place, group: usize) {
        let tick = self.requests.ticks[group];
        let first_token = self.requests.first_token;
        let decodes = &mut self.groups[group];
        let alone = decodes.count == 0;
        let block = self.blocks.block_tokens();
        let request = self.requests.at_mut(place);
        let measured = self.measured.contains(&request.arrival.id);
        request.phase = Phase::Decoding;
        request.group = group as u32;
        request.joined = tick;
        request.gaps_known = tick;
        let context = u64::from(request.computed);
        decodes.join(context, tick);
        self.standing += u64::from(!decodes.rests);
        let mut due = tick + u64::from(request.arrival.output_tokens - request.emitted);
        request.grows = request.blocks == self.blocks.need(context);
        if !request.grows && request.blocks * block < request.longest_context(first_token) {
            // Blocks taken ahead last for a while; from then on it grows like the others.
            due = due.min(tick + (request.blocks * block - context));
        }
        if request.grows {
            decodes.growth.join(context);
        }
        if alone && request.emitted > 0 {
            decodes.last_end = request.last_token;
        }
        if request.emitted > 0 && request.last_token == decodes.last_end {
            if measured {
                decodes.measured[request.arrival.class as usize] += 1;
            }
        } else {
            decodes.odd.push(place);
        }
        decodes.due.insert(place, due);
    }

    /// A request decodes no more; what the ticks gave it is written to the request itself.
    pub(crate) fn leave_decodes(&mut self, place: Place) {
        let group = self.requests.at(place).group as usize;
        self.groups[group].due.remove(place);
        self.left_decodes(place);
    }

    /// The same for a member whose time has come: the wheel has let it go already.
    pub(crate) fn left_decodes(&mut self, place: Place) {
        let tick = self.requests.tick(self.requests.at(place));
        let context = self.requests.context(place);
        let request = self.requests.at_mut(place);
        let decodes = &mut self.groups[request.group as usize];
        let measured = self.measured.contains(&request.arrival.id);
        let ticks = (tick - request.joined) as u32;
        request.computed += ticks;
        request.emitted += ticks;
        let is_odd = !decodes.odd.is_empty() && decodes.odd.contains(&place);
        if is_odd {
            decodes.odd.retain(|&odd| odd != place);
        } else {
            request.last_token = decodes.last_end;
            request.longest_gap = request.longest_gap.max(decodes.longest_gap_since(request.gaps_known));
            if measured {
                decodes.measured[request.arrival.class as usize] -= 1;
            }
        }
        if request.grows {
            request.blocks = self.blocks.need(context);
            decodes.growth.leave(context);
        }
        request.phase = Phase::Started;
        decodes.leave(context, tick);
        self.standing -= u64::from(!decodes.rests);
    }

    /// Blocks that `count` iterations of the batch take in all, those of the standing decodes' first included.
    pub(crate) fn more_blocks(&self, count: u64) -> u64 {
        let growth = |group: &Decodes| if group.rests { 0 } else { group.growth.growth(count) };
        let of_chunk = |chunk: &Chunk| {
            let held = self.requests.at(chunk.place).blocks;
            self.blocks.need(chunk.context + chunk.tokens * count).saturating_sub(held)
        };
        self.groups.iter().map(growth).sum::<u64>() + self.batch.chunks.iter().map(of_chunk).sum::<u64>()
    }

    /// The places that hold a request.
    pub(crate) fn live(&self) -> impl Iterator<Item = Place> {
        let mut vacant = vec![false; self.requests.places().count()];
        for place in self.requests.vacant() {
            vacant[place.index()] = true;
        }
        self.requests.places().filter(move |place| !vacant[place.index()])
    }

    /// Blocks that a request holds now.
    #[inline]
    pub(crate) fn blocks_of(&self, place: Place) -> u64 {
        let request = self.requests.at(place);
        if request.phase == Phase::Decoding && request.grows {
            self.blocks.need(self.requests.context(place))
        } else {
            request.blocks
        }
    }
}
