//! Gate and route: where requests start their prefill and where they decode (lin2026 sections 4, 5 and EC.6).
//!
//! ```text
//!   arrivals ──▶ prefill queues ──gate──▶ a slot for a prefill ──▶ decode buffer ──router──▶ a slot for a decode
//! ```
//!
//! [`Control`] has the queues and slots of all replicas and makes every decision; it does not depend on service
//! times. The service reports arrivals, completed prefills and decodes and abandonments, and then calls
//! `Control::start` until nothing starts. No decision scans all replicas: a gate inspects every class once, a router
//! the heads of its buffers, and replicas with a free slot are in sets with random access.

mod allocation;
mod description;
mod gate;
mod line;
mod patience;
mod open_set;
mod route;
mod slots;
mod dispatch;
pub mod exponential;

pub use allocation::{Allocation, AllocationTables};
pub use description::{Abandonment, GateAndRoute, Prices, ServiceKind, Setup, Speeds};
pub(crate) use dispatch::{Dispatch, Placed};
pub(crate) use gate::ClassTokens;
pub use gate::GateKind;
pub(crate) use line::Waiting;
pub use patience::Patience;
pub(crate) use patience::QueueKind;
pub(crate) use route::BufferPlace;
pub use route::{DecodeRouterKind, IterationLengths};

use crate::error::{Error, Result};
use crate::random::{Source, Stream};
use gate::{Gate, Prefills};
use route::DecodeRouter;
use slots::Slots;

/// Draw numbers of [`Source::Router`]: the replica of a decode, its pool, and the replica of a prefill.
const DRAW_REPLICA: u64 = 0;
const DRAW_POOL: u64 = 1;
const DRAW_PREFILL: u64 = 2;

/// The decision policy as described by the user.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlConfig {
    /// Gate: the class that is admitted to its prefill next.
    pub gate: GateKind,
    /// Router: the replica of a decode.
    pub router: DecodeRouterKind,
    /// Whether M = ⌈n · Σ x*⌉ replicas are reserved for prefills.
    pub planned: bool,
}

impl ControlConfig {
    /// Checks everything that does not depend on the workload; returns the first invalid or missing field.
    pub(crate) fn check(&self, slots: u32, allocation: Option<&Allocation>) -> Result<()> {
        self.router.check_plan(self.planned)?;
        if self.planned && slots < 2 {
            return Err(Error::config(
                "slots",
                format!("must be at least 2 with a plan (one slot is reserved for prefills), got {slots}"),
            ));
        }
        let pools = matches!(self.router, DecodeRouterKind::Randomized | DecodeRouterKind::General);
        let follows = self.planned || matches!(self.gate, GateKind::Occupancy | GateKind::Queue);
        let Some(allocation) = allocation else {
            let missing = Error::config("allocation", "missing: required by this plan, gate or router");
            return if follows { Err(missing) } else { Ok(()) };
        };
        if self.planned && allocation.prefill_sum() == 0 {
            return Err(Error::config(
                "allocation.prefill",
                "must be positive for at least one class; otherwise no replica runs prefills",
            ));
        }
        for (name, is_needed, table) in [
            ("prefill_queue", self.gate == GateKind::Queue, &allocation.prefill_queue),
            ("mixed", pools, &allocation.mixed),
            ("solo", pools, &allocation.solo),
        ] {
            if is_needed && table.is_none() {
                let part = if pools && name != "prefill_queue" { "router" } else { "gate" };
                return Err(Error::config(format!("allocation.{name}"), format!("missing: required by the {part}")));
            }
        }
        Ok(())
    }
}

/// The controlled cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlledCluster {
    /// n.
    pub replicas: u32,
    /// B: slots per replica.
    pub slots: u32,
    /// Iteration times.
    pub pace: IterationLengths,
}

/// A service that starts now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// A prefill on this replica.
    Prefill(Waiting, u32),
    /// A decode on this replica.
    Decode(Waiting, u32),
}

/// Queues, slots and decision policies.
pub struct Control {
    slots: Slots,
    prefills: Prefills,
    gate: Box<dyn Gate>,
    router: Box<dyn DecodeRouter>,
    draws: Stream,
    turns: u64,
}

impl Control {
    /// Builds the control with empty queues. `tokens` are the totals of each class, in the order of the allocation.
    pub(crate) fn new(
        policy: &ControlConfig,
        cluster: &ControlledCluster,
        allocation: Option<&Allocation>,
        tokens: &[ClassTokens],
        seed: u64,
    ) -> Result<Control> {
        policy.check(cluster.slots, allocation)?;
        let ControlledCluster { replicas, slots, pace } = *cluster;
        let mixed = policy.planned.then(|| allocation.map_or(0, |plan| plan.mixed_replicas(replicas)));
        Ok(Control {
            slots: Slots::new(replicas, slots, mixed),
            prefills: Prefills::new(tokens.len()),
            gate: policy.gate.build(replicas, allocation, tokens),
            router: policy.router.build(seed, replicas, mixed, pace, allocation, tokens)?,
            draws: Stream::new(seed, Source::Router),
            turns: 0,
        })
    }

    /// Records an arrival. Returns its place in the prefill queue of its class.
    pub(crate) fn arrived(&mut self, request: u32, handle: u32, class: u32) -> u64 {
        let turn = self.turn();
        self.prefills.waiting[class as usize].push(Waiting { request, handle, class, from: 0, turn })
    }

    /// Records the end of a prefill: its slot is freed, and its decode joins the buffer.
    pub(crate) fn prefill_done(&mut self, request: u32, handle: u32, class: u32, replica: u32) -> BufferPlace {
        self.prefills.running[class as usize] -= 1;
        self.slots.prefill_ends(replica);
        let turn = self.turn();
        self.router.join(Waiting { request, handle, class, from: replica, turn })
    }

    /// Records the end of a decode: its slot is freed.
    pub(crate) fn decode_done(&mut self, replica: u32) {
        self.slots.decode_ends(replica);
    }

    /// Removes a request that waited for its prefill at this place.
    pub(crate) fn left_queue(&mut self, class: u32, place: u64) {
        self.prefills.waiting[class as usize].leave(place);
    }

    /// Removes a request that waited for its decode at this place.
    pub(crate) fn left_buffer(&mut self, place: BufferPlace) {
        self.router.leave(place);
    }

    /// Returns the next service to start, decodes before prefills unless the router prefers prefills, or `None`.
    /// Called after all other events of an instant are recorded.
    pub(crate) fn start(&mut self) -> Option<Start> {
        if self.router.prefers_prefills() {
            self.start_prefill().or_else(|| self.start_decode())
        } else {
            self.start_decode().or_else(|| self.start_prefill())
        }
    }

    /// Picks a replica that can begin a prefill, uniformly at random: the papers do not specify it.
    fn start_prefill(&mut self) -> Option<Start> {
        if self.slots.for_prefill.is_empty() {
            return None;
        }
        let class = self.gate.class(&self.prefills)?;
        let waiting = self.prefills.waiting[class].pop()?;
        let replica = self.slots.for_prefill.pick(self.draws.word(u64::from(waiting.request), DRAW_PREFILL))?;
        self.prefills.running[class] += 1;
        self.slots.prefill_begins(replica);
        Some(Start::Prefill(waiting, replica))
    }

    fn start_decode(&mut self) -> Option<Start> {
        let (waiting, replica) = self.router.place(&self.slots)?;
        self.slots.decode_begins(replica);
        Some(Start::Decode(waiting, replica))
    }

    fn turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }
}
