//! The unit that a run counts time in.

use super::Options;
use crate::clock::{Unit, greatest_common_divisor};
use crate::cluster::{Cluster, Pool};
use crate::workload::Workload;

/// The largest unit of which every instant and every span of the run is a whole number: the greatest common divisor of all
/// that iterations, the host and the horizon are made of. It is an attosecond where a time may come up that is none of these:
/// from a client, a link, a replica that comes or goes, a policy or a router that looks at the clock; and where each iteration
/// is told.
pub(super) fn of(cluster: &Cluster, workload: &Workload, options: &Options) -> Unit {
    let [Pool { engines, router, hands_to: None, capacity: None }] = &cluster.pools[..] else {
        return Unit::ATTOSECOND;
    };
    let is_told = options.iterations || options.batches;
    let has_other_times = cluster.control.is_some()
        || options.decides_arrivals(workload)
        || workload.has_leavers()
        || !workload.tbt_slo_s.is_empty()
        || router.as_ref().is_some_and(|router| !router.is_timeless());
    if options.in_attoseconds || is_told || has_other_times {
        return Unit::ATTOSECOND;
    }
    let of_horizon = options.horizon.map_or(0, |horizon| horizon.0);
    Unit::of(engines.iter().map(|engine| engine.unit()).fold(of_horizon, greatest_common_divisor))
}
