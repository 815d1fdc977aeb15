//! Invariants L1 to L11 over random scenarios, for every policy.

use std::num::NonZeroU64;

use inferq_core::clock::{Instant, Span};
use inferq_core::results::{BatchRow, IterationRow, Status};
use inferq_core::scheduler::SchedulerConfig;
use inferq_core::simulation::{Options, Timeline, simulate};
use inferq_core::workload::Workload;
use proptest::prelude::*;

use crate::scenario::{Results, Scenario, scenario, sharing};
use crate::tier::check;

pub(crate) type Outcome = Result<(), TestCaseError>;

/// All columns in seconds.
fn seconds(results: &Results) -> [&Vec<f64>; 12] {
    let columns = &results.requests;
    [
        &columns.arrival_s,
        &columns.admitted_s,
        &columns.first_token_s,
        &columns.finish_s,
        &columns.left_s,
        &columns.queue_s,
        &columns.ttft_s,
        &columns.tpot_s,
        &columns.max_itl_s,
        &columns.e2e_s,
        &columns.prefilled_s,
        &columns.handoff_s,
    ]
}

fn bits(column: &[f64]) -> Vec<u64> {
    column.iter().map(|value| value.to_bits()).collect()
}

/// One iteration: start, length, prefill tokens, decodes, their contexts.
type Single = (Instant, Span, u64, u64, u128);

/// Expands stretches into single iterations, each with its rows.
fn singles(results: &Results) -> (Vec<Single>, Vec<Vec<BatchRow>>) {
    let mut iterations = Vec::new();
    let mut batches = Vec::new();
    for (place, row) in results.iterations.iter().enumerate() {
        let rows: Vec<BatchRow> =
            results.batches.iter().filter(|batch| batch.iteration == place as u64).copied().collect();
        for j in 0..row.count {
            let start = row.start.after(row.pace.total(j).expect("fits")).expect("fits");
            let context = row.context_tokens + u128::from(j * row.decodes);
            let length = row.pace.length(j).expect("fits");
            iterations.push((start, length, row.prefill_tokens, row.decodes, context));
            batches.push(rows.iter().map(|batch| BatchRow { iteration: 0, ..*batch }).collect());
        }
    }
    (iterations, batches)
}

pub(crate) fn same(stretched: &Results, stepped: &Results) -> Outcome {
    for (left, right) in seconds(stretched).into_iter().zip(seconds(stepped)) {
        prop_assert_eq!(bits(left), bits(right));
    }
    prop_assert_eq!(&stretched.requests.status, &stepped.requests.status);
    prop_assert_eq!(&stretched.requests.preemptions, &stepped.requests.preemptions);
    prop_assert_eq!(&stretched.requests.discarded_tokens, &stepped.requests.discarded_tokens);
    prop_assert_eq!(&stretched.requests.cached_tokens, &stepped.requests.cached_tokens);
    prop_assert_eq!(&stretched.timeline, &stepped.timeline);
    prop_assert_eq!(&stretched.findings, &stepped.findings);
    prop_assert_eq!(&stretched.work, &stepped.work);
    prop_assert_eq!(&stretched.drained, &stepped.drained);
    prop_assert_eq!(&stretched.block_operations, &stepped.block_operations);
    for (left, right) in stretched.itl.iter().zip(&stepped.itl) {
        prop_assert_eq!(left.bins().collect::<Vec<_>>(), right.bins().collect::<Vec<_>>());
        prop_assert_eq!((left.count(), left.sum(), left.longest()), (right.count(), right.sum(), right.longest()));
    }
    let (left, right) = (stretched.totals, stepped.totals);
    prop_assert_eq!((left.end, left.iterations, left.in_system), (right.end, right.iterations, right.in_system));
    prop_assert_eq!(singles(stretched), singles(stepped));
    Ok(())
}

fn l8_stretches_equal_stepping(scenario: &Scenario) -> Outcome {
    let stepped = scenario.run(true);
    prop_assert!(stepped.iterations.iter().all(|row| row.count == 1));
    same(&scenario.run(false), &stepped)
}

/// Whether the policy plans ahead and drops the token in flight of a preempted request.
fn drops_tokens(scenario: &Scenario) -> bool {
    scenario.engine.contains(r#""overlap":true"#)
}

/// The tokens emitted by a request, and those it keeps, none of them twice. A token in flight at a preemption may be
/// dropped.
pub(crate) fn tokens_of(scenario: &Scenario, results: &Results, request: usize) -> (u64, u64) {
    let left_s = results.requests.left_s[request];
    let (late, rows): (Vec<&BatchRow>, Vec<&BatchRow>) = results
        .batches
        .iter()
        .filter(|row| row.request as usize == request && row.emits)
        .partition(|row| results.iterations[row.iteration as usize].start.seconds() >= left_s);
    // Tokens after a stop token are dropped.
    let is_ahead = scenario.engine.contains(r#""async_scheduling":true"#) || drops_tokens(scenario);
    assert!(late.len() <= usize::from(is_ahead), "L5: a finished request emits no more");
    let of_row = |row: &BatchRow| results.iterations[row.iteration as usize].count * u64::from(row.emitted);
    let emitted: u64 = rows.into_iter().map(of_row).sum();
    let discarded = results.requests.discarded_tokens.get(request).map_or(0, |&tokens| tokens as u64);
    let kept = emitted - discarded;
    let output = scenario.owed(request);
    let droppable = if drops_tokens(scenario) { results.requests.preemptions[request] as u64 } else { 0 };
    assert!(kept <= output + droppable, "L5: no token twice");
    (emitted - kept.saturating_sub(output), kept.min(output))
}

fn l1_to_l7_and_l9_hold(scenario: &Scenario) -> Outcome {
    let results = scenario.run(false);
    let columns = &results.requests;
    let rows = columns.status.len();
    // L1: a request that arrived by the horizon has one status.
    let horizon = scenario.horizon_s.unwrap_or(f64::INFINITY);
    let arrived = scenario.columns.arrival_s.iter().filter(|&&at| at <= horizon).count();
    prop_assert_eq!(rows, arrived);
    prop_assert_eq!(results.totals.by_status.iter().sum::<u64>(), arrived as u64);
    for row in 0..rows {
        let status = columns.status[row];
        // L2, for the events that happened.
        let road = [columns.arrival_s[row], columns.admitted_s[row], columns.first_token_s[row], columns.finish_s[row]];
        let happened: Vec<f64> = road.into_iter().filter(|at| !at.is_nan()).collect();
        prop_assert!(happened.is_sorted(), "{road:?}");
        prop_assert_eq!(happened.len() == 4, status == Status::Finished as u8);
        // L5.
        let (_, kept) = tokens_of(scenario, &results, row);
        let is_complete = kept == scenario.owed(row);
        let may_lack = drops_tokens(scenario) && columns.preemptions[row] > 0;
        // Its client may have cancelled it while its last token was computed.
        let taken_back = status == Status::Abandoned as u8 && scenario.columns.view().canceled_after(row).is_some();
        prop_assert!(is_complete == (status == Status::Finished as u8) || (is_complete && (may_lack || taken_back)));
        prop_assert!(kept == 0 || status != Status::Abandoned as u8 || taken_back);
        if scenario.horizon_s.is_none() {
            prop_assert_ne!(status, Status::Unfinished as u8);
        }
    }
    // L3: iterations follow one another.
    let ends: Vec<(Instant, Instant)> = results
        .iterations
        .iter()
        .map(|row| (row.start, row.start.after(row.pace.total(row.count).expect("fits")).expect("fits")))
        .collect();
    prop_assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    // L7: budget, sequences, blocks.
    for (place, row) in results.iterations.iter().enumerate() {
        prop_assert!(row.prefill_tokens + row.decodes <= scenario.token_budget);
        let batch = results.batches.iter().filter(|batch| batch.iteration == place as u64);
        let (sequences, tokens) = batch.fold((0, 0), |(n, tokens), batch| (n + 1, tokens + batch.tokens));
        prop_assert!(sequences <= scenario.max_seqs);
        if scenario.drafts() {
            prop_assert!((row.prefill_tokens + row.decodes..=scenario.token_budget).contains(&tokens));
        } else {
            prop_assert_eq!(tokens, row.prefill_tokens + row.decodes);
        }
        if let Some(capacity) = scenario.kv_tokens {
            prop_assert!(row.kv_used_tokens <= capacity / scenario.block * scenario.block);
        }
    }
    // The cache hits equal those of the requests, except after preemptions.
    for cache in &results.block_operations {
        let cached = columns.cached_tokens.iter().map(|&tokens| tokens as u64).sum::<u64>() / scenario.block;
        // With groups of layers, a token is hit in every group.
        let is_grouped = scenario.engine.contains("\"groups\":{");
        prop_assert!(
            is_grouped || cached == cache.hit || (cached < cache.hit && columns.preemptions.iter().any(|&n| n > 0))
        );
        prop_assert!(cache.evicted <= cache.inserted);
    }
    // L9, Little: both sides in whole attoseconds.
    prop_assert_eq!(results.totals.in_system, results.totals.sojourn);
    // Every gap is counted once, by class, for measured requests only.
    let expected: u64 = (0..rows)
        .filter(|&row| scenario.measured.contains(&(row as u32)))
        .map(|row| tokens_of(scenario, &results, row).0.saturating_sub(1))
        .sum();
    let counted = results.itl.iter().map(|histogram| histogram.count()).sum::<u64>();
    let preemptions = columns.preemptions.iter().map(|&preemptions| preemptions as u64).sum::<u64>();
    let droppable = if drops_tokens(scenario) { preemptions } else { 0 };
    prop_assert!(counted <= expected && expected <= counted + droppable);
    Ok(())
}

fn l4_nothing_is_held_after_the_last_request(scenario: &Scenario) -> Outcome {
    // One more request arrives a second after all others have left, so the samples in between see an empty replica.
    // The core asserts free + used = total after every event.
    let calm = Scenario { horizon_s: None, ..scenario.clone() };
    let alone = calm.run(false);
    if !alone.drained.is_empty() {
        // Another arrival could complete the group that they waited for.
        return Ok(());
    }
    let end = alone.totals.end;
    let mut columns = calm.columns.clone();
    columns.arrival_s.push(end.seconds() + 1.0);
    columns.prompt_tokens.push(1);
    columns.output_tokens.push(1);
    columns.class.push(0);
    columns.priority.push(0);
    columns.max_output_tokens.push(0);
    if !columns.patience_s.is_empty() {
        columns.patience_s.push(f64::NAN);
    }
    if !columns.cancel_s.is_empty() {
        columns.cancel_s.push(f64::NAN);
    }
    columns.itl_slo_s.push(f64::NAN);
    columns.queue_key.push(0.0);
    columns.session.push(inferq_core::workload::NO_SESSION);
    if !columns.content_start.is_empty() {
        columns.add_content(&[]);
    }
    let results = Scenario { columns, ..calm }.run(false);
    let between = results.timeline.iter().filter(|sample| sample.at > end && sample.at < results.totals.end);
    let between: Vec<_> = between.take_while(|sample| sample.running == 0).collect();
    prop_assert!(between.len() > 100);
    prop_assert!(between.iter().all(|sample| sample.kv_used_tokens + sample.tokens_in_system + sample.waiting == 0));
    Ok(())
}

fn l6_the_same_scenario_gives_the_same_bytes(scenario: &Scenario) -> Outcome {
    let (first, second) = (scenario.run(false), scenario.run(false));
    for (left, right) in seconds(&first).into_iter().zip(seconds(&second)) {
        prop_assert_eq!(bits(left), bits(right));
    }
    prop_assert_eq!((first.itl, first.timeline, first.iterations), (second.itl, second.timeline, second.iterations));
    Ok(())
}

/// Compares two runs. The first records only the rows of requests. The second records everything and uses every order
/// of events that must not matter: a horizon after the end, a limit of requests in flight that is never reached, a
/// patience that never ends, and in half of the scenarios an unused second class.
fn plain_runs_equal_full_runs(scenario: &Scenario, share: f64) -> Outcome {
    let results = |scenario: &Scenario, class_count: usize, options: &Options| {
        let workload = Workload { class_count, ..scenario.columns.view() };
        simulate(&workload, scenario.parts(), options, &mut ()).expect("a run").with_columns(&workload)
    };
    let mut plain = scenario.patient(false);
    let class_count = if share < 0.5 { 1 } else { 2 };
    if class_count == 1 {
        plain.columns.class.fill(0);
    }
    let kept = plain.options(false);
    let full = Options {
        horizon: kept.horizon.or(Some(Instant(10_u128.pow(28)))),
        max_in_flight: NonZeroU64::new(1 << 40),
        ..kept.clone()
    };
    let bare = Options { iterations: false, batches: false, ..kept.clone() };
    let kept = results(&plain, 2, &kept);
    same(&kept, &results(&plain.patient(true), 2, &full))?;
    let bare = results(&plain, class_count, &bare);
    prop_assert!(bare.iterations.is_empty() && bare.batches.is_empty());
    same(&Results { iterations: kept.iterations.clone(), batches: kept.batches.clone(), ..bare }, &kept)
}

/// Compares the run in its own unit with 64 bits, as far as they suffice, and the run in attoseconds with 128 bits.
/// In half of the scenarios a time no longer fits 64 bits halfway: most units of these scenarios are a nanosecond.
fn short_runs_equal_long_runs(scenario: &Scenario, share: f64) -> Outcome {
    let mut plain = scenario.patient(false);
    plain.columns.itl_slo_s.clear();
    if share < 0.5 {
        let outgrown = (1_u64 << 62) as f64 / 1e9;
        let later = outgrown - plain.columns.arrival_s[plain.columns.arrival_s.len() / 2];
        plain.columns.arrival_s.iter_mut().for_each(|s| *s = (*s + later).max(0.0));
        plain.horizon_s = plain.horizon_s.map(|s| s + later);
    }
    let results = |in_attoseconds: bool| {
        let (kept, workload) = (plain.options(false), plain.columns.view());
        let options =
            Options { timeline: Timeline::Automatic, iterations: false, batches: false, in_attoseconds, ..kept };
        simulate(&workload, plain.parts(), &options, &mut ()).expect("a run").with_columns(&workload)
    };
    let (short, long) = (results(false), results(true));
    prop_assert_eq!(
        (short.totals.sojourn, short.totals.stretches > 0),
        (long.totals.sojourn, long.totals.stretches > 0)
    );
    same(&short, &long)
}

fn l11_the_future_does_not_change_the_past(scenario: &Scenario, kept: f64) -> Outcome {
    let rows = scenario.columns.arrival_s.len();
    let rows_kept = ((rows as f64 * kept) as usize).max(1);
    let all = scenario.run(false);
    let head = Scenario { columns: scenario.columns.head(rows_kept), ..scenario.clone() }.run(false);
    if !head.drained.is_empty() {
        return Ok(());
    }
    // Before the first dropped arrival, nothing changes.
    let until = scenario.columns.arrival_s.get(rows_kept).copied().unwrap_or(f64::INFINITY);
    for (column, (left, right)) in seconds(&all).into_iter().zip(seconds(&head)).enumerate().take(5) {
        for (row, (left, right)) in left.iter().zip(right).enumerate() {
            let past = |value: &f64| *value < until;
            if past(left) || past(right) {
                prop_assert_eq!(left.to_bits(), right.to_bits(), "column {}, row {}", column, row);
            }
        }
    }
    Ok(())
}

/// The same engine with all times doubled.
fn slower(engine: &str) -> String {
    let mut value: serde_json::Value = serde_json::from_str(engine).expect("JSON");
    let double = |object: &mut serde_json::Value, but: &[&str]| {
        for (name, field) in object.as_object_mut().expect("an object") {
            if let Some(number) = field.as_f64().filter(|_| !but.contains(&name.as_str())) {
                *field = serde_json::json!(number * 2.0);
            }
        }
    };
    double(&mut value["timing"], &["knee", "rows", "columns", "reduction", "width", "layers"]);
    for part in ["linear", "chunk", "decode", "all_reduce", "exchange", "states"] {
        if let Some(part) = value["timing"].get_mut(part).filter(|part| part.is_object()) {
            double(part, &[]);
        }
    }
    for window in value["timing"].get_mut("windows").and_then(|windows| windows.as_array_mut()).into_iter().flatten() {
        double(&mut window["chunk"], &[]);
        double(&mut window["decode"], &[]);
    }
    double(&mut value["overhead"], &["largest_graph_tokens"]);
    for holder in ["/scheduler", "/scheduler/inner"] {
        if let Some(preemption) = value.pointer_mut(holder).and_then(|scheduler| scheduler.get_mut("preemption")) {
            double(preemption, &[]);
        }
    }
    for drafter in ["/scheduler/speculation/drafter", "/scheduler/inner/speculation/drafter"] {
        // A share of an iteration scales with the iteration.
        if let Some(model) = value.pointer_mut(drafter).filter(|drafter| drafter.is_object()) {
            double(model, &[]);
        }
    }
    value.to_string()
}

fn l10_twice_the_times_give_twice_the_latencies(scenario: &Scenario) -> Outcome {
    if scenario.engine.contains("TimingTable") || scenario.engine.contains("\"experts\":[{") {
        // Slopes and shares are rounded to whole attoseconds, and twice a rounded one differs from the rounded double.
        return Ok(());
    }
    let doubled = Scenario {
        columns: scenario.columns.slower(),
        engine: slower(&scenario.engine),
        horizon_s: scenario.horizon_s.map(|s| s * 2.0),
        ..scenario.clone()
    };
    let (once, twice) = (scenario.run(false), doubled.run(false));
    let place_of_tpot = 7;
    for (column, (left, right)) in seconds(&once).into_iter().zip(seconds(&twice)).enumerate() {
        for (left, right) in left.iter().zip(right) {
            // A quotient is rounded down to an attosecond once per run.
            let off = if column == place_of_tpot { 2e-18 + right.abs() * f64::EPSILON } else { 0.0 };
            prop_assert!((left.is_nan() && right.is_nan()) || (2.0 * left - right).abs() <= off, "{left} {right}");
        }
    }
    Ok(())
}

/// Checks an invariant for every policy, or for `INFERQ_POLICY` alone, over random scenarios and a number below 1.
fn every_policy(
    at_night: u32,
    scenarios: fn(&'static str) -> BoxedStrategy<Scenario>,
    law: fn(&Scenario, f64) -> Outcome,
) {
    let chosen = std::env::var("INFERQ_POLICY").ok();
    for &kind in SchedulerConfig::KINDS {
        if chosen.as_ref().is_none_or(|chosen| chosen == kind) {
            eprintln!("INFERQ_POLICY={kind}");
            let values = (scenarios(kind), 0.0..1.0_f64).boxed();
            check(at_night, &values, &|(scenario, share)| law(&scenario, share));
        }
    }
}

/// The invariants of one replica over scenarios of every policy, with these numbers of scenarios at night: L8, L8
/// with arrivals at the ends of iterations, and each of the others.
macro_rules! laws {
    ($module:ident: $scenarios:path, $stretches:literal, $boundaries:literal, $others:literal) => {
        mod $module {
            use super::*;

            #[test]
            fn l8_stretches_equal_stepping_bit_for_bit() {
                every_policy($stretches, $scenarios, |scenario, _| l8_stretches_equal_stepping(scenario));
            }

            #[test]
            fn l8_holds_for_arrivals_on_iteration_boundaries() {
                every_policy($boundaries, $scenarios, |scenario, share| {
                    l8_stretches_equal_stepping(&scenario.on_boundaries(1 + (share * 3.0) as usize))
                });
            }

            #[test]
            fn plain_runs_equal_full_runs() {
                every_policy($others, $scenarios, super::plain_runs_equal_full_runs);
            }

            #[test]
            fn short_runs_equal_long_runs() {
                every_policy($others, $scenarios, super::short_runs_equal_long_runs);
            }

            #[test]
            fn l1_to_l7_and_l9_hold() {
                every_policy($others, $scenarios, |scenario, _| super::l1_to_l7_and_l9_hold(scenario));
            }

            #[test]
            fn l4_nothing_is_held_after_the_last_request() {
                every_policy($others, $scenarios, |scenario, _| {
                    super::l4_nothing_is_held_after_the_last_request(scenario)
                });
            }

            #[test]
            fn l6_the_same_scenario_gives_the_same_bytes() {
                every_policy($others, $scenarios, |scenario, _| {
                    super::l6_the_same_scenario_gives_the_same_bytes(scenario)
                });
            }

            #[test]
            fn l10_twice_the_times_give_twice_the_latencies() {
                every_policy($others, $scenarios, |scenario, _| {
                    super::l10_twice_the_times_give_twice_the_latencies(scenario)
                });
            }

            #[test]
            fn l11_the_future_does_not_change_the_past() {
                every_policy($others, $scenarios, |scenario, share| {
                    super::l11_the_future_does_not_change_the_past(scenario, share)
                });
            }
        }
    };
}

// On a change, 14 policies have 14 · (300 + 100 + 300 + 50) = 10,500 scenarios of L8.
laws! { without_cache: scenario, 3_000, 1_000, 500 }
laws! { with_prefix_cache: sharing, 3_000, 500, 400 }

/// The invariants of one replica whose layers form several groups.
mod with_layer_groups {
    use super::*;

    fn always(at_night: u32, law: fn(&Scenario, f64) -> Outcome) {
        let values = (crate::scenario::with_layer_groups(), 0.0..1.0_f64).boxed();
        check(at_night, &values, &|(scenario, share)| law(&scenario, share));
    }

    #[test]
    fn l8_stretches_equal_stepping_bit_for_bit() {
        always(20_000, |scenario, _| l8_stretches_equal_stepping(scenario));
    }

    #[test]
    fn l8_holds_for_arrivals_on_iteration_boundaries() {
        always(10_000, |scenario, share| {
            l8_stretches_equal_stepping(&scenario.on_boundaries(1 + (share * 3.0) as usize))
        });
    }

    #[test]
    fn short_runs_equal_long_runs() {
        always(2_000, super::short_runs_equal_long_runs);
    }

    #[test]
    fn l1_to_l7_and_l9_hold() {
        always(5_000, |scenario, _| super::l1_to_l7_and_l9_hold(scenario));
    }

    #[test]
    fn l4_nothing_is_held_after_the_last_request() {
        always(5_000, |scenario, _| super::l4_nothing_is_held_after_the_last_request(scenario));
    }

    #[test]
    fn l6_the_same_scenario_gives_the_same_bytes() {
        always(2_000, |scenario, _| super::l6_the_same_scenario_gives_the_same_bytes(scenario));
    }

    #[test]
    fn l10_twice_the_times_give_twice_the_latencies() {
        always(2_000, |scenario, _| super::l10_twice_the_times_give_twice_the_latencies(scenario));
    }

    #[test]
    fn l11_the_future_does_not_change_the_past() {
        always(2_000, super::l11_the_future_does_not_change_the_past);
    }
}

#[test]
fn l8_expands_a_row_into_what_it_says() {
    // Guards the tests above: a stretch of three iterations expands to three different ones.
    let pace = inferq_core::timing::Pace { first: Span(10), growth: 2, holds: u64::MAX };
    let row = IterationRow {
        start: Instant(100),
        replica: 0,
        count: 3,
        pace,
        prefill_tokens: 0,
        decodes: 2,
        context_tokens: 7,
        kv_used_tokens: 0,
    };
    let results = Results { iterations: vec![row], ..Results::default() };
    let expected = [(100, 10, 7), (110, 12, 9), (122, 14, 11)];
    let expected: Vec<Single> =
        expected.map(|(start, length, context)| (Instant(start), Span(length), 0, 2, context)).to_vec();
    assert_eq!(singles(&results).0, expected);
}
