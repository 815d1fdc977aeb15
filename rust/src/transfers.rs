//! Which keys and values are on their way from one replica to another?

use std::collections::{BTreeMap, VecDeque};

use crate::clock::Instant;
use crate::cluster::Link;
use crate::error::Result;
use crate::replica::Departure;

/// The transfers over one link: as many at once as it has lanes, the others first come, first served.
pub(crate) struct Transfers {
    link: Link,
    /// The pool that they go to.
    pub(crate) to: usize,
    waiting: VecDeque<Departure>,
    /// By their end, then by request.
    under_way: BTreeMap<(Instant, u32), Departure>,
}

impl Transfers {
    pub(crate) fn new(link: Link, to: usize) -> Transfers {
        Transfers { link, to, waiting: VecDeque::new(), under_way: BTreeMap::new() }
    }

    /// When the first of them ends.
    pub(crate) fn next_end(&self) -> Instant {
        self.under_way.first_key_value().map_or(Instant::NEVER, |(&(end, _), _)| end)
    }

    /// A request wants to go.
    pub(crate) fn push(&mut self, departure: Departure, now: Instant) -> Result<()> {
        self.waiting.push_back(departure);
        self.start(now)
    }

    /// The next request whose transfer has ended by `now`.
    pub(crate) fn pop(&mut self, now: Instant) -> Result<Option<Departure>> {
        if self.next_end() > now {
            return Ok(None);
        }
        let ended = self.under_way.pop_first().map(|(_, departure)| departure);
        self.start(now)?;
        Ok(ended)
    }

    fn start(&mut self, now: Instant) -> Result<()> {
        while self.under_way.len() < self.link.lanes {
            let Some(departure) = self.waiting.pop_front() else { break };
            let end = now.after(self.link.time(departure.request.context_held())?)?;
            self.under_way.insert((end, departure.request.arrival.id), departure);
        }
        Ok(())
    }

    /// Everybody who is on the way, or waits for a lane.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Departure> {
        std::mem::take(&mut self.under_way).into_values().chain(self.waiting.drain(..))
    }
}
