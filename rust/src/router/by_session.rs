//! A session stays where it is.

use std::collections::BTreeMap;

use super::in_range;
use super::prelude::*;

/// All requests of a session at one replica, as long as that has not too many.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BySession {
    /// So many times the mean number of requests is too many; `None`: never.
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

/// Sessions go to the replicas by turns, in the order of their first requests; a request without a session is one of its
/// own. With `spill`, a session whose replica has more than so many times the mean number of requests moves to the one that
/// has the fewest, and lives there. One whose replica is open no more begins anew, as a session that was never seen.
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

    /// Has a replica more than its share?
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

    fn looks(&self) -> bool {
        self.spill.is_some()
    }
}
