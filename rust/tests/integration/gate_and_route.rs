//! Tests of gate and route over real iterations, with the same invariants as over slots.

use inferq_core::cluster::Cluster;
use inferq_core::engine::{Engine, parse};
use inferq_core::gate_and_route::GateAndRoute;
use inferq_core::results::{NO_REPLICA, Status};
use inferq_core::simulation::{Options, simulate_cluster};
use proptest::prelude::*;

use crate::laws::same;
use crate::scenario::{Results, Scenario, scenario};
use crate::tier::cases;

/// Compatible combinations of gate, router and plan.
const POLICIES: [(&str, &str, bool); 9] = [
    ("occupancy", "greedy", true),
    ("queue", "greedy", true),
    ("priority", "greedy", true),
    ("fcfs", "greedy", true),
    ("occupancy", "randomized", true),
    ("occupancy", "general", true),
    ("fcfs", "immediate", false),
    ("queue", "immediate", false),
    ("queue", "fcfs", false),
];

#[derive(Clone, Debug)]
struct Controlled {
    replicas: usize,
    slots: u64,
    policy: (&'static str, &'static str, bool),
    abandonment: u32,
}

/// Half of the replicas, rounded up, compute prompts.
const PREFILLS: f64 = 0.5;

impl Controlled {
    fn run(&self, scenario: &Scenario, stepping: bool) -> Results {
        let classes = ["a".to_owned(), "b".to_owned()];
        let (gate, router, planned) = self.policy;
        let timing = r#"{"kind": "MixedSolo", "alpha": 0.02, "beta": 0.0001, "solo": 0.01}"#;
        let kv = r#"{"tokens": null, "block": 4, "prefix_cache": null}"#;
        let text = format!(
            r#"{{"kind": "GateAndRoute", "replicas": {}, "slots": {}, "chunk": 8, "timing": {timing}, "kv": {kv},
                "allocation": {{"prefill": {{"a": 0.3, "b": 0.2}}, "mixed": {{"a": 1, "b": 1}}, "solo": {{"a": 1, "b": 2}},
                                "prefill_queue": {{"a": 1, "b": 0}}, "decode_queue": null}},
                "prices": {{"prefill": 0.1, "decode": 0.2}}, "abandonment": {}, "gate": "{gate}", "router": "{router}",
                "planned": {planned}, "service": "tokens"}}"#,
            self.replicas, self.slots, self.abandonment,
        );
        let setup = parse::<GateAndRoute>(&text).expect("JSON").build(&classes).expect("a setup");
        let engine = format!(
            r#"{{"timing": {timing}, "scheduler": {{"kind": "SlotGreedy", "chunk": 8}}, "kv": {kv}, "first_token": "decode"}}"#
        );
        let engine: Engine = parse(&engine).expect("JSON");
        let engines =
            (0..self.replicas).map(|_| engine.build(Some(&["a".into(), "b".into()])).expect("an engine")).collect();
        let workload = scenario.columns.view();
        let control = setup.control(&workload, 7).expect("a control");
        let cluster = Cluster::controlled(engines, control, setup.patience(7));
        let options = Options { measured: 0..workload.len() as u32, ..scenario.options(stepping) };
        let none: Vec<f64> = Vec::new();
        let workload = inferq_core::workload::Workload { patience_s: &none, ..workload };
        let results = simulate_cluster(&workload, cluster, &options, &mut ()).expect("a run");
        results.with_columns(&workload)
    }
}

fn controlled() -> impl Strategy<Value = Controlled> {
    (2_usize..5, 2_u64..5, prop::sample::select(POLICIES.to_vec()), prop_oneof![Just(0_u32), 1_u32..40])
        .prop_map(|(replicas, slots, policy, abandonment)| Controlled { replicas, slots, policy, abandonment })
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn the_invariants_hold_and_no_slot_is_used_twice(scenario in scenario("SlotGreedy"), controlled in controlled()) {
        let results = controlled.run(&scenario, false);
        let columns = &results.requests;
        prop_assert_eq!(results.totals.by_status.iter().sum::<u64>() as usize, columns.status.len());
        prop_assert_eq!(results.totals.in_system, results.totals.sojourn);
        prop_assert!(scenario.horizon_s.is_some() || results.totals.by_status[Status::Unfinished as usize] == 0);
        prop_assert!(controlled.abandonment > 0 || results.totals.by_status[Status::Abandoned as usize] == 0);
        for row in (0..columns.status.len()).filter(|&row| columns.status[row] == Status::Finished as u8) {
            let instants =
                [columns.arrival_s[row], columns.admitted_s[row], columns.prefilled_s[row], columns.first_token_s[row], columns.finish_s[row]];
            prop_assert!(instants.is_sorted());
            prop_assert!(columns.replica[row] != NO_REPLICA && columns.handoff_s[row] >= 0.0);
        }
        // At most one prefill and no more rows than slots in any batch; solo replicas compute no prompt.
        let mixed = (controlled.replicas as f64 * PREFILLS).ceil() as u32;
        let mut rows = vec![(0_u64, 0_u64); results.iterations.len()];
        for row in &results.batches {
            let batch = &mut rows[row.iteration as usize];
            batch.0 += u64::from(!row.emits);
            batch.1 += 1;
        }
        for (batch, iteration) in rows.iter().zip(&results.iterations) {
            prop_assert!(batch.0 <= 1 && batch.1 <= controlled.slots);
            if controlled.policy.2 {
                prop_assert!(iteration.replica < mixed || batch.0 == 0);
                prop_assert!(iteration.replica >= mixed || batch.1 - batch.0 < controlled.slots);
            }
        }
    }

    #[test]
    fn stretches_equal_stepping(scenario in scenario("SlotGreedy"), controlled in controlled()) {
        let (fast, slow) = (controlled.run(&scenario, false), controlled.run(&scenario, true));
        prop_assert_eq!(&fast.requests.replica, &slow.requests.replica);
        prop_assert_eq!(&fast.requests.prefill_replica, &slow.requests.prefill_replica);
        let bare = |results| Results { iterations: Vec::new(), batches: Vec::new(), ..results };
        same(&bare(fast), &bare(slow))?;
    }
}
