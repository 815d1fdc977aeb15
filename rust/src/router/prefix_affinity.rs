//! Where most of the prompt is known, if it is not too full there.

use super::in_range;
use super::prelude::*;
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
        Ok(Box::new(PrefixAffinityRouter { weight, every: every.map(Span) }))
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
#[derive(Debug)]
struct PrefixAffinityRouter {
    weight: f64,
    /// Time between two reports of the caches; `None`: they are looked at. What lies ahead is always looked at.
    every: Option<Span>,
}

impl Router for PrefixAffinityRouter {
    fn route(&mut self, arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        let PrefixAffinityRouter { weight, every } = *self;
        fleet.least(|fleet, replica| {
            let cached = match every {
                Some(_) => fleet.reported_tokens(replica)?,
                None => fleet.cached_tokens(replica)?,
            };
            let uncached = u64::from(arrival.prompt_tokens) - cached;
            let ahead = fleet.blocks(replica)? * fleet.block_tokens(replica);
            // Whole numbers below 2^53 are exact.
            Ok(weight * uncached as f64 + ahead as f64)
        })
    }

    fn reports_every(&self) -> Option<Span> {
        self.every
    }
}
