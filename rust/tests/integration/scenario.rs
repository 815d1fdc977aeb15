//! Random scenarios: every scheduler with every timing model, KV tight and loose, arrivals on iteration boundaries.

use inferq_core::clock::{Instant, Span};
use inferq_core::engine::{Engine, EngineParts, parse};
use inferq_core::kv::Segment;
use inferq_core::results::Results;
use inferq_core::simulation::{Options, Timeline, simulate};
use inferq_core::workload::{Content, NO_SESSION, Workload};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// A workload that owns its columns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Columns {
    pub(crate) arrival_s: Vec<f64>,
    pub(crate) prompt_tokens: Vec<i32>,
    pub(crate) output_tokens: Vec<i32>,
    pub(crate) class: Vec<u32>,
    pub(crate) priority: Vec<i64>,
    pub(crate) patience_s: Vec<f64>,
    pub(crate) tbt_slo_s: Vec<f64>,
    pub(crate) queue_key: Vec<f64>,
    pub(crate) session: Vec<u32>,
    /// With what each prompt begins; empty: no prompt with anything shared.
    pub(crate) content_start: Vec<u64>,
    pub(crate) content_id: Vec<u64>,
    pub(crate) content_tokens: Vec<u32>,
}

pub(crate) const CLASSES: usize = 2;

/// With the number of a row: what it alone says.
const OWN: u64 = 1 << 63;

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
            tbt_slo_s: &self.tbt_slo_s,
            queue_key: &self.queue_key,
            session: &self.session,
            content: Content { start: &self.content_start, id: &self.content_id, tokens: &self.content_tokens },
            ..Workload::default()
        }
    }

    /// Some rows as a workload of their own.
    pub(crate) fn rows(&self, rows: &[usize]) -> Columns {
        let mut columns = self.part(rows);
        for id in columns.content_id.iter_mut().filter(|id| **id >= OWN) {
            let of = rows.iter().position(|&row| row as u64 == *id - OWN);
            *id = of.map_or(*id - OWN + 1000, |row| OWN | row as u64);
        }
        columns
    }

    /// Some rows of this workload.
    pub(crate) fn part(&self, rows: &[usize]) -> Columns {
        fn pick<T: Copy>(column: &[T], rows: &[usize]) -> Vec<T> {
            rows.iter().map(|&row| column[row]).collect()
        }
        let mut content = Columns::default();
        if !self.content_start.is_empty() {
            rows.iter().for_each(|&row| content.add_content(&self.view().content.of(row)));
        }
        Columns {
            arrival_s: pick(&self.arrival_s, rows),
            prompt_tokens: pick(&self.prompt_tokens, rows),
            output_tokens: pick(&self.output_tokens, rows),
            class: pick(&self.class, rows),
            priority: pick(&self.priority, rows),
            patience_s: pick(&self.patience_s, rows),
            tbt_slo_s: pick(&self.tbt_slo_s, rows),
            queue_key: pick(&self.queue_key, rows),
            session: pick(&self.session, rows),
            ..content
        }
    }

    /// The first rows.
    pub(crate) fn head(&self, rows: usize) -> Columns {
        self.rows(&(0..rows).collect::<Vec<_>>())
    }

    /// One row more of content.
    pub(crate) fn add_content(&mut self, segments: &[Segment]) {
        if self.content_start.is_empty() {
            self.content_start.push(0);
        }
        self.content_id.extend(segments.iter().map(|segment| segment.content));
        self.content_tokens.extend(segments.iter().map(|segment| segment.tokens));
        self.content_start.push(self.content_id.len() as u64);
    }

    /// The same rows with prompts that begin alike: with one shared text or two, or with the whole prompt and output of an
    /// earlier row.
    fn sharing(&self, dice: &[ContentDice]) -> Columns {
        let mut columns = Columns { content_start: Vec::new(), ..self.clone() };
        let mut chains: Vec<Vec<Segment>> = Vec::new();
        for (row, &(kind, text, share, more)) in dice.iter().enumerate().take(self.arrival_s.len()) {
            let prompt = self.prompt_tokens[row] as u32;
            let of = |text: u64, tokens: u32| Segment { content: text, tokens };
            let mut chain = Vec::new();
            let earlier = (more as usize).checked_rem(row).unwrap_or(0);
            if kind < 3 && row > 0 {
                let said = (columns.prompt_tokens[earlier] + columns.output_tokens[earlier]) as u32;
                if said < 400 {
                    chain.clone_from(&chains[earlier]);
                    let shared: u32 = chain.iter().map(|segment| segment.tokens).sum();
                    chain.push(of(OWN | earlier as u64, said - shared));
                    columns.prompt_tokens[row] = (said + more % 20) as i32;
                }
            } else if kind < 8 {
                let first = (prompt * share / 8).max(1);
                chain.push(of(text, first));
                if kind < 5 && first < prompt {
                    chain.push(of(1 - text % 2, (prompt - first).min(more + 1)));
                }
            }
            columns.add_content(&chain);
            chains.push(chain);
        }
        columns
    }

    /// All times twice as long.
    pub(crate) fn slower(&self) -> Columns {
        Columns {
            arrival_s: self.arrival_s.iter().map(|s| s * 2.0).collect(),
            patience_s: self.patience_s.iter().map(|s| s * 2.0).collect(),
            tbt_slo_s: self.tbt_slo_s.iter().map(|s| s * 2.0).collect(),
            ..self.clone()
        }
    }

    /// The same rows with other arrivals, sorted.
    fn arriving(&self, mut arrival_s: Vec<f64>) -> Columns {
        arrival_s.sort_by(f64::total_cmp);
        Columns { arrival_s, ..self.clone() }
    }
}

/// What a row shares: how, which text, how much of its prompt in eighths, and a number for the rest.
type ContentDice = (u32, u64, u32, u32);

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
        parse::<Engine>(&self.engine).expect("JSON").build(Some(&["a".into(), "b".into()])).expect("an engine")
    }

    pub(crate) fn options(&self, stepping: bool) -> Options {
        Options {
            horizon: self.horizon_s.map(|s| Instant((s * 1e9).round() as u128 * 1_000_000_000)),
            measured: self.measured.clone(),
            timeline: Timeline::Every(Span(7_777_777_777_777_777)),
            iterations: true,
            batches: true,
            stepping,
            threads: None,
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
        (0_usize..3, 0_usize..3, 0_usize..3, micro(1000, 9000), micro(0, 30), micro(0, 5), micro(0, 5)).prop_map(
            |(rows, columns, reduction, tile, token, gemm, gemv)| {
                let (rows, columns, reduction) = ([1, 4, 16][rows], [2, 4, 8][columns], [1, 2, 16][reduction]);
                format!(
                    r#"{{"kind": "TiledGemm", "rows": {rows}, "columns": {columns}, "reduction": {reduction}, "width": 32,
                    "linear_s_per_tile": {tile}, "other_s_per_token": {token}, "gemm_s": {gemm}, "gemv_s": {gemv},
                    "layers": 2}}"#
                )
            }
        ),
        roofline(),
        table(),
    ]
}

fn roofline() -> impl Strategy<Value = String> {
    let micro = |low: u32, high: u32| (low..high).prop_map(|us| f64::from(us) / 1e6);
    let costs = (micro(1, 100), micro(0, 2000), micro(0, 50), 1_u32..50, 0_u32..100, micro(0, 10), micro(0, 10));
    (costs, micro(1000, 9000), micro(0, 20)).prop_map(
        |((flops, weight, activation, pair, pairs, compute, memory), base, exchange)| {
            // Reading a token costs as much as so many pairs, so that the two lines of a chunk often cross.
            let (pair, read) = (f64::from(pair) / 1e8, f64::from(pair * pairs) / 1e8);
            format!(
                r#"{{"kind": "Roofline", "base_s": {base}, "all_reduce": {{"latency_s": {base}, "s_per_token": {exchange}}},
                "linear": {{"flops_s_per_token": {flops}, "weight_s": {weight}, "activation_s_per_token": {activation}}},
                "chunk": {{"compute_s_per_pair": {pair}, "memory_s_per_token": {read}}},
                "decode": {{"compute_s_per_token": {compute}, "memory_s_per_token": {memory}}}}}"#
            )
        },
    )
}

/// Small grids with large and small cells, beyond which many batches go. Times of attention fall as well as rise; the linear
/// layers of one token are measured, so that every batch takes a while.
fn table() -> impl Strategy<Value = String> {
    let points = |least: u64, most: u64| {
        prop::collection::btree_set(least..most, 2..6).prop_map(|points| points.into_iter().collect::<Vec<u64>>())
    };
    let axes = (points(1, 80), points(1, 80), points(0, 250), points(1, 12), points(0, 250));
    axes.prop_flat_map(|(mut tokens, chunk, context, sequences, mean_context)| {
        tokens[0] = 1;
        let row = |low: u32, high: u32, width: usize| {
            prop::collection::vec((low..high).prop_map(|us| f64::from(us) / 1e6), width)
        };
        let times = (
            row(1000, 3000, tokens.len()),
            prop::collection::vec(row(0, 900, context.len()), chunk.len()),
            prop::collection::vec(row(0, 900, mean_context.len()), sequences.len()),
            any::<bool>(),
        );
        times.prop_map(move |(mut of_linear, of_chunk, of_decode, shares)| {
            of_linear.sort_by(f64::total_cmp);
            let least = of_chunk.iter().flatten().copied().fold(1.0, f64::min);
            let shared_s = if shares { least } else { 0.0 };
            format!(
                r#"{{"kind": "TimingTable", "linear": {{"tokens": {tokens:?}, "seconds": {of_linear:?}}},
                "chunk": {{"chunk": {chunk:?}, "context": {context:?}, "seconds": {of_chunk:?},
                    "shared_s": {shared_s:?}}},
                "decode": {{"sequences": {sequences:?}, "mean_context": {mean_context:?}, "seconds": {of_decode:?}}}}}"#
            )
        })
    })
}

/// The host's share of an iteration, mostly none.
fn overhead() -> impl Strategy<Value = String> {
    let some = (0_u32..9000, 0_u32..300, any::<bool>()).prop_map(|(base, per_sequence, overlapped)| {
        let (base, per_sequence) = (f64::from(base) / 1e6, f64::from(per_sequence) / 1e6);
        format!(r#"{{"base_s": {base}, "per_sequence_s": {per_sequence}, "overlapped": {overlapped}}}"#)
    });
    prop_oneof![2 => Just("{}".to_owned()), 1 => some]
}

/// A scheduler as JSON, and the bounds that its iterations keep.
#[derive(Clone, Debug)]
struct Described {
    json: String,
    token_budget: u64,
    max_seqs: u64,
}

/// What the parameters of a policy are drawn from.
#[derive(Clone, Copy, Debug)]
struct Choices {
    token_budget: u64,
    max_seqs: u64,
    longest: u64,
    block: u64,
}

/// A few small numbers, to be used as a policy pleases.
type Dice = (bool, bool, u32, u32, u32);

fn order(dice: u32) -> &'static str {
    ["fcfs", "fcfs", "spf", "srf", "lpf", "ByKey"][dice as usize % 6]
}

fn describe(kind: &str, choices: Choices, watermark: f64, preemption: &str, dice: Dice) -> Described {
    const NONE: u64 = u64::MAX;
    let Choices { token_budget, max_seqs, longest, block } = choices;
    let (first, second, small, middle, large) = dice;
    let limits = format!(r#""token_budget": {token_budget}, "max_seqs": {max_seqs}"#);
    let bounds = |json: String, token_budget, max_seqs| Described { json, token_budget, max_seqs };
    let model_len = if small % 3 == 0 { longest / 2 + 1 } else { longest };
    match kind {
        "Sarathi" => {
            let json = format!(
                r#"{{"kind": "Sarathi", {limits}, "order": "{}", "watermark": {watermark}, "preemption": {preemption}}}"#,
                order(small)
            );
            bounds(json, token_budget, max_seqs)
        }
        "VllmV0" => {
            let json =
                format!(r#"{{"kind": "VllmV0", {limits}, "watermark": {watermark}, "preemption": {preemption}}}"#);
            bounds(json, token_budget, max_seqs)
        }
        "VllmV1" => {
            let policy = if first { "fcfs" } else { "priority" };
            let threshold = if small < 3 { 0 } else { middle };
            let json = format!(
                r#"{{"kind": "VllmV1", {limits}, "long_prefill_threshold": {threshold}, "policy": "{policy}",
                "reserve_full_prompt": {second}}}"#
            );
            bounds(json, token_budget, max_seqs)
        }
        "Sglang" => {
            let policy = if first { "fcfs" } else { "lpm" };
            let mixed = second && small > 0;
            let chunk = token_budget.max(block).max(if mixed { max_seqs + 1 } else { 0 });
            let chunk = if small == 0 { "null".to_owned() } else { chunk.to_string() };
            let input = [1, 16, 64, 16_384][small as usize % 4];
            let conservativeness = [0.0, 0.05, 0.3, 1.0, 1.3][large as usize % 5];
            let json = format!(
                r#"{{"kind": "Sglang", "policy": "{policy}", "chunk_tokens": {chunk}, "max_prefill_tokens": {input},
                "max_seqs": {max_seqs}, "mixed": {mixed}, "conservativeness": {conservativeness},
                "ignore_eos": {}}}"#,
                middle % 3 == 0
            );
            bounds(json, NONE, max_seqs)
        }
        "Orca" => {
            let budget = if first || second { token_budget.to_string() } else { "null".to_owned() };
            let json = format!(
                r#"{{"kind": "Orca", "max_seqs": {max_seqs}, "max_model_len": {model_len}, "token_budget": {budget},
                "chunked": {first}}}"#
            );
            bounds(json, if first || second { token_budget } else { NONE }, max_seqs)
        }
        "FasterTransformer" => {
            let free = if first { "each" } else { "batch" };
            let json = format!(
                r#"{{"kind": "FasterTransformer", "max_seqs": {max_seqs}, "max_model_len": {model_len}, "free": "{free}"}}"#
            );
            bounds(json, NONE, max_seqs)
        }
        "KFcfs" => {
            let k = |dice: u32| if dice < 3 { u64::from(dice) + 1 } else { token_budget };
            let json = format!(
                r#"{{"kind": "KFcfs", "token_budget": {token_budget}, "k_prefill": {}, "k_decode": {}}}"#,
                k(small),
                k(middle)
            );
            bounds(json, token_budget, NONE)
        }
        "Rad" | "RadPhased" => {
            let (rows, columns, reduction) =
                ([1, 4, 8][small as usize % 3], middle % 5 + 1, [1, 2, 16][large as usize % 3]);
            let cycle = large % 7 + 1;
            let json = format!(
                r#"{{"kind": "{kind}", "rows": {rows}, "columns": {columns}, "reduction": {reduction},
                "requests_per_cycle": {cycle}}}"#
            );
            bounds(json, NONE, u64::from(if kind == "Rad" { columns } else { cycle.max(columns) }))
        }
        "Slai" => {
            let offset = if first {
                format!("{}", f64::from(middle) / 2.0 + 0.25)
            } else {
                format!(
                    r#"{{"kind": "DynamicOffset", "low": {}, "high": {}, "kv_share": 0.{}}}"#,
                    f64::from(small) / 2.0 + 0.5,
                    middle + 1,
                    large % 5 + 5
                )
            };
            let class = if second { "null" } else { r#""b""# };
            let json = format!(
                r#"{{"kind": "Slai", "token_budget": {token_budget}, "max_active": {max_seqs}, "max_decodes": {},
                "offset": {offset}, "order": "{}", "class_first": {class}}}"#,
                large % 6 + 1,
                order(small)
            );
            bounds(json, token_budget, max_seqs)
        }
        "Wait" => {
            let thresholds = if first {
                format!("{}", small % 3 + 1)
            } else {
                format!(r#"{{"a": {}, "b": {}}}"#, small % 3 + 1, middle % 3 + 1)
            };
            let cap = if second { "null".to_owned() } else { max_seqs.to_string() };
            let json = format!(r#"{{"kind": "Wait", "thresholds": {thresholds}, "max_seqs": {cap}}}"#);
            bounds(json, NONE, if second { NONE } else { max_seqs })
        }
        "NestedWait" => {
            let (segments, thresholds) = match small % 3 {
                0 => ("[0, 2]".to_owned(), format!("[{}, {}]", large % 3 + 1, large % 2 + 1)),
                1 => (format!("[{}]", middle % 9), format!("[{}]", large % 4 + 1)),
                _ => (format!("[1, {}, 30]", middle % 9 + 3), "[3, 2, 1]".to_owned()),
            };
            let groups = if second { "[]".to_owned() } else { format!("[{}]", longest / 4 + 1) };
            let json = format!(
                r#"{{"kind": "NestedWait", "segments": {segments}, "thresholds": {thresholds}, "prompt_groups": {groups}}}"#
            );
            bounds(json, NONE, NONE)
        }
        "SlotGreedy" => bounds(format!(r#"{{"kind": "SlotGreedy", "chunk": {token_budget}}}"#), NONE, NONE),
        "ClassPriority" => {
            let inner = ["Sarathi", "VllmV1", "KFcfs", "Orca"][large as usize % 4];
            let inner = describe(inner, choices, watermark, preemption, (true, second, small, middle, large));
            let classes = if first { r#"["a", "b"]"# } else { r#"["b", "a"]"# };
            let json = format!(r#"{{"kind": "ClassPriority", "order": {classes}, "inner": {}}}"#, inner.json);
            Described { json, ..inner }
        }
        _ => panic!("{kind} is no policy"),
    }
}

fn scheduler(kind: &'static str, choices: Choices) -> impl Strategy<Value = Described> {
    let watermark = prop_oneof![Just(0.0), Just(0.01), Just(0.1)];
    let preemption = prop_oneof![
        2 => Just(r#"{"kind": "Recompute"}"#),
        1 => Just(r#"{"kind": "Swap", "per_token": 0.000002, "base": 0.001}"#),
    ];
    let dice = (any::<bool>(), any::<bool>(), 0_u32..6, 0_u32..20, 0_u32..30);
    (watermark, preemption, dice)
        .prop_map(move |(watermark, preemption, dice)| describe(kind, choices, watermark, preemption, dice))
}

fn columns(longest_prompt: i32, longest_output: i32) -> impl Strategy<Value = Columns> {
    let row = (
        prop_oneof![3 => 0_u32..3, 2 => 0_u32..2000, 1 => Just(200_000)],
        1..=longest_prompt,
        1..=longest_output,
        0..CLASSES as u32,
        0_i64..3,
        prop_oneof![4 => Just(f64::NAN), 1 => (0_u32..100).prop_map(|ms| f64::from(ms) / 1e3)],
        prop_oneof![1 => Just(f64::NAN), 2 => (0_u32..300).prop_map(|ms| f64::from(ms) / 1e3)],
        (-5_i32..5).prop_map(|key| f64::from(key) / 2.0),
        prop_oneof![1 => Just(NO_SESSION), 2 => 0_u32..4],
    );
    prop::collection::vec(row, 1..30).prop_map(|rows| {
        let mut columns = Columns::default();
        let mut microseconds = 0_u64;
        for (gap, prompt, output, class, priority, patience, tbt_slo, queue_key, session) in rows {
            microseconds += u64::from(gap) * 10;
            columns.arrival_s.push(microseconds as f64 / 1e6);
            columns.prompt_tokens.push(prompt);
            columns.output_tokens.push(output);
            columns.class.push(class);
            columns.priority.push(priority);
            columns.patience_s.push(patience);
            columns.tbt_slo_s.push(tbt_slo);
            columns.queue_key.push(queue_key);
            columns.session.push(session);
        }
        columns
    })
}

/// So many scenarios at night, each night others; on a change a fifth of them, always the same.
pub(crate) fn cases(at_night: u32) -> ProptestConfig {
    if std::env::var_os("INFERQ_NIGHT").is_some() {
        return ProptestConfig::with_cases(at_night);
    }
    ProptestConfig { cases: at_night / 5, rng_seed: RngSeed::Fixed(0), ..ProptestConfig::default() }
}

/// Any scenario of a policy.
pub(crate) fn scenario(kind: &'static str) -> impl Strategy<Value = Scenario> {
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
    shape.prop_flat_map(move |(block, prompt, output, budget, seqs, tightness, first_token, horizon_s, measured)| {
        let choices = Choices { token_budget: budget, max_seqs: seqs, longest: (prompt + output) as u64, block };
        let parts = (columns(prompt, output), timing(), overhead(), scheduler(kind, choices));
        parts.prop_map(move |(columns, timing, overhead, scheduler)| {
            let kv_tokens = tightness.map(|percent| (prompt + output) as u64 * percent / 100 + block);
            let kv_tokens =
                kv_tokens.map(|tokens| if kind == "Sglang" { (tokens / block + 1) * block } else { tokens });
            let kv = kv_tokens.map_or("null".to_owned(), |tokens| tokens.to_string());
            let engine = format!(
                r#"{{"timing": {timing}, "scheduler": {}, "kv": {{"tokens": {kv}, "block": {block}}},
                "first_token": {first_token}, "overhead": {overhead}}}"#,
                scheduler.json
            );
            Scenario {
                columns,
                engine,
                kv_tokens,
                block,
                token_budget: scheduler.token_budget,
                max_seqs: scheduler.max_seqs,
                horizon_s,
                measured: measured.0..measured.1.max(measured.0),
            }
        })
    })
}

/// Any scenario of a policy with a prefix cache, and prompts that begin alike.
pub(crate) fn sharing(kind: &'static str) -> impl Strategy<Value = Scenario> {
    let dice = prop::collection::vec((0_u32..9, 0_u64..3, 1_u32..=8, 0_u32..60), 30);
    (scenario(kind), dice, any::<bool>()).prop_map(move |(scenario, dice, in_blocks)| {
        let cache = if in_blocks && kind != "Sglang" { "blocks" } else { "radix" };
        let kv = format!(r#""kv": {{"prefix_cache": "{cache}", "#);
        let engine = scenario.engine.replace(r#""kv": {"#, &kv);
        Scenario { columns: scenario.columns.sharing(&dice), engine, ..scenario }
    })
}

/// A scenario of a policy, with a prefix cache or without.
pub(crate) fn with_or_without_cache(kind: &'static str) -> impl Strategy<Value = Scenario> {
    prop_oneof![2 => scenario(kind), 1 => sharing(kind)]
}
