//! Several replicas: the invariants, equivalent fleets, and the rule of each router.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use inferq_core::clock::{Instant, SECOND, Span};
use inferq_core::cluster::{Cluster, Pool};
use inferq_core::dice::{Dice, Scale};
use inferq_core::engine::{Engine, EngineParts, parse};
use inferq_core::error::Result;
use inferq_core::results::Status;
use inferq_core::router::{
    BySession, Fleet, LeastKv, LeastRequests, LeastTokens, PowerOfTwo, PrefixAffinity, PrefixHash, Random, RoundRobin,
    Router, RouterConfig,
};
use inferq_core::simulation::{Options, Timeline, simulate, simulate_cluster};
use inferq_core::workload::{Arrival, NO_SESSION, Workload};
use proptest::prelude::*;

use crate::laws::{Outcome, same};
use crate::scenario::{Results, Scenario, any_scenario, grid_scenario};
use crate::tier::cases;

/// Any router with random parameters.
pub(crate) fn router() -> impl Strategy<Value = RouterConfig> {
    let sample = |(kind, words)| RouterConfig::sample(kind, &mut Dice::new(words, Scale::default())).expect("a router");
    (prop::sample::select(RouterConfig::KINDS), prop::collection::vec(any::<u32>(), 4)).prop_map(sample)
}

pub(crate) fn built(router: impl Into<RouterConfig>, seed: u64, pool: u64) -> Box<dyn Router> {
    router.into().build(seed, pool).expect("a router")
}

fn run(scenario: &Scenario, replicas: usize, router: Box<dyn Router>, stepping: bool) -> Results {
    run_with(scenario, replicas, router, &scenario.options(stepping))
}

fn run_with(scenario: &Scenario, replicas: usize, router: Box<dyn Router>, options: &Options) -> Results {
    let engines: Vec<EngineParts> = (0..replicas).map(|_| scenario.parts()).collect();
    let workload = scenario.columns.view();
    let results = simulate_cluster(&workload, pool_of(engines, router), options, &mut ()).expect("a run");
    results.with_columns(&workload)
}

fn pool_of(engines: Vec<EngineParts>, router: Box<dyn Router>) -> Cluster {
    Cluster::of_pools(vec![Pool { engines, router: Some(router), hands_to: None, capacity: None }])
}

/// Each replica behaves as if it were alone with the requests routed to it.
fn every_replica_behaves_independently(scenario: &Scenario, in_event_loop: &Results, replicas: usize) -> Outcome {
    for replica in 0..replicas {
        let rows: Vec<usize> = (0..in_event_loop.requests.replica.len())
            .filter(|&row| in_event_loop.requests.replica[row] == replica as u32)
            .collect();
        // They keep their ids, which determine the draws of accepted drafts.
        let ids: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
        let columns = scenario.columns.part(&rows);
        let workload = Workload { ids: &ids, ..columns.view() };
        // Measured requests are a range of rows of the whole workload.
        let options = Options { measured: 0..0, ..scenario.options(false) };
        let alone = simulate(&workload, scenario.parts(), &options, &mut ()).expect("a run").with_columns(&workload);
        if !alone.drained.is_empty() {
            // Requests at other replicas may still arrive here.
            continue;
        }
        for (place, &row) in rows.iter().enumerate() {
            let (left, right) = (&in_event_loop.requests, &alone.requests);
            prop_assert_eq!(left.status[row], right.status[place]);
            prop_assert_eq!(left.preemptions[row], right.preemptions[place]);
            let seconds = [
                (&left.admitted_s, &right.admitted_s),
                (&left.first_token_s, &right.first_token_s),
                (&left.finish_s, &right.finish_s),
                (&left.left_s, &right.left_s),
                (&left.max_itl_s, &right.max_itl_s),
            ];
            for (left, right) in seconds {
                prop_assert_eq!(left[row].to_bits(), right[place].to_bits());
            }
        }
    }
    Ok(())
}

/// Two runs have the same results, including iterations and batches.
pub(crate) fn every_bit_is_the_same(left: Results, right: Results) -> Outcome {
    same(&left, &right)?;
    prop_assert_eq!(&left.requests.replica, &right.requests.replica);
    prop_assert_eq!(left.totals, right.totals);
    prop_assert_eq!((left.iterations, left.batches), (right.iterations, right.batches));
    Ok(())
}

proptest! {
    #![proptest_config(cases(15_000))]

    #[test]
    fn l8_holds_under_every_router_for_arrivals_at_ends_of_iterations(
        scenario in grid_scenario(), replicas in 1_usize..5, router in router(), seed: u64,
    ) {
        let run = |stepping| run(&scenario, replicas, built(router.clone(), seed, 0), stepping);
        let (fast, slow) = (run(false), run(true));
        prop_assert_eq!(&fast.requests.replica, &slow.requests.replica);
        same(&Results { iterations: Vec::new(), batches: Vec::new(), ..fast }, &Results { iterations: Vec::new(), batches: Vec::new(), ..slow })?;
    }
}

proptest! {
    #![proptest_config(cases(1_500))]

    #[test]
    fn l8_stretches_equal_stepping_under_every_router(
        scenario in any_scenario(), replicas in 1_usize..5, router in router(), seed: u64,
    ) {
        let (fast, slow) = (run(&scenario, replicas, built(router.clone(), seed, 0), false), run(&scenario, replicas, built(router.clone(), seed, 0), true));
        prop_assert_eq!(&fast.requests.replica, &slow.requests.replica);
        // Rows of iterations are in the order of the ends of stretches, which differs between the two.
        same(&Results { iterations: Vec::new(), batches: Vec::new(), ..fast }, &Results { iterations: Vec::new(), batches: Vec::new(), ..slow })?;
    }

    #[test]
    fn l1_and_l9_hold_and_replicas_do_not_touch_one_another(
        scenario in any_scenario(), replicas in 1_usize..5, router in router(), seed: u64,
    ) {
        let results = run(&scenario, replicas, built(router.clone(), seed, 0), false);
        prop_assert_eq!(results.totals.by_status.iter().sum::<u64>() as usize, results.requests.status.len());
        prop_assert_eq!(results.totals.in_system, results.totals.sojourn);
        prop_assert!(scenario.horizon_s.is_some() || results.totals.by_status[Status::Unfinished as usize] == 0);
        // A horizon cuts all replicas alike, but draining depends on the other replicas.
        if results.drained.is_empty() {
            every_replica_behaves_independently(&scenario, &results, replicas)?;
        }
    }

    #[test]
    fn one_replica_in_a_fleet_equals_no_fleet(
        scenario in any_scenario(), router in router(), seed: u64,
    ) {
        let (fleet, alone) = (run(&scenario, 1, built(router.clone(), seed, 0), false), scenario.run(false));
        same(&fleet, &alone)?;
        prop_assert_eq!((fleet.iterations, fleet.batches), (alone.iterations, alone.batches));
    }

    #[test]
    fn l6_no_number_of_threads_changes_anything(
        scenario in any_scenario(), replicas in 1_usize..6, router in router(), seed: u64,
    ) {
        let on = |threads| {
            let options = Options { threads: NonZeroUsize::new(threads), ..scenario.options(false) };
            // As text, since absent values are NaN.
            format!("{:?}", run_with(&scenario, replicas, built(router.clone(), seed, 0), &options))
        };
        let single = on(1);
        prop_assert_eq!(&on(2), &single);
        prop_assert_eq!(&on(4), &single);
    }

    #[test]
    fn round_robin_in_lanes_equals_round_robin_in_the_event_loop(scenario in any_scenario(), replicas in 1_usize..5, automatic: bool) {
        // The spy routes round robin too, but reads state, so all replicas run on one clock.
        let mut options = scenario.options(false);
        if automatic {
            options.timeline = Timeline::Automatic;
        }
        let spy = Box::new(Spy { seen: std::sync::Arc::default() });
        let in_event_loop = run_with(&scenario, replicas, spy, &options);
        let in_lanes = run_with(&scenario, replicas, built(RoundRobin {}, 0, 0), &options);
        if !in_lanes.drained.is_empty() {
            // An independent replica is drained when no request is left for it; a replica on a common clock when none
            // is left at all.
            return Ok(());
        }
        same(&in_event_loop, &in_lanes)?;
        prop_assert_eq!(&in_event_loop.requests.replica, &in_lanes.requests.replica);
        prop_assert_eq!((in_event_loop.iterations, in_event_loop.batches), (in_lanes.iterations, in_lanes.batches));
        prop_assert_eq!((in_event_loop.totals.sojourn, in_event_loop.totals.by_status), (in_lanes.totals.sojourn, in_lanes.totals.by_status));
    }

    #[test]
    fn replicas_in_lanes_equal_replicas_in_the_event_loop(
        scenario in any_scenario(), replicas in 1_usize..6, router in router(), seed: u64, automatic: bool, stepping: bool,
        on_boundaries: bool,
    ) {
        let scenario = if on_boundaries { scenario.on_boundaries(2) } else { scenario };
        // If a column allows requests to lose patience, all replicas share one calendar.
        let run = |is_explicit| {
            let (scenario, mut options) = (scenario.patient(is_explicit), scenario.options(stepping));
            if automatic {
                options.timeline = Timeline::Automatic;
            }
            run_with(&scenario, replicas, built(router.clone(), seed, 0), &options)
        };
        every_bit_is_the_same(run(false), run(true))?;
    }

    #[test]
    fn fleets_in_64_bits_equal_fleets_in_128_bits(
        scenario in any_scenario(), replicas in 1_usize..6, router in router(), seed: u64, stepping: bool,
    ) {
        let mut scenario = scenario.patient(false);
        scenario.columns.itl_slo_s.clear();
        let run = |in_attoseconds| {
            let options = Options { iterations: false, batches: false, in_attoseconds, ..scenario.options(stepping) };
            run_with(&scenario, replicas, built(router.clone(), seed, 0), &options)
        };
        let (short, long) = (run(false), run(true));
        same(&short, &long)?;
        prop_assert_eq!(&short.requests.replica, &long.requests.replica);
    }

    #[test]
    fn a_single_replica_equals_one_in_the_event_loop(scenario in any_scenario(), stepping: bool, on_boundaries: bool) {
        let scenario = if on_boundaries { scenario.on_boundaries(3) } else { scenario };
        every_bit_is_the_same(scenario.patient(false).run(stepping), scenario.patient(true).run(stepping))?;
    }

    #[test]
    fn without_a_weight_or_a_report_prefixes_do_not_matter(scenario in any_scenario(), replicas in 1_usize..5, weight in 0_u32..9) {
        let by = |router: RouterConfig| run(&scenario, replicas, built(router, 0, 0), false).requests.replica;
        let least = by(LeastKv {}.into());
        prop_assert_eq!(&by(PrefixAffinity { weight: 0.0, update_s: None }.into()), &least);
        let late = PrefixAffinity { weight: f64::from(weight), update_s: Some(1e12) };
        prop_assert_eq!(&by(late.into()), &least);
        let patient = by(BySession { spill: Some(1e300) }.into());
        prop_assert_eq!(&by(BySession { spill: None }.into()), &patient);
        let roomy = by(PrefixHash { prefix_tokens: 9, load_factor: Some(1e300) }.into());
        prop_assert_eq!(&by(PrefixHash { prefix_tokens: 9, load_factor: None }.into()), &roomy);
    }

    #[test]
    fn routers_see_what_there_is(scenario in any_scenario(), replicas in 1_usize..4, stepping: bool) {
        // The state that a router sees inside a stretch equals that of a run with single iterations.
        let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let spy = |stepping| {
            seen.lock().expect("one thread").clear();
            run(&scenario, replicas, Box::new(Spy { seen: seen.clone() }), stepping);
            seen.lock().expect("one thread").clone()
        };
        prop_assert_eq!(spy(stepping), spy(!stepping));
    }
}

type Look = (u32, Vec<[u64; 5]>);

/// Records everything that a router may read.
struct Spy {
    seen: std::sync::Arc<std::sync::Mutex<Vec<Look>>>,
}

impl Router for Spy {
    fn route(&mut self, arrival: &Arrival, fleet: &mut Fleet) -> Result<usize> {
        let replicas = fleet.len();
        let state = |replica| {
            let caches = (fleet.reported_tokens(replica)?, fleet.cached_tokens(replica)?);
            let (tokens, blocks) = (fleet.tokens(replica)?, fleet.blocks(replica)?);
            Ok([u64::from(fleet.requests()[replica]), tokens, blocks, caches.0, caches.1])
        };
        let states = (0..replicas).map(state).collect::<Result<_>>()?;
        self.seen.lock().expect("one thread").push((arrival.id, states));
        Ok(arrival.id as usize % replicas)
    }

    fn reports_every(&self) -> Option<Span> {
        Some(Span(SECOND / 7))
    }
}

/// Iterations of one second with one request each, and unlimited memory.
fn calm(requests: &[(f64, i32, i32, u32)], replicas: usize, router: impl Into<RouterConfig>) -> Results {
    let engine: Engine = parse(
        r#"{"timing": {"kind": "Constant", "seconds": 1}, "kv": {"tokens": null, "block": 4},
            "scheduler": {"kind": "Sarathi", "token_budget": 4, "max_seqs": 1, "order": "fcfs", "watermark": 0,
                          "preemption": {"kind": "Recompute"}},
            "first_token": "prefill"}"#,
    )
    .expect("an engine");
    let column = |read: fn(&(f64, i32, i32, u32)) -> i32| requests.iter().map(read).collect::<Vec<i32>>();
    let workload = Workload {
        arrival_s: &requests.iter().map(|request| request.0).collect::<Vec<f64>>(),
        prompt_tokens: &column(|request| request.1),
        output_tokens: &column(|request| request.2),
        session: &requests.iter().map(|request| request.3).collect::<Vec<u32>>(),
        class_count: 1,
        ..Workload::default()
    };
    let engines = (0..replicas).map(|_| engine.build(Some(&[])).expect("a replica")).collect();
    let cluster = pool_of(engines, built(router, 7, 0));
    let results = simulate_cluster(&workload, cluster, &Options::all(&workload), &mut ()).expect("a run");
    results.with_columns(&workload)
}

#[test]
fn round_robin_alternates() {
    let requests = [(0.0, 1, 1, NO_SESSION); 5];
    assert_eq!(calm(&requests, 3, RoundRobin {}).requests.replica, [0, 1, 2, 0, 1]);
}

#[test]
fn sessions_stay_where_they_began() {
    let requests = [(0.0, 1, 1, 9), (0.0, 1, 1, 4), (1.0, 1, 1, 9), (2.0, 1, 1, NO_SESSION), (3.0, 1, 1, 4)];
    assert_eq!(calm(&requests, 3, BySession { spill: None }).requests.replica, [0, 1, 0, 2, 1]);
}

#[test]
fn least_requests_joins_the_shortest_queue() {
    // Replica 0 has one request until 5 s, replica 1 one until 1 s. At 1 s the latter has just left.
    let requests = [(0.0, 1, 5, 0), (0.0, 1, 1, 0), (0.5, 1, 1, 0), (1.0, 1, 1, 0), (1.0, 1, 1, 0)];
    // 0.5 s: one each, so the lower index; 1 s: two against none, then two against one.
    assert_eq!(calm(&requests, 2, LeastRequests {}).requests.replica, [0, 1, 0, 1, 1]);
}

#[test]
fn least_tokens_counts_prompts_not_computed_and_outputs_not_emitted() {
    // Request 0 brings 10 + 3 tokens to replica 0, request 1 brings 5 + 7 to replica 1. Chunks of 4: at 2.5 s replica
    // 0 has computed 8 and owes 2 + 3. Replica 1 has computed 5 and emitted its first token at 2 s: it owes 6.
    let requests = [(0.0, 10, 3, 0), (0.0, 5, 7, 0), (2.5, 1, 1, 0)];
    assert_eq!(calm(&requests, 2, LeastTokens {}).requests.replica, [0, 1, 0]);
    // A second later replica 0 has completed its prompt and emitted once: it owes 2, replica 1 owes 5.
    let requests = [(0.0, 10, 3, 0), (0.0, 5, 9, 0), (0.0, 1, 20, 0), (3.5, 1, 1, 0)];
    // Request 2 went to the replica with 13 tokens ahead, not 14: 13 + 21 − 11 ahead there, 14 − 7 here.
    assert_eq!(calm(&requests, 2, LeastTokens {}).requests.replica, [0, 1, 0, 1]);
}

#[test]
fn least_kv_counts_blocks_in_use_and_those_of_waiting_prompts() {
    // Blocks of 4. Replica 0: a prompt of 9 takes 3 blocks at once. Replica 1: a prompt of 4 takes 1, and one of 12
    // waits for 3.
    let requests = [(0.0, 9, 9, 0), (0.0, 4, 9, 0), (0.0, 12, 1, 0), (0.5, 1, 1, 0)];
    assert_eq!(calm(&requests, 2, LeastKv {}).requests.replica, [0, 1, 1, 0]);
}

#[test]
fn power_of_two_takes_the_better_of_two_different_ones() {
    // All at once: no replica is ever more than the second choice ahead, and with two replicas both are always drawn.
    let requests = [(0.0, 1, 9, 0); 40];
    let replicas = calm(&requests, 2, PowerOfTwo {}).requests.replica;
    assert_eq!(replicas, (0..40).map(|row| row % 2).collect::<Vec<u32>>());
}

#[test]
fn random_is_even_and_belongs_to_the_request() {
    let requests: Vec<_> = (0..6000).map(|row| (f64::from(row), 1, 1, 0)).collect();
    let all = calm(&requests, 3, Random {}).requests.replica;
    let mut counts = BTreeMap::new();
    all.iter().for_each(|&replica| *counts.entry(replica).or_insert(0_i32) += 1);
    // Binomial with 6,000 draws of 1/3: the standard deviation is 36.5, and five of them are 183.
    assert!(counts.len() == 3 && counts.values().all(|count| (count - 2000).abs() < 183), "{counts:?}");
    assert_eq!(calm(&requests[..100], 3, Random {}).requests.replica, all[..100]);
}

#[test]
fn unused_replicas_are_a_finding() {
    let results = calm(&[(0.0, 1, 1, 0), (5.0, 1, 1, 0)], 3, LeastRequests {});
    let findings: Vec<String> = results.findings.iter().map(ToString::to_string).collect();
    assert_eq!(findings, ["idle-replicas: 2 of 3 replicas served no request"]);
}

#[test]
fn a_fleet_of_nobody_is_refused() {
    let workload = Workload { class_count: 1, ..Workload::default() };
    let cluster = pool_of(Vec::new(), built(RoundRobin {}, 0, 0));
    let error = simulate_cluster(&workload, cluster, &Options::all(&workload), &mut ()).expect_err("no replica");
    assert_eq!(error.to_string(), "pools[0].replicas: must be at least 1, got 0");
}

#[test]
fn ends_of_two_replicas_at_one_instant_are_both_settled_before_an_arrival_there() {
    let requests = [(0.0, 1, 1, 0), (0.0, 1, 1, 0), (1.0, 1, 1, 0), (1.0, 1, 1, 0)];
    let results = calm(&requests, 2, LeastRequests {});
    assert_eq!(results.requests.replica, [0, 1, 0, 1]);
    assert_eq!(results.requests.admitted_s, [0.0, 0.0, 1.0, 1.0]);
    assert_eq!(results.totals.end, Instant::ZERO.after(Span(2_000_000_000_000_000_000)).expect("fits"));
}
