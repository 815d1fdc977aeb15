//! The time unit of a run.

use super::options::Options;
use crate::clock::{Unit, greatest_common_divisor};
use crate::cluster::{Cluster, Pool};
use crate::workload::Workload;

/// The largest unit that divides every instant and span of the run: the greatest common divisor of the times of
/// iterations, host and horizon. It is one attosecond if other times may occur: from clients, links, autoscaling,
/// failures, or from policies and routers that read the clock. It is one attosecond if iterations are listed, too.
pub(super) fn of(cluster: &Cluster, workload: &Workload, options: &Options) -> Unit {
    let [Pool { engines, router, hands_to: None, capacity: None }] = &cluster.pools[..] else {
        return Unit::ATTOSECOND;
    };
    let is_listed = options.iterations || options.batches;
    let has_other_times = cluster.control.is_some()
        || options.decides_arrivals(workload)
        || workload.has_leavers()
        || !workload.itl_slo_s.is_empty()
        || router.as_ref().is_some_and(|router| !router.is_timeless());
    if options.in_attoseconds || is_listed || has_other_times {
        return Unit::ATTOSECOND;
    }
    let of_horizon = options.horizon.map_or(0, |horizon| horizon.0);
    Unit::of(engines.iter().map(|engine| engine.unit()).fold(of_horizon, greatest_common_divisor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Instant;
    use crate::engine::{Engine, parse};
    use crate::workload::Columns;

    const LINE: &str = r#"{"kind": "PiecewiseLinear", "base": 0.006, "per_token": 32e-6, "knee": 200,
        "per_context_token": 40e-9, "per_prefill_square": 650e-12, "per_chunk_context": 1.3e-9}"#;
    const MEMORY: &str = r#"{"kind": "MemoryLinear", "base": 8e-12, "per_kv_token": 12e-12}"#;
    const TABLE: &str = r#"{"kind": "TimingTable", "linear": {"tokens": [1, 8], "seconds": [0.001, 0.002]},
        "chunk": {"chunk": [1, 8], "context": [0, 8], "seconds": [[0, 0], [0, 0]], "shared_s": 0},
        "decode": {"sequences": [1, 8], "mean_context": [1, 8], "seconds": [[0, 0], [0, 0]]}}"#;
    const RECOMPUTE: &str = r#"{"kind": "Recompute"}"#;
    const SWAP: &str = r#"{"kind": "Swap", "per_token": 1e-6, "base": 0}"#;

    fn unit(timing: &str, preemption: &str, overhead: &str, columns: &Columns, options: &Options) -> Unit {
        let engine: Engine = parse(&format!(
            r#"{{"timing": {timing}, "kv": {{"tokens": 64, "block": 4}}, "first_token": "prefill", "overhead": {overhead},
                "scheduler": {{"kind": "VllmV0", "token_budget": 8, "max_seqs": 8, "watermark": 0,
                               "preemption": {preemption}}}}}"#
        ))
        .expect("an engine");
        of(&Cluster::of_one(engine.build(Some(&[])).expect("its parts")), &columns.view(0, 1), options)
    }

    #[test]
    fn it_is_the_greatest_common_divisor_of_all_times() {
        let none = Columns::default();
        let all = Options::all(&none.view(0, 1));
        let picoseconds = |count: u128| Unit::of(count * 1_000_000);
        assert_eq!(unit(LINE, RECOMPUTE, "{}", &none, &all), picoseconds(50));
        assert_eq!(unit(MEMORY, RECOMPUTE, "{}", &none, &all), picoseconds(4));
        assert_eq!(unit(LINE, RECOMPUTE, r#"{"per_sequence_s": 20e-12}"#, &none, &all), picoseconds(10));
        let until = Options { horizon: Some(Instant(1_000_000_025_000_000)), ..all.clone() };
        assert_eq!(unit(LINE, RECOMPUTE, "{}", &none, &until), picoseconds(25));
        // Arrivals are whole nanoseconds, however coarse the other times are.
        assert_eq!(unit(r#"{"kind": "Constant", "seconds": 1}"#, RECOMPUTE, "{}", &none, &all), picoseconds(1000));
    }

    #[test]
    fn it_is_an_attosecond_if_other_times_may_occur() {
        let none = Columns::default();
        let all = Options::all(&none.view(0, 1));
        let plain = Columns { arrival_s: vec![0.0], prompt_tokens: vec![1], output_tokens: vec![1], ..none.clone() };
        let patient = Columns { patience_s: vec![1.0], ..plain.clone() };
        let objective = Columns { itl_slo_s: vec![1.0], ..plain };
        let listed = Options { iterations: true, ..all.clone() };
        let exact = Options { in_attoseconds: true, ..all.clone() };
        for actual in [
            unit(TABLE, RECOMPUTE, "{}", &none, &all),
            unit(LINE, SWAP, "{}", &none, &all),
            unit(LINE, RECOMPUTE, "{}", &patient, &all),
            unit(LINE, RECOMPUTE, "{}", &objective, &all),
            unit(LINE, RECOMPUTE, "{}", &none, &listed),
            unit(LINE, RECOMPUTE, "{}", &none, &exact),
        ] {
            assert_eq!(actual, Unit::ATTOSECOND);
        }
    }
}
