//! RAD and its two-phase form: each rule in a worked example, and the distance to their theoretical limit.
//!
//! In the worked examples an iteration takes one second, and the expected values list the batches: `0:4` is a chunk
//! of 4 tokens of request 0, `0 1` are decodes of requests 0 and 1.

use inferq_core::distributions::Synthetic;
use inferq_core::engine::{Engine, parse};
use inferq_core::results::BatchRow;
use inferq_core::simulation::{Options, simulate};

use crate::scenario::{Columns, Results};

fn columns(requests: &[(f64, i32, i32)]) -> Columns {
    Columns {
        arrival_s: requests.iter().map(|request| request.0).collect(),
        prompt_tokens: requests.iter().map(|request| request.1).collect(),
        output_tokens: requests.iter().map(|request| request.2).collect(),
        ..Columns::default()
    }
}

fn run(columns: &Columns, timing: &str, scheduler: &str, kv_tokens: Option<u64>, step: bool) -> Results {
    let tokens = kv_tokens.map_or("null".to_owned(), |tokens| tokens.to_string());
    let engine: Engine = parse(&format!(
        r#"{{"timing": {timing}, "scheduler": {scheduler}, "kv": {{"tokens": {tokens}, "block": 1}},
        "first_token": "prefill"}}"#
    ))
    .expect("an engine");
    let workload = columns.view();
    let options = Options { iterations: step, batches: step, stepping: step, ..Options::all(&workload) };
    let results = simulate(&workload, engine.build(Some(&[])).expect("a replica"), &options, &mut ()).expect("a run");
    results.with_columns(&workload)
}

/// Tiles of 4 rows, `columns` columns and a reduction of 2: chunks of 4 for 1, 2 or 4 columns.
fn policy(kind: &str, columns: u64, requests_per_cycle: u64) -> String {
    format!(
        r#"{{"kind": "{kind}", "rows": 4, "columns": {columns}, "reduction": 2,
        "requests_per_cycle": {requests_per_cycle}}}"#
    )
}

/// The batches, one per second; a second without a batch is empty. Requests are (arrival, prompt, output).
fn batches(scheduler: &str, kv_tokens: Option<u64>, requests: &[(f64, i32, i32)]) -> Vec<String> {
    let results = run(&columns(requests), r#"{"kind": "Constant", "seconds": 1}"#, scheduler, kv_tokens, true);
    let mut batches = Vec::new();
    for (place, row) in results.iterations.iter().enumerate() {
        batches.resize(row.start.seconds() as usize, String::new());
        let rows = results.batches.iter().filter(|batch| batch.iteration == place as u64);
        let written = |batch: &BatchRow| match batch.tokens {
            1 => batch.request.to_string(),
            tokens => format!("{}:{tokens}", batch.request),
        };
        batches.push(rows.map(written).collect::<Vec<_>>().join(" "));
    }
    batches
}

#[test]
fn a_chunk_is_the_common_multiple_of_the_tile_or_what_is_left() {
    for kind in ["Rad", "RadPhased"] {
        // lcm(4, 6, 10) = 60.
        let policy =
            format!(r#"{{"kind": "{kind}", "rows": 4, "columns": 6, "reduction": 10, "requests_per_cycle": 9}}"#);
        assert_eq!(batches(&policy, None, &[(0.0, 150, 1)]), ["0:60", "0:60", "0:30"], "{kind}");
    }
}

#[test]
fn rad_decodes_when_the_columns_are_full_or_nobody_waits() {
    let requests = [(0.0, 4, 2), (0.0, 4, 4), (0.0, 4, 2)];
    // Two columns are full at 2. At 3 one is free and request 2 waits. At 4 both are full again. At 5 no request
    // waits.
    let expected = ["0:4", "1:4", "0 1", "2:4", "1 2", "1"];
    assert_eq!(batches(&policy("Rad", 2, 9), None, &requests), expected);
    // Three columns are full once.
    let expected = ["0:4", "1:4", "2:4", "0 1 2", "1", "1"];
    assert_eq!(batches(&policy("Rad", 3, 9), None, &requests), expected);
}

#[test]
fn rad_does_not_interrupt_a_prompt() {
    // Request 1 arrives while 0 decodes alone. Its three chunks follow each other, whatever arrives.
    let requests = [(0.0, 4, 4), (1.5, 10, 2), (2.5, 4, 2)];
    let expected = ["0:4", "0", "1:4", "1:4", "1:2", "0 1", "2:4", "0 2"];
    assert_eq!(batches(&policy("Rad", 2, 9), None, &requests), expected);
}

#[test]
fn a_cycle_of_rad_ends_when_nobody_decodes_any_more() {
    // Request 0 is a cycle of its own. The next one has room for both prompts at 5, and not for the third.
    let requests = [(0.0, 4, 2), (5.0, 4, 2), (5.0, 4, 2), (5.0, 4, 2)];
    let expected = ["0:4", "0", "", "", "", "1:4", "2:4", "1 2", "3:4", "3"];
    assert_eq!(batches(&policy("Rad", 4, 2), None, &requests), expected);
}

#[test]
fn a_cycle_of_rad_ends_when_it_is_full_and_nobody_ever_decoded() {
    let requests = [(0.0, 4, 1), (0.0, 4, 1), (0.0, 4, 2), (0.0, 4, 2), (0.0, 4, 2)];
    let expected = ["0:4", "1:4", "2:4", "3:4", "2 3", "4:4", "4"];
    assert_eq!(batches(&policy("Rad", 4, 2), None, &requests), expected);
    // A cycle ends only when it is full, even if the replica is empty in between: with three requests, request 2
    // completes the first cycle.
    let requests = [(0.0, 4, 1), (3.0, 4, 1), (3.0, 4, 2), (3.0, 4, 2)];
    let expected = ["0:4", "", "", "1:4", "2:4", "2", "3:4", "3"];
    assert_eq!(batches(&policy("Rad", 4, 3), None, &requests), expected);
}

#[test]
fn rad_decodes_while_the_next_prompt_lacks_blocks() {
    // 10 blocks of 1 token: request 1 needs 8, and gets them after request 0 has left.
    let requests = [(0.0, 4, 3), (0.0, 8, 1), (0.0, 1, 1)];
    let expected = ["0:4", "0", "0", "1:4", "1:4", "2"];
    assert_eq!(batches(&policy("Rad", 2, 9), Some(10), &requests), expected);
}

#[test]
fn decodes_of_rad_at_rest_take_no_block_from_a_prompt() {
    // 8 blocks: 4 are free for request 1, although a decode of 0 would take one of them. Then a decode lacks a block,
    // and the later arrival is preempted. Its 4 + 1 tokens are recomputed after 0 has left, the last one in a chunk
    // of its own.
    let requests = [(0.0, 4, 3), (0.0, 4, 2)];
    let expected = ["0:4", "1:4", "0", "0", "1:4", "1"];
    assert_eq!(batches(&policy("Rad", 2, 9), Some(8), &requests), expected);
}

#[test]
fn rad_phased_decodes_after_all_prompts_and_fills_free_columns() {
    // Three prompts are a cycle. With two columns, request 2 replaces request 1 at 4. Request 3 waits for the next
    // cycle.
    let requests = [(0.0, 4, 3), (0.0, 4, 2), (0.0, 4, 2), (0.0, 4, 1)];
    let expected = ["0:4", "1:4", "2:4", "0 1", "0 2", "3:4"];
    assert_eq!(batches(&policy("RadPhased", 2, 3), None, &requests), expected);
    // All columns may become free at once.
    let requests = [(0.0, 4, 2), (0.0, 4, 2), (0.0, 4, 2), (0.0, 4, 1)];
    let expected = ["0:4", "1:4", "2:4", "0 1", "2", "3:4"];
    assert_eq!(batches(&policy("RadPhased", 2, 3), None, &requests), expected);
}

#[test]
fn rad_phased_does_not_interrupt_a_prompt_and_takes_none_between_decodes() {
    // Request 1 arrives during the first decode and waits until the cycle ends. Request 2 arrives during its prompt
    // and is in the same cycle.
    let requests = [(0.0, 4, 4), (1.5, 10, 2), (5.5, 4, 2)];
    let expected = ["0:4", "0", "0", "0", "1:4", "1:4", "1:2", "2:4", "1 2"];
    assert_eq!(batches(&policy("RadPhased", 2, 9), None, &requests), expected);
}

#[test]
fn rad_phased_decodes_to_the_end_once_a_prompt_lacks_blocks() {
    // 11 blocks: at 2 request 2 needs 4 and 3 are free. At 3 they are free, and it waits for the end of the cycle.
    let requests = [(0.0, 4, 2), (0.0, 4, 5), (0.0, 4, 1)];
    let expected = ["0:4", "1:4", "0 1", "1", "1", "1", "2:4"];
    assert_eq!(batches(&policy("RadPhased", 2, 9), Some(11), &requests), expected);
}

#[test]
fn a_victim_of_rad_phased_is_the_latest_and_waits_for_the_next_cycle() {
    // 8 blocks, one column: at 3 request 0 lacks a block, and request 1, which waits for the column, is preempted and
    // frees its 3. It returns with 3 + 1 tokens before request 2, and the chunk emits its second token.
    let requests = [(0.0, 4, 4), (0.0, 3, 2), (1.5, 2, 1)];
    let expected = ["0:4", "1:3", "0", "0", "0", "1:4", "2:2"];
    assert_eq!(batches(&policy("RadPhased", 1, 9), Some(8), &requests), expected);
}

/// A large model on one GPU without fused attention and with shared keys. A tile of token columns takes 1 ms in the
/// linear layers. In the attention of a layer, a pair of tiles takes 8 ns, and a tile of a decode 1 ns. Assumption 2
/// holds: 64 matrix-vector products take longer one by one than as one matrix product, because a tile of a decode
/// costs more than 1/32 of a pair of tiles.
const MODEL: &str = r#"{"kind": "TiledGemm", "rows": 128, "columns": 64, "reduction": 32, "width": 4096,
    "linear_s_per_tile": 0.001, "other_s_per_token": 1e-6, "gemm_s": 8e-9, "gemv_s": 1e-9, "layers": 32}"#;
const COLUMNS: f64 = 64.0;
const LCM: f64 = 128.0;
const LINEAR_S: f64 = 0.001;
const OTHER_S: f64 = 1e-6;
/// layers · gemm · width / (rows · columns · reduction): the attention of a prompt per token pair.
const PAIR_S: f64 = 32.0 * 8e-9 * 4096.0 / (128.0 * 64.0 * 32.0);

/// The attention of the decode that computes the i-th token in all layers: (5).
fn decode_s(i: i32) -> f64 {
    let tiles = |size: f64| (f64::from(i) / size).ceil();
    32.0 * 1e-9 * (4096.0 / 64.0 * tiles(128.0) + 4096.0 / 128.0 * tiles(64.0))
}

const REQUESTS: usize = 4_000;
const REQUESTS_PER_CYCLE: usize = 2_000;
const MOST_DECODES: i32 = 512;

/// Prompts of 8 to 24 common multiples and outputs of 1 to 513 tokens, all arriving at time 0.
fn saturating() -> Columns {
    let synthetic = format!(
        r#"{{"requests": {REQUESTS}, "arrivals": {{"kind": "Deterministic", "rate": 1}},
        "prompt": {{"kind": "Uniform", "low": 8, "high": 24}},
        "output": {{"kind": "Uniform", "low": 1, "high": {}}}}}"#,
        MOST_DECODES + 1
    );
    let drawn = parse::<Synthetic>(&synthetic).expect("a workload").draw(1).expect("a workload");
    Columns {
        arrival_s: vec![0.0; REQUESTS],
        prompt_tokens: drawn.prompt_tokens.iter().map(|multiples| multiples * LCM as i32).collect(),
        output_tokens: drawn.output_tokens,
        ..Columns::default()
    }
}

/// The mean of `value` over the requests. With the first token from the prompt's last iteration, an output of o
/// tokens takes o − 1 decodes, which is L^D of the theorem.
fn mean(columns: &Columns, value: impl Fn(f64, f64) -> f64) -> f64 {
    let lengths = columns.prompt_tokens.iter().zip(&columns.output_tokens);
    lengths.map(|(&p, &o)| value(f64::from(p), f64::from(o - 1))).sum::<f64>() / REQUESTS as f64
}

/// T^R of Theorem 1: no policy serves a request in less time on average.
fn least_s(columns: &Columns) -> f64 {
    mean(columns, |p, q| {
        let decodes: f64 = (1..=q as i32).map(|j| decode_s(p as i32 + j)).sum();
        (p + q) * (LINEAR_S / COLUMNS + OTHER_S) + decodes + PAIR_S * p * (p + LCM)
    })
}

fn seconds_a_request(columns: &Columns, scheduler: &str) -> f64 {
    run(columns, MODEL, scheduler, None, false).totals.end.seconds() / REQUESTS as f64
}

/// λ·T^R = 1 is reached except for the end of each cycle, where fewer requests decode than a tile has columns. That
/// end lasts at most as many iterations as the longest output. Each of them wastes less than one tile of the linear
/// layers.
#[test]
fn rad_reaches_the_limit_except_for_the_ends_of_cycles() {
    let columns = saturating();
    let limit = least_s(&columns);
    let cycles = (REQUESTS / REQUESTS_PER_CYCLE) as f64;
    let wasted = cycles * f64::from(MOST_DECODES) * LINEAR_S / REQUESTS as f64;
    assert!(wasted < 0.01 * limit, "the ends of cycles are short: {wasted} of {limit} s");
    for kind in ["Rad", "RadPhased"] {
        let scheduler = format!(
            r#"{{"kind": "{kind}", "rows": 128, "columns": 64, "reduction": 32,
            "requests_per_cycle": {REQUESTS_PER_CYCLE}}}"#
        );
        let taken = seconds_a_request(&columns, &scheduler);
        assert!(taken >= limit * (1.0 - 1e-9), "{kind}: {taken} s a request, where no policy needs less than {limit}");
        assert!(taken <= limit + wasted, "{kind}: {taken} s a request, the limit {limit} and the ends {wasted}");
    }
}

/// Sarathi fills its budget of 8 tiles of columns, so the linear layers waste nothing. The attention of its chunks
/// does. Prompts and decodes share the batches in proportion to their tokens. So a chunk has about c = 512·p / (p +
/// q) tokens, which is more than the common multiple and no multiple of the columns. First, a prompt in chunks of c
/// costs p·(p + c) instead of p·(p + lcm), because a chunk is multiplied with all its own tokens. Second, next to
/// fewer decodes than columns, chunks take all 8 tiles of columns, 512/c times their own. Unfilled rows and
/// reductions only add to this. Two effects reduce it: a batch may hold the ends of two prompts with shorter chunks,
/// and at the end no requests are left to fill batches. Half of the loss is certain.
#[test]
fn sarathi_falls_below_the_limit_by_what_its_chunks_waste() {
    let columns = saturating();
    let limit = least_s(&columns);
    let (p, q) = (mean(&columns, |p, _| p), mean(&columns, |_, q| q));
    let (budget, decodes) = (512.0, 512.0 * q / (p + q));
    assert!(decodes < COLUMNS);
    let chunk = budget - decodes;
    let lost = PAIR_S * mean(&columns, |p, _| p * (p + chunk) * budget / chunk - p * (p + LCM));
    assert!(lost / 2.0 > 0.03 * limit, "more than what RAD is granted: {lost} of {limit} s");
    let scheduler = r#"{"kind": "Sarathi", "token_budget": 512, "max_seqs": 128, "order": "fcfs", "watermark": 0,
        "preemption": {"kind": "Recompute"}}"#;
    let taken = seconds_a_request(&columns, scheduler);
    assert!(taken > limit + lost / 2.0, "{taken} s a request, the limit {limit} and half the loss {}", lost / 2.0);
}
