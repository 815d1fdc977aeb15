//! Tests of timing models and host overhead in runs: findings, and times of small cases computed by hand.

use inferq_core::engine::{Engine, parse};
use inferq_core::error::Result;
use inferq_core::simulation::{Options, simulate};
use inferq_core::workload::Workload;

use crate::scenario::Results;

const TABLE: &str = r#"{"kind": "TimingTable",
    "linear": {"tokens": [1, 101], "seconds": [0.1, 0.2]},
    "chunk": {"chunk": [1, 100], "context": [0, 100], "seconds": [[0, 0], [0, 0]]},
    "decode": {"sequences": [1, 2], "mean_context": [0, 100], "seconds": [[0, 0.1], [0, 0.2]]}}"#;

/// One request at time 0.
fn run(timing: &str, overhead: &str, prompt: i32, output: i32) -> Result<Results> {
    let engine: Engine = parse(&format!(
        r#"{{"timing": {timing}, {overhead} "kv": {{"tokens": 4096, "block": 16}}, "first_token": "prefill",
        "scheduler": {{"kind": "Sarathi", "token_budget": 512, "max_seqs": 4, "order": "fcfs", "watermark": 0.0,
                       "preemption": {{"kind": "Recompute"}}}}}}"#
    ))?;
    let workload = Workload {
        arrival_s: &[0.0],
        prompt_tokens: &[prompt],
        output_tokens: &[output],
        class_count: 1,
        ..Workload::default()
    };
    Ok(simulate(&workload, engine.build(Some(&[]))?, &Options::all(&workload), &mut ())?.with_columns(&workload))
}

#[test]
fn a_run_within_its_table_has_measured_times_and_no_finding() {
    // The prompt of 51 tokens: 0.1 + 50 · 0.001 s. Decodes at contexts of 51 and 52: 0.1 s plus 0.001 s per token.
    let results = run(TABLE, "", 51, 3).expect("a run");
    assert_eq!(results.requests.first_token_s, [0.15]);
    assert_eq!(results.requests.finish_s, [0.453]);
    assert_eq!(results.findings, []);
}

#[test]
fn a_run_beyond_its_table_has_a_finding_with_the_axes() {
    // The prompt takes 0.198 s. Decodes begin at contexts of 99, 100 and 101 (0.199, 0.2, 0.201 s): only the last one
    // is beyond the grid, and uses the extended slope.
    assert_eq!(run(TABLE, "", 99, 3).expect("a run").findings, []);
    let decodes = run(TABLE, "", 99, 4).expect("a run");
    assert_eq!(decodes.requests.finish_s, [0.798]);
    assert_eq!(decodes.findings.len(), 1);
    assert_eq!(
        decodes.findings[0].to_string(),
        "beyond-table: some iterations exceed the measured range (mean context of the decodes); their times are \
         extrapolated linearly"
    );
    // A prompt of 102 tokens in one chunk.
    let chunk = run(TABLE, "", 102, 1).expect("a run");
    assert_eq!(chunk.requests.finish_s, [0.201]);
    assert!(chunk.findings[0].message.contains("(tokens of a batch, tokens of a chunk)"), "{:?}", chunk.findings);
}

#[test]
fn the_host_takes_its_share_of_every_iteration() {
    let constant = r#"{"kind": "Constant", "seconds": 0.5}"#;
    let finish = |overhead: &str| run(constant, overhead, 10, 4).expect("a run").requests.finish_s[0];
    assert_eq!(finish(""), 2.0);
    // 0.125 s plus 0.125 s for the single row of the batch, four times.
    assert_eq!(finish(r#""overhead": {"base_s": 0.125, "per_sequence_s": 0.125},"#), 3.0);
    assert_eq!(finish(r#""overhead": {"base_s": 0.125, "per_sequence_s": 0.125, "overlapped": true},"#), 2.0);
    assert_eq!(finish(r#""overhead": {"base_s": 0.75, "overlapped": true},"#), 3.0);
}

#[test]
fn an_invalid_overhead_is_an_error_with_its_path() {
    let constant = r#"{"kind": "Constant", "seconds": 0.5}"#;
    let error = |overhead: &str| run(constant, overhead, 10, 4).expect_err("a wrong field").to_string();
    let negative = error(r#""overhead": {"base_s": -0.1},"#);
    assert!(negative.starts_with("overhead.base_s: must be a finite, non-negative number of seconds"), "{negative}");
    let unknown = error(r#""overhead": {"base": 0.1},"#);
    assert!(unknown.starts_with("overhead.base: unknown field"), "{unknown}");
}
