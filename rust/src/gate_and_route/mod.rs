//! Which request begins its prefill where, and which decodes where? Gate and route, lin2026 sections 4, 5 and EC.6.
//!
//! ```text
//!   arrivals ──▶ prefill queues ──gate──▶ a slot for a prefill ──▶ decode buffer ──router──▶ a slot for a decode
//! ```
//!
//! [`Control`] holds the queues and the slots of all replicas and takes every decision; how long anything takes is none of
//! its business. What serves *tells* it which requests arrived, were prefilled or decoded, or gave up, and then *asks*
//! what begins, until nothing does. No decision looks at all replicas: a gate looks at every class once, a router at the
//! heads of its buffers, and the replicas with a free slot are kept in sets from which one can be drawn.

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

/// What decides, as a user describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlConfig {
    /// Which class is admitted to its prefill next.
    pub gate: GateKind,
    /// Where a decode goes.
    pub router: DecodeRouterKind,
    /// Are M = ⌈n · Σ x*⌉ replicas set apart for prefills?
    pub planned: bool,
}

impl ControlConfig {
    /// Tests what can be told without a workload: the first field that is wrong or missing is the error.
    pub(crate) fn check(&self, slots: u32, allocation: Option<&Allocation>) -> Result<()> {
        self.router.check_plan(self.planned)?;
        if self.planned && slots < 2 {
            return Err(Error::config("slots", format!("{slots}: a plan keeps one for prefills and needs another")));
        }
        let pools = matches!(self.router, DecodeRouterKind::Randomized | DecodeRouterKind::General);
        let follows = self.planned || matches!(self.gate, GateKind::Occupancy | GateKind::Queue);
        let Some(allocation) = allocation else {
            let missing = Error::config("allocation", "missing: this plan, gate or router follows one");
            return if follows { Err(missing) } else { Ok(()) };
        };
        if self.planned && allocation.prefill_sum() == 0 {
            return Err(Error::config("allocation.prefill", "is 0 for every class: no replica would run a prefill"));
        }
        for (name, is_needed, table) in [
            ("prefill_queue", self.gate == GateKind::Queue, &allocation.prefill_queue),
            ("mixed", pools, &allocation.mixed),
            ("solo", pools, &allocation.solo),
        ] {
            if is_needed && table.is_none() {
                let part = if pools && name != "prefill_queue" { "router" } else { "gate" };
                return Err(Error::config(format!("allocation.{name}"), format!("missing: the {part} follows it")));
            }
        }
        Ok(())
    }
}

/// The cluster that is controlled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlledCluster {
    /// n.
    pub replicas: u32,
    /// B: slots of each.
    pub slots: u32,
    /// How long iterations take.
    pub pace: IterationLengths,
}

/// Something that begins now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// A prefill, on this replica.
    Prefill(Waiting, u32),
    /// A decode, on this replica.
    Decode(Waiting, u32),
}

/// The queues, the slots, and what decides about them.
pub struct Control {
    slots: Slots,
    prefills: Prefills,
    gate: Box<dyn Gate>,
    router: Box<dyn DecodeRouter>,
    draws: Stream,
    turns: u64,
}

impl Control {
    /// No request there. `tokens` are those of each class of the workload, in the order of the allocation.
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

    /// A request of a class arrived. Its place in the class's prefill queue.
    pub(crate) fn arrived(&mut self, request: u32, handle: u32, class: u32) -> u64 {
        let turn = self.turn();
        self.prefills.waiting[class as usize].push(Waiting { request, handle, class, from: 0, turn })
    }

    /// A prefill is done: its slot is free, and its decode joins the buffer.
    pub(crate) fn prefill_done(&mut self, request: u32, handle: u32, class: u32, replica: u32) -> BufferPlace {
        self.prefills.running[class as usize] -= 1;
        self.slots.prefill_ends(replica);
        let turn = self.turn();
        self.router.join(Waiting { request, handle, class, from: replica, turn })
    }

    /// A decode is done: its slot is free.
    pub(crate) fn decode_done(&mut self, replica: u32) {
        self.slots.decode_ends(replica);
    }

    /// A request that waited for its prefill at this place gave up.
    pub(crate) fn left_queue(&mut self, class: u32, place: u64) {
        self.prefills.waiting[class as usize].leave(place);
    }

    /// A request that waited for its decode at this place gave up.
    pub(crate) fn left_buffer(&mut self, place: BufferPlace) {
        self.router.leave(place);
    }

    /// What begins next, decodes before prefills unless the router has it the other way; `None` once nothing can. To be
    /// asked after everything that happens at an instant has been told.
    pub(crate) fn start(&mut self) -> Option<Start> {
        if self.router.prefers_prefills() {
            self.start_prefill().or_else(|| self.start_decode())
        } else {
            self.start_decode().or_else(|| self.start_prefill())
        }
    }

    /// Any replica that can begin a prefill, all alike: the papers leave it open.
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
