//! Session affinity.

use std::collections::BTreeMap;

use super::in_range;
use super::prelude::*;

/// All requests of a session go to one replica, unless it is overloaded.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BySession {
    /// Multiple of the mean number of requests above which a replica is overloaded; `None`: no limit.
    #[serde(default)]
    pub spill: Option<f64>,
}

impl RouterParameters for BySession {
    fn build(&self, _seed: u64, _pool: u64) -> Result<Box<dyn Router>> {
        in_range("spill", self.spill, |spill| spill >= 1.0, "a finite number, at least 1")?;
        Ok(Box::new(BySessionRouter { spill: self.spill, next: 0, homes: BTreeMap::new() }))
    }
}

impl Sample for BySession {
    fn sample(dice: &mut Dice) -> BySession {
        BySession { spill: dice.one_of(&[None, Some(1.5)]) }
    }
}

/// Sessions are assigned to replicas in round-robin order of their first requests; a request without a session counts
/// as its own session. With `spill`, a session whose replica exceeds `spill` times the mean number of requests moves
/// to the replica with the fewest requests. A session whose replica is no longer open is treated as new.
#[derive(Debug)]
struct BySessionRouter {
    spill: Option<f64>,
    next: usize,
    homes: BTreeMap<u32, usize>,
}

impl BySessionRouter {
    fn turn(&mut self, fleet: &Fleet) -> usize {
        let replica = fleet.next_open(self.next);
        self.next = replica + 1;
        replica
    }

    /// Whether a replica is overloaded.
    fn is_full(&self, home: usize, fleet: &Fleet) -> bool {
        self.spill.is_some_and(|spill| {
            let requests = fleet.requests();
            let all: u64 = requests.iter().copied().map(u64::from).sum();
            (u64::from(requests[home]) * fleet.len() as u64) as f64 > spill * all as f64
        })
    }
}

impl Router for BySessionRouter {
    fn is_timeless(&self) -> bool {
        true
    }

    fn route(&mut self, arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        let Some(session) = arrival.session else { return Ok(self.turn(fleet)) };
        let home = match self.homes.get(&session).filter(|&&home| fleet.is_open(home)) {
            Some(&home) if !self.is_full(home, fleet) => return Ok(home),
            Some(_) => fleet.with_fewest_requests(),
            None => self.turn(fleet),
        };
        self.homes.insert(session, home);
        Ok(home)
    }

    fn uses_state(&self) -> bool {
        self.spill.is_some()
    }
}
