//! Decode routers: the replica of a decode, and the order of waiting decodes.
//!
//! A router has the decode buffer. A request that completes its prefill joins it. After every change the router is
//! called for the next decode to place and its replica, until it returns `None`. One router per file.

mod fcfs;
mod general;
mod greedy;
mod immediate;
mod randomized;

use serde::Deserialize;

use super::allocation::Allocation;
use super::gate::ClassTokens;
use super::line::{Line, Waiting};
use super::slots::Slots;
use super::{DRAW_POOL, DRAW_REPLICA};
use crate::error::{Error, Result};
use crate::random::{Source, Stream};

/// Place of a request in a decode buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferPlace {
    /// Line of the router.
    pub(super) line: u32,
    /// Place in the line.
    pub(super) place: u64,
}

/// A router of decodes.
pub(super) trait DecodeRouter: Send {
    /// Adds a decode that waits for a slot.
    fn join(&mut self, decode: Waiting) -> BufferPlace;

    /// Removes a request that abandons.
    fn leave(&mut self, place: BufferPlace);

    /// Removes and returns the next decode with a free slot, and its replica.
    fn place(&mut self, slots: &Slots) -> Option<(Waiting, u32)>;

    /// Whether a free slot prefers a new prefill to a waiting decode.
    fn prefers_prefills(&self) -> bool {
        false
    }
}

/// Decode routers as described by the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecodeRouterKind {
    /// Any free solo slot, otherwise any free mixed slot.
    Greedy,
    /// Solo or mixed by a random draw, each with its own buffer.
    Randomized,
    /// Like `Randomized`, but a freed slot draws the class that it serves.
    General,
    /// The slot of its prefill.
    Immediate,
    /// Any free slot that no prefill needs.
    Fcfs,
}

impl DecodeRouterKind {
    /// Checks that the router supports running with or without a plan.
    pub(crate) fn check_plan(self, planned: bool) -> Result<()> {
        let required = match self {
            DecodeRouterKind::Greedy => planned,
            DecodeRouterKind::Randomized | DecodeRouterKind::General => true,
            DecodeRouterKind::Immediate | DecodeRouterKind::Fcfs => false,
        };
        if planned == required {
            return Ok(());
        }
        let why = match self {
            DecodeRouterKind::Immediate => {
                "the immediate router decodes on the replica of the prefill: it requires planned=False"
            }
            DecodeRouterKind::Fcfs => "the fcfs router has no pools: it requires planned=False",
            _ => "this router sends decodes to a solo and a mixed pool: it requires planned=True",
        };
        Err(Error::config("planned", why))
    }

    /// Builds the router for a cluster of mixed and solo replicas; `pace` has their iteration times.
    pub(super) fn build(
        self,
        seed: u64,
        replicas: u32,
        mixed: Option<u32>,
        pace: IterationLengths,
        allocation: Option<&Allocation>,
        tokens: &[ClassTokens],
    ) -> Result<Box<dyn DecodeRouter>> {
        let draws = Stream::new(seed, Source::Router);
        Ok(match self {
            DecodeRouterKind::Greedy => Box::new(greedy::GreedyRouter { draws, line: Line::default() }),
            DecodeRouterKind::Fcfs => Box::new(fcfs::FcfsRouter { draws, line: Line::default() }),
            DecodeRouterKind::Immediate => Box::new(immediate::ImmediateRouter::default()),
            DecodeRouterKind::Randomized => {
                let pools = Pools::new(draws, replicas, mixed, pace, allocation)?;
                Box::new(randomized::RandomizedRouter::new(pools))
            }
            DecodeRouterKind::General => {
                let pools = Pools::new(draws, replicas, mixed, pace, allocation)?;
                Box::new(general::GeneralRouter::new(pools, seed, allocation, tokens))
            }
        })
    }
}

/// Iteration times in attoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IterationLengths {
    /// With a chunk of a prefill: τ.
    pub mixed: u128,
    /// Without a prefill: 1/γ.
    pub solo: u128,
}

/// Indices of the two pools.
const SOLO: usize = 0;
const MIXED: usize = 1;

/// The random choice of a pool, lin2026 section 5.1.
#[derive(Debug)]
struct Pools {
    draws: Stream,
    /// p_s,i = μ_s,i y_s,i* / (μ_m,i y_m,i* + μ_s,i y_s,i*), or 1 if both are 0.
    solo_shares: Vec<f64>,
}

impl Pools {
    fn new(
        draws: Stream,
        replicas: u32,
        mixed: Option<u32>,
        pace: IterationLengths,
        allocation: Option<&Allocation>,
    ) -> Result<Pools> {
        let column = |table: fn(&Allocation) -> &Option<Vec<u64>>| {
            allocation.and_then(|plan| table(plan).as_deref()).unwrap_or_default()
        };
        let (mixed_decodes, solo_decodes) = (column(|plan| &plan.mixed), column(|plan| &plan.solo));
        // μ_s / μ_m = γτ for every class, so the output tokens of a class cancel out.
        let share = |(&mixed, &solo): (&u64, &u64)| {
            let (mixed, solo) = (mixed as f64 * pace.solo as f64, solo as f64 * pace.mixed as f64);
            if mixed + solo > 0.0 { solo / (mixed + solo) } else { 1.0 }
        };
        let solo_shares: Vec<f64> = mixed_decodes.iter().zip(solo_decodes).map(share).collect();
        if mixed == Some(replicas) && solo_shares.iter().any(|&share| share > 0.0) {
            let message = format!(
                "all {replicas} replicas are mixed (⌈n · Σ prefill⌉), but the plan sends decodes to solo ones: use more \
                 replicas, or the greedy router"
            );
            return Err(Error::config("replicas", message));
        }
        Ok(Pools { draws, solo_shares })
    }

    /// Returns solo if U ≤ p_s,i, with a draw of the request.
    fn draw(&self, decode: &Waiting) -> usize {
        let uniform = self.draws.uniform(u64::from(decode.request), DRAW_POOL);
        if uniform <= self.solo_shares[decode.class as usize] { SOLO } else { MIXED }
    }

    /// Whether a pool has a free slot.
    fn is_open(pool: usize, slots: &Slots) -> bool {
        !(if pool == SOLO { &slots.solo } else { &slots.with_prefill }).is_empty()
    }

    /// Returns a replica of a pool with a free slot, uniformly, with a draw of the request.
    fn replica(&self, pool: usize, decode: &Waiting, slots: &Slots) -> Option<u32> {
        let open = if pool == SOLO { &slots.solo } else { &slots.with_prefill };
        open.pick(self.draws.word(u64::from(decode.request), DRAW_REPLICA))
    }
}
