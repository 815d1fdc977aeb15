//! Cases whose instructions are counted.

use std::error::Error;
use std::num::NonZeroUsize;

use inferq_core::cluster::{Cluster, HandsTo, Pool};
use inferq_core::engine::{Engine, parse};
use inferq_core::links::LinkDescription;
use inferq_core::router::{LeastRequests, RoundRobin, RouterConfig};
use inferq_core::simulation::Options;
use inferq_core::workload::Workload;

use crate::stored::{Drawn, Requests};

/// A case.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    requests: Requests,
    count: usize,
    /// Its rate relative to the saturated rate.
    load: f64,
    /// The saturated rate in requests per second, as `--saturated` reports it: the service rate when all requests
    /// arrive at time 0. A constant, so that a change of results does not change the load.
    saturated_per_s: f64,
    scheduler: &'static str,
    timing: String,
    overhead: &'static str,
    prefix_cache: &'static str,
    server: Server,
    system: System,
    stepping: bool,
    keeps_batches: bool,
}

/// Fields of the engine that differ between servers.
#[derive(Clone, Copy, Debug)]
struct Server {
    /// Tokens per block.
    block: u32,
    groups: &'static str,
    max_model_len: &'static str,
    api_s: &'static str,
}

/// The engine of all cases without a server.
const NO_SERVER: Server = Server { block: 16, groups: "null", max_model_len: "null", api_s: "0.0" };

/// The system under test.
#[derive(Clone, Copy, Debug)]
enum System {
    Alone,
    LeastRequests(usize),
    RoundRobin(usize),
    /// Numbers of prefill replicas and of decode replicas.
    HandOff(usize, usize),
}

impl Case {
    /// Returns the requests at the case's load.
    pub(crate) fn drawn(&self) -> Drawn {
        let replicas = match self.system {
            System::Alone => 1,
            System::LeastRequests(replicas) | System::RoundRobin(replicas) => replicas,
            System::HandOff(prefills, decodes) => prefills + decodes,
        };
        Drawn::new(self.requests, self.count, self.load * self.saturated_per_s * replicas as f64)
    }

    /// The same requests on one replica, to measure its saturated rate. Lengths are repeated, so that the last
    /// requests, which run nearly alone, do not matter.
    pub(crate) fn saturated(mut self) -> Case {
        self.count = 100_000.min(self.count * 8);
        self.system = System::Alone;
        self
    }

    pub(crate) fn options(&self, workload: &Workload) -> Options {
        Options {
            stepping: self.stepping,
            iterations: self.keeps_batches,
            batches: self.keeps_batches,
            threads: NonZeroUsize::new(1),
            ..Options::all(workload)
        }
    }

    pub(crate) fn cluster(&self) -> Result<Cluster, Box<dyn Error>> {
        let text = format!(
            r#"{{"timing": {}, "scheduler": {}, "overhead": {{{}}}, "first_token": "prefill",
            "kv": {{"tokens": 432000, "block": {}, "prefix_cache": {}, "groups": {}}}, "max_model_len": {}, "api_s": {}}}"#,
            self.timing,
            self.scheduler.replace("SARATHI", SARATHI),
            self.overhead,
            self.server.block,
            self.prefix_cache,
            self.server.groups,
            self.server.max_model_len,
            self.server.api_s
        );
        let engine: Engine = parse(&text)?;
        let pool = |replicas: usize, router: RouterConfig, hands_to| -> Result<Pool, Box<dyn Error>> {
            let engines = (0..replicas).map(|_| engine.build(Some(&["default".into()]))).collect::<Result<_, _>>()?;
            Ok(Pool { engines, router: Some(router.build(1, 0)?), hands_to, capacity: None })
        };
        let least = || RouterConfig::LeastRequests(LeastRequests {});
        Ok(match self.system {
            System::Alone => Cluster::of_one(engine.build(Some(&["default".into()]))?),
            System::LeastRequests(replicas) => Cluster::of_pools(vec![pool(replicas, least(), None)?]),
            System::RoundRobin(replicas) => {
                Cluster::of_pools(vec![pool(replicas, RouterConfig::RoundRobin(RoundRobin {}), None)?])
            }
            System::HandOff(prefills, decodes) => {
                let link = LinkDescription {
                    latency_s: 50e-6,
                    bytes_per_s: 50e9,
                    bytes_per_token: 131_072.0,
                    concurrent: Some(4),
                };
                let hands_to = HandsTo { pool: 1, link: link.build()? };
                Cluster::of_pools(vec![pool(prefills, least(), Some(hands_to))?, pool(decodes, least(), None)?])
            }
        })
    }
}

/// All cases.
pub(crate) fn all() -> Vec<Case> {
    let w1 = Case {
        name: "W1 0.9",
        requests: Requests::W1,
        count: 10_000,
        load: 0.9,
        saturated_per_s: 49.59,
        scheduler: SARATHI,
        timing: PIECEWISE_LINEAR.to_owned(),
        overhead: "",
        prefix_cache: "null",
        server: NO_SERVER,
        system: System::Alone,
        stepping: false,
        keeps_batches: false,
    };
    let w3 = Case { name: "W3 0.9", requests: Requests::W3, count: 4_000, saturated_per_s: 1.126, ..w1.clone() };
    let w4 = Case { name: "W4 0.9", requests: Requests::W4, count: 4_000, saturated_per_s: 0.3558, ..w1.clone() };
    let prefixes =
        Case { requests: Requests::Prefixes, count: 3_000, saturated_per_s: 9.967, scheduler: VLLM_V1, ..w1.clone() };
    let mut cases = vec![
        Case { name: "W1 0.5", load: 0.5, ..w1.clone() },
        w1.clone(),
        w3.clone(),
        Case { name: "W3 1.2", load: 1.2, count: 3_000, ..w3.clone() },
        Case { name: "W3 1.2, swap", load: 1.2, count: 3_000, scheduler: SARATHI_SWAPS, ..w3.clone() },
        w4.clone(),
        Case { name: "W1 0.9, stepping", stepping: true, ..w1.clone() },
        Case { name: "W3 0.9, stepping", stepping: true, count: 1_000, ..w3 },
        Case { name: "W1 0.9, batches kept", keeps_batches: true, count: 2_000, ..w1.clone() },
        Case { name: "W1 0.9, table", timing: table(), saturated_per_s: 49.59, ..w1.clone() },
        Case {
            name: "W1 0.9, roofline",
            timing: ROOFLINE.to_owned(),
            overhead: r#""base_s": 0.0005, "per_sequence_s": 0.00001, "overlapped": false"#,
            saturated_per_s: 42.46,
            ..w1.clone()
        },
        Case { name: "W1 0.9, tiled GEMM", timing: TILED_GEMM.to_owned(), saturated_per_s: 66.28, ..w1.clone() },
        Case { name: "W1 0.9, memory linear", timing: MEMORY_LINEAR.to_owned(), saturated_per_s: 51.57, ..w1.clone() },
        Case { name: "prefixes, none cached", ..prefixes.clone() },
        Case { name: "prefixes, blocks", saturated_per_s: 14.06, prefix_cache: r#""blocks""#, ..prefixes.clone() },
        Case { name: "prefixes, radix", saturated_per_s: 14.06, prefix_cache: r#""radix""#, ..prefixes.clone() },
        Case {
            name: "prefixes, radix, SGLang",
            saturated_per_s: 12.20,
            prefix_cache: r#""radix""#,
            scheduler: SGLANG_LPM,
            ..prefixes.clone()
        },
        Case { name: "sessions", requests: Requests::Sessions, load: 1.0, saturated_per_s: 1.0, ..w1.clone() },
        Case {
            name: "sessions, radix",
            requests: Requests::Sessions,
            load: 1.0,
            saturated_per_s: 1.0,
            prefix_cache: r#""radix""#,
            scheduler: VLLM_V1,
            ..w1.clone()
        },
        Case { name: "8, LeastRequests", system: System::LeastRequests(8), count: 16_000, ..w1.clone() },
        Case { name: "64, LeastRequests", system: System::LeastRequests(64), count: 40_000, ..w1.clone() },
        Case { name: "8, RoundRobin", system: System::RoundRobin(8), count: 16_000, ..w1.clone() },
        Case { name: "hand-off, 2 to 2", load: 0.7, system: System::HandOff(2, 2), ..w1.clone() },
    ];
    let vllm = Case {
        name: "Azure 0.9, default vLLM",
        requests: Requests::Azure,
        count: 4_000,
        saturated_per_s: 15.99,
        scheduler: VLLM_DEFAULT,
        timing: table(),
        overhead: r#""base_s": 0.001, "per_sequence_s": 0.00001, "overlapped": true, "largest_graph_tokens": 512,
            "beyond_graph_s": 0.0032"#,
        prefix_cache: r#""blocks""#,
        server: Server { block: 16, groups: "null", max_model_len: "131072", api_s: "0.0075" },
        ..w1.clone()
    };
    let sglang = Case {
        name: "Azure 0.9, default SGLang",
        saturated_per_s: 15.22,
        scheduler: SGLANG_DEFAULT,
        overhead: r#""base_s": 0.0005, "per_sequence_s": 0.00002, "overlapped": false"#,
        prefix_cache: r#""radix""#,
        server: Server { block: 1, ..vllm.server },
        ..vllm.clone()
    };
    let conversations = |name, case: &Case| Case {
        name,
        requests: Requests::Conversations,
        load: 1.0,
        saturated_per_s: 1.0,
        ..case.clone()
    };
    cases.extend([
        conversations("conversations, default vLLM", &vllm),
        conversations("conversations, default SGLang", &sglang),
        conversations(
            "conversations, groups of layers",
            &Case { server: Server { groups: GPT_OSS_20B, ..vllm.server }, ..vllm.clone() },
        ),
        vllm,
        sglang,
    ]);
    cases.extend(POLICIES.map(|(name, saturated_per_s, scheduler)| Case {
        name,
        requests: if name.ends_with("Slai") { Requests::W1WithDeadlines } else { Requests::W1 },
        count: 5_000,
        saturated_per_s,
        scheduler,
        ..w1.clone()
    }));
    cases
}

const SARATHI: &str = r#"{"kind": "Sarathi", "token_budget": 512, "max_seqs": 256, "order": "fcfs", "watermark": 0.01,
    "preemption": {"kind": "Recompute"}}"#;

const SARATHI_SWAPS: &str = r#"{"kind": "Sarathi", "token_budget": 512, "max_seqs": 256, "order": "fcfs",
    "watermark": 0.01, "preemption": {"kind": "Swap", "per_token": 4e-6, "base": 0.001}}"#;

const VLLM_V1: &str = r#"{"kind": "VllmV1", "async_scheduling": false, "token_budget": 512, "max_seqs": 256,
    "long_prefill_threshold": 0, "policy": "fcfs", "reserve_full_prompt": true}"#;

const SGLANG_LPM: &str = r#"{"kind": "Sglang", "overlap": false, "policy": "lpm", "chunk_tokens": 512, "max_prefill_tokens": 16384,
    "max_seqs": 256, "mixed": false, "conservativeness": 1.0, "ignore_eos": false}"#;

/// The defaults of `Engine.on` on one H100 with 80 GB, for vLLM 0.33 and SGLang 0.5.
const VLLM_DEFAULT: &str = r#"{"kind": "VllmV1", "async_scheduling": true, "token_budget": 8192, "max_seqs": 1024,
    "long_prefill_threshold": 0, "policy": "fcfs", "reserve_full_prompt": true, "pause_s": 0.001}"#;

/// The layers of gpt-oss-20b.
const GPT_OSS_20B: &str = r#"{"retention_interval": 0, "saves_states_in_rows": false, "kinds": [
    {"layers": 12, "window": 128, "state": false, "token_bytes": 1},
    {"layers": 12, "window": null, "state": false, "token_bytes": 1}]}"#;

const SGLANG_DEFAULT: &str = r#"{"kind": "Sglang", "overlap": true, "policy": "fcfs", "chunk_tokens": 8192,
    "max_prefill_tokens": 16384, "max_seqs": 2048, "mixed": false, "conservativeness": 1.0, "ignore_eos": false}"#;

/// The other policies on W1, each at 0.9 of its own saturated rate, as in `rust/benches/replica.rs`.
const POLICIES: [(&str, f64, &str); 15] = [
    ("W1 0.9, VllmV1", 48.87, VLLM_V1),
    (
        "W1 0.9, VllmV1, asynchronous",
        48.87,
        r#"{"kind": "VllmV1", "async_scheduling": true, "token_budget": 512, "max_seqs": 256,
        "long_prefill_threshold": 0, "policy": "fcfs", "reserve_full_prompt": true}"#,
    ),
    (
        "W1 0.9, VllmV0",
        46.45,
        r#"{"kind": "VllmV0", "token_budget": 4096, "max_seqs": 256, "watermark": 0.01,
        "preemption": {"kind": "Recompute"}}"#,
    ),
    (
        "W1 0.9, Sglang",
        46.16,
        r#"{"kind": "Sglang", "overlap": false, "policy": "fcfs", "chunk_tokens": 512, "max_prefill_tokens": 16384,
        "max_seqs": 256, "mixed": false, "conservativeness": 1.0, "ignore_eos": false}"#,
    ),
    (
        "W1 0.9, Sglang, overlap",
        46.16,
        r#"{"kind": "Sglang", "overlap": true, "policy": "fcfs", "chunk_tokens": 512, "max_prefill_tokens": 16384,
        "max_seqs": 256, "mixed": false, "conservativeness": 1.0, "ignore_eos": false}"#,
    ),
    (
        "W1 0.9, Orca",
        25.88,
        r#"{"kind": "Orca", "max_seqs": 256, "max_model_len": 8192, "token_budget": null, "chunked": false}"#,
    ),
    (
        "W1 0.9, FasterTransformer",
        5.112,
        r#"{"kind": "FasterTransformer", "max_seqs": 256, "max_model_len": 8192, "free": "each"}"#,
    ),
    ("W1 0.9, KFcfs", 48.81, r#"{"kind": "KFcfs", "token_budget": 512, "k_prefill": 512, "k_decode": 512}"#),
    (
        "W1 0.9, Rad",
        25.19,
        r#"{"kind": "Rad", "rows": 128, "columns": 128, "reduction": 32, "requests_per_cycle": 2000}"#,
    ),
    (
        "W1 0.9, RadPhased",
        25.43,
        r#"{"kind": "RadPhased", "rows": 128, "columns": 128, "reduction": 32, "requests_per_cycle": 2000}"#,
    ),
    (
        "W1 0.9, Slai",
        49.82,
        r#"{"kind": "Slai", "token_budget": 512, "max_active": 256, "max_decodes": 256, "offset": 10,
        "order": "spf", "class_first": null}"#,
    ),
    ("W1 0.9, Wait", 48.5, r#"{"kind": "Wait", "thresholds": 2, "max_seqs": null}"#),
    (
        "W1 0.9, NestedWait",
        48.05,
        r#"{"kind": "NestedWait", "segments": [150, 4096], "thresholds": [1, 1], "prompt_groups": []}"#,
    ),
    ("W1 0.9, SlotGreedy", 48.4, r#"{"kind": "SlotGreedy", "chunk": 512}"#),
    ("W1 0.9, ClassPriority", 48.87, r#"{"kind": "ClassPriority", "order": ["default"], "inner": SARATHI}"#),
];

const PIECEWISE_LINEAR: &str = r#"{"kind": "PiecewiseLinear", "base": 0.006, "per_token": 32e-6, "knee": 200,
    "per_context_token": 40e-9, "per_prefill_square": 650e-12, "per_chunk_context": 1.3e-9}"#;

/// The same costs, except that compute hides weight reads, and KV cache reads hide short chunks.
const ROOFLINE: &str = r#"{"kind": "Roofline", "base_s": 0.0, "all_reduce": {"latency_s": 0.0, "s_per_token": 0.0},
    "linear": {"flops_s_per_token": 32e-6, "weight_s": 0.006, "activation_s_per_token": 1e-6},
    "chunk": {"compute_s_per_pair": 1.3e-9, "memory_s_per_token": 40e-9},
    "decode": {"compute_s_per_token": 10e-9, "memory_s_per_token": 40e-9}}"#;

const TILED_GEMM: &str = r#"{"kind": "TiledGemm", "rows": 128, "columns": 128, "reduction": 32, "width": 4096,
    "layers": 32, "linear_s_per_tile": 2e-3, "other_s_per_token": 4e-6, "gemm_s": 1e-8, "gemv_s": 2e-9}"#;

const MEMORY_LINEAR: &str = r#"{"kind": "MemoryLinear", "base": 0.006, "per_kv_token": 1e-7}"#;

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
