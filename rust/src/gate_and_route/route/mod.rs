//! Decode routers: where a decode goes, and the order of those that must wait.
//!
//! A router holds the decode buffer. A request that completes its prefill joins it; whenever something has changed, the
//! router is asked which decode is placed next and where, until it has none to place. One router, one file.

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

/// Where in a decode buffer a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferPlace {
    /// Which of the router's lines.
    pub(super) line: u32,
    /// The place in it.
    pub(super) place: u64,
}

/// A router of decodes.
pub(super) trait DecodeRouter: Send {
    /// A decode waits for a slot.
    fn join(&mut self, decode: Waiting) -> BufferPlace;

    /// A request that stands at this place gives up.
    fn leave(&mut self, place: BufferPlace);

    /// The next decode for which a slot is free, and its replica; it is out of the buffer.
    fn place(&mut self, slots: &Slots) -> Option<(Waiting, u32)>;

    /// Does a free slot prefer a new prefill to a waiting decode?
    fn prefers_prefills(&self) -> bool {
        false
    }
}

/// A router as a user names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecodeRouterKind {
    /// Any free solo slot, else any free mixed one.
    Greedy,
    /// Solo or mixed by a draw, each with a buffer.
    Randomized,
    /// The same, where a freed slot draws the class that it serves.
    General,
    /// The slot of the prefill.
    Immediate,
    /// Any free slot that no prefill wants.
    Fcfs,
}

impl DecodeRouterKind {
    /// With a plan or without: an error where only one of the two makes sense.
    pub(crate) fn check_plan(self, planned: bool) -> Result<()> {
        let wants = match self {
            DecodeRouterKind::Greedy => planned,
            DecodeRouterKind::Randomized | DecodeRouterKind::General => true,
            DecodeRouterKind::Immediate | DecodeRouterKind::Fcfs => false,
        };
        if planned == wants {
            return Ok(());
        }
        let why = match self {
            DecodeRouterKind::Immediate => "the immediate router decodes where the prefill ran: it needs planned=False",
            DecodeRouterKind::Fcfs => "the fcfs router knows no pools: it needs planned=False",
            _ => "this router sends decodes to a solo and a mixed pool, which a plan makes: it needs planned=True",
        };
        Err(Error::config("planned", why))
    }

    /// The router itself, for a cluster whose replicas are `mixed` and solo; `pace` has the lengths of their iterations.
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

/// Attoseconds that an iteration takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IterationLengths {
    /// With a chunk of a prefill: τ.
    pub mixed: u128,
    /// Without: 1/γ.
    pub solo: u128,
}

/// The two pools, by number: the solo one first.
const SOLO: usize = 0;
const MIXED: usize = 1;

/// The draw of a pool, lin2026 section 5.1.
#[derive(Debug)]
struct Pools {
    draws: Stream,
    /// p_s,i = μ_s,i y_s,i* / (μ_m,i y_m,i* + μ_s,i y_s,i*), and 1 where both are 0.
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
        // μ_s / μ_m = γτ for every class, so a class's output tokens cancel out.
        let share = |(&mixed, &solo): (&u64, &u64)| {
            let (mixed, solo) = (mixed as f64 * pace.solo as f64, solo as f64 * pace.mixed as f64);
            if mixed + solo > 0.0 { solo / (mixed + solo) } else { 1.0 }
        };
        let solo_shares: Vec<f64> = mixed_decodes.iter().zip(solo_decodes).map(share).collect();
        if mixed == Some(replicas) && solo_shares.iter().any(|&share| share > 0.0) {
            let message = format!(
                "all {replicas} replicas are mixed (⌈n · Σ prefill⌉), and the plan sends decodes to solo ones: take more \
                 replicas, or the greedy router"
            );
            return Err(Error::config("replicas", message));
        }
        Ok(Pools { draws, solo_shares })
    }

    /// Solo if U ≤ p_s,i, by a draw that belongs to the request.
    fn draw(&self, decode: &Waiting) -> usize {
        let uniform = self.draws.uniform(u64::from(decode.request), DRAW_POOL);
        if uniform <= self.solo_shares[decode.class as usize] { SOLO } else { MIXED }
    }

    /// Does a pool have a free slot?
    fn is_open(pool: usize, slots: &Slots) -> bool {
        !(if pool == SOLO { &slots.solo } else { &slots.beside_prefill }).is_empty()
    }

    /// A replica of a pool, any that has a free slot, by a draw that belongs to the request.
    fn replica(&self, pool: usize, decode: &Waiting, slots: &Slots) -> Option<u32> {
        let open = if pool == SOLO { &slots.solo } else { &slots.beside_prefill };
        open.pick(self.draws.word(u64::from(decode.request), DRAW_REPLICA))
    }
}
