//! Random scenarios: every scheduler with every timing model, KV tight and loose, arrivals on iteration boundaries.

use inferq_core::clock::{Instant, Span};
use inferq_core::engine::{Engine, EngineParts, parse};
use inferq_core::results::Results;
use inferq_core::simulation::{Options, Timeline, simulate};
use inferq_core::workload::Workload;
use proptest::prelude::*;

/// A workload that owns its columns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Columns {
    pub(crate) arrival_s: Vec<f64>,
    pub(crate) prompt_tokens: Vec<i32>,
    pub(crate) output_tokens: Vec<i32>,
    pub(crate) class: Vec<u32>,
    pub(crate) priority: Vec<i64>,
    pub(crate) patience_s: Vec<f64>,
}

pub(crate) const CLASSES: usize = 2;

impl Columns {
    pub(crate) fn view(&self) -> Workload<'_> {
        Workload {
            arrival_s: &self.arrival_s,
            prompt_tokens: &self.prompt_tokens,
            output_tokens: &self.output_tokens,
            class: &self.class,
            class_count: CLASSES,
            priority: &self.priority,
            patience_s: &self.patience_s,
        }
    }

    /// The first rows.
    pub(crate) fn head(&self, rows: usize) -> Columns {
        Columns {
            arrival_s: self.arrival_s[..rows].to_vec(),
            prompt_tokens: self.prompt_tokens[..rows].to_vec(),
            output_tokens: self.output_tokens[..rows].to_vec(),
            class: self.class[..rows].to_vec(),
            priority: self.priority[..rows].to_vec(),
            patience_s: self.patience_s[..rows].to_vec(),
        }
    }

    /// All times twice as long.
    pub(crate) fn slower(&self) -> Columns {
        Columns {
            arrival_s: self.arrival_s.iter().map(|s| s * 2.0).collect(),
            patience_s: self.patience_s.iter().map(|s| s * 2.0).collect(),
            ..self.clone()
        }
    }

    /// The same rows with other arrivals, sorted.
    fn arriving(&self, mut arrival_s: Vec<f64>) -> Columns {
        arrival_s.sort_by(f64::total_cmp);
        Columns { arrival_s, ..self.clone() }
    }
}

/// A workload, an engine as JSON, and how the run is looked at.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) columns: Columns,
    pub(crate) engine: String,
    pub(crate) kv_tokens: Option<u64>,
    pub(crate) block: u64,
    pub(crate) token_budget: u64,
    pub(crate) max_seqs: u64,
    pub(crate) horizon_s: Option<f64>,
    pub(crate) measured: std::ops::Range<u32>,
}

impl Scenario {
    pub(crate) fn parts(&self) -> EngineParts {
        parse::<Engine>(&self.engine).expect("JSON").build().expect("an engine")
    }

    pub(crate) fn options(&self, stepping: bool) -> Options {
        Options {
            horizon: self.horizon_s.map(|s| Instant((s * 1e9).round() as u128 * 1_000_000_000)),
            measured: self.measured.clone(),
            timeline: Timeline::Every(Span(7_777_777_777_777_777)),
            iterations: true,
            batches: true,
            stepping,
        }
    }

    pub(crate) fn run(&self, stepping: bool) -> Results {
        simulate(&self.columns.view(), self.parts(), &self.options(stepping), &mut ()).expect("a run")
    }

    /// The same scenario with some requests arriving exactly when an iteration of it ends.
    pub(crate) fn on_boundaries(&self, every: usize) -> Scenario {
        let results = self.run(false);
        let ends: Vec<u128> = results.iterations.iter().map(|row| row.start.0).collect();
        let grid = 1_000_000_000;
        let mut arrivals = self.columns.arrival_s.clone();
        for (place, arrival) in arrivals.iter_mut().enumerate().skip(1).step_by(every) {
            let end = ends.get(place * ends.len() / (self.columns.arrival_s.len() * 2));
            if let Some(&end) = end.filter(|&end| end % grid == 0) {
                *arrival = Instant(end).seconds();
            }
        }
        Scenario { columns: self.columns.arriving(arrivals), ..self.clone() }
    }
}

fn timing() -> impl Strategy<Value = String> {
    // Whole microseconds, so that iterations end on the grid of arrivals.
    let micro = |low: u32, high: u32| (low..high).prop_map(|us| f64::from(us) / 1e6);
    prop_oneof![
        micro(100, 20_000).prop_map(|s| format!(r#"{{"kind": "Constant", "seconds": {s}}}"#)),
        (micro(1000, 9000), micro(0, 100), 0_u32..100, micro(0, 3), 0_u32..2000, 0_u32..2000).prop_map(
            |(base, token, knee, context, square, cross)| {
                let (square, cross) = (f64::from(square) / 1e9, f64::from(cross) / 1e9);
                format!(
                    r#"{{"kind": "PiecewiseLinear", "base": {base}, "per_token": {token}, "knee": {knee},
                    "per_context_token": {context}, "per_prefill_square": {square}, "per_chunk_context": {cross}}}"#
                )
            }
        ),
        (micro(1000, 9000), micro(0, 30)).prop_map(|(base, token)| format!(
            r#"{{"kind": "MemoryLinear", "base": {base}, "per_kv_token": {token}}}"#
        )),
        (micro(1000, 20_000), micro(1, 100), micro(1000, 9000)).prop_map(|(alpha, beta, solo)| format!(
            r#"{{"kind": "MixedSolo", "alpha": {alpha}, "beta": {beta}, "solo": {solo}}}"#
        )),
    ]
}

fn scheduler(token_budget: u64, max_seqs: u64) -> impl Strategy<Value = String> {
    let limits = format!(r#""token_budget": {token_budget}, "max_seqs": {max_seqs}"#);
    let watermark = prop_oneof![Just(0.0), Just(0.01), Just(0.1)];
    let preemption = prop_oneof![
        2 => Just(r#"{"kind": "Recompute"}"#),
        1 => Just(r#"{"kind": "Swap", "per_token": 0.000002, "base": 0.001}"#),
    ];
    let common = (watermark, preemption, any::<bool>(), any::<bool>(), 0_u32..4, 0_u32..40);
    common.prop_map(move |(watermark, preemption, first, second, which, threshold)| match which {
        0 => format!(r#"{{"kind": "VllmV0", {limits}, "watermark": {watermark}, "preemption": {preemption}}}"#),
        1 => {
            let policy = if first { "fcfs" } else { "priority" };
            format!(
                r#"{{"kind": "VllmV1", {limits}, "long_prefill_threshold": {}, "policy": "{policy}",
                "reserve_full_prompt": {second}}}"#,
                if threshold < 20 { 0 } else { threshold - 19 }
            )
        }
        _ => {
            let order = if first { "fcfs" } else { "spf" };
            format!(
                r#"{{"kind": "Sarathi", {limits}, "order": "{order}", "watermark": {watermark},
                "preemption": {preemption}}}"#
            )
        }
    })
}

fn columns(longest_prompt: i32, longest_output: i32) -> impl Strategy<Value = Columns> {
    let row = (
        prop_oneof![3 => 0_u32..3, 2 => 0_u32..2000, 1 => Just(200_000)],
        1..=longest_prompt,
        1..=longest_output,
        0..CLASSES as u32,
        0_i64..3,
        prop_oneof![4 => Just(f64::NAN), 1 => (0_u32..100).prop_map(|ms| f64::from(ms) / 1e3)],
    );
    prop::collection::vec(row, 1..30).prop_map(|rows| {
        let mut columns = Columns::default();
        let mut microseconds = 0_u64;
        for (gap, prompt, output, class, priority, patience) in rows {
            microseconds += u64::from(gap) * 10;
            columns.arrival_s.push(microseconds as f64 / 1e6);
            columns.prompt_tokens.push(prompt);
            columns.output_tokens.push(output);
            columns.class.push(class);
            columns.priority.push(priority);
            columns.patience_s.push(patience);
        }
        columns
    })
}

/// Any scenario.
pub(crate) fn scenario() -> impl Strategy<Value = Scenario> {
    let shape = (
        prop_oneof![Just(1_u64), Just(4), Just(7), Just(16)],
        prop_oneof![Just(20), Just(60), Just(200)],
        prop_oneof![Just(1), Just(8), Just(60)],
        prop_oneof![Just(8_u64), Just(16), Just(64), Just(512)],
        prop_oneof![Just(1_u64), Just(3), Just(8), Just(128)],
        prop_oneof![1 => Just(None), 3 => (70_u64..400).prop_map(Some)],
        prop_oneof![2 => Just(r#""prefill""#), 1 => Just(r#""decode""#)],
        prop_oneof![4 => Just(None), 1 => (1_u32..400).prop_map(|ms| Some(f64::from(ms) / 1e3))],
        (0_u32..4, 0_u32..40),
    );
    shape.prop_flat_map(|(block, prompt, output, budget, seqs, tightness, first_token, horizon_s, measured)| {
        (columns(prompt, output), timing(), scheduler(budget, seqs)).prop_map(move |(columns, timing, scheduler)| {
            let kv_tokens = tightness.map(|percent| (prompt + output) as u64 * percent / 100 + block);
            let kv = kv_tokens.map_or("null".to_owned(), |tokens| tokens.to_string());
            let engine = format!(
                r#"{{"timing": {timing}, "scheduler": {scheduler}, "kv": {{"tokens": {kv}, "block": {block}}},
                "first_token": {first_token}}}"#
            );
            Scenario {
                columns,
                engine,
                kv_tokens,
                block,
                token_budget: budget,
                max_seqs: seqs,
                horizon_s,
                measured: measured.0..measured.1.max(measured.0),
            }
        })
    })
}
