//! The same beginning at the same replica, whatever is there.

use super::in_range;
use super::prelude::*;
use crate::kv::{OWN, Segment};
use crate::random::{Source, Stream, philox4x64};

/// Where prompts go that begin alike.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PrefixHash {
    /// So many tokens are the beginning.
    pub prefix_tokens: u64,
    /// So many times the mean number of requests is too many; `None`: nothing is.
    #[serde(default)]
    pub load_factor: Option<f64>,
}

impl RouterParameters for PrefixHash {
    fn build(&self, _seed: u64, _pool: u64) -> Result<Box<dyn Router>> {
        let PrefixHash { prefix_tokens, load_factor } = *self;
        if prefix_tokens == 0 {
            return Err(Error::config("prefix_tokens", "0: a prefix has at least 1 token"));
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

/// Consistent hashing. Every replica has [`PLACES`] places on a ring, a prefix has one, and goes to the replica that comes
/// first from there on, of those that are open. So another replica takes its share from all others and moves nothing
/// between them.
///
/// With bounded loads (Mirrokni, Thorup, Zadimoghaddam 2018) those are passed over that have `load_factor` times the mean
/// number of requests, the newcomer counted, rounded up.
#[derive(Debug)]
struct PrefixHashRouter {
    prefix_tokens: u64,
    load_factor: Option<f64>,
    /// Places and whose they are, in the order of the ring.
    ring: Vec<(u64, usize)>,
}

/// Places of a replica: its share of the ring then has a standard deviation of about 9 %.
const PLACES: u64 = 128;

impl PrefixHashRouter {
    /// Where a prompt stands on the ring, by what its first tokens are.
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
        // Of whole loads those reach a bound that reach it rounded up.
        let bound = factor * (all + 1) as f64;
        let has_room = |&replica: &usize| ((u64::from(requests[replica]) * fleet.len() as u64) as f64) < bound;
        Ok(around.find(has_room).unwrap_or(0))
    }

    fn looks(&self) -> bool {
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
        Fleet { prompt_tokens: 1000, ..Fleet::of_strangers(replicas) }
    }

    /// The replicas of prompts that begin with 20,000 texts.
    fn homes(replicas: usize) -> Vec<usize> {
        let (mut router, mut fleet) = (router(None), fleet(replicas));
        let mut home = |content| {
            fleet.content.set(&[Segment { content, tokens: 700 }]);
            router.route(&arrival(0), &mut fleet).expect("a replica")
        };
        (0..20_000).map(&mut home).collect()
    }

    #[test]
    fn prefixes_are_spread_evenly_and_a_replica_more_takes_only_its_share() {
        for replicas in [2, 5, 16, 64] {
            let (before, after) = (homes(replicas), homes(replicas + 1));
            // A share of the ring is the sum of 128 gaps: five standard deviations are 5 / √128 = 44 % of it, and those of
            // the count of prefixes in it 5 / √(20,000 / n).
            let spread = 5.0 / 128_f64.sqrt() + 5.0 / (20_000.0 / replicas as f64).sqrt();
            for replica in 0..replicas {
                let share = before.iter().filter(|&&home| home == replica).count() as f64 * replicas as f64 / 20_000.0;
                assert!((share - 1.0).abs() < spread, "{replica} of {replicas} has {share} of its share");
            }
            let moved: Vec<usize> =
                before.iter().zip(&after).filter(|(old, new)| old != new).map(|(_, &new)| new).collect();
            assert!(moved.iter().all(|&new| new == replicas), "nothing moves between those that stay");
            let share = moved.len() as f64 * (replicas + 1) as f64 / 20_000.0;
            assert!((share - 1.0).abs() < spread, "the new one of {replicas} takes {share} of its share");
        }
    }
}
