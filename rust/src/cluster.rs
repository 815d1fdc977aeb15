//! What makes a cluster: pools of replicas, a router before each, and links between them.

use std::collections::BTreeSet;

use crate::autoscaler::Autoscaler;
use crate::engine::EngineParts;
use crate::error::{Error, Result};
use crate::failures::Failures;
use crate::gate_and_route::{Control, Patience};
use crate::links::Link;
use crate::router::Router;

/// A cluster ready to run. Replicas are numbered through all pools.
pub struct Cluster {
    /// Its pools; a row of the workload names one by its place here.
    pub pools: Vec<Pool>,
    /// What keeps the requests of the first pool until it says where they go; `None`: requests queue at replicas.
    pub control: Option<(Control, Patience)>,
}

/// Replicas that one router chooses from.
pub struct Pool {
    /// One engine for each replica.
    pub engines: Vec<EngineParts>,
    /// `None`: there is one replica, and nothing to choose.
    pub router: Option<Box<dyn Router>>,
    /// Where requests go when their prompts are computed; `None`: they stay.
    pub hands_to: Option<HandsTo>,
    /// How its replicas come and go; `None`: all serve all the time.
    pub capacity: Option<Capacity>,
}

/// How the replicas of a pool come and go.
pub struct Capacity {
    /// So many serve at the beginning, the first ones.
    pub open: usize,
    /// What says how many there should be; `None`: as many as there are.
    pub autoscaler: Option<Autoscaler>,
    /// How they die; `None`: never.
    pub failures: Option<Failures>,
    /// Where the engine of a replica comes from that stands where another one did.
    pub spare: Spare,
}

/// Makes the engine for a place of a pool.
pub(crate) type Spare = Box<dyn FnMut(usize) -> Result<EngineParts> + Send>;

impl Cluster {
    /// One replica.
    pub fn of_one(engine: EngineParts) -> Cluster {
        Cluster::of_pools(vec![Pool { engines: vec![engine], router: None, hands_to: None, capacity: None }])
    }

    /// Pools before which no request waits.
    pub fn of_pools(pools: Vec<Pool>) -> Cluster {
        Cluster { pools, control: None }
    }

    /// Replicas under gate and route.
    pub fn controlled(engines: Vec<EngineParts>, control: Control, patience: Patience) -> Cluster {
        let pool = Pool { engines, router: None, hands_to: None, capacity: None };
        Cluster { pools: vec![pool], control: Some((control, patience)) }
    }

    /// Are emitted tokens thrown away somewhere?
    pub(crate) fn restarts(&self) -> bool {
        self.pools.iter().flat_map(|pool| &pool.engines).any(|engine| engine.scheduler.restarts())
    }

    /// Do requests decode by drafts somewhere?
    pub(crate) fn speculates(&self) -> bool {
        self.pools.iter().flat_map(|pool| &pool.engines).any(|engine| engine.scheduler.speculates().is_some())
    }

    /// May a request be sent again?
    pub(crate) fn may_retry(&self) -> bool {
        let may = |pool: &Pool| pool.capacity.as_ref().is_some_and(|capacity| capacity.failures.is_some());
        self.pools.iter().any(may)
    }

    /// Tests that the parts go together.
    pub(crate) fn check(&self) -> Result<()> {
        for (place, pool) in self.pools.iter().enumerate() {
            let at = |error: Error| error.within(&format!("pools[{place}]"));
            if pool.engines.is_empty() {
                return Err(at(Error::config("replicas", "0: there must be at least one")));
            }
            if pool.router.is_none() && pool.engines.len() > 1 && self.control.is_none() {
                return Err(at(Error::config("router", format!("none before {} replicas", pool.engines.len()))));
            }
            if let Some(capacity) = &pool.capacity {
                self.check_capacity(place, capacity).map_err(at)?;
            }
            if let Some(hands_to) = pool.hands_to
                && self.pools.get(hands_to.pool).is_none_or(|to| to.hands_to.is_some())
            {
                return Err(at(Error::config("hands_to", "must name a pool that keeps what it gets")));
            }
            let longest = |pool: &Pool| pool.engines.iter().map(|engine| engine.max_model_len).collect::<BTreeSet<_>>();
            if let Some(hands_to) = pool.hands_to
                && longest(pool).union(&longest(&self.pools[hands_to.pool])).count() > 1
            {
                let what = "must be the same on both sides of a hand-off";
                return Err(at(Error::config("max_model_len", what)));
            }
        }
        Ok(())
    }

    /// Tests how the replicas of a pool come and go.
    fn check_capacity(&self, place: usize, capacity: &Capacity) -> Result<()> {
        let (pool, named) = (&self.pools[place], if capacity.autoscaler.is_some() { "autoscaler" } else { "failures" });
        let engines = &pool.engines;
        let is_handed_to = self.pools.iter().any(|other| other.hands_to.is_some_and(|to| to.pool == place));
        if pool.hands_to.is_some() || is_handed_to {
            let what =
                "not where requests are handed off: what a request on its way holds at its source must stay there";
            return Err(Error::config(named, what));
        }
        if self.control.is_some() {
            return Err(Error::config(named, "not under gate and route, whose control counts on every replica"));
        }
        if pool.router.is_none() {
            return Err(Error::config("router", "none: which replica should a request go to when its own is gone?"));
        }
        if !(1..=engines.len()).contains(&capacity.open) {
            let what = format!("{}: from 1 to {} serve at the beginning", capacity.open, engines.len());
            return Err(Error::config("replicas", what));
        }
        if let Some(autoscaler) = &capacity.autoscaler {
            if !(autoscaler.min..=autoscaler.max).contains(&capacity.open) || autoscaler.max != engines.len() {
                let what = format!("{}: must be from {} to {}", capacity.open, autoscaler.min, autoscaler.max);
                return Err(Error::config("replicas", what));
            }
            autoscaler.policy.check(&engines[0]).map_err(|error| error.within("autoscaler.policy"))?;
        }
        let alike = |other: &EngineParts| {
            (other.max_model_len, other.first_token) == (engines[0].max_model_len, engines[0].first_token)
        };
        if !engines.iter().all(alike) {
            let what = "must be the same everywhere, as first_token: a request may go from one replica to another";
            return Err(Error::config("max_model_len", what));
        }
        Ok(())
    }
}

/// The way of requests from the pool that computes their prompts to the one that emits the rest: bari2025 Alg. 5.
#[derive(Clone, Copy, Debug)]
pub struct HandsTo {
    /// The other pool.
    pub pool: usize,
    /// What their keys and values travel over.
    pub link: Link,
}
