//! The simulation: the order of events.
//!
//! [`simulate`] is a function from a workload and an engine to results; [`simulate_cluster`] accepts a cluster. The
//! order at one instant (R4) is: iterations end, hand-offs arrive, patience ends, requests arrive one by one, clients
//! cancel requests, batches are formed. Ties are broken by lower replica index, then by lower request id.

mod options;
mod run;
mod arrivals;
mod single;
mod lanes;
mod event_loop;
mod capacity;
mod sampler;
mod outcome;
mod independent;
mod unit;
mod streamed;
mod live;

use crate::cluster::{Cluster, Pool};
use crate::engine::EngineParts;
use crate::error::{Error, Result};
use crate::results::Results;
use crate::workload::Workload;
pub use live::{Live, News, Tokens};
pub use options::{Options, Timeline, Watch};
use run::Run;
use sampler::Sampler;
pub use streamed::{Outline, Rows, Sink, WorkloadSource, simulate_streamed};

/// Replays a workload through one replica of an engine.
pub fn simulate(workload: &Workload, engine: EngineParts, options: &Options, watch: &mut dyn Watch) -> Result<Results> {
    simulate_cluster(workload, Cluster::of_one(engine), options, watch)
}

/// Replays a workload through a cluster.
pub fn simulate_cluster(
    workload: &Workload,
    mut cluster: Cluster,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Results> {
    workload.check()?;
    cluster.check()?;
    if let Some(&pool) = workload.pool.iter().find(|&&pool| pool as usize >= cluster.pools.len()) {
        return Err(Error::config(
            "pool",
            format!("must be below the number of pools ({}), got {pool}", cluster.pools.len()),
        ));
    }
    let replicas = cluster.pools.iter().map(|pool| pool.engines.len()).sum();
    let unit = unit::of(&cluster, workload, options);
    cluster.pools.iter_mut().flat_map(|pool| &mut pool.engines).for_each(|engine| engine.count_in(unit));
    let sampler = Sampler::new(options.last_arrival(workload), options, replicas, unit)?;
    if let [Pool { engines, router: Some(router), hands_to: None, capacity: None }] = &mut cluster.pools[..]
        && !router.uses_state()
        && !options.decides_arrivals(workload)
    {
        let engines = std::mem::take(engines);
        return independent::simulate(workload, engines, router.as_mut(), options, sampler, watch);
    }
    let arrived = (!options.decides_arrivals(workload)).then(|| options.rows(workload) as u64);
    let run = Run::new(0, workload.class_count, cluster, options, sampler);
    run.complete(workload, watch)?.results(options, arrived)
}
