//! The router by cached prefix and load.

use super::beginnings::Beginnings;
use super::in_range;
use super::prelude::*;
use super::ranking::Measure;
use crate::clock::{Span, attoseconds};

/// Trades the cached prefix against the load in blocks.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PrefixAffinity {
    /// Weight of a token to compute, relative to a token of the used blocks.
    pub weight: f64,
    /// Seconds between cache reports; `None`: the current caches.
    #[serde(default)]
    pub update_s: Option<f64>,
}

impl RouterParameters for PrefixAffinity {
    fn build(&self, _seed: u64, _pool: u64) -> Result<Box<dyn Router>> {
        let PrefixAffinity { weight, update_s } = *self;
        in_range("weight", Some(weight), |weight| weight >= 0.0, "a finite non-negative number")?;
        let every = update_s.map(|seconds| attoseconds(seconds, "update_s")).transpose()?;
        if every == Some(0) {
            return Err(Error::config("update_s", "must be positive, got 0"));
        }
        let beginnings = Beginnings::default();
        Ok(Box::new(PrefixAffinityRouter { weight, every: every.map(Span), beginnings }))
    }
}

impl Sample for PrefixAffinity {
    fn sample(dice: &mut Dice) -> PrefixAffinity {
        let (weight, update_s) =
            (dice.one_of(&[2.0, 0.7, 3.0, 1.0]), dice.one_of(&[None, None, Some(0.05), Some(1.3)]));
        PrefixAffinity { weight, update_s }
    }
}

/// The lowest cost: `weight` times the tokens of the prompt that the replica would compute, plus the tokens of blocks
/// used or required by waiting prompts. (NVIDIA Dynamo's KV router counts both in blocks of one size.)
///
/// Not all replicas are inspected. Replicas that have not received a prompt with the same beginning have nothing of
/// this one cached; among these the one with the fewest blocks is best.
#[derive(Debug)]
struct PrefixAffinityRouter {
    weight: f64,
    /// Interval of the cache reports; `None`: current caches are used. The load is always current.
    every: Option<Span>,
    beginnings: Beginnings,
}

impl PrefixAffinityRouter {
    fn cached(&self, replica: usize, fleet: &mut Fleet) -> Result<u64> {
        match self.every {
            Some(_) => fleet.reported_tokens(replica),
            None => fleet.cached_tokens(replica),
        }
    }

    fn cost(&self, uncached: u64, ahead: u64) -> f64 {
        // Integers below 2^53 are exact.
        self.weight * uncached as f64 + ahead as f64
    }

    /// The lowest replica with the lowest cost for a prompt of `prompt` tokens.
    fn cheapest(&self, prompt: u64, fleet: &mut Fleet) -> Result<usize> {
        let (few, max_elsewhere) = self.beginnings.candidates(fleet.content());
        let mut best = (f64::INFINITY, usize::MAX);
        let mut rest = fleet.ranked()?;
        for &replica in few {
            let replica = replica as usize;
            if !fleet.is_open(replica) {
                continue;
            }
            let uncached = prompt - self.cached(replica, fleet)?;
            best = lower(best, (self.cost(uncached, fleet.blocks(replica)? * fleet.block_tokens(replica)), replica));
        }
        while let Some((ahead, replica)) = fleet.next_ranked(&mut rest)? {
            let replica = replica as usize;
            let uncached = prompt - max_elsewhere.min(prompt - 1);
            let least = self.cost(uncached, ahead);
            if least >= self.cost(uncached, ahead + 1) {
                // With such a large weight, blocks are lost in the rounding of the sum.
                return self.cheapest_of_all(prompt, fleet);
            }
            if best < (least, replica) {
                break;
            }
            let uncached = prompt - self.cached(replica, fleet)?;
            best = lower(best, (self.cost(uncached, ahead), replica));
        }
        debug_assert_eq!(Some(best.1), self.cheapest_of_all(prompt, fleet).ok(), "equal to comparing all replicas");
        Ok(best.1)
    }

    /// Like `cheapest`, by inspecting all replicas.
    fn cheapest_of_all(&self, prompt: u64, fleet: &mut Fleet) -> Result<usize> {
        fleet.least(|fleet, replica| {
            let uncached = prompt - self.cached(replica, fleet)?;
            Ok(self.cost(uncached, fleet.blocks(replica)? * fleet.block_tokens(replica)))
        })
    }
}

/// Returns the lower cost; ties go to the lower replica.
fn lower(left: (f64, usize), right: (f64, usize)) -> (f64, usize) {
    if right < left { right } else { left }
}

impl Router for PrefixAffinityRouter {
    fn route(&mut self, arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        let replica = if fleet.moves_with_kv() {
            // Nothing has to be computed at any replica.
            fleet.with_least()?
        } else {
            self.cheapest(u64::from(arrival.prompt_tokens), fleet)?
        };
        self.beginnings.add(replica, arrival.id, fleet);
        Ok(replica)
    }

    fn reports_every(&self) -> Option<Span> {
        self.every
    }

    fn ranks(&self) -> Option<Measure> {
        Some(Measure::BlockTokens)
    }
}
