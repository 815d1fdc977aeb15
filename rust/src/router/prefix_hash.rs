//! The router by hashed prefix.

use super::in_range;
use super::prelude::*;
use crate::kv::{OWN, Segment};
use crate::random::{Source, Stream, philox4x64};

/// Requests with the same prefix go to the same replica.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PrefixHash {
    /// Length of the prefix in tokens.
    pub prefix_tokens: u64,
    /// Multiple of the mean number of requests above which a replica is overloaded; `None`: no limit.
    #[serde(default)]
    pub load_factor: Option<f64>,
}

impl RouterParameters for PrefixHash {
    fn build(&self, _seed: u64, _pool: u64) -> Result<Box<dyn Router>> {
        let PrefixHash { prefix_tokens, load_factor } = *self;
        if prefix_tokens == 0 {
            return Err(Error::config("prefix_tokens", "must be at least 1, got 0"));
        }
        in_range("load_factor", load_factor, |factor| factor > 1.0, "a finite number above 1")?;
        Ok(Box::new(PrefixHashRouter { prefix_tokens, load_factor, ring: Vec::new() }))
    }
}

impl Sample for PrefixHash {
    fn sample(dice: &mut Dice) -> PrefixHash {
        PrefixHash { prefix_tokens: dice.one_of(&[5, 12]), load_factor: dice.one_of(&[None, Some(1.3)]) }
    }
}

/// Consistent hashing. Every replica has [`PLACES`] positions on a ring. A prefix has one position and goes to the
/// first open replica from there. So a new replica takes its share from all replicas and moves no prefix between
/// them.
///
/// With bounded loads (Mirrokni, Thorup, Zadimoghaddam 2018) replicas are skipped if they have `load_factor` times
/// the mean number of requests, including the new one, rounded up.
#[derive(Debug)]
struct PrefixHashRouter {
    prefix_tokens: u64,
    load_factor: Option<f64>,
    /// Positions with their replicas, in ring order.
    ring: Vec<(u64, usize)>,
}

/// Positions per replica: its share of the ring then has a standard deviation of about 9 %.
const PLACES: u64 = 128;

impl PrefixHashRouter {
    /// Position of a prompt on the ring, from its first tokens.
    fn place(&self, content: &[Segment], arrival: &Arrival) -> u64 {
        let own = Segment { content: OWN | u64::from(arrival.id), tokens: arrival.prompt_tokens };
        let mut left = self.prefix_tokens.min(u64::from(arrival.prompt_tokens));
        let mut place = 0;
        for &Segment { content, tokens } in content.iter().chain([&own]) {
            let tokens = u64::from(tokens).min(left);
            if tokens > 0 {
                place = philox4x64([content, tokens, place, 0], [0, Source::Prefix as u64])[0];
            }
            left -= tokens;
        }
        place
    }
}

impl Router for PrefixHashRouter {
    fn is_timeless(&self) -> bool {
        true
    }

    fn route(&mut self, arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        if self.ring.is_empty() {
            let stream = Stream::new(0, Source::Ring);
            let places = |replica: usize| (0..PLACES).map(move |place| (stream.word(replica as u64, place), replica));
            self.ring = (0..fleet.places()).flat_map(places).collect();
            self.ring.sort_unstable();
        }
        let place = self.place(fleet.content(), arrival);
        let first = self.ring.partition_point(|&(of_replica, _)| of_replica < place);
        let around = self.ring[first..].iter().chain(&self.ring[..first]).map(|&(_, replica)| replica);
        let mut around = around.filter(|&replica| fleet.is_open(replica));
        let Some(factor) = self.load_factor else { return Ok(around.next().unwrap_or(0)) };
        let requests = fleet.requests();
        let all: u64 = requests.iter().copied().map(u64::from).sum();
        // For integer loads, reaching a bound equals reaching the bound rounded up.
        let bound = factor * (all + 1) as f64;
        let has_room = |&replica: &usize| ((u64::from(requests[replica]) * fleet.len() as u64) as f64) < bound;
        Ok(around.find(has_room).unwrap_or(0))
    }

    fn uses_state(&self) -> bool {
        self.load_factor.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Instant, Span};

    fn router(load_factor: Option<f64>) -> PrefixHashRouter {
        PrefixHashRouter { prefix_tokens: 600, load_factor, ring: Vec::new() }
    }

    fn arrival(id: u32) -> Arrival {
        let (at, itl_slo) = (Instant::ZERO, Span::NEVER);
        let (prompt_tokens, output_tokens, session) = (1000, 1, None);
        let (class, priority, queue_key) = (0, 0, 0);
        Arrival {
            id,
            row: id,
            at,
            prompt_tokens,
            output_tokens,
            class,
            priority,
            max_output_tokens: 0,
            itl_slo,
            queue_key,
            session,
        }
    }

    fn fleet(replicas: usize) -> Fleet {
        Fleet { prompt_tokens: 1000, ..Fleet::of_size(replicas) }
    }

    /// Returns the replicas of prompts that begin with 20,000 texts.
    fn homes(replicas: usize) -> Vec<usize> {
        let (mut router, mut fleet) = (router(None), fleet(replicas));
        let mut home = |content| {
            fleet.content.set(&[Segment { content, tokens: 700 }]);
            router.route(&arrival(0), &mut fleet).expect("a replica")
        };
        (0..20_000).map(&mut home).collect()
    }

    #[test]
    fn prefixes_are_spread_evenly_and_a_new_replica_takes_only_its_share() {
        for replicas in [2, 5, 16, 64] {
            let (before, after) = (homes(replicas), homes(replicas + 1));
            // A share of the ring is the sum of 128 gaps: five standard deviations are 5 / √128 = 44 % of it, plus 5
            // / √(20,000 / n) for the number of prefixes in it.
            let spread = 5.0 / 128_f64.sqrt() + 5.0 / (20_000.0 / replicas as f64).sqrt();
            for replica in 0..replicas {
                let share = before.iter().filter(|&&home| home == replica).count() as f64 * replicas as f64 / 20_000.0;
                assert!((share - 1.0).abs() < spread, "{replica} of {replicas} has {share} of its share");
            }
            let moved: Vec<usize> =
                before.iter().zip(&after).filter(|(old, new)| old != new).map(|(_, &new)| new).collect();
            assert!(moved.iter().all(|&new| new == replicas), "no prefix moves between old replicas");
            let share = moved.len() as f64 * (replicas + 1) as f64 / 20_000.0;
            assert!((share - 1.0).abs() < spread, "the new one of {replicas} takes {share} of its share");
        }
    }
}
