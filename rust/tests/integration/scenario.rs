//! Random scenarios: every scheduler with every timing model, small and large KV caches, arrivals at the ends of
//! iterations.

use inferq_core::clock::{Instant, Span};
use inferq_core::dice::{Dice, Scale};
use inferq_core::engine::{Engine, EngineParts, parse};
use inferq_core::kv::Segment;
use inferq_core::results::RequestColumns;
use inferq_core::scheduler::SchedulerConfig;
use inferq_core::simulation::{Options, Timeline, simulate};
use inferq_core::timing::TimingModel;
use inferq_core::workload::{Content, NO_SESSION, Workload};
use proptest::prelude::*;

/// Results with the columns of the requests.
pub(crate) type Results = inferq_core::results::Results<RequestColumns>;

/// A workload that owns its columns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Columns {
    pub(crate) arrival_s: Vec<f64>,
    pub(crate) prompt_tokens: Vec<i32>,
    pub(crate) output_tokens: Vec<i32>,
    pub(crate) class: Vec<u32>,
    pub(crate) priority: Vec<i64>,
    pub(crate) max_output_tokens: Vec<i32>,
    pub(crate) patience_s: Vec<f64>,
    pub(crate) cancel_s: Vec<f64>,
    pub(crate) itl_slo_s: Vec<f64>,
    pub(crate) queue_key: Vec<f64>,
    pub(crate) session: Vec<u32>,
    /// Content of each prompt; empty: no prompt shares anything.
    pub(crate) content_start: Vec<u64>,
    pub(crate) content_id: Vec<u64>,
    pub(crate) content_tokens: Vec<u32>,
}

pub(crate) const CLASSES: usize = 2;

/// Marks a content id of a single row.
pub(crate) const OWN: u64 = 1 << 63;

impl Columns {
    pub(crate) fn view(&self) -> Workload<'_> {
        Workload {
            arrival_s: &self.arrival_s,
            prompt_tokens: &self.prompt_tokens,
            output_tokens: &self.output_tokens,
            class: &self.class,
            class_count: CLASSES,
            priority: &self.priority,
            max_output_tokens: &self.max_output_tokens,
            patience_s: &self.patience_s,
            cancel_s: &self.cancel_s,
            itl_slo_s: &self.itl_slo_s,
            queue_key: &self.queue_key,
            session: &self.session,
            content: Content {
                start: &self.content_start,
                id: &self.content_id,
                tokens: &self.content_tokens,
                ..Content::default()
            },
            ..Workload::default()
        }
    }

    /// Some rows as a separate workload.
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
            max_output_tokens: pick(&self.max_output_tokens, rows),
            patience_s: if self.patience_s.is_empty() { Vec::new() } else { pick(&self.patience_s, rows) },
            cancel_s: if self.cancel_s.is_empty() { Vec::new() } else { pick(&self.cancel_s, rows) },
            itl_slo_s: pick(&self.itl_slo_s, rows),
            queue_key: pick(&self.queue_key, rows),
            session: pick(&self.session, rows),
            ..content
        }
    }

    /// The first rows.
    pub(crate) fn head(&self, rows: usize) -> Columns {
        self.rows(&(0..rows).collect::<Vec<_>>())
    }

    /// Adds the content of a row.
    pub(crate) fn add_content(&mut self, segments: &[Segment]) {
        if self.content_start.is_empty() {
            self.content_start.push(0);
        }
        self.content_id.extend(segments.iter().map(|segment| segment.content));
        self.content_tokens.extend(segments.iter().map(|segment| segment.tokens));
        self.content_start.push(self.content_id.len() as u64);
    }

    /// The same rows with shared prefixes: one or two shared texts, or the whole prompt and output of an earlier row.
    fn sharing(&self, dice: &[ContentDice]) -> Columns {
        let mut columns = Columns { content_start: Vec::new(), ..self.clone() };
        let mut chains: Vec<Vec<Segment>> = Vec::new();
        for (row, &(kind, text, share, more)) in dice.iter().enumerate().take(self.arrival_s.len()) {
            let prompt = self.prompt_tokens[row] as u32;
            let of = |text: u64, tokens: u32| Segment { content: text, tokens };
            let mut chain = Vec::new();
            let earlier = (more as usize).checked_rem(row).unwrap_or(0);
            if kind < 3 && row > 0 {
                let context = (columns.prompt_tokens[earlier] + columns.output_tokens[earlier]) as u32;
                if context < 400 {
                    chain.clone_from(&chains[earlier]);
                    let shared: u32 = chain.iter().map(|segment| segment.tokens).sum();
                    chain.push(of(OWN | earlier as u64, context - shared));
                    columns.prompt_tokens[row] = (context + more % 20) as i32;
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

    /// All times doubled.
    pub(crate) fn slower(&self) -> Columns {
        Columns {
            arrival_s: self.arrival_s.iter().map(|s| s * 2.0).collect(),
            patience_s: self.patience_s.iter().map(|s| s * 2.0).collect(),
            cancel_s: self.cancel_s.iter().map(|s| s * 2.0).collect(),
            itl_slo_s: self.itl_slo_s.iter().map(|s| s * 2.0).collect(),
            ..self.clone()
        }
    }

    /// The same rows with other arrivals, sorted.
    fn arriving(&self, mut arrival_s: Vec<f64>) -> Columns {
        arrival_s.sort_by(f64::total_cmp);
        Columns { arrival_s, ..self.clone() }
    }
}

/// The shared content of a row: its kind, the text, the shared part of the prompt in eighths, and a number for the
/// rest.
type ContentDice = (u32, u64, u32, u32);

/// A workload, an engine as JSON, and the options of the run.
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

    /// Whether rows have drafts, which count as tokens of the batch.
    pub(crate) fn drafts(&self) -> bool {
        self.engine.contains(r#""speculation":{"#)
    }

    /// Tokens that a request emits: its output, cut to the maximum length.
    pub(crate) fn owed(&self, row: usize) -> u64 {
        let longest = u64::from(self.parts().max_model_len);
        let (prompt, output) = (self.columns.prompt_tokens[row] as u64, self.columns.output_tokens[row] as u64);
        if prompt < longest { output.min(longest - prompt) } else { output }
    }

    pub(crate) fn options(&self, stepping: bool) -> Options {
        Options {
            horizon: self.horizon_s.map(|s| Instant((s * 1e9).round() as u128 * 1_000_000_000)),
            measured: self.measured.clone(),
            timeline: Timeline::Every(Span(7_777_777_777_777_777)),
            itl_limits: Vec::new(),
            iterations: true,
            batches: true,
            max_in_flight: None,
            stepping,
            in_attoseconds: false,
            threads: None,
        }
    }

    pub(crate) fn run(&self, stepping: bool) -> Results {
        let workload = self.columns.view();
        let results = simulate(&workload, self.parts(), &self.options(stepping), &mut ()).expect("a run");
        results.with_columns(&workload)
    }

    /// The same scenario with unlimited patience: without the column, or with explicit values.
    pub(crate) fn patient(&self, is_explicit: bool) -> Scenario {
        let rows = if is_explicit { self.columns.arrival_s.len() } else { 0 };
        Scenario { columns: Columns { patience_s: vec![f64::NAN; rows], ..self.columns.clone() }, ..self.clone() }
    }

    /// The same scenario with some arrivals exactly at ends of iterations.
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

/// Length of an iteration on the grid, in seconds.
const STEP: f64 = 0.01;

/// The nearest instant on the grid.
pub(crate) fn on_grid(seconds: f64) -> f64 {
    (seconds / STEP).round() / 100.0
}

impl Scenario {
    /// The same scenario with iterations of one length and all instants at ends of iterations, on any replica.
    pub(crate) fn on_grid(&self) -> Scenario {
        let mut engine: serde_json::Value = serde_json::from_str(&self.engine).expect("JSON");
        engine["timing"] = serde_json::json!({"kind": "Constant", "seconds": STEP});
        engine["overhead"] = serde_json::json!({});
        let mut columns = self.columns.clone();
        let (mut before, mut step) = (0.0, 0_u64);
        for arrival in &mut columns.arrival_s {
            // Gaps are tens of microseconds: a few, up to 2,000, or 200,000.
            let gap = ((*arrival - before) * 1e5).round() as u64;
            before = *arrival;
            step += if gap < 3 {
                gap
            } else if gap < 2_000 {
                gap % 12
            } else {
                40
            };
            *arrival = step as f64 / 100.0;
        }
        columns.patience_s.iter_mut().chain(&mut columns.cancel_s).for_each(|seconds| *seconds = on_grid(*seconds));
        Scenario { columns, engine: engine.to_string(), horizon_s: self.horizon_s.map(on_grid), ..self.clone() }
    }
}

/// Host time of an iteration, usually none.
fn overhead() -> impl Strategy<Value = String> {
    let beyond = prop_oneof![1 => Just(0), 1 => 1_u32..9000];
    let launch = prop_oneof![1 => Just(0), 1 => 1_u32..40_000];
    let exposed = prop_oneof![1 => Just(0), 1 => 1_u32..900];
    let some = (0_u32..9000, 0_u32..300, any::<bool>(), beyond, 0_u32..64, launch, exposed);
    let some = some.prop_map(|(base, per_sequence, overlapped, beyond, graph, launch, exposed)| {
        let [base, per_sequence, beyond, launch, exposed] =
            [base, per_sequence, beyond, launch, exposed].map(|each| f64::from(each) / 1e6);
        format!(
            r#"{{"base_s": {base}, "per_sequence_s": {per_sequence}, "overlapped": {overlapped},
            "largest_graph_tokens": {graph}, "beyond_graph_s": {beyond}, "launch_s": {launch},
            "exposed_s": {exposed}}}"#
        )
    });
    prop_oneof![2 => Just("{}".to_owned()), 1 => some]
}

/// Limits of tokens and sequences per iteration, from the description or the policy itself.
fn bounds(scheduler: &SchedulerConfig) -> (u64, u64) {
    let json = serde_json::to_value(scheduler).expect("JSON");
    let inner = json.get("inner").unwrap_or(&json);
    let named = |name: &str| inner.get(name).and_then(serde_json::Value::as_u64);
    let limits = scheduler.build(Some(&["a".into(), "b".into()])).expect("a scheduler").limits();
    let max_seqs = named("max_seqs").or(named("max_active")).unwrap_or(limits.max_seqs);
    (named("token_budget").unwrap_or(u64::MAX), max_seqs)
}

/// Random words for the parameters of a policy and a timing model.
pub(crate) fn words() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(any::<u32>(), 80)
}

fn columns(longest_prompt: i32, longest_output: i32) -> impl Strategy<Value = Columns> {
    let row = (
        prop_oneof![3 => 0_u32..3, 2 => 0_u32..2000, 1 => Just(200_000)],
        // If long prompts lack blocks, short ones may still fit.
        prop_oneof![2 => 1..=longest_prompt, 1 => 1..=longest_prompt.min(4)],
        1..=longest_output,
        0..CLASSES as u32,
        0_i64..3,
        prop_oneof![4 => Just(f64::NAN), 1 => (0_u32..100).prop_map(|ms| f64::from(ms) / 1e3)],
        prop_oneof![1 => Just(f64::NAN), 2 => (0_u32..300).prop_map(|ms| f64::from(ms) / 1e3)],
        (-5_i32..5).prop_map(|key| f64::from(key) / 2.0),
        prop_oneof![1 => Just(NO_SESSION), 2 => 0_u32..4],
        prop_oneof![2 => Just(f64::NAN), 1 => (0_u32..4000).prop_map(|ms| f64::from(ms) / 1e3)],
    );
    let are_equal = prop_oneof![5 => Just(false), 1 => Just(true)];
    let takes_back = prop_oneof![3 => Just(false), 1 => Just(true)];
    (prop::collection::vec(row, 1..30), any::<bool>(), are_equal, takes_back).prop_map(
        |(rows, is_patient, are_equal, takes_back)| {
            let mut columns = Columns::default();
            let mut microseconds = 0_u64;
            for (gap, prompt, output, class, priority, patience, itl_slo, queue_key, session, cancel) in rows {
                microseconds += if are_equal { 0 } else { u64::from(gap) * 10 };
                columns.arrival_s.push(microseconds as f64 / 1e6);
                columns.prompt_tokens.push(prompt);
                columns.output_tokens.push(output);
                columns.class.push(class);
                columns.priority.push(priority);
                // Every third end is foreseen by policies that plan ahead. For the others, no limit or a higher limit
                // is given.
                columns.max_output_tokens.push([output, 0, output + 1][class as usize + priority as usize % 2]);
                columns.patience_s.push(patience);
                columns.itl_slo_s.push(itl_slo);
                columns.queue_key.push(queue_key);
                columns.session.push(session);
                if takes_back {
                    columns.cancel_s.push(cancel);
                }
            }
            if is_patient {
                columns.patience_s.clear();
            }
            columns
        },
    )
}

/// Random scenarios of a policy.
pub(crate) fn scenario(kind: &'static str) -> BoxedStrategy<Scenario> {
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
    let of_shape = move |shape| {
        let (block, prompt, output, token_budget, max_seqs, tightness, first_token, horizon_s, measured): Shape = shape;
        let scale = Scale { token_budget, max_seqs, longest: (prompt + output) as u64, block };
        // Some requests exceed the maximum length.
        let longest = prop_oneof![4 => Just(None), 1 => (2..=(prompt + output) as u32).prop_map(Some)];
        let drawn = (columns(prompt, output), overhead(), longest, words());
        drawn.prop_map(move |(columns, overhead, longest, words)| {
            let mut dice = Dice::new(words, scale);
            let scheduler = SchedulerConfig::sample(kind, &mut dice).expect("a policy");
            let timing = TimingModel::sample(dice.one_of(TimingModel::KINDS), &mut dice).expect("a model");
            let kv_tokens = tightness.map(|percent| scale.longest * percent / 100 + block);
            let kv_tokens =
                kv_tokens.map(|tokens| if kind == "Sglang" { (tokens / block + 1) * block } else { tokens });
            let kv = kv_tokens.map_or("null".to_owned(), |tokens| tokens.to_string());
            let json = |described: Result<String, serde_json::Error>| described.expect("JSON");
            let engine = format!(
                r#"{{"timing": {}, "scheduler": {}, "kv": {{"tokens": {kv}, "block": {block}}},
                "first_token": {first_token}, "overhead": {overhead}, "max_model_len": {}}}"#,
                json(serde_json::to_string(&timing)),
                json(serde_json::to_string(&scheduler)),
                json(serde_json::to_string(&longest)),
            );
            let (token_budget, max_seqs) = bounds(&scheduler);
            let measured = measured.0..measured.1.max(measured.0);
            Scenario { columns, engine, kv_tokens, block, token_budget, max_seqs, horizon_s, measured }
        })
    };
    shape.prop_flat_map(of_shape).boxed()
}

/// Block, longest prompt and output, budget, sequences, memory in percent of the longest request, first token,
/// horizon and measured requests.
type Shape = (u64, i32, i32, u64, u64, Option<u64>, &'static str, Option<f64>, (u32, u32));

/// Random scenarios of a policy with a prefix cache and shared prefixes.
pub(crate) fn sharing(kind: &'static str) -> BoxedStrategy<Scenario> {
    let dice = prop::collection::vec((0_u32..9, 0_u64..3, 1_u32..=8, 0_u32..60), 30);
    let shared = (scenario(kind), dice, any::<bool>()).prop_map(move |(scenario, dice, in_blocks)| {
        let cache = if kind != "Sglang" && (in_blocks || scenario.drafts()) { "blocks" } else { "radix" };
        let kv = format!(r#""kv": {{"prefix_cache": "{cache}", "#);
        let engine = scenario.engine.replace(r#""kv": {"#, &kv);
        Scenario { columns: scenario.columns.sharing(&dice), engine, ..scenario }
    });
    shared.boxed()
}

/// Random scenarios of a cache with groups of layers. The cache is larger, because a token takes a block in every group.
pub(crate) fn with_layer_groups() -> BoxedStrategy<Scenario> {
    let layers = |window: u64, state: bool| {
        let window = (window > 0).then_some(window);
        (1_u64..9, 1_u64..3).prop_map(move |(layers, token_bytes)| {
            let token_bytes = if state { 2 } else { token_bytes };
            serde_json::json!({"layers": layers, "window": window, "state": state, "token_bytes": token_bytes})
        })
    };
    let windows = (2_u64..150, 2_u64..150).prop_flat_map(move |(first, second)| {
        (layers(0, false), layers(first, false), layers(second, false))
            .prop_map(|(full, first, second)| [full, first, second].to_vec())
    });
    let states = (layers(0, false), layers(0, true)).prop_map(|(mut full, state)| {
        full["token_bytes"] = 2.into();
        vec![full, state]
    });
    let groups = (
        prop_oneof![3 => windows.boxed(), 2 => states.boxed()],
        prop_oneof![Just(None), Just(Some(0_u64)), (1_u64..90).prop_map(Some)],
        any::<bool>(),
        2_u64..9,
    );
    let scenarios = prop_oneof![1 => scenario("VllmV1"), 2 => sharing("VllmV1")];
    let grouped = (scenarios, groups).prop_map(|(scenario, (kinds, retention_interval, saves, larger))| {
        let mut engine: serde_json::Value = serde_json::from_str(&scenario.engine).expect("JSON");
        engine["scheduler"]["speculation"] = serde_json::Value::Null;
        engine["first_token"] = "prefill".into();
        let kv = &mut engine["kv"];
        let kv_tokens = kv["tokens"].as_u64().map(|tokens| tokens * larger);
        kv["tokens"] = kv_tokens.into();
        if !kv["prefix_cache"].is_null() {
            kv["prefix_cache"] = "blocks".into();
        }
        kv["groups"] = serde_json::json!({
            "kinds": kinds, "retention_interval": retention_interval, "saves_states_in_rows": saves,
        });
        Scenario { engine: engine.to_string(), kv_tokens, ..scenario }
    });
    grouped.boxed()
}

/// Random scenarios on the grid, half of them of policies that can plan ahead.
pub(crate) fn grid_scenario() -> BoxedStrategy<Scenario> {
    let of_kind = |kind| prop_oneof![1 => scenario(kind), 1 => sharing(kind)];
    let ahead = prop::sample::select(&["VllmV1", "Sglang"][..]).prop_flat_map(of_kind);
    prop_oneof![1 => ahead, 1 => any_scenario()].prop_map(|scenario| scenario.on_grid()).boxed()
}

/// Random scenarios of any policy, with or without a prefix cache.
pub(crate) fn any_scenario() -> BoxedStrategy<Scenario> {
    let of_kind = |kind| prop_oneof![2 => scenario(kind), 1 => sharing(kind)];
    prop::sample::select(SchedulerConfig::KINDS).prop_flat_map(of_kind).boxed()
}
