//! A session stays where it began.

use std::collections::BTreeMap;

use super::{Fleet, Router};
use crate::error::Result;
use crate::workload::Arrival;

/// Sessions go to the replicas by turns, in the order of their first requests; a request without a session is one of its
/// own.
#[derive(Debug, Default)]
pub(super) struct BySession {
    next: usize,
    homes: BTreeMap<u32, usize>,
}

impl BySession {
    fn turn(&mut self, fleet: &Fleet) -> usize {
        let replica = self.next;
        self.next = (replica + 1) % fleet.len();
        replica
    }
}

impl Router for BySession {
    fn route(&mut self, arrival: &Arrival, fleet: &Fleet) -> Result<usize> {
        let Some(session) = arrival.session else { return Ok(self.turn(fleet)) };
        if let Some(&home) = self.homes.get(&session) {
            return Ok(home);
        }
        let home = self.turn(fleet);
        self.homes.insert(session, home);
        Ok(home)
    }

    fn looks(&self) -> bool {
        false
    }
}
