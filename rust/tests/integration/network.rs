//! Tests of hand-offs between pools, sessions, and jobs of several stages.

use inferq_core::clock::{SECOND, Span};
use inferq_core::cluster::{Cluster, HandsTo, Pool};
use inferq_core::engine::{Engine, parse};
use inferq_core::finding::Kind;
use inferq_core::links::LinkDescription;
use inferq_core::results::{NO_REPLICA, Status};
use inferq_core::router::RouterConfig;
use inferq_core::simulation::{Options, simulate_cluster};
use inferq_core::workload::{Flow, Workload};
use proptest::prelude::*;
use std::num::NonZeroU64;

use crate::fleet::{built, router};
use crate::laws::{Outcome, same, tokens_of};
use crate::scenario::{CLASSES, Results, Scenario, any_scenario, scenario};
use crate::tier::cases;

/// Routing of requests between pools, and dependencies.
#[derive(Clone, Debug)]
struct Paths {
    /// Replicas of each pool.
    replicas: Vec<usize>,
    /// The pool to which the first pool hands off, and the link.
    link: Option<LinkDescription>,
    router: RouterConfig,
    pool: Vec<u32>,
    parents: Vec<u32>,
    children_start: Vec<u32>,
    children: Vec<u32>,
    delay_s: Vec<f64>,
    /// Limit of requests in flight.
    max_in_flight: Option<NonZeroU64>,
}

impl Paths {
    /// `waits[row]` picks the earlier rows that a row waits for.
    fn new(rows: usize, waits: &[(u32, u32, f64)], pools: &[u32], replicas: Vec<usize>, router: RouterConfig) -> Paths {
        let mut of_parent = vec![Vec::new(); rows];
        let (mut parents, mut delay_s) = (vec![0; rows], vec![0.0; rows]);
        for row in 1..rows {
            let (first, second, delay) = waits[row % waits.len()];
            let mut named = vec![first, second];
            named.retain(|&distance| distance > 0 && distance as usize <= row);
            named.dedup();
            for distance in named {
                of_parent[row - distance as usize].push(row as u32);
                parents[row] += 1;
            }
            delay_s[row] = delay;
        }
        let mut children_start = vec![0];
        let mut children = Vec::new();
        for of_row in of_parent {
            children.extend(of_row);
            children_start.push(children.len() as u32);
        }
        let pool = (0..rows).map(|row| pools[row % pools.len()] % replicas.len() as u32).collect();
        Paths { replicas, link: None, router, pool, parents, children_start, children, delay_s, max_in_flight: None }
    }

    fn flow(&self) -> Flow<'_> {
        Flow {
            parents: &self.parents,
            children_start: &self.children_start,
            children: &self.children,
            delay_s: &self.delay_s,
        }
    }

    /// Whether any request has parents or a delay.
    fn waits(&self) -> bool {
        self.parents.iter().any(|&parents| parents > 0) || self.delay_s.iter().any(|&delay| delay > 0.0)
    }

    fn run(&self, scenario: &Scenario, stepping: bool) -> Results {
        let pool = |(place, &count): (usize, &usize)| Pool {
            engines: (0..count).map(|_| scenario.parts()).collect(),
            router: Some(built(self.router.clone(), 3, place as u64)),
            hands_to: self
                .link
                .filter(|_| place == 0)
                .map(|link| HandsTo { pool: 1, link: link.build().expect("a link") }),
            capacity: None,
        };
        let cluster = Cluster::of_pools(self.replicas.iter().enumerate().map(pool).collect());
        let flow = if self.waits() { self.flow() } else { Flow::default() };
        let workload = Workload { pool: &self.pool, flow, ..scenario.columns.view() };
        let options = Options { max_in_flight: self.max_in_flight, ..scenario.options(stepping) };
        let results = simulate_cluster(&workload, cluster, &options, &mut ()).expect("a run");
        results.with_columns(&workload)
    }
}

fn seconds() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), (0_u32..400).prop_map(|ms| f64::from(ms) / 1000.0)]
}

/// Limit of requests in flight, or none.
fn max_in_flight() -> impl Strategy<Value = Option<NonZeroU64>> {
    prop::option::of((1_u64..5).prop_map(|max_in_flight| NonZeroU64::new(max_in_flight).expect("not 0")))
}

/// Scenarios of requests that wait for one or two earlier ones, over one to three pools.
fn networks() -> impl Strategy<Value = (Scenario, Paths)> {
    let waits = prop::collection::vec((0_u32..4, 0_u32..4, seconds()), 1..5);
    let pools = prop::collection::vec(0_u32..3, 1..4);
    (any_scenario(), waits, pools, prop::collection::vec(1_usize..3, 1..4), router(), max_in_flight()).prop_map(
        |(scenario, waits, pools, replicas, router, max_in_flight)| {
            let rows = scenario.columns.arrival_s.len();
            (scenario, Paths { max_in_flight, ..Paths::new(rows, &waits, &pools, replicas, router) })
        },
    )
}

/// Scenarios with prefill and decode on different replicas.
fn hand_offs() -> impl Strategy<Value = (Scenario, Paths)> {
    let link =
        (seconds(), 1_u32..2000, prop::option::of(1_usize..3)).prop_map(|(latency_s, bytes_per_s, concurrent)| {
            LinkDescription { latency_s, bytes_per_s: f64::from(bytes_per_s), bytes_per_token: 1.0, concurrent }
        });
    let parts = (any_scenario(), link, 1_usize..3, 1_usize..3, router(), max_in_flight());
    parts.prop_map(|(scenario, link, prefill, decode, router, max_in_flight)| {
        let rows = scenario.columns.arrival_s.len();
        let mut paths = Paths::new(rows, &[(0, 0, 0.0)], &[0], vec![prefill, decode], router);
        (paths.link, paths.max_in_flight) = (Some(link), max_in_flight);
        // A cache too small for a single request is a separate error.
        let longest = |row: usize| scenario.columns.prompt_tokens[row] + scenario.columns.output_tokens[row];
        let longest = (0..rows).map(longest).max().unwrap_or(1) as u64;
        let scenario = match scenario.kv_tokens {
            Some(tokens) if tokens < longest + scenario.block => {
                let enough = (longest / scenario.block + 2) * scenario.block;
                let engine =
                    scenario.engine.replace(&format!("\"tokens\": {tokens}"), &format!("\"tokens\": {enough}"));
                Scenario { engine, kv_tokens: Some(enough), ..scenario }
            }
            _ => scenario,
        };
        (scenario, paths)
    })
}

/// The limit of requests in flight is never exceeded; a request that is sent late is sent when another one leaves.
fn check_in_flight(results: &Results, scenario: &Scenario, paths: &Paths, max_in_flight: usize) -> Outcome {
    let columns = &results.requests;
    let sent = |&row: &usize| columns.status[row] != Status::Awaited as u8;
    let sent: Vec<usize> = (0..columns.status.len()).filter(sent).collect();
    for &row in &sent {
        let at = columns.arrival_s[row];
        let in_flight =
            sent.iter().filter(|&&other| columns.arrival_s[other] <= at && columns.left_s[other] > at).count();
        prop_assert!(in_flight <= max_in_flight, "{} in flight at {}", in_flight, at);
        if !paths.waits() && at > scenario.columns.arrival_s[row] + 1e-9 {
            prop_assert!(columns.left_s.contains(&at), "row {row} is sent at {at}, when no request leaves");
        }
    }
    let unsent = columns.status.len() - sent.len();
    let has = |kind: Kind| results.findings.iter().any(|finding| finding.kind == kind);
    prop_assert!(unsent == 0 || scenario.horizon_s.is_some() || paths.waits() || has(Kind::NeverSent));
    Ok(())
}

/// L1, L2, L4 (by assertions in the core), L5 and L9, and that all requests end.
fn invariants_hold(scenario: &Scenario, paths: &Paths) -> Outcome {
    let results = paths.run(scenario, false);
    let columns = &results.requests;
    let awaited = columns.status.iter().filter(|&&status| status == Status::Awaited as u8).count();
    prop_assert_eq!(results.totals.by_status.iter().sum::<u64>() as usize + awaited, columns.status.len());
    prop_assert_eq!(results.totals.in_system, results.totals.sojourn);
    prop_assert!(scenario.horizon_s.is_some() || results.totals.by_status[Status::Unfinished as usize] == 0);
    if let Some(max_in_flight) = paths.max_in_flight {
        check_in_flight(&results, scenario, paths, max_in_flight.get() as usize)?;
    }
    for row in (0..columns.status.len()).filter(|&row| columns.status[row] == Status::Finished as u8) {
        prop_assert_eq!(tokens_of(scenario, &results, row).1, scenario.owed(row));
        let instants =
            [columns.arrival_s[row], columns.admitted_s[row], columns.first_token_s[row], columns.finish_s[row]];
        prop_assert!(instants.is_sorted());
        for &child in paths.flow().children(row) {
            let child = child as usize;
            if columns.status[child] != Status::Awaited as u8 {
                prop_assert!(columns.arrival_s[child] >= columns.finish_s[row] + paths.delay_s[child] - 1e-9);
            }
        }
        if !columns.prefill_replica.is_empty() {
            // A request with tokens left after its prompt moved to the second pool; other requests stayed in the
            // first. A request may stay if it was preempted there by the plan made while a token was in flight: it
            // emits another token when it is recomputed, which may be its last.
            let first = paths.replicas[0] as u32;
            if columns.prefill_replica[row] == NO_REPLICA {
                let is_over = scenario.owed(row) == 1 || columns.preemptions[row] > 0;
                prop_assert!(columns.replica[row] < first && is_over);
            } else {
                prop_assert!(columns.prefill_replica[row] < first && columns.replica[row] >= first);
                prop_assert!(columns.handoff_s[row] >= 0.0 && columns.prefilled_s[row] <= columns.finish_s[row]);
            }
        }
    }
    Ok(())
}

fn l8_holds(scenario: &Scenario, paths: &Paths) -> Outcome {
    let (fast, slow) = (paths.run(scenario, false), paths.run(scenario, true));
    prop_assert_eq!(&fast.requests.replica, &slow.requests.replica);
    prop_assert_eq!(&fast.requests.prefill_replica, &slow.requests.prefill_replica);
    // Rows of iterations are in the order of their starts, which differs between the two runs.
    let bare = |results| Results { iterations: Vec::new(), batches: Vec::new(), ..results };
    same(&bare(fast), &bare(slow))
}

proptest! {
    #![proptest_config(cases(1_500))]

    #[test]
    fn networks_keep_the_invariants((scenario, paths) in networks()) {
        invariants_hold(&scenario, &paths)?;
    }

    #[test]
    fn stretches_of_networks_equal_stepping((scenario, paths) in networks()) {
        l8_holds(&scenario, &paths)?;
    }

    #[test]
    fn hand_offs_keep_the_invariants((scenario, paths) in hand_offs()) {
        invariants_hold(&scenario, &paths)?;
    }

    #[test]
    fn stretches_of_hand_offs_equal_stepping((scenario, paths) in hand_offs()) {
        l8_holds(&scenario, &paths)?;
    }
}

fn engine(kv: &str) -> Engine {
    let text = r#"{"timing": {"kind": "Constant", "seconds": 1}, "kv": {"tokens": KV, "block": 4},
            "scheduler": {"kind": "Sarathi", "token_budget": 8, "max_seqs": 4, "order": "fcfs", "watermark": 0,
                          "preemption": {"kind": "Recompute"}},
            "first_token": "prefill"}"#;
    parse(&text.replace("KV", kv)).expect("an engine")
}

/// One prefill and one decode replica, over a link that takes 0.5 s plus 0.1 s per token.
fn handed_off(requests: &[(f64, i32, i32)], concurrent: Option<usize>, kv: [&str; 2]) -> Results {
    let column = |read: fn(&(f64, i32, i32)) -> i32| requests.iter().map(read).collect::<Vec<i32>>();
    let workload = Workload {
        arrival_s: &requests.iter().map(|request| request.0).collect::<Vec<f64>>(),
        prompt_tokens: &column(|request| request.1),
        output_tokens: &column(|request| request.2),
        class_count: CLASSES,
        ..Workload::default()
    };
    let link = LinkDescription { latency_s: 0.5, bytes_per_s: 20.0, bytes_per_token: 2.0, concurrent };
    let pool = |kv, hands_to| Pool {
        engines: vec![engine(kv).build(Some(&[])).expect("a replica")],
        router: None,
        hands_to,
        capacity: None,
    };
    let hands_to = HandsTo { pool: 1, link: link.build().expect("a link") };
    let cluster = Cluster::of_pools(vec![pool(kv[0], Some(hands_to)), pool(kv[1], None)]);
    let results = simulate_cluster(&workload, cluster, &Options::all(&workload), &mut ()).expect("a run");
    results.with_columns(&workload)
}

#[test]
fn a_hand_off_takes_latency_and_bytes_and_then_waits_for_the_next_batch() {
    // Prompts of 5 and 3 tokens are computed by 1 s, which emits the first tokens. The transfers take 1.0 s and 0.8
    // s.
    let results = handed_off(&[(0.0, 5, 3), (0.0, 3, 3)], None, ["null", "null"]);
    let columns = &results.requests;
    assert_eq!(columns.first_token_s, [1.0, 1.0]);
    // Request 1 arrives at 1.8 s and decodes until 3.8 s; request 0 arrives at 2 s and joins at 2.8 s.
    assert_eq!(columns.finish_s, [4.8, 3.8]);
    assert_eq!(columns.prefilled_s, [1.0, 1.0]);
    assert_eq!(columns.handoff_s, [1.8, 0.8]);
    assert_eq!((columns.replica[0], columns.prefill_replica[0]), (1, 0));
    assert_eq!(columns.max_itl_s, [2.8, 1.8]);
}

#[test]
fn transfers_beyond_the_concurrency_of_a_link_wait() {
    // One transfer at a time: request 0 from 1.0 to 2.0 s, request 1 from 2.0 to 2.8 s.
    let results = handed_off(&[(0.0, 5, 2), (0.0, 3, 2)], Some(1), ["null", "null"]);
    assert_eq!(results.requests.finish_s, [3.0, 4.0]);
    assert_eq!(results.requests.handoff_s, [1.0, 2.0]);
}

#[test]
fn blocks_stay_used_until_the_transfer_ends() {
    // The first prompt fills the source until its transfer ends at 1.0 + 1.3 s; only then is the second one admitted.
    let results = handed_off(&[(0.0, 8, 2), (0.0, 8, 2)], None, ["8", "null"]);
    assert_eq!(results.requests.admitted_s, [0.0, 2.3]);
}

#[test]
fn a_decode_waits_for_blocks() {
    // The decode cache fits one of the two: 9 tokens plus the next one are 3 of its 4 blocks.
    let results = handed_off(&[(0.0, 4, 6), (0.0, 4, 6)], None, ["null", "16"]);
    // Both arrive at 1.9 s with 5 known tokens: 2 blocks each. At 9 tokens both need a third block: the later one is
    // preempted.
    assert_eq!(results.requests.preemptions, [0, 1]);
    assert_eq!(results.totals.by_status[0], 2);
}

#[test]
fn a_hand_off_that_fits_nowhere_is_an_error() {
    let workload = Workload {
        arrival_s: &[0.0, 0.0],
        prompt_tokens: &[4, 40],
        output_tokens: &[4, 4],
        class_count: 1,
        ..Workload::default()
    };
    let link = LinkDescription { latency_s: 0.0, bytes_per_s: 1.0, bytes_per_token: 0.0, concurrent: None };
    let part = |kv, hands_to| Pool {
        engines: vec![engine(kv).build(Some(&[])).expect("a replica")],
        router: None,
        hands_to,
        capacity: None,
    };
    let hands_to = HandsTo { pool: 1, link: link.build().expect("a link") };
    let cluster = Cluster::of_pools(vec![part("null", Some(hands_to)), part("16", None)]);
    let error = simulate_cluster(&workload, cluster, &Options::all(&workload), &mut ()).expect_err("too small");
    let expected = "decode: the KV of row 1 fits nowhere after its prefill: it grows to 11 blocks, the largest decode \
                    replica has 4";
    assert_eq!(error.to_string(), expected);
}

proptest! {
    #![proptest_config(cases(4_000))]

    #[test]
    fn a_horizon_only_cuts(
        scenario in prop_oneof![
            prop::sample::select(&["Wait", "NestedWait"][..]).prop_flat_map(scenario),
            any_scenario(),
        ],
        is_on_grid: bool,
        max_in_flight in max_in_flight(),
        horizon_ms in 0_u32..600,
    ) {
        let scenario = if is_on_grid { scenario.on_grid() } else { scenario };
        let horizon_s = f64::from(horizon_ms) / 1e3;
        let run = |horizon_s| {
            let scenario = Scenario { horizon_s, ..scenario.clone() };
            let options = Options { max_in_flight, ..scenario.options(false) };
            let workload = scenario.columns.view();
            let cluster = Cluster::of_one(scenario.parts());
            simulate_cluster(&workload, cluster, &options, &mut ()).expect("a run").with_columns(&workload).requests
        };
        let (whole, cut) = (run(None), run(Some(horizon_s)));
        let columns = [
            (&whole.admitted_s, &cut.admitted_s),
            (&whole.first_token_s, &cut.first_token_s),
            (&whole.finish_s, &cut.finish_s),
        ];
        // Iterations take time, so only a request that was never sent finishes at 0.
        let is_sent = |finish_s: &[f64], row: usize| finish_s.get(row).is_some_and(|&at| at != 0.0);
        for (left, right) in columns {
            for row in 0..left.len() {
                let expected = if is_sent(&whole.finish_s, row) && left[row] <= horizon_s { left[row] } else { f64::NAN };
                let found = if is_sent(&cut.finish_s, row) { right[row] } else { f64::NAN };
                prop_assert_eq!(found.to_bits(), expected.to_bits(), "row {}", row);
            }
        }
    }
}

#[test]
fn a_request_beyond_max_in_flight_is_sent_when_another_leaves() {
    // Iterations of one second, one token each: request 0 takes 0 to 2, request 1 takes 0 to 3. Two may be in flight,
    // so request 2, due at 0.5 s, is sent at 2 s, and request 3, due at 1 s, at 3 s: latencies count from there.
    let workload = Workload {
        arrival_s: &[0.0, 0.0, 0.5, 1.0],
        prompt_tokens: &[1, 1, 1, 1],
        output_tokens: &[2, 3, 2, 1],
        class_count: 1,
        ..Workload::default()
    };
    let replica = engine("null").build(Some(&[])).expect("a replica");
    let options = Options { max_in_flight: NonZeroU64::new(2), ..Options::all(&workload) };
    let results = simulate_cluster(&workload, Cluster::of_one(replica), &options, &mut ()).expect("a run");
    let columns = results.with_columns(&workload).requests;
    assert_eq!(columns.arrival_s, [0.0, 0.0, 2.0, 3.0]);
    assert_eq!(columns.finish_s, [2.0, 3.0, 4.0, 4.0]);
    assert_eq!(columns.ttft_s, [1.0, 1.0, 1.0, 1.0]);
}

/// Jobs on engines with one-second iterations: `rows` are pool, parents and delay.
fn jobs(rows: &[(u32, &[u32], f64)], output_tokens: &[i32], prompt_tokens: &[i32]) -> Results {
    let mut children_start = vec![0];
    let mut children: Vec<u32> = Vec::new();
    for row in 0..rows.len() as u32 {
        children.extend((0..rows.len() as u32).filter(|&child| rows[child as usize].1.contains(&row)));
        children_start.push(children.len() as u32);
    }
    let workload = Workload {
        arrival_s: &vec![0.0; rows.len()],
        prompt_tokens,
        output_tokens,
        class_count: 1,
        pool: &rows.iter().map(|row| row.0).collect::<Vec<u32>>(),
        flow: Flow {
            parents: &rows.iter().map(|row| row.1.len() as u32).collect::<Vec<u32>>(),
            children_start: &children_start,
            children: &children,
            delay_s: &rows.iter().map(|row| row.2).collect::<Vec<f64>>(),
        },
        ..Workload::default()
    };
    let pool = || Pool {
        engines: vec![engine("16").build(Some(&[])).expect("a replica")],
        router: None,
        hands_to: None,
        capacity: None,
    };
    let cluster = Cluster::of_pools(vec![pool(), pool(), pool()]);
    let results = simulate_cluster(&workload, cluster, &Options::all(&workload), &mut ()).expect("a run");
    results.with_columns(&workload)
}

#[test]
fn a_join_waits_for_the_last_branch_and_its_delay() {
    let rows: &[(u32, &[u32], f64)] = &[(0, &[], 0.0), (1, &[0], 0.25), (2, &[0], 0.0), (0, &[1, 2], 0.5)];
    let results = jobs(rows, &[2, 3, 5, 1], &[1; 4]);
    // Stage 0 ends at 2 s; the branches run from 2.25 to 5.25 s and from 2 to 7 s; the join arrives at 7.5 s.
    assert_eq!(results.requests.arrival_s, [0.0, 2.25, 2.0, 7.5]);
    assert_eq!(results.requests.finish_s, [2.0, 5.25, 7.0, 8.5]);
    assert_eq!(results.totals.end.0, 17 * SECOND / 2);
    assert_eq!(results.totals.in_system, Span(11 * SECOND).0);
}

#[test]
fn a_request_without_parents_arrives_after_its_delay() {
    let rows: &[(u32, &[u32], f64)] = &[(0, &[], 0.75), (0, &[], 0.0)];
    assert_eq!(jobs(rows, &[1; 2], &[1; 2]).requests.arrival_s, [0.75, 0.0]);
}

#[test]
fn nothing_follows_a_rejection() {
    // The second stage is too long for its engine: the third never arrives.
    let rows: &[(u32, &[u32], f64)] = &[(0, &[], 0.0), (1, &[0], 0.0), (2, &[1], 0.0)];
    let results = jobs(rows, &[1; 3], &[1, 99, 1]);
    let statuses = [Status::Finished, Status::Rejected, Status::Awaited].map(|status| status as u8);
    assert_eq!(results.requests.status, statuses);
    assert_eq!(results.totals.by_status, [1, 1, 0, 0, 0]);
}

#[test]
fn rows_with_cyclic_dependencies_never_arrive() {
    let rows: &[(u32, &[u32], f64)] = &[(0, &[], 0.0), (0, &[2], 0.0), (0, &[1], 0.0)];
    assert_eq!(jobs(rows, &[1; 3], &[1; 3]).totals.by_status, [1, 0, 0, 0, 0]);
}
