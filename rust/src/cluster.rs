//! Clusters: pools of replicas, their routers, and the links between pools.

use std::collections::BTreeSet;

use crate::autoscaler::Autoscaler;
use crate::engine::EngineParts;
use crate::error::{Error, Result};
use crate::failures::Failures;
use crate::gate_and_route::{Control, Patience};
use crate::links::Link;
use crate::router::Router;

/// A cluster ready to run. Replicas are numbered across all pools.
pub struct Cluster {
    /// The pools. A row of the workload names its pool by the index here.
    pub pools: Vec<Pool>,
    /// The control that holds requests before the first pool and places them. `None`: requests queue at replicas.
    pub control: Option<(Control, Patience)>,
}

/// Replicas behind one router.
pub struct Pool {
    /// One engine per replica.
    pub engines: Vec<EngineParts>,
    /// The router. `None`: there is one replica.
    pub router: Option<Box<dyn Router>>,
    /// The destination after prefill. `None`: requests stay.
    pub hands_to: Option<HandsTo>,
    /// Autoscaling and failures. `None`: all replicas serve all the time.
    pub capacity: Option<Capacity>,
}

/// Autoscaling and failures of a pool.
pub struct Capacity {
    /// Number of replicas open at the start: the first ones.
    pub open: usize,
    /// The autoscaler. `None`: the number of replicas is fixed.
    pub autoscaler: Option<Autoscaler>,
    /// The failures. `None`: no replica fails.
    pub failures: Option<Failures>,
    /// Builds the engine of a replacement replica.
    pub spare: Spare,
}

/// Builds the engine for a place of a pool.
pub(crate) type Spare = Box<dyn FnMut(usize) -> Result<EngineParts> + Send>;

impl Cluster {
    /// A cluster of one replica.
    pub fn of_one(engine: EngineParts) -> Cluster {
        Cluster::of_pools(vec![Pool { engines: vec![engine], router: None, hands_to: None, capacity: None }])
    }

    /// Pools without a control in front of them.
    pub fn of_pools(pools: Vec<Pool>) -> Cluster {
        Cluster { pools, control: None }
    }

    /// Replicas under gate and route.
    pub fn controlled(engines: Vec<EngineParts>, control: Control, patience: Patience) -> Cluster {
        let pool = Pool { engines, router: None, hands_to: None, capacity: None };
        Cluster { pools: vec![pool], control: Some((control, patience)) }
    }

    /// Whether any scheduler discards emitted tokens.
    pub(crate) fn restarts(&self) -> bool {
        self.pools.iter().flat_map(|pool| &pool.engines).any(|engine| engine.scheduler.restarts())
    }

    /// Whether any scheduler uses speculative decoding.
    pub(crate) fn speculates(&self) -> bool {
        self.pools.iter().flat_map(|pool| &pool.engines).any(|engine| engine.scheduler.speculates().is_some())
    }

    /// Whether a request may be retried.
    pub(crate) fn may_retry(&self) -> bool {
        let may = |pool: &Pool| pool.capacity.as_ref().is_some_and(|capacity| capacity.failures.is_some());
        self.pools.iter().any(may)
    }

    /// Checks that the parts are compatible.
    pub(crate) fn check(&self) -> Result<()> {
        for (place, pool) in self.pools.iter().enumerate() {
            let at = |error: Error| error.within(&format!("pools[{place}]"));
            if pool.engines.is_empty() {
                return Err(at(Error::config("replicas", "must be at least 1, got 0")));
            }
            if pool.router.is_none() && pool.engines.len() > 1 && self.control.is_none() {
                return Err(at(Error::config(
                    "router",
                    format!("must be set for {} replicas, got None", pool.engines.len()),
                )));
            }
            let hands_off = pool.hands_to.is_some()
                || self.control.is_some()
                || self.pools.iter().any(|other| other.hands_to.is_some_and(|to| to.pool == place));
            if hands_off && pool.engines.iter().any(|engine| engine.kv.has_layer_groups()) {
                let what = "is not supported in systems that hand off requests or gate them; set groups to None";
                return Err(at(Error::config("kv.groups", what)));
            }
            if let Some(capacity) = &pool.capacity {
                self.check_capacity(place, capacity).map_err(at)?;
            }
            if let Some(hands_to) = pool.hands_to
                && self.pools.get(hands_to.pool).is_none_or(|to| to.hands_to.is_some())
            {
                return Err(at(Error::config("hands_to", "must be a pool that does not hand off requests")));
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

    /// Checks the autoscaling and failures of a pool.
    fn check_capacity(&self, place: usize, capacity: &Capacity) -> Result<()> {
        let (pool, named) = (&self.pools[place], if capacity.autoscaler.is_some() { "autoscaler" } else { "failures" });
        let engines = &pool.engines;
        let is_handed_to = self.pools.iter().any(|other| other.hands_to.is_some_and(|to| to.pool == place));
        if pool.hands_to.is_some() || is_handed_to {
            let what = "is not supported in pools with hand-offs: a request in transfer holds blocks at its source";
            return Err(Error::config(named, what));
        }
        if self.control.is_some() {
            return Err(Error::config(named, "is not supported with gate and route, which needs every replica"));
        }
        if pool.router.is_none() {
            return Err(Error::config("router", "must be set with an autoscaler or failures, got None"));
        }
        if !(1..=engines.len()).contains(&capacity.open) {
            let what = format!("must be from 1 to {1}, got {0}", capacity.open, engines.len());
            return Err(Error::config("replicas", what));
        }
        if let Some(autoscaler) = &capacity.autoscaler {
            if !(autoscaler.min..=autoscaler.max).contains(&capacity.open) || autoscaler.max != engines.len() {
                let what = format!("must be from {1} to {2}, got {0}", capacity.open, autoscaler.min, autoscaler.max);
                return Err(Error::config("replicas", what));
            }
            autoscaler.policy.check(&engines[0]).map_err(|error| error.within("autoscaler.policy"))?;
        }
        let alike = |other: &EngineParts| {
            (other.max_model_len, other.first_token) == (engines[0].max_model_len, engines[0].first_token)
        };
        if !engines.iter().all(alike) {
            let what = "must be the same for all replicas, like first_token: a request may move to another replica";
            return Err(Error::config("max_model_len", what));
        }
        Ok(())
    }
}

/// A hand-off from the prefill pool to the decode pool: bari2025 Alg. 5.
#[derive(Clone, Copy, Debug)]
pub struct HandsTo {
    /// The destination pool.
    pub pool: usize,
    /// The link that carries keys and values.
    pub link: Link,
}
