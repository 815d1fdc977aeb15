//! Which replica serves this request?
//!
//! A router is asked once for each request, at the instant of its arrival, after everything that happened at that instant
//! before it. One router, one file; ties go to the lowest replica.

mod by_session;
mod least_kv;
mod least_requests;
mod least_tokens;
mod power_of_two;
mod random;
mod round_robin;

use serde::Deserialize;

use crate::clock::Instant;
use crate::error::Result;
use crate::minima::Minima;
use crate::replica::Replica;
use crate::workload::Arrival;

/// A routing policy of a fleet.
pub trait Router: Send {
    /// The replica for a request.
    fn route(&mut self, arrival: &Arrival, fleet: &Fleet) -> Result<usize>;

    /// Does it look at anything of the replicas but their number? Replicas behind a router that does not know nothing of
    /// one another.
    fn looks(&self) -> bool {
        true
    }
}

/// The replicas as a router may look at them.
pub struct Fleet<'a> {
    pub(crate) replicas: &'a [Replica],
    /// Requests at each.
    pub(crate) requests: &'a Minima<u32>,
    pub(crate) now: Instant,
}

impl Fleet<'_> {
    /// Number of replicas.
    pub fn len(&self) -> usize {
        self.requests.all().len()
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The instant at which the router is asked.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Requests at each replica, waiting and running.
    #[inline]
    pub fn requests(&self) -> &[u32] {
        self.requests.all()
    }

    /// The lowest replica with the fewest requests.
    #[inline]
    pub fn with_fewest_requests(&self) -> usize {
        self.requests.place_of_least()
    }

    /// The number of a replica among those of all pools.
    pub fn number(&self, replica: usize) -> u32 {
        self.replicas[replica].number()
    }

    /// Requests in the queue of a replica.
    pub fn waiting(&self, replica: usize) -> u64 {
        self.replicas[replica].waiting()
    }

    /// Blocks that nobody holds at a replica, and those that somebody does.
    pub fn free_and_used_blocks(&self, replica: usize) -> Result<(u64, u64)> {
        self.replicas[replica].free_and_used_blocks(self.now)
    }

    /// Prompt tokens that a replica has not computed and output tokens that it has not emitted: this knows lengths.
    pub fn tokens(&self, replica: usize) -> Result<u64> {
        self.replicas[replica].tokens_ahead(self.now)
    }

    /// Blocks in use at a replica, and those that its waiting prompts will take.
    pub fn blocks(&self, replica: usize) -> Result<u64> {
        self.replicas[replica].blocks_ahead(self.now)
    }

    /// The lowest replica for which a number that has to be worked out is least.
    fn least(&self, number: impl Fn(usize) -> Result<u64>) -> Result<usize> {
        let mut least = (u64::MAX, 0);
        for replica in 0..self.len() {
            let of_this = number(replica)?;
            if of_this < least.0 {
                least = (of_this, replica);
            }
        }
        Ok(least.1)
    }
}

/// A router as a user describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", deny_unknown_fields)]
pub enum RouterKind {
    /// One after the other, in the order of arrivals.
    RoundRobin {},
    /// Any, all alike.
    Random {},
    /// The fewest requests, waiting and running.
    LeastRequests {},
    /// The fewest tokens still to load and to emit.
    LeastTokens {},
    /// Of two different ones, drawn at random, the one with fewer requests.
    PowerOfTwo {},
    /// The fewest blocks, in use or asked for by waiting prompts.
    LeastKv {},
    /// All requests of a session at one replica.
    BySession {},
}

impl RouterKind {
    /// The router itself; `seed` is the run's. Each `pool` of a cluster draws apart from the others.
    pub fn build(self, seed: u64, pool: u64) -> Box<dyn Router> {
        match self {
            RouterKind::RoundRobin {} => Box::new(round_robin::RoundRobin::default()),
            RouterKind::Random {} => Box::new(random::Random::new(seed, pool)),
            RouterKind::LeastRequests {} => Box::new(least_requests::LeastRequests),
            RouterKind::LeastTokens {} => Box::new(least_tokens::LeastTokens),
            RouterKind::PowerOfTwo {} => Box::new(power_of_two::PowerOfTwo::new(seed, pool)),
            RouterKind::LeastKv {} => Box::new(least_kv::LeastKv),
            RouterKind::BySession {} => Box::new(by_session::BySession::default()),
        }
    }
}
