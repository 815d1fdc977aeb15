//! Requests that wait in front of the replicas until a control places them.
//!
//! Under gate and route (lin2026) requests queue in front of the replicas: for a prefill, and after it for a decode
//! slot. Replicas serve them iteration by iteration; [`crate::gate_and_route`] decides.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::Instant;
use crate::error::Result;
use crate::gate_and_route::{BufferPlace, Control, Patience, QueueKind, Start, Waiting};
use crate::replica::Departure;
use crate::request::History;
use crate::results::NO_REPLICA;
use crate::workload::Arrival;

/// A request without a replica.
enum Undispatched {
    /// Waits for its prefill.
    Queue(Arrival, u64),
    /// Waits for a decode slot.
    Buffer(Box<Departure>, BufferPlace),
}

/// A request and its new replica.
pub(crate) enum Placed {
    /// Placed for its prefill.
    Prefill(Arrival, usize),
    /// Placed for its decode.
    Decode(Box<Departure>, usize),
}

/// The control and the requests that wait for it.
pub(crate) struct Dispatch {
    control: Control,
    patience: Patience,
    /// Requests by handle; `None`: a free handle.
    waiting: Vec<Option<Undispatched>>,
    free: Vec<u32>,
    /// Handles of requests that began to wait at this instant.
    arrived: Vec<u32>,
    /// Ends of patience: instant, id, handle, and whether it waits for a decode.
    deadlines: BinaryHeap<Reverse<(Instant, u32, u32, bool)>>,
}

impl Dispatch {
    pub(crate) fn new(control: Control, patience: Patience) -> Dispatch {
        Dispatch {
            control,
            patience,
            waiting: Vec::new(),
            free: Vec::new(),
            arrived: Vec::new(),
            deadlines: BinaryHeap::new(),
        }
    }

    /// Number of waiting requests.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() - self.free.len()
    }

    /// Adds an arriving request.
    pub(crate) fn arrive(&mut self, arrival: Arrival) {
        let handle = self.handle();
        let place = self.control.arrived(arrival.id, handle, arrival.class);
        self.hold(handle, Undispatched::Queue(arrival, place));
    }

    /// Adds a request that has completed its prefill and has tokens left to emit.
    pub(crate) fn prefilled(&mut self, departure: Departure) {
        let handle = self.handle();
        let Arrival { id, class, .. } = departure.history.arrival;
        let place = self.control.prefill_done(id, handle, class, departure.from);
        self.hold(handle, Undispatched::Buffer(Box::new(departure), place));
    }

    /// Frees the slot of a request.
    pub(crate) fn decoded(&mut self, replica: usize) {
        self.control.decode_done(replica as u32);
    }

    /// Returns the next request to start, and its replica. Called until `None`, after all other events of an instant.
    pub(crate) fn place(&mut self) -> Option<Placed> {
        let start = self.control.start()?;
        let (Start::Prefill(Waiting { handle, .. }, replica) | Start::Decode(Waiting { handle, .. }, replica)) = start;
        match self.take(handle)? {
            Undispatched::Queue(arrival, _) => Some(Placed::Prefill(arrival, replica as usize)),
            Undispatched::Buffer(departure, _) => Some(Placed::Decode(departure, replica as usize)),
        }
    }

    /// Draws the patience of requests that began to wait at this instant and still wait.
    pub(crate) fn wait(&mut self, now: Instant) -> Result<()> {
        for handle in self.arrived.drain(..) {
            let (arrival, queue) = match &self.waiting[handle as usize] {
                None => continue,
                Some(Undispatched::Queue(arrival, _)) => (arrival, QueueKind::Prefill),
                Some(Undispatched::Buffer(departure, _)) => (&departure.history.arrival, QueueKind::Decode),
            };
            if let Some(span) = self.patience.draw(arrival.id, arrival.class, queue) {
                let deadline = (now.after(span)?, arrival.id, handle, queue == QueueKind::Decode);
                self.deadlines.push(Reverse(deadline));
            }
        }
        Ok(())
    }

    /// Returns the next end of patience, if it is before `others`.
    pub(crate) fn next_deadline(&mut self, others: Instant) -> Instant {
        while let Some(&Reverse((at, id, handle, decodes))) = self.deadlines.peek() {
            if at >= others || self.waits(id, handle, decodes) {
                return at;
            }
            self.deadlines.pop();
        }
        Instant::NEVER
    }

    /// Returns the next request whose patience ends by `now`, and its last replica.
    pub(crate) fn give_up(&mut self, now: Instant) -> Option<(History, u32)> {
        while let Some(&Reverse((_, id, handle, decodes))) = self.deadlines.peek().filter(|next| next.0.0 <= now) {
            self.deadlines.pop();
            if !self.waits(id, handle, decodes) {
                continue;
            }
            let waiting = self.take(handle)?;
            match &waiting {
                Undispatched::Queue(arrival, place) => self.control.left_queue(arrival.class, *place),
                Undispatched::Buffer(_, place) => self.control.left_buffer(*place),
            }
            return Some(waiting.leave(now));
        }
        None
    }

    /// Returns every request that still waits at the end.
    pub(crate) fn drain(&mut self, end: Instant) -> impl Iterator<Item = (History, u32)> {
        self.free.clear();
        std::mem::take(&mut self.waiting).into_iter().flatten().map(move |waiting| waiting.leave(end))
    }

    fn waits(&self, id: u32, handle: u32, decodes: bool) -> bool {
        match &self.waiting[handle as usize] {
            None => false,
            Some(Undispatched::Queue(arrival, _)) => !decodes && arrival.id == id,
            Some(Undispatched::Buffer(departure, _)) => decodes && departure.history.arrival.id == id,
        }
    }

    fn handle(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.waiting.push(None);
            self.waiting.len() as u32 - 1
        })
    }

    fn hold(&mut self, handle: u32, waiting: Undispatched) {
        self.waiting[handle as usize] = Some(waiting);
        self.arrived.push(handle);
    }

    fn take(&mut self, handle: u32) -> Option<Undispatched> {
        self.free.push(handle);
        self.waiting[handle as usize].take()
    }
}

impl Undispatched {
    fn leave(self, now: Instant) -> (History, u32) {
        match self {
            Undispatched::Queue(arrival, _) => (History::new(arrival), NO_REPLICA),
            Undispatched::Buffer(departure, _) => {
                let Departure { history, from, at, .. } = *departure;
                (history.handed_off(from, at, now), from)
            }
        }
    }
}
