//! Where most of the prompt is known, if it is not too full there.

use super::beginnings::Beginnings;
use super::in_range;
use super::prelude::*;
use super::ranking::Measure;
use crate::clock::{Span, attoseconds};

/// Where the longest part of the prompt is cached, against the blocks ahead.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PrefixAffinity {
    /// Of a token to compute, against one whose block is taken.
    pub weight: f64,
    /// Seconds between the reports of the caches; `None`: they are looked at.
    #[serde(default)]
    pub update_s: Option<f64>,
}

impl RouterParameters for PrefixAffinity {
    fn build(&self, _seed: u64, _pool: u64) -> Result<Box<dyn Router>> {
        let PrefixAffinity { weight, update_s } = *self;
        in_range("weight", Some(weight), |weight| weight >= 0.0, "a finite number, not negative")?;
        let every = update_s.map(|seconds| attoseconds(seconds, "update_s")).transpose()?;
        if every == Some(0) {
            return Err(Error::config("update_s", "0: the time between two reports must be above 0"));
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

/// The lowest cost: `weight` times the tokens of the prompt that would have to be computed there, and the tokens of the
/// blocks ahead, in use or asked for by waiting prompts. (NVIDIA Dynamo's KV router counts both in blocks of one size.)
///
/// Not all replicas are asked. Where no prompt has been that begins alike, nothing of this one is cached; of those the
/// one with the fewest blocks ahead is best.
#[derive(Debug)]
struct PrefixAffinityRouter {
    weight: f64,
    /// Time between two reports of the caches; `None`: they are looked at. What lies ahead is always looked at.
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
        // Whole numbers below 2^53 are exact.
        self.weight * uncached as f64 + ahead as f64
    }

    /// The replica of the lowest cost for a prompt of so many tokens, and the lowest of those.
    fn cheapest(&self, prompt: u64, fleet: &mut Fleet) -> Result<usize> {
        let (few, most_elsewhere) = self.beginnings.few(fleet.content());
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
            let uncached = prompt - most_elsewhere.min(prompt - 1);
            let least = self.cost(uncached, ahead);
            if least >= self.cost(uncached, ahead + 1) {
                // The weight is so large that blocks are lost in the sum.
                return self.cheapest_of_all(prompt, fleet);
            }
            if best < (least, replica) {
                break;
            }
            let uncached = prompt - self.cached(replica, fleet)?;
            best = lower(best, (self.cost(uncached, ahead), replica));
        }
        debug_assert_eq!(Some(best.1), self.cheapest_of_all(prompt, fleet).ok(), "as if each were asked");
        Ok(best.1)
    }

    /// The same, each being asked.
    fn cheapest_of_all(&self, prompt: u64, fleet: &mut Fleet) -> Result<usize> {
        fleet.least(|fleet, replica| {
            let uncached = prompt - self.cached(replica, fleet)?;
            Ok(self.cost(uncached, fleet.blocks(replica)? * fleet.block_tokens(replica)))
        })
    }
}

/// The lower of two costs; that of the lower replica, if they are equal.
fn lower(one: (f64, usize), other: (f64, usize)) -> (f64, usize) {
    if other < one { other } else { one }
}

impl Router for PrefixAffinityRouter {
    fn route(&mut self, arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        let replica = if fleet.brings_its_context() {
            // Nothing has to be computed wherever it goes.
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
