//! Tests of the exponential slot model: invariants over random scenarios for every gate and router, and cases
//! computed by hand.

use crate::exponential_audit::Audit;
use crate::tier::cases;
use inferq_core::engine::parse;
use inferq_core::gate_and_route::GateAndRoute;
use inferq_core::gate_and_route::exponential::{ExponentialOptions, ExponentialResults, simulate};
use inferq_core::random::{Source, Stream, exponential_quantile};
use inferq_core::workload::Workload;
use proptest::prelude::*;

const GATES: [&str; 4] = ["occupancy", "queue", "priority", "fcfs"];
/// Routers, with and without a plan.
const ROUTERS: [(&str, bool); 6] = [
    ("greedy", true),
    ("greedy", false),
    ("randomized", true),
    ("general", true),
    ("immediate", false),
    ("fcfs", false),
];

#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) gate: &'static str,
    pub(super) router: (&'static str, bool),
    pub(super) replicas: usize,
    pub(super) slots: usize,
    pub(super) chunk: u32,
    pub(super) tau_ms: u32,
    pub(super) solo_ms: u32,
    /// For each class x*, y_m*, y_s* and q_p* in thousandths, and the mean patience in seconds.
    pub(super) plan: Vec<[u32; 5]>,
    /// Gap to the previous arrival in milliseconds, class, P, D.
    pub(super) rows: Vec<(u32, usize, i32, i32)>,
    pub(super) horizon_s: Option<f64>,
    pub(super) warmup_s: f64,
    pub(super) seed: u64,
}

/// Patience in seconds that counts as infinite.
const PATIENT: u32 = 40;

impl Scenario {
    pub(super) fn mixed(&self) -> usize {
        let sum: u32 = self.plan.iter().map(|class| class[0]).sum();
        (self.replicas * sum as usize).div_ceil(1000)
    }

    fn json(&self) -> String {
        let table = |column: usize| {
            let cells: Vec<String> = self
                .plan
                .iter()
                .enumerate()
                .map(|(class, row)| format!(r#""{class}": {}"#, f64::from(row[column]) / 1000.0))
                .collect();
            format!("{{{}}}", cells.join(", "))
        };
        let rates: Vec<String> = self
            .plan
            .iter()
            .enumerate()
            .map(|(class, row)| format!(r#""{class}": {:?}"#, if row[4] >= PATIENT { 0.0 } else { self.rate(class) }))
            .collect();
        format!(
            r#"{{"kind": "GateAndRoute", "allocation": {{"prefill": {}, "mixed": {}, "solo": {}, "prefill_queue": {}}},
            "replicas": {}, "slots": {}, "chunk": {}, "prices": {{"prefill": 0.1, "decode": 0.2}},
            "timing": {{"kind": "MixedSolo", "alpha": {:?}, "beta": 0, "solo": {:?}}},
            "abandonment": {{{}}}, "gate": "{}", "router": "{}", "planned": {}, "service": "exponential",
            "kv": {{"tokens": null, "block": 16}}}}"#,
            table(0),
            table(1),
            table(2),
            table(3),
            self.replicas,
            self.slots,
            self.chunk,
            self.tau_s(),
            self.solo_s(),
            rates.join(", "),
            self.gate,
            self.router.0,
            self.router.1,
        )
    }

    pub(super) fn tau_s(&self) -> f64 {
        f64::from(self.tau_ms) / 1000.0
    }

    pub(super) fn solo_s(&self) -> f64 {
        f64::from(self.solo_ms) / 1000.0
    }

    pub(super) fn rate(&self, class: usize) -> f64 {
        1.0 / f64::from(self.plan[class][4])
    }

    fn run(&self) -> ExponentialResults {
        let mut clock_ms = 0;
        let arrival_s: Vec<f64> = self
            .rows
            .iter()
            .map(|row| {
                clock_ms += row.0;
                f64::from(clock_ms) / 1000.0
            })
            .collect();
        let class: Vec<u32> = self.rows.iter().map(|row| row.1 as u32).collect();
        let prompt_tokens: Vec<i32> = self.rows.iter().map(|row| row.2).collect();
        let output_tokens: Vec<i32> = self.rows.iter().map(|row| row.3).collect();
        let workload = Workload {
            arrival_s: &arrival_s,
            prompt_tokens: &prompt_tokens,
            output_tokens: &output_tokens,
            class: &class,
            class_count: self.plan.len(),
            ..Workload::default()
        };
        let classes: Vec<String> = (0..self.plan.len()).map(|class| class.to_string()).collect();
        let setup = parse::<GateAndRoute>(&self.json()).and_then(|setup| setup.build(&classes)).expect("a set-up");
        let instant = |s: f64| inferq_core::clock::Instant((s * 1000.0) as u128 * 1_000_000_000_000_000);
        let options = ExponentialOptions {
            seed: self.seed,
            horizon: self.horizon_s.map(instant),
            warmup: instant(self.warmup_s),
            timeline: None,
        };
        simulate(&workload, &setup, &options, &mut ()).expect("a run")
    }
}

fn scenarios(gate: &'static str, router: (&'static str, bool)) -> impl Strategy<Value = Scenario> {
    let plan = prop::collection::vec((0_u32..300, 0_u32..3000, 0_u32..3000, 0_u32..2000, 1_u32..60), 1..4);
    let rows = prop::collection::vec((0_u32..400, 0_usize..3, 1_i32..200, 1_i32..40), 1..60);
    let sizes = (1_usize..6, 1_usize..5, 1_u32..100, 1_u32..80, 1_u32..80);
    (plan, rows, sizes, prop::option::of(0_u32..12_000), 0_u32..6_000, any::<u64>()).prop_map(
        move |(plan, mut rows, (replicas, slots, chunk, tau_ms, solo_ms), horizon_ms, warmup_ms, seed)| {
            let mut plan: Vec<[u32; 5]> = plan.into_iter().map(|(x, m, s, q, t)| [x, m, s, q, t]).collect();
            // The plan serves at least one class, and has a solo replica if the router sends decodes there.
            plan[0][0] += 1;
            let pools = matches!(router.0, "randomized" | "general");
            let replicas = if pools { replicas + 4 } else { replicas };
            if pools {
                plan.iter_mut().for_each(|class| class[0] = class[0].min(250));
            }
            rows.iter_mut().for_each(|row| row.1 %= plan.len());
            let slots = if router.1 { slots + 1 } else { slots };
            let (horizon_s, warmup_s) = (horizon_ms.map(|ms| f64::from(ms) / 1000.0), f64::from(warmup_ms) / 1000.0);
            Scenario { gate, router, replicas, slots, chunk, tau_ms, solo_ms, plan, rows, horizon_s, warmup_s, seed }
        },
    )
}

fn holds(scenario: &Scenario) {
    let results = scenario.run();
    assert_eq!(results.in_system, results.sojourn, "L9");
    // The text form treats NaN as equal to itself.
    assert_eq!(format!("{results:?}"), format!("{:?}", scenario.run()), "L6");
    Audit::new(scenario, &results).holds(&results);
}

macro_rules! audits {
    ($($name:ident: $gate:expr,)*) => {
        $(mod $name {
            use super::*;
            proptest! {
                #![proptest_config(cases(600))]
                #[test]
                fn greedy(scenario in scenarios($gate, ROUTERS[0])) { holds(&scenario); }
                #[test]
                fn greedy_without_a_plan(scenario in scenarios($gate, ROUTERS[1])) { holds(&scenario); }
                #[test]
                fn randomized(scenario in scenarios($gate, ROUTERS[2])) { holds(&scenario); }
                #[test]
                fn general(scenario in scenarios($gate, ROUTERS[3])) { holds(&scenario); }
                #[test]
                fn immediate(scenario in scenarios($gate, ROUTERS[4])) { holds(&scenario); }
                #[test]
                fn fcfs(scenario in scenarios($gate, ROUTERS[5])) { holds(&scenario); }
            }
        })*
    };
}

audits! {
    occupancy: GATES[0],
    queue: GATES[1],
    priority: GATES[2],
    first_come: GATES[3],
}

/// One replica of two slots: a prefill and one decode.
///
/// ```text
///   request 0   |prefill|decode, solo |decode, slower      |decode, solo|
///   request 1                 arrives |prefill             |waits       |decode|
/// ```
#[test]
fn a_decode_is_slower_while_a_prefill_runs_on_its_replica() {
    let scenario = Scenario {
        gate: "fcfs",
        router: ("greedy", true),
        replicas: 1,
        slots: 2,
        chunk: 10,
        tau_ms: 30,
        solo_ms: 20,
        plan: vec![[1000, 0, 0, 0, PATIENT]],
        rows: vec![(0, 0, 100, 400), (2000, 0, 200, 10)],
        horizon_s: None,
        warmup_s: 0.0,
        seed: 3,
    };
    let rows = scenario.run().requests;
    let draw = |id, number| exponential_quantile(Stream::new(3, Source::Service).uniform(id, number));
    let prefilled = draw(0, 0) * 10.0 * 0.03;
    let work = draw(0, 1) * 400.0;
    let prefill = draw(1, 0) * 20.0 * 0.03;
    let solo_before = (2.0 - prefilled) / 0.02;
    let rest = work - solo_before - prefill / 0.03;
    assert!(prefilled < 2.0 && rest > 0.0, "the seed leads to the drawn case");
    let finish = 2.0 + prefill + rest * 0.02;
    let near = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-12 * expected, "{value} {expected}");
    near(rows.first_token_s[0], prefilled);
    near(rows.first_token_s[1], 2.0 + prefill);
    near(rows.finish_s[0], finish);
    near(rows.handoff_s[1], finish - 2.0 - prefill);
    near(rows.finish_s[1], finish + draw(1, 1) * 10.0 * 0.02);
}

/// Ninety-nine decodes next to a prefill that outlasts them, and on their own.
#[test]
fn decodes_run_at_the_mixed_or_the_solo_rate() {
    for (always, pace_s) in [(true, 0.03), (false, 0.02)] {
        let mut rows: Vec<(u32, usize, i32, i32)> = (0..99).map(|_| (0, 0, 1, 1000)).collect();
        if always {
            rows.push((0, 0, 1_000_000_000, 1));
        }
        let scenario = Scenario {
            gate: "fcfs",
            router: ("greedy", true),
            replicas: 1,
            slots: 101,
            chunk: 1000,
            tau_ms: 30,
            solo_ms: 20,
            plan: vec![[1000, 0, 0, 0, PATIENT]],
            rows,
            horizon_s: None,
            warmup_s: 0.0,
            seed: 5,
        };
        let rows = scenario.run().requests;
        let stream = Stream::new(5, Source::Service);
        // Before that, short prefills ran one after another, next to the decodes.
        let mixed_until = rows.first_token_s[98];
        for id in 0..99 {
            let expected = exponential_quantile(stream.uniform(id as u64, 1)) * 1000.0 * pace_s;
            let took = rows.finish_s[id] - rows.first_token_s[id];
            let off = mixed_until - rows.first_token_s[id] + 1e-9;
            assert!((took - expected).abs() <= off, "{id}: {took}, not {expected}");
            assert!(off < 0.02 * expected || expected < 0.5, "{id}: the bound is tight enough");
            assert!(!always || rows.finish_s[id] < rows.first_token_s[99], "the last prefill outlasts {id}");
        }
    }
}
