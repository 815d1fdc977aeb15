//! Cost of a request in the core, on one replica and in a fleet.
//!
//! Four workloads with Poisson arrivals:
//!
//! - W1, chat: lognormal prompts (mean 230, median 90, cap 4,096) and outputs (250, 150, cap 4,096);
//! - W2, measured chat: pairs of prompt and output of the Azure 2023 conversation trace, drawn with replacement; skipped
//!   without the trace file (it is not part of the project; `AZURE_TRACE` is its path);
//! - W3, reasoning: lognormal prompts (500, 350, cap 8,192) and long outputs (4,000, 3,000, cap 32,000). At a load
//!   above 1 the cache is too small and every request is preempted several times;
//! - W4, long prompts: log-uniform from 10,000 to 100,000 tokens, outputs (100, 80, cap 1,000).
//!
//! The engine is Sarathi with a token budget of 512, 256 sequences and 27,000 blocks of 16 tokens. Its timing has a
//! floor, a slope and attention terms. Load is the rate divided by the saturated rate, which is measured first,
//! untimed, with all requests at time 0.
//!
//! Only `simulation::simulate` is timed: columns in memory in, results out, including allocation and first touch of
//! the results, the exact histogram of token gaps and the timeline, but not freeing them. Criterion's `elem/s` are
//! requests per second: 10 Melem/s are 100 ns per request.
//!
//! - `stepping` advances one iteration at a time, with equal results, and so shows the gain of stretches.
//! - `timings` runs W1 under several timing models, each at 0.9 of its own saturated rate. Stretches of a table also
//!   end at the edges of its cells.
//! - `policies` runs W1 (200,000 requests) under every scheduler, each at 0.9 of its own saturated rate.
//! - `fleets` runs W1 over several replicas at 0.9 of their total capacity. "alone" is one replica without a router,
//!   for comparison in the same run.

use criterion::{BatchSize, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use inferq_core::cluster::{Cluster, Pool};
use inferq_core::distributions::{Arrivals, Joint, Length, Lengths, Synthetic, seconds};
use inferq_core::engine::{Engine, parse};
use inferq_core::results::Results;
use inferq_core::router::{LeastRequests, RoundRobin, RouterConfig};
use inferq_core::simulation::{Options, simulate, simulate_cluster};
use inferq_core::workload::Workload;
use std::num::NonZeroUsize;

const SARATHI: &str = r#"{"kind": "Sarathi", "token_budget": 512, "max_seqs": 256, "order": "fcfs", "watermark": 0.01,
    "preemption": {"kind": "Recompute"}}"#;

/// The other policies with the same budget and sequence limit, if they have them. WAIT's threshold satisfies (9) of
/// ao2025 for W1; the segments of nested WAIT split at the median output.
const POLICIES: [(&str, &str); 15] = [
    ("Sarathi", SARATHI),
    (
        "VllmV1",
        r#"{"kind": "VllmV1", "async_scheduling": false, "token_budget": 512, "max_seqs": 256,
        "long_prefill_threshold": 0, "policy": "fcfs", "reserve_full_prompt": true}"#,
    ),
    (
        "VllmV0",
        r#"{"kind": "VllmV0", "token_budget": 4096, "max_seqs": 256, "watermark": 0.01,
        "preemption": {"kind": "Recompute"}}"#,
    ),
    (
        "Sglang",
        r#"{"kind": "Sglang", "overlap": false, "policy": "fcfs", "chunk_tokens": 512, "max_prefill_tokens": 16384,
        "max_seqs": 256, "mixed": false, "conservativeness": 1.0, "ignore_eos": false}"#,
    ),
    ("Orca", r#"{"kind": "Orca", "max_seqs": 256, "max_model_len": 8192, "token_budget": null, "chunked": false}"#),
    ("FasterTransformer", r#"{"kind": "FasterTransformer", "max_seqs": 256, "max_model_len": 8192, "free": "each"}"#),
    ("KFcfs", r#"{"kind": "KFcfs", "token_budget": 512, "k_prefill": 512, "k_decode": 512}"#),
    ("SlotGreedy", r#"{"kind": "SlotGreedy", "chunk": 512}"#),
    ("ClassPriority", r#"{"kind": "ClassPriority", "order": ["default"], "inner": SARATHI}"#),
    ("Rad", r#"{"kind": "Rad", "rows": 128, "columns": 128, "reduction": 32, "requests_per_cycle": 2000}"#),
    ("RadPhased", r#"{"kind": "RadPhased", "rows": 128, "columns": 128, "reduction": 32, "requests_per_cycle": 2000}"#),
    ("Wait", r#"{"kind": "Wait", "thresholds": 2, "max_seqs": null}"#),
    ("NestedWait", r#"{"kind": "NestedWait", "segments": [150, 4096], "thresholds": [1, 1], "prompt_groups": []}"#),
    ("Slai", SLAI),
    ("Slai with deadlines", SLAI),
];

const SLAI: &str = r#"{"kind": "Slai", "token_budget": 512, "max_active": 256, "max_decodes": 256, "offset": 10,
    "order": "spf", "class_first": null}"#;

const PIECEWISE_LINEAR: &str = r#"{"kind": "PiecewiseLinear", "base": 0.006, "per_token": 32e-6, "knee": 200,
    "per_context_token": 40e-9, "per_prefill_square": 650e-12, "per_chunk_context": 1.3e-9}"#;

/// The same costs, except that compute hides weight reads, and KV cache reads hide short chunks.
const ROOFLINE: &str = r#"{"kind": "Roofline", "base_s": 0.0, "all_reduce": {"latency_s": 0.0, "s_per_token": 0.0},
    "linear": {"flops_s_per_token": 32e-6, "weight_s": 0.006, "activation_s_per_token": 1e-6},
    "chunk": {"compute_s_per_pair": 1.3e-9, "memory_s_per_token": 40e-9},
    "decode": {"compute_s_per_token": 10e-9, "memory_s_per_token": 40e-9}}"#;

/// The costs of [`PIECEWISE_LINEAR`] on a grid as fine as the shipped tables. All grid points are powers of two.
fn table() -> String {
    let powers = |low: u32, high: u32| (low..=high).map(|power| 1_u64 << power).collect::<Vec<_>>();
    let (tokens, chunk, sequences) = (powers(0, 13), powers(0, 13), powers(0, 8));
    let contexts: Vec<u64> = [0].into_iter().chain(powers(6, 17)).collect();
    let on_grid = |rows: &[u64], seconds: &dyn Fn(f64, f64) -> f64| -> Vec<Vec<f64>> {
        rows.iter().map(|&row| contexts.iter().map(|&context| seconds(row as f64, context as f64)).collect()).collect()
    };
    let linear: Vec<f64> = tokens.iter().map(|&tokens| 0.006 + 32e-6 * (tokens as f64 - 200.0).max(0.0)).collect();
    let of_chunk = on_grid(&chunk, &|tokens, context| 650e-12 * tokens * tokens + 1.3e-9 * tokens * context);
    let of_decode = on_grid(&sequences, &|count, mean| 40e-9 * count * mean);
    format!(
        r#"{{"kind": "TimingTable", "linear": {{"tokens": {tokens:?}, "seconds": {linear:?}}},
        "chunk": {{"chunk": {chunk:?}, "context": {contexts:?}, "seconds": {of_chunk:?}}},
        "decode": {{"sequences": {sequences:?}, "mean_context": {contexts:?}, "seconds": {of_decode:?}}}}}"#
    )
}

fn engine(scheduler: &str, timing: &str) -> Engine {
    let scheduler = scheduler.replace("SARATHI", SARATHI);
    parse(&format!(
        r#"{{"timing": {timing}, "scheduler": {scheduler}, "kv": {{"tokens": 432000, "block": 16}}, "first_token": "prefill"}}"#
    ))
    .expect("an engine")
}

const SEED: u64 = 1;

/// Requests with drawn lengths and arrivals that depend on the load.
struct Source {
    name: &'static str,
    synthetic: Synthetic,
    engine: Engine,
    /// Requests per second when all requests arrive at time 0.
    saturated_rate: f64,
    /// Every twentieth request requires a token each 0.1 s, all other requests each 0.5 s.
    has_deadlines: bool,
}

/// A workload that owns its columns.
struct Columns {
    arrival_s: Vec<f64>,
    prompt_tokens: Vec<i32>,
    output_tokens: Vec<i32>,
    itl_slo_s: Vec<f64>,
}

impl Columns {
    fn view(&self) -> Workload<'_> {
        Workload {
            arrival_s: &self.arrival_s,
            prompt_tokens: &self.prompt_tokens,
            output_tokens: &self.output_tokens,
            itl_slo_s: &self.itl_slo_s,
            class_count: 1,
            ..Workload::default()
        }
    }
}

impl Source {
    fn new(name: &'static str, requests: u64, lengths: Lengths, scheduler: &str) -> Source {
        Source::with_timing(name, requests, lengths, scheduler, PIECEWISE_LINEAR)
    }

    fn with_timing(name: &'static str, requests: u64, lengths: Lengths, scheduler: &str, timing: &str) -> Source {
        let synthetic = Synthetic { requests, arrivals: Arrivals::Poisson { rate: 1.0 }, lengths };
        let has_deadlines = name.ends_with("deadlines");
        let mut source =
            Source { name, synthetic, engine: engine(scheduler, timing), saturated_rate: f64::NAN, has_deadlines };
        let mut columns = source.at_load(f64::NAN);
        columns.arrival_s.fill(0.0);
        source.saturated_rate = requests as f64 / source.run(&columns, false).totals.end.seconds();
        source
    }

    /// The requests at a load; NaN means one request per second.
    fn at_load(&self, load: f64) -> Columns {
        let mut synthetic = self.synthetic.clone();
        if !load.is_nan() {
            synthetic.arrivals = Arrivals::Poisson { rate: load * self.saturated_rate };
        }
        let drawn = synthetic.draw(SEED).expect("a workload");
        let rows = if self.has_deadlines { drawn.prompt_tokens.len() } else { 0 };
        Columns {
            itl_slo_s: (0..rows).map(|row| if row % 20 == 0 { 0.1 } else { 0.5 }).collect(),
            arrival_s: drawn.arrival_ns.into_iter().map(seconds).collect(),
            prompt_tokens: drawn.prompt_tokens,
            output_tokens: drawn.output_tokens,
        }
    }

    fn run(&self, columns: &Columns, stepping: bool) -> Results {
        let workload = columns.view();
        let options = Options { stepping, ..Options::all(&workload) };
        simulate(&workload, self.engine.build(Some(&["default".into()])).expect("a replica"), &options, &mut ())
            .expect("a run")
    }
}

fn lognormal(mean: f64, median: f64, cap: i64) -> Length {
    Length::Lognormal { mean, median, cap: Some(cap) }
}

fn chat() -> Lengths {
    Lengths::Independent { prompt: lognormal(230.0, 90.0, 4096), output: lognormal(250.0, 150.0, 4096) }
}

fn w1() -> Source {
    Source::new("W1", 1_000_000, chat(), SARATHI)
}

fn w2() -> Option<Source> {
    let beside_the_project =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/traces/raw/AzureLLMInferenceTrace_conv.csv");
    let path = std::env::var("AZURE_TRACE").unwrap_or_else(|_| beside_the_project.to_owned());
    let Ok(trace) = std::fs::read_to_string(&path) else {
        eprintln!("W2 is skipped: the Azure 2023 conversation trace was not found (set AZURE_TRACE to its path)");
        return None;
    };
    let (mut prompt_tokens, mut output_tokens) = (Vec::new(), Vec::new());
    for row in trace.lines().skip(1) {
        let mut tokens = row.split(',').skip(1).map(|field| field.trim().parse::<i64>().expect("whole tokens"));
        prompt_tokens.extend(tokens.next());
        output_tokens.extend(tokens.next());
    }
    let lengths = Lengths::Joint(Joint::Empirical { prompt_tokens, output_tokens });
    Some(Source::new("W2", 1_000_000, lengths, SARATHI))
}

fn w3() -> Source {
    let (prompt, output) = (lognormal(500.0, 350.0, 8192), lognormal(4000.0, 3000.0, 32_000));
    Source::new("W3", 100_000, Lengths::Independent { prompt, output }, SARATHI)
}

fn w4() -> Source {
    let prompt = Length::LogUniform { low: 10_000, high: 100_000 };
    Source::new("W4", 100_000, Lengths::Independent { prompt, output: lognormal(100.0, 80.0, 1000) }, SARATHI)
}

fn replica(criterion: &mut Criterion) {
    let (w1, w2, w3, w4) = (w1(), w2(), w3(), w4());
    let stretches =
        [(Some(&w1), 0.5), (Some(&w1), 0.9), (w2.as_ref(), 0.9), (Some(&w3), 0.9), (Some(&w3), 1.2), (Some(&w4), 0.9)];
    bench(criterion, "stretches", false, &stretches);
    bench(criterion, "stepping", true, &[(Some(&w1), 0.9), (Some(&w3), 0.9)]);
}

fn policies(criterion: &mut Criterion) {
    for (name, scheduler) in POLICIES {
        let source = Source::new(name, 200_000, chat(), scheduler);
        bench(criterion, "policies", false, &[(Some(&source), 0.9)]);
    }
}

fn timings(criterion: &mut Criterion) {
    for (name, timing) in
        [("PiecewiseLinear", PIECEWISE_LINEAR.to_owned()), ("Roofline", ROOFLINE.to_owned()), ("TimingTable", table())]
    {
        let source = Source::with_timing(name, 1_000_000, chat(), SARATHI, &timing);
        bench(criterion, "timings", false, &[(Some(&source), 0.9)]);
    }
}

/// Replicas, router, threads.
const FLEETS: [(usize, RouterConfig, usize); 6] = [
    (8, RouterConfig::LeastRequests(LeastRequests {}), 1),
    (64, RouterConfig::LeastRequests(LeastRequests {}), 1),
    (1000, RouterConfig::LeastRequests(LeastRequests {}), 1),
    (8, RouterConfig::RoundRobin(RoundRobin {}), 1),
    (8, RouterConfig::RoundRobin(RoundRobin {}), 2),
    (1000, RouterConfig::RoundRobin(RoundRobin {}), 1),
];

fn fleets(criterion: &mut Criterion) {
    let w1 = w1();
    let class = ["default".into()];
    let mut group = criterion.benchmark_group("fleets");
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    group.throughput(Throughput::Elements(w1.synthetic.requests));
    let alone = w1.at_load(0.9);
    group.bench_function("alone", |bencher| {
        bencher.iter_batched(|| (), |()| w1.run(&alone, false), BatchSize::PerIteration);
    });
    for (replicas, router, threads) in FLEETS {
        let columns = w1.at_load(0.9 * replicas as f64);
        let workload = columns.view();
        let options = Options { threads: NonZeroUsize::new(threads), ..Options::all(&workload) };
        let run = || {
            let engines = (0..replicas).map(|_| w1.engine.build(Some(&class)).expect("a replica")).collect();
            let pool = Pool {
                engines,
                router: Some(router.build(SEED, 0).expect("a router")),
                hands_to: None,
                capacity: None,
            };
            simulate_cluster(&workload, Cluster::of_pools(vec![pool]), &options, &mut ()).expect("a run")
        };
        group.bench_function(format!("{replicas} {router:?} on {threads}"), |bencher| {
            bencher.iter_batched(|| (), |()| run(), BatchSize::PerIteration);
        });
    }
    group.finish();
}

fn bench(criterion: &mut Criterion, name: &str, stepping: bool, cases: &[(Option<&Source>, f64)]) {
    let mut group = criterion.benchmark_group(name);
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    for &(source, load) in cases {
        let Some(source) = source else { continue };
        let columns = source.at_load(load);
        let requests = columns.arrival_s.len() as u64;
        group.throughput(Throughput::Elements(requests));
        group.bench_function(format!("{} at {load}", source.name), |bencher| {
            // The results of a run are freed before the next run begins.
            bencher.iter_batched(|| (), |()| source.run(&columns, stepping), BatchSize::PerIteration);
        });
        let results = source.run(&columns, stepping);
        let per_request = |count: u64| count as f64 / requests as f64;
        let requests_of_run = results.requests.columns(&columns.view(), None);
        let preemptions = requests_of_run.preemptions.iter().map(|&times| u64::from(times)).sum();
        println!(
            "{:24}per request: {:.2} iterations in {:.2} stretches ({:.0} % of them in stretches of two or more), \
             {:.3} preemptions; saturated at {:.2} requests/s",
            "",
            per_request(results.totals.iterations),
            per_request(results.totals.stretches),
            results.totals.stretched_iterations as f64 / results.totals.iterations as f64 * 100.0,
            per_request(preemptions),
            source.saturated_rate,
        );
    }
    group.finish();
}

criterion_group!(benches, replica, policies, timings, fleets);
criterion_main!(benches);
