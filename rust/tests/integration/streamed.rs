//! A streamed run equals the run over the whole workload, bit for bit, for any division into parts.

use inferq_core::clock::{Instant, SECOND, Span};
use inferq_core::cluster::{Cluster, HandsTo, Pool};
use inferq_core::error::Result;
use inferq_core::links::LinkDescription;
use inferq_core::results::{RequestColumns, RequestRows, Results};
use inferq_core::simulation::{
    Options, Outline, Rows, Sink, Timeline, WorkloadSource, simulate_cluster, simulate_streamed,
};
use inferq_core::workload::{Columns, NO_ROW, Workload};
use proptest::prelude::*;
use std::num::NonZeroUsize;

use crate::fleet::{built, router};
use crate::laws::Outcome;
use crate::scenario::{self, CLASSES, OWN, Scenario, any_scenario};
use crate::tier::cases;

/// Parts of a workload with the given sizes, repeated.
struct Parts<'a> {
    columns: &'a scenario::Columns,
    sizes: std::iter::Cycle<std::slice::Iter<'a, usize>>,
    taken: usize,
}

impl WorkloadSource for Parts<'_> {
    fn next(&mut self) -> Result<Option<Columns>> {
        let count = self.columns.arrival_s.len();
        let size = *self.sizes.next().expect("a size");
        if self.taken == count {
            return Ok(None);
        }
        let first = self.taken;
        let range: Vec<usize> = (first..(first + size).min(count)).collect();
        self.taken += range.len();
        let part = rows(self.columns, &range);
        Ok(Some(if first.is_multiple_of(2) { linked(part, first) } else { part }))
    }
}

/// Some rows of a workload as core columns.
pub(crate) fn rows(columns: &scenario::Columns, rows: &[usize]) -> Columns {
    let part = columns.part(rows);
    Columns {
        arrival_s: part.arrival_s,
        prompt_tokens: part.prompt_tokens,
        output_tokens: part.output_tokens,
        class: part.class,
        priority: part.priority,
        max_output_tokens: part.max_output_tokens,
        patience_s: part.patience_s,
        cancel_s: part.cancel_s,
        itl_slo_s: part.itl_slo_s,
        queue_key: part.queue_key,
        session: part.session,
        content_start: part.content_start,
        content_id: part.content_id,
        content_tokens: part.content_tokens,
        ..Columns::default()
    }
}

/// The same rows; a row that continues another one of them has only its added content.
fn linked(part: Columns, first: usize) -> Columns {
    let rows = part.arrival_s.len();
    let mut linked = Columns { content_after: vec![NO_ROW; rows], content_continued: vec![0; rows], ..part.clone() };
    (linked.content_id, linked.content_tokens) = Default::default();
    for row in 0..part.content_start.len().saturating_sub(1) {
        let mut own = part.content_start[row] as usize..part.content_start[row + 1] as usize;
        let earlier_content = part.content_id[own.clone()].last().filter(|&&content| content >= OWN);
        if let Some(earlier) =
            earlier_content.and_then(|earlier_content| ((earlier_content - OWN) as usize).checked_sub(first))
        {
            linked.content_after[row] = earlier as u32;
            linked.content_continued[earlier] += 1;
            own.start = own.end - 1;
        }
        linked.content_id.extend(&part.content_id[own.clone()]);
        linked.content_tokens.extend(&part.content_tokens[own]);
        linked.content_start[row + 1] = linked.content_id.len() as u64;
    }
    linked
}

/// All columns, and the size of each delivery.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) lines: Vec<String>,
    deliveries: Vec<usize>,
}

impl Sink for Table {
    fn take(&mut self, rows: Rows) -> Result<()> {
        assert_eq!(rows.first as usize, self.lines.len(), "rows come in the order of their ids");
        self.deliveries.push(rows.requests.len());
        self.lines.extend(lines(&rows.columns(), &rows.class, &rows.prompt_tokens, &rows.output_tokens));
        Ok(())
    }
}

/// Each row in full, including absent values.
pub(crate) fn lines(requests: &RequestColumns, class: &[u32], prompts: &[i32], outputs: &[i32]) -> Vec<String> {
    let of_row = |row: usize| {
        let seconds = [
            &requests.arrival_s,
            &requests.admitted_s,
            &requests.first_token_s,
            &requests.finish_s,
            &requests.left_s,
            &requests.queue_s,
            &requests.ttft_s,
            &requests.tpot_s,
            &requests.max_itl_s,
            &requests.e2e_s,
            &requests.prefilled_s,
            &requests.handoff_s,
        ];
        let bits = seconds.map(|column| column.get(row).map(|seconds| seconds.to_bits()));
        let counts =
            (requests.replica[row], requests.status[row], requests.preemptions[row], requests.cached_tokens[row]);
        let prefill_replica = requests.prefill_replica.get(row);
        format!("{bits:?} {counts:?} {prefill_replica:?} {} {} {}", class[row], prompts[row], outputs[row])
    };
    (0..requests.status.len()).map(of_row).collect()
}

fn streamed(scenario: &Scenario, sizes: &[usize], cluster: Cluster, options: &Options) -> (Table, Results) {
    let outline = Outline::of(&scenario.columns.view(), options);
    let mut source = Parts { columns: &scenario.columns, sizes: sizes.iter().cycle(), taken: 0 };
    let mut table = Table::default();
    let results = simulate_streamed(&outline, &mut source, &mut table, cluster, options, &mut ()).expect("a run");
    (table, results)
}

/// The whole and the parts give the same rows and the same other results.
pub(crate) fn same(scenario: &Scenario, sizes: &[usize], cluster: impl Fn() -> Cluster, options: &Options) -> Outcome {
    let workload = scenario.columns.view();
    let whole = simulate_cluster(&workload, cluster(), options, &mut ()).expect("a run");
    let (table, results) = streamed(scenario, sizes, cluster(), options);
    let columns = whole.requests.columns(&workload, None);
    let expected = lines(&columns, workload.class, workload.prompt_tokens, workload.output_tokens);
    prop_assert_eq!(table.lines, expected);
    prop_assert_eq!(results, Results { requests: RequestRows::default(), ..whole });
    Ok(())
}

pub(crate) fn options(scenario: &Scenario, automatic: bool, threads: usize) -> Options {
    let options = scenario.options(false);
    let timeline = if automatic { Timeline::Automatic } else { options.timeline };
    Options { timeline, iterations: false, batches: false, threads: NonZeroUsize::new(threads), ..options }
}

pub(crate) fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        Just(vec![1]),
        Just(vec![2]),
        Just(vec![7]),
        prop::collection::vec(0_usize..30, 1..6).prop_map(|mut sizes| {
            sizes.push(1);
            sizes
        })
    ]
}

proptest! {
    #![proptest_config(cases(2_000))]

    #[test]
    fn parts_are_the_whole_on_one_replica(scenario in any_scenario(), sizes in sizes(), automatic: bool) {
        same(&scenario, &sizes, || Cluster::of_one(scenario.parts()), &options(&scenario, automatic, 1))?;
    }

    #[test]
    fn parts_are_the_whole_with_arrivals_on_iteration_boundaries(scenario in any_scenario(), sizes in sizes()) {
        let scenario = scenario.on_boundaries(2);
        same(&scenario, &sizes, || Cluster::of_one(scenario.parts()), &options(&scenario, false, 1))?;
    }

    #[test]
    fn parts_are_the_whole_under_every_router(
        scenario in any_scenario(), sizes in sizes(), replicas in 1_usize..5,
        router in router(), seed: u64, automatic: bool, threads in 1_usize..4,
    ) {
        let cluster = || {
            let engines = (0..replicas).map(|_| scenario.parts()).collect();
            Cluster::of_pools(vec![Pool { engines, router: Some(built(router.clone(), seed, 0)), hands_to: None, capacity: None }])
        };
        same(&scenario, &sizes, cluster, &options(&scenario, automatic, threads))?;
    }

    #[test]
    fn parts_are_the_whole_over_hand_offs(
        scenario in any_scenario(), sizes in sizes(), prefill in 1_usize..3, decode in 1_usize..3, latency_ms in 0_u32..400,
        router in router(), concurrent in prop::option::of(1_usize..3),
    ) {
        // An unlimited prefix cache without requests is an error of its own.
        let scenario = Scenario { engine: without_limit(&scenario.engine), kv_tokens: None, ..scenario };
        let link = LinkDescription {
            latency_s: f64::from(latency_ms) / 1000.0, bytes_per_s: 50.0, bytes_per_token: 1.0, concurrent,
        };
        let pool = |count: usize, place: u64, hands_to| Pool {
            engines: (0..count).map(|_| scenario.parts()).collect(), router: Some(built(router.clone(), 3, place)), hands_to,
            capacity: None,
        };
        let cluster = || {
            let hands_to = HandsTo { pool: 1, link: link.build().expect("a link") };
            Cluster::of_pools(vec![pool(prefill, 0, Some(hands_to)), pool(decode, 1, None)])
        };
        same(&scenario, &sizes, cluster, &options(&scenario, true, 1))?;
    }
}

pub(crate) fn without_limit(engine: &str) -> String {
    let mut engine: serde_json::Value = serde_json::from_str(engine).expect("JSON");
    engine["kv"]["tokens"] = serde_json::Value::Null;
    engine.to_string()
}

/// Constant iterations of one second, with at most four requests.
fn calm() -> inferq_core::engine::EngineParts {
    let engine: inferq_core::engine::Engine = inferq_core::engine::parse(
        r#"{"timing": {"kind": "Constant", "seconds": 1}, "kv": {"tokens": null, "block": 4},
            "scheduler": {"kind": "Sarathi", "token_budget": 40, "max_seqs": 4, "order": "fcfs", "watermark": 0,
                          "preemption": {"kind": "Recompute"}},
            "first_token": "prefill"}"#,
    )
    .expect("an engine");
    engine.build(Some(&[])).expect("a replica")
}

/// Fixed parts.
struct FixedParts(std::vec::IntoIter<Columns>);

impl WorkloadSource for FixedParts {
    fn next(&mut self) -> Result<Option<Columns>> {
        Ok(self.0.next())
    }
}

fn part(arrival_s: &[f64], output_tokens: i32) -> Columns {
    let rows = arrival_s.len();
    Columns {
        arrival_s: arrival_s.to_vec(),
        prompt_tokens: vec![1; rows],
        output_tokens: vec![output_tokens; rows],
        ..Columns::default()
    }
}

fn run(parts: Vec<Columns>, arriving: u64, last_s: u128) -> Result<Table> {
    let outline = Outline { class_count: 1, arriving, last_arrival: Instant(last_s * SECOND) };
    let options = Options {
        measured: 0..u32::MAX,
        timeline: Timeline::Every(Span(SECOND)),
        ..Options::all(&Workload::default())
    };
    let mut table = Table::default();
    let mut source = FixedParts(parts.into_iter());
    simulate_streamed(&outline, &mut source, &mut table, Cluster::of_one(calm()), &options, &mut ())?;
    Ok(table)
}

#[test]
fn memory_holds_only_requests_in_the_system() {
    // One request per second, each for one second: when a part arrives, all earlier requests but the last have left.
    let parts: Vec<Columns> = (0..50_u32)
        .map(|first| part(&(0..20).map(|row| f64::from(first * 20 + row)).collect::<Vec<f64>>(), 1))
        .collect();
    let table = run(parts, 1000, 999).expect("a run");
    assert_eq!(table.lines.len(), 1000);
    assert!(table.deliveries.len() >= 50 && table.deliveries.iter().all(|&rows| rows <= 22), "{:?}", table.deliveries);
}

#[test]
fn rows_behind_one_that_stays_wait_for_it() {
    let mut first = part(&[0.0, 1.0, 2.0], 1);
    first.output_tokens[0] = 500;
    let parts = std::iter::once(first).chain((3..20).map(|second: u32| part(&[f64::from(second)], 1))).collect();
    let table = run(parts, 20, 19).expect("a run");
    assert_eq!(table.deliveries, [20]);
}

#[test]
fn errors_name_the_row_of_the_whole() {
    let error = |parts| run(parts, 4, 9).err().expect("a wrong part").to_string();
    let back = error(vec![part(&[0.0, 1.0], 1), part(&[3.0, 2.0], 1)]);
    assert_eq!(back, "row 3: arrival_s is 2, before that of the previous row (3): sort by arrival_s");
    let across = error(vec![part(&[0.0, 5.0], 1), part(&[3.0, 4.0], 1)]);
    assert_eq!(across, "row 2: arrival_s is 3, before that of the previous row (5): sort by arrival_s");
    let empty = error(vec![part(&[0.0], 1), part(&[1.0], 1), part(&[2.0], 0)]);
    assert!(empty.starts_with("row 2: prompt_tokens and output_tokens must"), "{empty}");
}

#[test]
fn what_cannot_be_streamed_is_refused() {
    let refused = |options: &dyn Fn(&mut Options)| {
        let mut chosen = Options::all(&Workload::default());
        options(&mut chosen);
        let outline = Outline { class_count: 1, arriving: 0, last_arrival: Instant::ZERO };
        let mut source = FixedParts(Vec::new().into_iter());
        let cluster = Cluster::of_one(calm());
        let outcome = simulate_streamed(&outline, &mut source, &mut Table::default(), cluster, &chosen, &mut ());
        outcome.map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(refused(&|_| ()), Ok(()));
    let message = "is not supported by streamed runs";
    assert_eq!(refused(&|options| options.iterations = true), Err(format!("iterations: {message}")));
    assert_eq!(refused(&|options| options.batches = true), Err(format!("batches: {message}")));
}

#[test]
fn a_failing_sink_stops_the_run() {
    struct Full;
    impl Sink for Full {
        fn take(&mut self, _rows: Rows) -> Result<()> {
            Err(inferq_core::error::Kind::Stopped.into())
        }
    }
    let outline = Outline { class_count: CLASSES, arriving: 2, last_arrival: Instant(SECOND) };
    let mut source = FixedParts(vec![part(&[0.0], 1), part(&[9.0], 1)].into_iter());
    let options = Options::all(&Workload::default());
    let outcome = simulate_streamed(&outline, &mut source, &mut Full, Cluster::of_one(calm()), &options, &mut ());
    assert_eq!(outcome.expect_err("a full disk").to_string(), "the run was stopped");
}
