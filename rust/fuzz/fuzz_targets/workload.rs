//! Arbitrary columns: a valid workload runs to its end, an invalid one is an error.

#![no_main]

use arbitrary::Arbitrary;
use inferq_core::engine::{Engine, parse};
use inferq_core::workload::{Content, Flow, NO_ROW, Workload};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Row {
    arrival_s: f64,
    prompt_tokens: i32,
    output_tokens: i32,
    class: u32,
    priority: i64,
    patience_s: f64,
    cancel_s: f64,
    max_output_tokens: i32,
    itl_slo_s: f64,
    queue_key: f64,
    session: u32,
    pool: u32,
    segments: u8,
    after: u8,
    parents: u8,
    children: u8,
    delay_s: f64,
    id: u32,
}

#[derive(Arbitrary, Debug)]
struct Scenario {
    rows: Vec<Row>,
    class_count: u8,
    /// Which optional columns are present.
    columns: [bool; 13],
    content_id: Vec<u64>,
    content_tokens: Vec<u32>,
    children: Vec<u8>,
    is_sorted: bool,
    has_cache: bool,
}

/// Start offsets of lists of these lengths, and the end of the last list.
fn starts<Number: From<u8> + Copy + std::ops::AddAssign>(lengths: impl Iterator<Item = u8>) -> Vec<Number> {
    let mut end = Number::from(0);
    std::iter::once(0)
        .chain(lengths)
        .map(|length| {
            end += Number::from(length);
            end
        })
        .collect()
}

const ENGINE: &str = r#"{
    "timing": {"kind": "PiecewiseLinear", "base": 0.002, "per_token": 1e-5, "knee": 64, "per_context_token": 1e-8},
    "scheduler": {"kind": "Sarathi", "token_budget": 512, "max_seqs": 8, "order": "fcfs", "watermark": 0.01,
                  "preemption": {"kind": "Recompute"}},
    "kv": {"tokens": 65536, "block": 16, "prefix_cache": CACHE},
    "first_token": "prefill"
}"#;

fuzz_target!(|scenario: Scenario| {
    let mut rows = scenario.rows;
    if scenario.is_sorted {
        rows.iter_mut().for_each(|row| row.arrival_s = row.arrival_s.abs() % 1e3);
        rows.sort_by(|left, right| left.arrival_s.total_cmp(&right.arrival_s));
    }
    fn column<T>(rows: &[Row], is_present: bool, cell: impl Fn(&Row) -> T) -> Vec<T> {
        if is_present { rows.iter().map(cell).collect() } else { Vec::new() }
    }
    let is_present = scenario.columns;
    // A request of 2·10⁹ tokens is valid but slow.
    let prompt_tokens = column(&rows, true, |row| row.prompt_tokens % 70_000);
    let output_tokens = column(&rows, true, |row| row.output_tokens % 70_000);
    let children: Vec<u32> = scenario.children.iter().map(|&child| child.into()).collect();
    let content_start = starts(column(&rows, is_present[7], |row| row.segments % 4).into_iter());
    let after = |row: &Row| if row.after < 128 { row.after.into() } else { NO_ROW };
    let content_after = column(&rows, is_present[10], after);
    let children_start = starts(column(&rows, is_present[8], |row| row.children % 4).into_iter());
    let workload = Workload {
        arrival_s: &column(&rows, true, |row| row.arrival_s),
        prompt_tokens: &prompt_tokens,
        output_tokens: &output_tokens,
        class: &column(&rows, is_present[0], |row| row.class),
        class_count: scenario.class_count.into(),
        priority: &column(&rows, is_present[1], |row| row.priority),
        max_output_tokens: &column(&rows, is_present[11], |row| row.max_output_tokens),
        patience_s: &column(&rows, is_present[2], |row| row.patience_s),
        cancel_s: &column(&rows, is_present[12], |row| row.cancel_s),
        itl_slo_s: &column(&rows, is_present[3], |row| row.itl_slo_s),
        queue_key: &column(&rows, is_present[4], |row| row.queue_key),
        session: &column(&rows, is_present[5], |row| row.session),
        pool: &column(&rows, is_present[6], |row| row.pool),
        content: if is_present[7] {
            Content {
                after: &content_after,
                start: &content_start,
                id: &scenario.content_id,
                tokens: &scenario.content_tokens,
                ..Content::default()
            }
        } else {
            Content::default()
        },
        flow: if is_present[8] {
            Flow {
                parents: &column(&rows, true, |row| row.parents.into()),
                children_start: &children_start,
                children: &children,
                delay_s: &column(&rows, true, |row| row.delay_s),
            }
        } else {
            Flow::default()
        },
        ids: &column(&rows, is_present[9], |row| row.id),
        ..Workload::default()
    };
    let engine = ENGINE.replace("CACHE", if scenario.has_cache { r#""blocks""# } else { "null" });
    let engine = parse::<Engine>(&engine).and_then(|engine| engine.build(None)).expect("an engine");
    if let Ok(results) = inferq_fuzz::run(&workload, engine, false) {
        assert_eq!(results.totals.in_system, results.totals.sojourn, "Little's law");
    }
});
