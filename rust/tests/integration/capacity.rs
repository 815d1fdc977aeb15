//! Autoscaling and failures: the invariants with autoscalers, drains and failures.

use inferq_core::autoscaler::{AutoscalerDescription, BySchedule, ScalingConfig};
use inferq_core::cluster::{Capacity, Cluster, Pool};
use inferq_core::dice::{Dice, Scale};
use inferq_core::failures::FailuresDescription;
use inferq_core::results::{Change, Status};
use inferq_core::router::RouterConfig;
use inferq_core::simulation::{Options, simulate_cluster};
use proptest::prelude::*;

use crate::fleet::{built, every_bit_is_the_same, router};
use crate::laws::{Outcome, same, tokens_of};
use crate::scenario::{Results, Scenario, any_scenario, grid_scenario, on_grid};
use crate::streamed;
use crate::tier::cases;

/// The initial number of replicas, and the events of the fleet.
#[derive(Clone, Debug)]
struct FleetEvents {
    replicas: usize,
    autoscaler: Option<AutoscalerDescription>,
    failures: Option<FailuresDescription>,
    router: RouterConfig,
    seed: u64,
}

impl FleetEvents {
    fn places(&self) -> usize {
        self.autoscaler.as_ref().map_or(self.replicas, |autoscaler| autoscaler.max)
    }

    fn cluster(&self, scenario: &Scenario) -> Cluster {
        let places = self.places();
        let again = scenario.clone();
        let autoscaler = self
            .autoscaler
            .as_ref()
            .map(|described| described.build(described.policy.build().expect("a policy")).expect("an autoscaler"));
        let failures = self.failures.as_ref().map(|failures| failures.build(self.seed, places).expect("failures"));
        let spare = Box::new(move |_| Ok(again.parts()));
        let capacity = (autoscaler.is_some() || failures.is_some()).then(|| Capacity {
            open: self.replicas,
            autoscaler,
            failures,
            spare,
        });
        let engines = (0..places).map(|_| scenario.parts()).collect();
        let router = Some(built(self.router.clone(), self.seed, 0));
        Cluster::of_pools(vec![Pool { engines, router, hands_to: None, capacity }])
    }

    fn run(&self, scenario: &Scenario, options: &Options) -> Results {
        let workload = scenario.columns.view();
        let results = simulate_cluster(&workload, self.cluster(scenario), options, &mut ()).expect("a run");
        results.with_columns(&workload)
    }
}

fn seconds(from: u32, to: u32) -> impl Strategy<Value = f64> {
    (from..to).prop_map(|ms| f64::from(ms) / 1e3)
}

fn autoscaler() -> impl Strategy<Value = AutoscalerDescription> {
    let policy = (prop::sample::select(ScalingConfig::KINDS), prop::collection::vec(any::<u32>(), 8));
    let policy = policy.prop_map(|(kind, words)| {
        ScalingConfig::sample(kind, &mut Dice::new(words, Scale::default())).expect("a policy")
    });
    let startup = prop_oneof![1 => Just(0.0), 3 => seconds(0, 200)];
    let cooldown = prop_oneof![1 => Just(0.0), 1 => seconds(0, 400)];
    let limits = (1_usize..3, 0_usize..4);
    (policy, startup, seconds(1, 80), cooldown, limits).prop_map(
        |(policy, startup_s, every_s, cooldown_s, (min, more))| AutoscalerDescription {
            policy,
            min,
            max: min + more,
            startup_s,
            every_s,
            cooldown_s,
        },
    )
}

fn commands(most: usize) -> impl Strategy<Value = Vec<(f64, usize)>> {
    let at = prop::collection::btree_set((0_u32..600, 0_usize..1), 0..most);
    at.prop_map(|at| at.into_iter().map(|(ms, replica)| (f64::from(ms) / 1e3, replica)).collect())
}

fn failures() -> impl Strategy<Value = FailuresDescription> {
    let repair = prop_oneof![1 => Just(None), 2 => seconds(0, 300).prop_map(Some)];
    let mtbf = prop_oneof![1 => Just(None), 2 => seconds(20, 900).prop_map(Some)];
    (commands(4), commands(3), commands(4), mtbf, repair, 0_u32..4).prop_map(
        |(at, drains, starts, mtbf_s, repair_s, retries)| {
            let mtbf_s = if at.is_empty() { mtbf_s.or(Some(0.2)) } else { mtbf_s };
            FailuresDescription { at, drains, starts, mtbf_s, repair_s, retries }
        },
    )
}

fn events() -> impl Strategy<Value = FleetEvents> {
    let both = prop_oneof![
        (autoscaler().prop_map(Some), Just(None)).boxed(),
        (Just(None), failures().prop_map(Some)).boxed(),
        (autoscaler().prop_map(Some), failures().prop_map(Some)).boxed(),
    ];
    (both, 1_usize..5, router(), any::<u64>()).prop_map(|((autoscaler, failures), replicas, router, seed)| {
        let replicas =
            autoscaler.as_ref().map_or(replicas, |autoscaler| replicas.clamp(autoscaler.min, autoscaler.max));
        FleetEvents { replicas, autoscaler, failures, router, seed }
    })
}

impl FleetEvents {
    /// The same events at ends of iterations.
    fn on_grid(mut self) -> FleetEvents {
        if let Some(scaler) = &mut self.autoscaler {
            scaler.every_s = on_grid(scaler.every_s).max(0.01);
            (scaler.startup_s, scaler.cooldown_s) = (on_grid(scaler.startup_s), on_grid(scaler.cooldown_s));
        }
        if let Some(failures) = &mut self.failures {
            for list in [&mut failures.at, &mut failures.drains, &mut failures.starts] {
                list.iter_mut().for_each(|command| command.0 = on_grid(command.0));
                list.sort_by(|left, right| left.partial_cmp(right).expect("numbers"));
                list.dedup();
            }
            failures.repair_s = failures.repair_s.map(on_grid);
        }
        self
    }
}

/// A policy that scales by an unlimited resource is an error.
fn is_rejected(events: &FleetEvents, scenario: &Scenario) -> bool {
    let Some(AutoscalerDescription { policy, .. }) = &events.autoscaler else { return false };
    policy.build().expect("a policy").check(&scenario.parts()).is_err()
}

/// The events of each replica are a sequence of lives, with the right counts.
fn events_are_lives(results: &Results, events: &FleetEvents) -> Outcome {
    let mut open = 0;
    let mut last = vec![Change::Ended; events.places()];
    for event in &results.fleet_events {
        let before = std::mem::replace(&mut last[event.replica as usize], event.change);
        let may_follow: &[Change] = match event.change {
            Change::Asked => &[Change::Ended, Change::Died],
            Change::Ready => &[Change::Asked, Change::Ended],
            Change::Drains => &[Change::Ready],
            Change::Ended => &[Change::Drains, Change::Asked, Change::Died],
            Change::Died => &[Change::Ready, Change::Drains, Change::Asked],
        };
        prop_assert!(may_follow.contains(&before), "{before:?} before {event:?}");
        open += i64::from(event.change == Change::Ready);
        open -= i64::from(before == Change::Ready && event.change != Change::Ready);
        prop_assert_eq!(i64::from(event.open), open);
        prop_assert!((event.open + event.starting + event.draining) as usize <= events.places());
    }
    prop_assert!(results.fleet_events.is_sorted_by_key(|event| event.at));
    // Without an autoscaler or a commanded start, a replica that fails while it drains stays closed.
    let stays_closed = events.autoscaler.is_none() && events.failures.as_ref().is_some_and(|all| all.starts.is_empty());
    for replica in (0..events.places() as u32).filter(|_| stays_closed) {
        let lives: Vec<Change> =
            results.fleet_events.iter().filter(|event| event.replica == replica).map(|event| event.change).collect();
        let fails = lives.windows(2).position(|pair| pair == [Change::Drains, Change::Died]);
        prop_assert!(fails.is_none_or(|place| place + 2 == lives.len()), "{lives:?}");
    }
    Ok(())
}

/// Requests are served only by serving replicas.
fn iterations_run_on_living_replicas(results: &Results) -> Outcome {
    for row in &results.iterations {
        let end = row.start.after(row.pace.total(row.count).expect("fits")).expect("fits");
        let events = results.fleet_events.iter().filter(|event| event.replica == row.replica);
        let before = events.clone().rfind(|event| event.at <= row.start && event.change != Change::Asked);
        prop_assert!(before.is_some_and(|event| matches!(event.change, Change::Ready | Change::Drains)));
        let has_ended = |change| matches!(change, Change::Ended | Change::Died);
        prop_assert!(!events.clone().any(|event| event.at > row.start && event.at < end && has_ended(event.change)));
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(4_000))]

    #[test]
    fn l8_stretches_equal_stepping_with_autoscaling_and_failures(scenario in any_scenario(), events in events()) {
        prop_assume!(!is_rejected(&events, &scenario));
        let run = |stepping| events.run(&scenario, &scenario.options(stepping));
        let (fast, slow) = (run(false), run(true));
        prop_assert_eq!(&fast.requests.replica, &slow.requests.replica);
        prop_assert_eq!(&fast.requests.retries, &slow.requests.retries);
        prop_assert_eq!(&fast.fleet_events, &slow.fleet_events);
        prop_assert_eq!(fast.totals.replica_time, slow.totals.replica_time);
        same(&Results { iterations: Vec::new(), batches: Vec::new(), ..fast }, &Results { iterations: Vec::new(), batches: Vec::new(), ..slow })?;
    }

    #[test]
    fn l8_holds_with_autoscaling_and_failures_for_events_at_ends_of_iterations(
        scenario in grid_scenario(), events in events().prop_map(FleetEvents::on_grid),
    ) {
        prop_assume!(!is_rejected(&events, &scenario));
        let run = |stepping| events.run(&scenario, &scenario.options(stepping));
        let (fast, slow) = (run(false), run(true));
        prop_assert_eq!(&fast.requests.replica, &slow.requests.replica);
        prop_assert_eq!(&fast.requests.retries, &slow.requests.retries);
        prop_assert_eq!(&fast.fleet_events, &slow.fleet_events);
        prop_assert_eq!(fast.totals.replica_time, slow.totals.replica_time);
        same(&Results { iterations: Vec::new(), batches: Vec::new(), ..fast }, &Results { iterations: Vec::new(), batches: Vec::new(), ..slow })?;
    }

    #[test]
    fn l1_l2_l5_and_l9_hold_with_autoscaling_and_failures(scenario in any_scenario(), events in events()) {
        prop_assume!(!is_rejected(&events, &scenario));
        let results = events.run(&scenario, &scenario.options(false));
        let columns = &results.requests;
        let horizon = scenario.horizon_s.unwrap_or(f64::INFINITY);
        let arrived = scenario.columns.arrival_s.iter().filter(|&&at| at <= horizon).count();
        prop_assert_eq!(results.totals.by_status.iter().sum::<u64>(), arrived as u64);
        prop_assert_eq!(results.totals.in_system, results.totals.sojourn);
        for row in 0..arrived {
            let status = columns.status[row];
            let road = [columns.arrival_s[row], columns.admitted_s[row], columns.first_token_s[row], columns.finish_s[row]];
            let happened: Vec<f64> = road.into_iter().filter(|at| !at.is_nan()).collect();
            prop_assert!(happened.is_sorted(), "{road:?}");
            prop_assert_eq!(happened.len() == 4, status == Status::Finished as u8);
            if status == Status::Finished as u8 {
                prop_assert_eq!(tokens_of(&scenario, &results, row).1, scenario.owed(row));
            }
            let retries = columns.retries.get(row).copied().unwrap_or(0);
            let most = events.failures.as_ref().map_or(0, |failures| failures.retries);
            prop_assert!(retries <= most);
            prop_assert!(status != Status::Lost as u8 || retries == most && events.failures.is_some());
        }
        let is_repaired = |failures: &FailuresDescription| failures.repair_s.is_some() && failures.drains.is_empty();
        let stays = events.autoscaler.is_some() || events.failures.as_ref().is_none_or(is_repaired);
        if scenario.horizon_s.is_none() && stays {
            prop_assert_eq!(results.totals.by_status[Status::Unfinished as usize], 0);
        }
        events_are_lives(&results, &events)?;
        iterations_run_on_living_replicas(&results)?;
    }

    #[test]
    fn a_capacity_that_never_changes_is_the_fixed_fleet(
        scenario in any_scenario(), replicas in 1_usize..4, more in 0_usize..3, every in 1_u32..300, router in router(), seed: u64,
    ) {
        let uses_state = built(router.clone(), seed, 0).uses_state();
        let policy = BySchedule { steps: vec![(0.0, replicas)], period_s: None }.into();
        let (every_s, startup_s) = (f64::from(every) / 1e3, 0.01);
        let autoscaler = AutoscalerDescription { policy, min: 1, max: replicas + more, startup_s, every_s, cooldown_s: 0.0 };
        let fixed = FleetEvents { replicas, autoscaler: None, failures: None, router, seed };
        let scaled = FleetEvents { autoscaler: Some(autoscaler), ..fixed.clone() };
        let (fixed, scaled) = (fixed.run(&scenario, &scenario.options(false)), scaled.run(&scenario, &scenario.options(false)));
        prop_assert_eq!(scaled.fleet_events.len(), replicas);
        // Behind a router that does not read state, a fixed replica is drained when no request is left for it alone.
        prop_assume!(fixed.drained.is_empty() || uses_state);
        every_bit_is_the_same(fixed, Results { fleet_events: Vec::new(), ..scaled })?;
    }

    #[test]
    fn parts_equal_the_whole_with_autoscaling_and_failures(
        scenario in any_scenario(), events in events(), sizes in streamed::sizes(), automatic: bool,
    ) {
        prop_assume!(!is_rejected(&events, &scenario));
        let options = streamed::options(&scenario, automatic, 1);
        streamed::same(&scenario, &sizes, || events.cluster(&scenario), &options)?;
    }
}
