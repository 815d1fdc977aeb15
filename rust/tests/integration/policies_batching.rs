//! The rules of Orca, FasterTransformer, SlotGreedy and ClassPriority, in worked examples.
//!
//! Every iteration takes 1 s, so an instant is a number of iterations. The requests are a, b, c in their order. `[1,
//! 2] a: 3, b: 1` is the iteration from 1 to 2, in which a loads three tokens and b one.

use inferq_core::engine::{Engine, parse};
use inferq_core::error::{Kind, Result};
use inferq_core::results::Status;
use inferq_core::simulation::{Options, simulate};
use inferq_core::workload::Class;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::scenario::{Columns, Results, Scenario, scenario};
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
    simulate(&workload, parts, &options, &mut ()).expect("a run").with_columns(&workload)
}

/// Requests of a single class.
fn plain(rows: &[(f64, i32, i32)]) -> Vec<Row> {
    rows.iter().map(|&(arrival, prompt, output)| (arrival, prompt, output, "batch")).collect()
}

fn cache(tokens: u64, block: u64) -> Value {
    json!({"tokens": tokens, "block": block})
}

fn unlimited() -> Value {
    json!({"tokens": null, "block": 16})
}

fn is_rejected(results: &Results, why: &str) -> bool {
    results.requests.status == [Status::Rejected as u8]
        && results.findings.iter().any(|finding| finding.message.contains(why))
}

fn orca(token_budget: Option<u64>, chunked: bool, max_model_len: u64) -> Value {
    json!({"kind": "Orca", "max_seqs": 8, "max_model_len": max_model_len, "token_budget": token_budget,
           "chunked": chunked})
}

#[test]
fn orca_uses_the_remaining_budget_for_the_first_decodes_by_arrival() {
    // [0, 1] a: 1, b: 1; [1, 2] c: 3, a: 1; [2, 3] a: 1, b: 1; [3, 4] b: 1.
    let rows = plain(&[(0.0, 1, 3), (0.0, 1, 3), (0.5, 3, 1)]);
    let results = run(&orca(Some(4), false, 64), &unlimited(), &rows);
    assert_eq!(results.requests.finish_s, [3.0, 4.0, 2.0]);
}

#[test]
fn orca_rejects_what_it_can_never_batch() {
    let too_long = run(&orca(None, false, 10), &unlimited(), &plain(&[(0.0, 8, 3)]));
    assert!(is_rejected(&too_long, "prompt and output together exceed max_model_len"), "{too_long:?}");
    let prompt = run(&orca(Some(7), false, 64), &unlimited(), &plain(&[(0.0, 8, 1)]));
    assert!(is_rejected(&prompt, "its prompt is longer than the token budget"), "{prompt:?}");
    assert_eq!(run(&orca(Some(7), true, 64), &unlimited(), &plain(&[(0.0, 8, 1)])).requests.finish_s, [2.0]);
    // 9 tokens fit the cache, the 64 reserved tokens do not.
    let reserved = run(&orca(None, false, 64), &cache(48, 16), &plain(&[(0.0, 8, 1)]));
    assert!(is_rejected(&reserved, "reserves max_model_len tokens"), "{reserved:?}");
}

fn faster_transformer(max_seqs: u64, free: &str) -> Value {
    json!({"kind": "FasterTransformer", "max_seqs": max_seqs, "max_model_len": 16, "free": free})
}

#[test]
fn faster_transformer_admits_up_to_max_seqs_and_reservations() {
    let rows = plain(&[(0.0, 5, 1), (0.0, 5, 1), (0.0, 5, 1)]);
    assert_eq!(run(&faster_transformer(2, "each"), &unlimited(), &rows).requests.finish_s, [1.0, 1.0, 2.0]);
    // Each request takes one block of 16; there are two.
    assert_eq!(run(&faster_transformer(8, "each"), &cache(32, 16), &rows).requests.finish_s, [1.0, 1.0, 2.0]);
}

#[test]
fn faster_transformer_rejects_what_it_can_never_batch() {
    let too_long = run(&faster_transformer(2, "each"), &unlimited(), &plain(&[(0.0, 15, 2)]));
    assert!(is_rejected(&too_long, "prompt and output together exceed max_model_len"), "{too_long:?}");
    let reserved = run(&faster_transformer(2, "each"), &cache(15, 5), &plain(&[(0.0, 8, 1)]));
    assert!(is_rejected(&reserved, "reserves max_model_len tokens"), "{reserved:?}");
}

fn slot_greedy(chunk: u64) -> Value {
    json!({"kind": "SlotGreedy", "chunk": chunk})
}

fn sarathi(token_budget: u64, max_seqs: u64) -> Value {
    json!({"kind": "Sarathi", "token_budget": token_budget, "max_seqs": max_seqs, "order": "fcfs", "watermark": 0,
           "preemption": {"kind": "Recompute"}})
}

fn class_priority(inner: &Value) -> Value {
    json!({"kind": "ClassPriority", "order": ["urgent", "batch"], "inner": inner})
}

#[test]
fn class_priority_puts_prompts_of_a_higher_class_before_decodes_of_a_lower_one() {
    // [0, 1] a: 2; [1, 2] and [2, 3] b: 4; [3, 4] and [4, 5] a: 1.
    let scheduler = class_priority(&sarathi(4, 8));
    let results = run(&scheduler, &unlimited(), &[(0.0, 2, 3, "batch"), (0.5, 8, 1, "urgent")]);
    assert_eq!(results.requests.finish_s, [5.0, 3.0]);
    assert_eq!(results.requests.max_itl_s[0], 3.0);
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
fn class_priority_admits_no_victim_of_the_same_step() {
    // The cache has 14 tokens. All are taken at 1, when the four urgent requests need one each. b, the latest, is
    // preempted and leaves 2; then a is preempted and leaves 8. Now b's 3 tokens would fit again, but not in this
    // step: [1, 2] four decodes; [2, 3] a: 9 and b: 3.
    let mut inner = sarathi(64, 8);
    inner["order"] = json!("spf");
    let urgent = (0.0, 1, 2, "urgent");
    let rows = [(0.0, 8, 2, "batch"), (0.0, 2, 2, "batch"), urgent, urgent, urgent, urgent];
    let results = run(&class_priority(&inner), &cache(14, 1), &rows);
    assert_eq!(results.requests.finish_s, [3.0, 3.0, 2.0, 2.0, 2.0, 2.0]);
    assert_eq!(results.requests.preemptions, [1, 1, 0, 0, 0, 0]);
}

/// Path and message of the error for a description.
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
    of_order(&[], "must list the classes in order of priority, got none");
    of_order(&["urgent"], r#"must list every class of the workload, "batch" is missing"#);
    of_order(&["urgent", "batch", "urgent"], r#"must list each class once, got "urgent" twice"#);
    of_order(&["urgent", "none"], r#"must be a class of the workload (batch, urgent), got "none""#);
    assert_eq!(wrong(&ordered(&["a", "a"]), None).0, "scheduler.order");
    assert!(engine(&ordered(&["a", "b"]), &unlimited()).build(None).is_ok());
    for inner in [slot_greedy(4), orca(Some(8), false, 64), orca(None, false, 64), class_priority(&inner)] {
        let (path, message) = wrong(&class_priority(&inner), Some(&classes()));
        assert_eq!(path, "scheduler.inner");
        assert!(message.contains("use Sarathi, Orca with chunked=True"), "{message}");
    }
    assert_eq!(wrong(&class_priority(&sarathi(0, 8)), Some(&classes())).0, "scheduler.inner.token_budget");
}

/// The same scenario with all requests in one class, the first or the last of `order`, and the policy as `inner`.
fn as_inner(scenario: &Scenario, order: [&str; 2]) -> Scenario {
    let mut engine: Value = serde_json::from_str(&scenario.engine).expect("JSON");
    engine["scheduler"] = json!({"kind": "ClassPriority", "order": order, "inner": engine["scheduler"]});
    Scenario { engine: engine.to_string(), ..scenario.clone() }
}

fn one_class_is_served_as_by_the_inner_policy(scenario: Scenario) -> std::result::Result<(), TestCaseError> {
    let mut scenario = scenario;
    scenario.columns.class.fill(0);
    // Policies that plan ahead or use speculation are not supported as `inner`.
    let mut engine: Value = serde_json::from_str(&scenario.engine).expect("JSON");
    for (field, off) in [("async_scheduling", json!(false)), ("speculation", Value::Null)] {
        if let Some(set) = engine["scheduler"].get_mut(field) {
            *set = off;
        }
    }
    scenario.engine = engine.to_string();
    let alone = scenario.run(false);
    for order in [["a", "b"], ["b", "a"]] {
        let inner = as_inner(&scenario, order).run(false);
        let bits = |column: &[f64]| column.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&alone.requests.left_s), bits(&inner.requests.left_s));
        prop_assert_eq!(bits(&alone.requests.max_itl_s), bits(&inner.requests.max_itl_s));
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
