//! Requests without a replica. They wait before the pools, and are routed in order of their ids as soon as a replica
//! is open.

use std::cmp::Reverse;

use crate::clock::Instant;
use crate::error::Result;
use crate::replica::Stranded;
use crate::request::Place;
use crate::results::{NO_REPLICA, Status};
use crate::simulation::run::Run;
use crate::workload::{Arrival, Workload};

/// A request without a replica.
pub(super) struct Unrouted {
    pub(super) pool: usize,
    pub(super) stranded: Stranded,
    /// When its patience ends.
    pub(super) deadline: Option<Instant>,
}

impl Run {
    /// Counts an arrival, and queues it if no replica is open. Returns whether it was queued or rejected.
    pub(in crate::simulation) fn queue_if_no_replica(
        &mut self,
        row: usize,
        arrival: &Arrival,
        workload: &Workload,
    ) -> Result<bool> {
        let pool = workload.pool(row);
        let Some(all) = &mut self.capacities else { return Ok(false) };
        let Some(pool_state) = all.pools.iter_mut().find(|pool_state| pool_state.pool == pool) else {
            return Ok(false);
        };
        pool_state.arrived += 1;
        if self.fleet.open_replicas(pool) > 0 {
            return Ok(false);
        }
        let refusals =
            self.fleet.pools[pool].replicas.clone().map(|replica| self.fleet.replicas[replica].refuses(arrival));
        if let Some(reason) = refusals.reduce(|request, other| request.and(other)).flatten() {
            self.results.reject(arrival, NO_REPLICA, reason);
            return Ok(true);
        }
        let deadline = workload.patience(row).map(|patience| self.now.after(patience)).transpose()?;
        if let Some(deadline) = deadline {
            self.calendar.patience.push(Reverse((deadline, arrival.id, NO_REPLICA, 0)));
        }
        let recorded = workload.drafts(row)?;
        let stranded = Stranded::new(*arrival, &self.fleet.content, recorded);
        all.unrouted.insert(arrival.id, Unrouted { pool, stranded, deadline });
        self.calendar.in_system += 1;
        self.expect_cancel(row, arrival, workload)?;
        Ok(true)
    }

    /// Cancels a request without a replica. No token of it is in progress, so it leaves at once.
    pub(in crate::simulation) fn cancel_unrouted(&mut self, id: u32) {
        let Some(request) = self.capacities.as_mut().and_then(|all| all.unrouted.remove(&id)) else { return };
        self.results.taken_back += 1;
        request.stranded.leave(NO_REPLICA, Status::Abandoned, self.now, &mut self.results);
        self.calendar.in_system -= 1;
    }

    /// Abandons a request that waits for a replica.
    pub(in crate::simulation) fn abandon_unrouted(&mut self, id: u32) {
        let all = self.capacities.as_mut().filter(|all| all.holds(id));
        let Some(request) = all.and_then(|all| all.unrouted.remove(&id)) else { return };
        request.stranded.leave(NO_REPLICA, Status::Abandoned, self.now, &mut self.results);
        self.calendar.in_system -= 1;
    }

    /// Routes waiting requests if a replica is open.
    pub(in crate::simulation) fn route_unrouted(&mut self) -> Result<()> {
        let Some(all) = self.capacities.as_ref().filter(|all| !all.unrouted.is_empty()) else { return Ok(()) };
        let can_route = |request: &(&u32, &Unrouted)| self.fleet.open_replicas(request.1.pool) > 0;
        let ids: Vec<u32> = all.unrouted.iter().filter(can_route).map(|request| *request.0).collect();
        for id in ids {
            let Some(request) = self.capacities.as_mut().and_then(|all| all.unrouted.remove(&id)) else { continue };
            let Unrouted { pool, stranded, deadline } = request;
            self.fleet.content.set(&stranded.content);
            let replica = self.route(pool, &stranded.history.arrival, false)?;
            let taken = self.fleet.replicas[replica].arrive_late(stranded, self.now, &mut self.results)?;
            let Some(Place(place)) = taken else {
                self.calendar.in_system -= 1;
                continue;
            };
            if let Some(deadline) = deadline {
                self.calendar.patience.push(Reverse((deadline, id, replica as u32, place)));
            }
            self.touch(replica);
        }
        Ok(())
    }
}
