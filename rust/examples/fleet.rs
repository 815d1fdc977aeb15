//! Four replicas behind the router that picks the replica with the fewest requests: `cargo run --release --example
//! fleet`.
//!
//! A scenario is described as JSON, with the same fields as in Python and TOML; requests are columns.

use inferq_core::cluster::{Cluster, Pool};
use inferq_core::engine::{self, Engine, EngineParts};
use inferq_core::error::Result;
use inferq_core::router::{LeastRequests, RouterConfig};
use inferq_core::simulation::{Options, simulate_cluster};
use inferq_core::workload::Workload;

fn main() -> Result<()> {
    let engine: Engine = engine::parse(
        r#"{"timing": {"kind": "PiecewiseLinear", "base": 0.006, "per_token": 32e-6, "knee": 200,
                       "per_context_token": 40e-9},
            "scheduler": {"kind": "Sarathi", "token_budget": 512, "max_seqs": 256, "order": "fcfs",
                          "watermark": 0.01, "preemption": {"kind": "Recompute"}},
            "kv": {"tokens": 432000, "block": 16},
            "first_token": "prefill"}"#,
    )?;

    // 40 requests per second, evenly spaced, for 250 seconds: prompts of 1,000 to 2,000 tokens, outputs of 100 to
    // 400.
    let requests = 10_000;
    let column = |low: i32, high: i32| (0..requests).map(move |row| low + (row * 7919) % (high - low + 1));
    let (prompt, output): (Vec<i32>, Vec<i32>) = (column(1000, 2000).collect(), column(100, 400).collect());
    let arrivals: Vec<f64> = (0..requests).map(|row| f64::from(row) / 40.0).collect();
    let workload = Workload {
        arrival_s: &arrivals,
        prompt_tokens: &prompt,
        output_tokens: &output,
        class_count: 1,
        ..Workload::default()
    };

    let engines = (0..4).map(|_| engine.clone().build(Some(&[]))).collect::<Result<Vec<EngineParts>>>()?;
    let router = RouterConfig::from(LeastRequests::default()).build(1, 0)?;
    let cluster = Cluster::of_pools(vec![Pool { engines, router: Some(router), hands_to: None, capacity: None }]);
    let results = simulate_cluster(&workload, cluster, &Options::all(&workload), &mut ())?.with_columns(&workload);

    let mut waited: Vec<f64> =
        results.requests.first_token_s.iter().zip(&arrivals).map(|(first, arrival)| first - arrival).collect();
    waited.sort_by(f64::total_cmp);
    println!("{requests} requests over 4 replicas, {} iterations", results.totals.iterations);
    println!(
        "time to the first token: median {:.1} ms, p99 {:.1} ms",
        waited[requests as usize / 2] * 1e3,
        waited[requests as usize * 99 / 100] * 1e3
    );
    Ok(())
}
