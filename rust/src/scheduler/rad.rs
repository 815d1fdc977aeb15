//! Resource-Aware Dynamic: batches that fill their tiles, prompts between decodes (bari2025 Alg. 1).
//!
//! Two errors of the paper are corrected. The last chunk of a prompt contains its remaining tokens. A cycle also ends
//! when its prompts are complete and no request decodes, because all outputs had length 1.

use super::prelude::*;

/// Full tiles, with prefills between decodes.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Rad {
    pub rows: u64,
    pub columns: u64,
    pub reduction: u64,
    pub requests_per_cycle: u64,
}

impl SchedulerParameters for Rad {
    fn build(&self, _classes: Option<&[Class]>) -> Result<Box<dyn Scheduler>> {
        let tiles = Tiles::new(self.rows, self.columns, self.reduction)?;
        let requests_per_cycle = count("requests_per_cycle", self.requests_per_cycle)?;
        let limits = Limits { token_budget: Limits::NONE, max_seqs: tiles.columns, frees_with_batch: false };
        let roster = Roster::new(limits, Watermark::NONE, Preemption::Recompute, Queue::fcfs());
        Ok(Box::new(RadScheduler { tiles, requests_per_cycle, roster, completed: 0, decoded: false }))
    }
}

impl Sample for Rad {
    fn sample(dice: &mut Dice) -> Rad {
        let (rows, columns, reduction) = sample_tiles(dice);
        Rad { rows, columns, reduction, requests_per_cycle: 1 + dice.below(7) }
    }
}

/// Computes one prompt at a time, chunk by chunk, until as many requests can decode as a tile has columns, no request
/// waits, or the cycle is full. Then all decode.
#[derive(Debug)]
pub(super) struct RadScheduler {
    tiles: Tiles,
    requests_per_cycle: u64,
    roster: Roster,
    /// Prompts completed in this cycle.
    completed: u64,
    /// Whether the last batch was a decode batch.
    decoded: bool,
}

impl RadScheduler {
    /// Records the next chunk of a prompt with `owed` owed tokens.
    fn computes(&mut self, owed: u64, plan: &mut Plan) {
        self.decoded = false;
        self.completed += u64::from(owed <= self.tiles.chunk);
        plan.hold(Hold::THROUGH_ARRIVALS);
    }
}

impl Scheduler for RadScheduler {
    answered_by_the_roster!();

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        if let Some(place) = self.roster.lists.prefills.first() {
            plan.rest_decodes(true);
            let owed = plan.requests().owed(place);
            plan.chunk(place, owed.min(self.tiles.chunk))?;
            self.computes(owed, plan);
            return Ok(());
        }
        // No prompt is in progress, so all admitted requests decode.
        if plan.running() == 0 && (self.decoded || self.completed >= self.requests_per_cycle) {
            self.completed = 0;
        }
        let is_full = self.completed >= self.requests_per_cycle;
        if let Some(place) = self.roster.lists.queue.head().filter(|_| !is_full) {
            // Resting decodes take no blocks from the prompt admitted here.
            plan.rest_decodes(true);
            if self.roster.try_admit_part(place, self.tiles.chunk, plan)? {
                self.computes(plan.requests().owed(place), plan);
                return Ok(());
            }
            plan.rest_decodes(false);
        }
        self.decoded = true;
        self.roster.choose_decodes(u64::MAX, plan)?;
        self.roster.make_room(plan)?;
        // Free blocks only decrease, so the head of the queue keeps lacking them.
        let arrivals_wait = is_full || plan.sequences_left() == 0 || plan.refused() == Some(Limit::Blocks);
        plan.hold(if plan.has_preempted() { Hold::ONCE } else { Hold::while_arrivals_wait(arrivals_wait) });
        Ok(())
    }
}

/// The tile sizes of a GPU's matrix multiplication.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    /// Decodes that fill the tiles of a batch.
    pub(super) columns: u64,
    /// Tokens of a chunk that fills the tiles alone: the least common multiple of the three sizes.
    pub(super) chunk: u64,
}

impl Tiles {
    pub(super) fn new(rows: u64, columns: u64, reduction: u64) -> Result<Tiles> {
        for (name, size) in [("rows", rows), ("columns", columns), ("reduction", reduction)] {
            if !(1..=LARGEST_TILE).contains(&size) {
                return Err(Error::config(name, format!("must be from 1 to {LARGEST_TILE}, got {size}")));
            }
        }
        Ok(Tiles { columns, chunk: common_multiple(common_multiple(rows, columns), reduction) })
    }
}

/// Rows, columns and reduction.
pub(super) fn sample_tiles(dice: &mut Dice) -> (u64, u64, u64) {
    (dice.one_of(&[1, 4, 8]), 1 + dice.below(5), dice.one_of(&[1, 2, 16]))
}

/// Far above every real tile; the least common multiple of three such sizes fits 64 bits.
const LARGEST_TILE: u64 = 1 << 20;

fn common_multiple(left: u64, right: u64) -> u64 {
    let (mut divisor, mut rest) = (left, right);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    left / divisor * right
}
