//! The calendar: future events, and requests between replicas.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::num::NonZeroU64;

use crate::clock::{Instant, Long};
use crate::gate_and_route::Dispatch;
use crate::links::Transfers;
use crate::replica::Departure;
use crate::results::{Recorder, Status};
use crate::tournament::Tournament;

/// Future events, and requests between replicas.
pub(in crate::simulation) struct Calendar {
    /// The next event of each replica.
    pub(in crate::simulation) ends: Tournament<Instant>,
    /// Replicas with events at this instant, and for each replica the number of the last instant at which it was one
    /// of them.
    pub(in crate::simulation) touched: Vec<u32>,
    pub(in crate::simulation) touched_at: Vec<u64>,
    pub(in crate::simulation) instants: u64,
    pub(in crate::simulation) links: Vec<Transfers>,
    /// Requests that queue before the replicas.
    pub(in crate::simulation) dispatch: Option<Dispatch>,
    /// Number of requests that each row still depends on; empty: no row depends on others.
    pub(in crate::simulation) awaited: Vec<u32>,
    /// Rows whose dependencies are complete, by arrival.
    pub(in crate::simulation) released: BinaryHeap<Reverse<(Instant, u32)>>,
    pub(in crate::simulation) patience: BinaryHeap<Reverse<PatienceEnd>>,
    /// Future cancellations.
    pub(in crate::simulation) cancels: BinaryHeap<Reverse<Cancel>>,
    pub(in crate::simulation) in_system: u64,
    /// Arrival at the client of responses that still count against `max_in_flight`.
    pub(in crate::simulation) returning: BinaryHeap<Reverse<Instant>>,
    /// Limit of requests in flight.
    pub(in crate::simulation) most_in_flight: u64,
}

/// End of a request's patience, its id, its replica (`NO_REPLICA` if it waits for one), and its place there.
type PatienceEnd = (Instant, u32, u32, u32);

/// A cancellation: its instant, the request's id and its row.
type Cancel = (Instant, u32, u32);

impl Calendar {
    pub(in crate::simulation) fn new(
        replicas: usize,
        links: Vec<Transfers>,
        dispatch: Option<Dispatch>,
        max_in_flight: Option<NonZeroU64>,
    ) -> Calendar {
        Calendar {
            ends: Tournament::new(replicas, Instant::NEVER, Instant::NEVER),
            touched: Vec::new(),
            touched_at: vec![0; replicas],
            instants: 0,
            links,
            dispatch,
            awaited: Vec::new(),
            released: BinaryHeap::new(),
            patience: BinaryHeap::new(),
            cancels: BinaryHeap::new(),
            in_system: 0,
            returning: BinaryHeap::new(),
            most_in_flight: max_in_flight.map_or(u64::MAX, NonZeroU64::get),
        }
    }

    #[inline]
    pub(in crate::simulation) fn set_end(&mut self, replica: usize, end: Instant) {
        self.ends.set(replica, end);
    }

    /// Schedules a cancellation.
    pub(in crate::simulation) fn cancel(&mut self, id: u32, row: u32, at: Instant) {
        self.cancels.push(Reverse((at, id, row)));
    }

    /// Whether no request can arrive before another one leaves.
    pub(in crate::simulation) fn is_at_limit(&self) -> bool {
        self.in_system >= self.most_in_flight
    }

    /// Number of requests that queue before the replicas.
    pub(in crate::simulation) fn waiting(&self) -> u64 {
        self.dispatch.as_ref().map_or(0, Dispatch::len) as u64
    }

    /// Number of requests that still depend on others.
    pub(in crate::simulation) fn never_came(&self) -> usize {
        self.awaited.iter().filter(|&&awaited| awaited > 0).count()
    }

    /// Removes the patience events of a replica that ended. Returns their deadlines by request id.
    pub(in crate::simulation) fn forget_patience(&mut self, ended: u32) -> HashMap<u32, Instant> {
        let mut deadlines = HashMap::new();
        self.patience.retain(|&Reverse((at, id, replica, _))| {
            if replica == ended {
                deadlines.insert(id, at);
            }
            replica != ended
        });
        deadlines
    }

    /// Records the unfinished requests that no replica has.
    pub(in crate::simulation) fn stop(&mut self, end: Instant, results: &mut Recorder) {
        for departure in self.links.iter_mut().flat_map(Transfers::drain) {
            let Departure { history, from, at, .. } = departure;
            results.leave::<Long>(&history.handed_off(from, at, end), from, Status::Unfinished, end);
        }
        for (history, replica) in self.dispatch.iter_mut().flat_map(|dispatch| dispatch.drain(end)) {
            results.leave::<Long>(&history, replica, Status::Unfinished, end);
        }
    }
}
