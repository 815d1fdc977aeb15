//! What makes a cluster: pools of replicas, a router before each, and links between them.

use std::collections::BTreeSet;

use crate::engine::EngineParts;
use crate::error::{Error, Result};
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
}

impl Cluster {
    /// One replica.
    pub fn of_one(engine: EngineParts) -> Cluster {
        Cluster::of_pools(vec![Pool { engines: vec![engine], router: None, hands_to: None }])
    }

    /// Pools before which no request waits.
    pub fn of_pools(pools: Vec<Pool>) -> Cluster {
        Cluster { pools, control: None }
    }

    /// Replicas under gate and route.
    pub fn controlled(engines: Vec<EngineParts>, control: Control, patience: Patience) -> Cluster {
        let pool = Pool { engines, router: None, hands_to: None };
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
}

/// The way of requests from the pool that computes their prompts to the one that emits the rest: bari2025 Alg. 5.
#[derive(Clone, Copy, Debug)]
pub struct HandsTo {
    /// The other pool.
    pub pool: usize,
    /// What their keys and values travel over.
    pub link: Link,
}
