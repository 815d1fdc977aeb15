//! The simulation: the order in which everything happens.
//!
//! [`simulate`] is a function: a workload and an engine in, results out; [`simulate_cluster`] takes a cluster. At one
//! instant (rule 4): iterations end, then hand-offs arrive, then patience runs out, then requests arrive one by one,
//! then clients take requests back, then new batches are formed; within a kind, lower replica first, then lower request id.

mod options;
mod run;
mod arrivals;
mod alone;
mod apart;
mod together;
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
        return Err(Error::config("pool", format!("{pool} of {}", cluster.pools.len())));
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
