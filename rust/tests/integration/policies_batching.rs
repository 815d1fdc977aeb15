//! The rules of Orca, FasterTransformer, SlotGreedy and ClassPriority, worked out by hand.
//!
//! Every iteration takes 1 s, so an instant is a number of iterations. Requests are called a, b, c in their order;
//! `[1, 2] a: 3, b: 1` is the iteration from 1 to 2, in which a loads three tokens and b one.

use inferq_core::engine::{Class, Engine, parse};
use inferq_core::error::{Kind, Result};
use inferq_core::results::{Results, Status};
use inferq_core::simulation::{Options, simulate};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::scenario::{Columns, Scenario, scenario};
use crate::tier::cases;

/// Arrival, prompt, output, class.
type Row = (f64, i32, i32, &'static str);

const CLASSES: [&str; 2] = ["batch", "urgent"];

fn classes() -> [Class; 2] {
    CLASSES.map(Class::from)
}

fn engine(scheduler: &Value, kv: &Value) -> Engine {
    let engine = json!({
        "timing": {"kind": "Constant", "seconds": 1}, "scheduler": scheduler, "kv": kv, "first_token": "prefill"
    });
    parse(&engine.to_string()).expect("an engine")
}

fn run(scheduler: &Value, kv: &Value, rows: &[Row]) -> Results {
    let class = |row: &Row| CLASSES.iter().position(|class| *class == row.3).expect("a class") as u32;
    let columns = Columns {
        arrival_s: rows.iter().map(|row| row.0).collect(),
        prompt_tokens: rows.iter().map(|row| row.1).collect(),
        output_tokens: rows.iter().map(|row| row.2).collect(),
        class: rows.iter().map(class).collect(),
        ..Columns::default()
    };
    let workload = columns.view();
    let options = Options { iterations: true, batches: true, ..Options::all(&workload) };
    let parts = engine(scheduler, kv).build(Some(&classes())).expect("a replica");
    simulate(&workload, parts, &options, &mut ()).expect("a run")
}

/// Requests of one class.
fn plain(rows: &[(f64, i32, i32)]) -> Vec<Row> {
    rows.iter().map(|&(arrival, prompt, output)| (arrival, prompt, output, "batch")).collect()
}

fn cache(tokens: u64, block: u64) -> Value {
    json!({"tokens": tokens, "block": block})
}

fn unlimited() -> Value {
    json!({"tokens": null, "block": 16})
}

/// Prefill tokens and decodes of each iteration.
fn loads(results: &Results) -> Vec<(u64, u64)> {
    let row = |row: &inferq_core::results::IterationRow| {
        std::iter::repeat_n((row.prefill_tokens, row.decodes), row.count as usize)
    };
    results.iterations.iter().flat_map(row).collect()
}

fn is_rejected(results: &Results, why: &str) -> bool {
    results.requests.status == [Status::Rejected as u8] && results.findings.iter().any(|finding| finding.contains(why))
}

fn orca(token_budget: Option<u64>, chunked: bool, max_model_len: u64) -> Value {
    json!({"kind": "Orca", "max_seqs": 8, "max_model_len": max_model_len, "token_budget": token_budget,
           "chunked": chunked})
}

#[test]
fn orca_admits_beside_decodes() {
    // [0, 1] a: 10; [1, 2] b: 10, a: 1; [2, 3] a: 1.
    let results = run(&orca(None, false, 64), &unlimited(), &plain(&[(0.0, 10, 3), (0.5, 10, 1)]));
    assert_eq!(results.requests.finish_s, [3.0, 2.0]);
    assert_eq!(loads(&results), [(10, 0), (10, 1), (0, 1)]);
}

#[test]
fn orca_lets_decodes_wait_for_what_prompts_leave_of_the_budget() {
    // [0, 1] a: 2; [1, 2] b: 4, all of the budget; [2, 3] and [3, 4] a: 1.
    let results = run(&orca(Some(4), false, 64), &unlimited(), &plain(&[(0.0, 2, 3), (0.5, 4, 1)]));
    assert_eq!(results.requests.finish_s, [4.0, 2.0]);
    assert_eq!(loads(&results), [(2, 0), (4, 0), (0, 1), (0, 1)]);
}

#[test]
fn orca_gives_what_is_left_to_the_first_decodes_by_arrival() {
    // [0, 1] a: 1, b: 1; [1, 2] c: 3, a: 1; [2, 3] a: 1, b: 1; [3, 4] b: 1.
    let rows = plain(&[(0.0, 1, 3), (0.0, 1, 3), (0.5, 3, 1)]);
    let results = run(&orca(Some(4), false, 64), &unlimited(), &rows);
    assert_eq!(results.requests.finish_s, [3.0, 4.0, 2.0]);
}

#[test]
fn orca_stops_at_the_first_prompt_that_exceeds_the_budget_left_or_cuts_it() {
    let rows = plain(&[(0.0, 5, 1), (0.0, 4, 1), (0.0, 3, 1)]);
    // [0, 1] a: 5; b's 4 exceed what is left, and c waits behind b; [1, 2] b: 4, c: 3.
    let whole = run(&orca(Some(8), false, 64), &unlimited(), &rows);
    assert_eq!(whole.requests.finish_s, [1.0, 2.0, 2.0]);
    assert_eq!(loads(&whole), [(5, 0), (7, 0)]);
    // [0, 1] a: 5, b: 3; [1, 2] b: 1, c: 3.
    let chunked = run(&orca(Some(8), true, 64), &unlimited(), &rows);
    assert_eq!(chunked.requests.finish_s, [1.0, 2.0, 2.0]);
    assert_eq!(loads(&chunked), [(8, 0), (4, 0)]);
}

#[test]
fn orca_reserves_the_maximum_length() {
    let rows = plain(&[(0.0, 1, 2), (0.0, 1, 2)]);
    // Two blocks of 16: 16 tokens take one, 17 take both.
    let side_by_side = run(&orca(None, false, 16), &cache(32, 16), &rows);
    assert_eq!(side_by_side.requests.finish_s, [2.0, 2.0]);
    let one_by_one = run(&orca(None, false, 17), &cache(32, 16), &rows);
    assert_eq!(one_by_one.requests.finish_s, [2.0, 4.0]);
    assert!(one_by_one.iterations.iter().all(|row| row.kv_used_tokens == 32));
}

#[test]
fn orca_rejects_what_it_can_never_batch() {
    let too_long = run(&orca(None, false, 10), &unlimited(), &plain(&[(0.0, 8, 3)]));
    assert!(is_rejected(&too_long, "prompt and output together are longer than max_model_len"), "{too_long:?}");
    let prompt = run(&orca(Some(7), false, 64), &unlimited(), &plain(&[(0.0, 8, 1)]));
    assert!(is_rejected(&prompt, "its prompt is longer than the token budget"), "{prompt:?}");
    assert_eq!(run(&orca(Some(7), true, 64), &unlimited(), &plain(&[(0.0, 8, 1)])).requests.finish_s, [2.0]);
    // 9 tokens fit the cache, the 64 to be reserved do not.
    let reserved = run(&orca(None, false, 64), &cache(48, 16), &plain(&[(0.0, 8, 1)]));
    assert!(is_rejected(&reserved, "blocks for max_model_len tokens"), "{reserved:?}");
}

fn faster_transformer(max_seqs: u64, free: &str) -> Value {
    json!({"kind": "FasterTransformer", "max_seqs": max_seqs, "max_model_len": 16, "free": free})
}

#[test]
fn faster_transformer_admits_only_while_nobody_runs() {
    // [0, 1] a: 5, b: 5; [1, 2] and [2, 3] a: 1, though c waits and b's place is free; [3, 4] c: 5.
    let rows = plain(&[(0.0, 5, 3), (0.0, 5, 1), (0.5, 5, 1)]);
    let results = run(&faster_transformer(2, "each"), &unlimited(), &rows);
    assert_eq!(results.requests.finish_s, [3.0, 1.0, 4.0]);
    assert_eq!(loads(&results), [(10, 0), (0, 1), (0, 1), (5, 0)]);
}

#[test]
fn faster_transformer_admits_up_to_its_seats_and_reservations() {
    let rows = plain(&[(0.0, 5, 1), (0.0, 5, 1), (0.0, 5, 1)]);
    assert_eq!(run(&faster_transformer(2, "each"), &unlimited(), &rows).requests.finish_s, [1.0, 1.0, 2.0]);
    // One block of 16 each: two of them.
    assert_eq!(run(&faster_transformer(8, "each"), &cache(32, 16), &rows).requests.finish_s, [1.0, 1.0, 2.0]);
}

#[test]
fn faster_transformer_frees_each_at_its_end_or_all_with_the_batch() {
    // [0, 1] a: 5, b: 5, and b ends; [1, 2] and [2, 3] a: 1; [3, 4] c: 5. A block of 16 each.
    let rows = plain(&[(0.0, 5, 3), (0.0, 5, 1), (0.5, 5, 1)]);
    let used = |free| {
        let results = run(&faster_transformer(2, free), &cache(64, 16), &rows);
        results.iterations.iter().map(|row| row.kv_used_tokens).collect::<Vec<_>>()
    };
    assert_eq!(used("each"), [32, 16, 16]);
    assert_eq!(used("batch"), [32, 32, 16]);
}

#[test]
fn faster_transformer_rejects_what_it_can_never_batch() {
    let too_long = run(&faster_transformer(2, "each"), &unlimited(), &plain(&[(0.0, 15, 2)]));
    assert!(is_rejected(&too_long, "prompt and output together are longer than max_model_len"), "{too_long:?}");
    let reserved = run(&faster_transformer(2, "each"), &cache(15, 5), &plain(&[(0.0, 8, 1)]));
    assert!(is_rejected(&reserved, "blocks for max_model_len tokens"), "{reserved:?}");
}

fn slot_greedy(chunk: u64) -> Value {
    json!({"kind": "SlotGreedy", "chunk": chunk})
}

#[test]
fn slot_greedy_advances_by_a_chunk_or_a_token() {
    // Chunks of 4, 4 and 2; then two decodes.
    let results = run(&slot_greedy(4), &unlimited(), &plain(&[(0.0, 10, 3)]));
    assert_eq!(loads(&results), [(4, 0), (4, 0), (2, 0), (0, 1), (0, 1)]);
}

#[test]
fn slot_greedy_lets_the_younger_step_out_at_no_cost() {
    // Contexts after each iteration, 10 tokens of memory: [0, 1] 4 + 4; [1, 2] 5 + 5; [2, 3] 6, and b is out, whose 6
    // do not fit beside them; a ends; [3, 4] b comes back where it was, with 6.
    let results = run(&slot_greedy(4), &cache(10, 1), &plain(&[(0.0, 4, 3), (0.0, 4, 3)]));
    assert_eq!(results.requests.finish_s, [3.0, 4.0]);
    assert_eq!(results.requests.preemptions, [0, 1]);
    assert_eq!(results.requests.max_tbt_s, [1.0, 2.0]);
    assert_eq!(loads(&results), [(8, 0), (0, 2), (0, 1), (0, 1)]);
}

#[test]
fn slot_greedy_skips_who_does_not_fit_and_goes_on() {
    // 12 tokens of memory: [0, 1] 4 + 4 + 1; [1, 2] 5 + 5 + 2; [2, 3] 6 + 6, c is out; [3, 4] 7, b's 7 do not fit but
    // c's 3 do, and c ends; [4, 5] 8, b's 7 still do not fit, a ends; [5, 6] and [6, 7] b with 7 and 8.
    let results = run(&slot_greedy(4), &cache(12, 1), &plain(&[(0.0, 4, 5), (0.0, 4, 5), (0.0, 1, 3)]));
    assert_eq!(results.requests.finish_s, [5.0, 7.0, 4.0]);
    assert_eq!(results.requests.preemptions, [0, 1, 1]);
}

#[test]
fn slot_greedy_stops_at_the_first_new_one_whose_first_chunk_does_not_fit() {
    let rows = plain(&[(0.0, 4, 2), (0.0, 6, 1), (0.0, 1, 1)]);
    // 8 tokens of memory: [0, 1] a with 4; b's 6 do not fit, and c waits behind b; [1, 2] a with 5; [2, 3] 6 + 1.
    let whole = run(&slot_greedy(8), &cache(8, 1), &rows);
    assert_eq!(whole.requests.admitted_s, [0.0, 2.0, 2.0]);
    // Chunks of 3: 3 + 3 + 1.
    let chunked = run(&slot_greedy(3), &cache(8, 1), &rows);
    assert_eq!(chunked.requests.admitted_s, [0.0, 0.0, 0.0]);
}

fn sarathi(token_budget: u64, max_seqs: u64) -> Value {
    json!({"kind": "Sarathi", "token_budget": token_budget, "max_seqs": max_seqs, "order": "fcfs", "watermark": 0,
           "preemption": {"kind": "Recompute"}})
}

fn class_priority(inner: &Value) -> Value {
    json!({"kind": "ClassPriority", "order": ["urgent", "batch"], "inner": inner})
}

#[test]
fn class_priority_gives_a_lower_class_what_is_left_of_the_budget() {
    // [0, 1] b: 5, a: 3; [1, 2] a: 5.
    let scheduler = class_priority(&sarathi(8, 8));
    let results = run(&scheduler, &unlimited(), &[(0.0, 8, 1, "batch"), (0.0, 5, 1, "urgent")]);
    assert_eq!(results.requests.finish_s, [2.0, 1.0]);
    assert_eq!(loads(&results), [(8, 0), (5, 0)]);
}

#[test]
fn class_priority_puts_prompts_of_a_higher_class_before_decodes_of_a_lower_one() {
    // [0, 1] a: 2; [1, 2] and [2, 3] b: 4; [3, 4] and [4, 5] a: 1.
    let scheduler = class_priority(&sarathi(4, 8));
    let results = run(&scheduler, &unlimited(), &[(0.0, 2, 3, "batch"), (0.5, 8, 1, "urgent")]);
    assert_eq!(results.requests.finish_s, [5.0, 3.0]);
    assert_eq!(results.requests.max_tbt_s[0], 3.0);
    assert_eq!(results.requests.preemptions, [0, 0]);
}

#[test]
fn class_priority_lets_the_first_decodes_of_a_lower_class_have_the_rest() {
    // [0, 1] a: 1, b: 1; [1, 2] c: 3, a: 1; [2, 3] a: 1, b: 1; [3, 4] b: 1.
    let scheduler = class_priority(&sarathi(4, 8));
    let rows = [(0.0, 1, 3, "batch"), (0.0, 1, 3, "batch"), (0.5, 3, 1, "urgent")];
    assert_eq!(run(&scheduler, &unlimited(), &rows).requests.finish_s, [3.0, 4.0, 2.0]);
}

#[test]
fn class_priority_takes_nobodys_seat() {
    // [0, 1] a: 2; [1, 2] and [2, 3] a: 1; [3, 4] c: 2; [4, 5] b: 2, though it came before c.
    let scheduler = class_priority(&sarathi(8, 1));
    let rows = [(0.0, 2, 3, "batch"), (0.25, 2, 1, "batch"), (0.5, 2, 1, "urgent")];
    assert_eq!(run(&scheduler, &unlimited(), &rows).requests.finish_s, [3.0, 5.0, 4.0]);
}

#[test]
fn class_priority_takes_blocks_from_a_lower_class() {
    // Two blocks of 4, one for each prompt. At 1 b needs a second one, and a, though it came first, goes: [1, 2] and
    // [2, 3] b: 1; [3, 4] a: 5 once more; [4, 5] and [5, 6] a: 1.
    let scheduler = class_priority(&sarathi(8, 8));
    let results = run(&scheduler, &cache(8, 4), &[(0.0, 4, 4, "batch"), (0.0, 4, 3, "urgent")]);
    assert_eq!(results.requests.finish_s, [6.0, 3.0]);
    assert_eq!(results.requests.preemptions, [1, 0]);
}

#[test]
fn class_priority_preempts_the_latest_arrival_of_the_lowest_class() {
    // Three blocks of 4. At 1 c needs a second one, and b goes; a's next token still fits its block: [1, 2] a: 1, c: 1;
    // [2, 3] b: 5 once more.
    let scheduler = class_priority(&sarathi(16, 8));
    let rows = [(0.0, 3, 2, "batch"), (0.0, 4, 2, "batch"), (0.0, 4, 2, "urgent")];
    let results = run(&scheduler, &cache(12, 4), &rows);
    assert_eq!(results.requests.finish_s, [2.0, 3.0, 2.0]);
    assert_eq!(results.requests.preemptions, [0, 1, 0]);
}

#[test]
fn class_priority_admits_no_victim_of_the_same_step() {
    // 14 tokens of memory, all taken at 1, when the four urgent ones need one each. b goes, the latest, and leaves 2;
    // then a goes, and leaves 8. Now b's 3 tokens would fit again, but not in this step: [1, 2] four decodes; [2, 3]
    // a: 9 and b: 3 once more.
    let mut inner = sarathi(64, 8);
    inner["order"] = json!("spf");
    let urgent = (0.0, 1, 2, "urgent");
    let rows = [(0.0, 8, 2, "batch"), (0.0, 2, 2, "batch"), urgent, urgent, urgent, urgent];
    let results = run(&class_priority(&inner), &cache(14, 1), &rows);
    assert_eq!(results.requests.finish_s, [3.0, 3.0, 2.0, 2.0, 2.0, 2.0]);
    assert_eq!(results.requests.preemptions, [1, 1, 0, 0, 0, 0]);
}

#[test]
fn class_priority_preempts_within_a_class_once_no_lower_one_runs() {
    // Two blocks of 4, one for each prompt. At 1 a needs a second one, and b goes, the latest arrival: [1, 2] a: 1;
    // [2, 3] b: 5 once more.
    let scheduler = class_priority(&sarathi(8, 8));
    let results = run(&scheduler, &cache(8, 4), &[(0.0, 4, 2, "urgent"), (0.0, 4, 2, "urgent")]);
    assert_eq!(results.requests.finish_s, [2.0, 3.0]);
    assert_eq!(results.requests.preemptions, [0, 1]);
}

/// The path and the message of the error that a description gives.
fn wrong(scheduler: &Value, classes: Option<&[Class]>) -> (String, String) {
    let parts: Result<_> = engine(scheduler, &unlimited()).build(classes);
    match parts.err().map(|error| error.kind().clone()) {
        Some(Kind::Config { path, message }) => (path, message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn class_priority_names_what_is_wrong_with_it() {
    let inner = sarathi(8, 8);
    let ordered = |order: &[&str]| json!({"kind": "ClassPriority", "order": order, "inner": inner});
    let of_order = |order: &[&str], message: &str| {
        let expected = ("scheduler.order".to_owned(), message.to_owned());
        assert_eq!(wrong(&ordered(order), Some(&classes())), expected);
    };
    of_order(&[], "it must name the classes, the first one served first");
    of_order(&["urgent"], r#"the class "batch" of the workload is missing"#);
    of_order(&["urgent", "batch", "urgent"], r#"it names the class "urgent" twice"#);
    of_order(&["urgent", "none"], r#"no request has the class "none"; the workload has batch, urgent"#);
    assert_eq!(wrong(&ordered(&["a", "a"]), None).0, "scheduler.order");
    assert!(engine(&ordered(&["a", "b"]), &unlimited()).build(None).is_ok());
    for inner in [slot_greedy(4), orca(Some(8), false, 64), orca(None, false, 64), class_priority(&inner)] {
        let (path, message) = wrong(&class_priority(&inner), Some(&classes()));
        assert_eq!(path, "scheduler.inner");
        assert!(message.contains("such as Sarathi, or Orca with chunked=True"), "{message}");
    }
    assert_eq!(wrong(&class_priority(&sarathi(0, 8)), Some(&classes())).0, "scheduler.inner.token_budget");
}

/// The same scenario with all requests in one class, the first or the last of `order`, under the policy as `inner`.
fn as_inner(scenario: &Scenario, order: [&str; 2]) -> Scenario {
    let mut engine: Value = serde_json::from_str(&scenario.engine).expect("JSON");
    engine["scheduler"] = json!({"kind": "ClassPriority", "order": order, "inner": engine["scheduler"]});
    Scenario { engine: engine.to_string(), ..scenario.clone() }
}

fn one_class_is_served_as_by_the_inner_policy(scenario: Scenario) -> std::result::Result<(), TestCaseError> {
    let mut scenario = scenario;
    scenario.columns.class.fill(0);
    let alone = scenario.run(false);
    for order in [["a", "b"], ["b", "a"]] {
        let inner = as_inner(&scenario, order).run(false);
        let bits = |column: &[f64]| column.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&alone.requests.left_s), bits(&inner.requests.left_s));
        prop_assert_eq!(bits(&alone.requests.max_tbt_s), bits(&inner.requests.max_tbt_s));
        prop_assert_eq!(&alone.requests.preemptions, &inner.requests.preemptions);
        prop_assert_eq!(&alone.work, &inner.work);
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn class_priority_over_one_class_is_the_inner_policy(
        sarathi in scenario("Sarathi"),
        vllm_v1 in scenario("VllmV1"),
        k_fcfs in scenario("KFcfs"),
    ) {
        one_class_is_served_as_by_the_inner_policy(sarathi)?;
        one_class_is_served_as_by_the_inner_policy(vllm_v1)?;
        one_class_is_served_as_by_the_inner_policy(k_fcfs)?;
    }
}
