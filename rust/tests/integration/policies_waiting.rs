//! WAIT and Nested WAIT: each rule in a worked example with one second per iteration.

use inferq_core::clock::{Instant, SECOND};
use inferq_core::engine::{Engine, parse};
use inferq_core::error::Kind;
use inferq_core::simulation::{Options, simulate};
use inferq_core::workload::Class;

use crate::scenario::{Columns, Results};

/// Arrival in seconds, class, prompt and output tokens.
type Row = (f64, u32, i32, i32);

const CLASSES: [&str; 2] = ["a", "b"];

/// A scheduler, its KV cache in tokens with blocks of 1, and the first-token convention.
struct Case<'a> {
    scheduler: &'a str,
    kv_tokens: Option<u64>,
    first_token: &'a str,
    horizon_s: Option<u64>,
    patience_s: &'a [f64],
}

const UNLIMITED: Case =
    Case { scheduler: "", kv_tokens: None, first_token: "prefill", horizon_s: None, patience_s: &[] };

impl Case<'_> {
    fn run(&self, rows: &[Row]) -> Results {
        let tokens = self.kv_tokens.map_or("null".to_owned(), |tokens| tokens.to_string());
        let engine: Engine = parse(&format!(
            r#"{{"timing": {{"kind": "Constant", "seconds": 1}}, "kv": {{"tokens": {tokens}, "block": 1}},
            "scheduler": {}, "first_token": "{}"}}"#,
            self.scheduler, self.first_token
        ))
        .expect("JSON");
        let columns = Columns {
            arrival_s: rows.iter().map(|row| row.0).collect(),
            class: rows.iter().map(|row| row.1).collect(),
            prompt_tokens: rows.iter().map(|row| row.2).collect(),
            output_tokens: rows.iter().map(|row| row.3).collect(),
            patience_s: self.patience_s.to_vec(),
            ..Columns::default()
        };
        let workload = columns.view();
        let options = Options {
            horizon: self.horizon_s.map(|s| Instant(u128::from(s) * SECOND)),
            iterations: true,
            batches: true,
            ..Options::all(&workload)
        };
        let engine = engine.build(Some(&CLASSES.map(Class::from))).expect("an engine");
        simulate(&workload, engine, &options, &mut ()).expect("a run").with_columns(&workload)
    }
}

/// The start of each iteration and its requests in order of admission.
fn batches(results: &Results) -> Vec<(f64, Vec<u32>)> {
    let mut batches = Vec::new();
    for (place, row) in results.iterations.iter().enumerate() {
        let rows = results.batches.iter().filter(|batch| batch.iteration == place as u64);
        let requests: Vec<u32> = rows.map(|batch| batch.request).collect();
        batches.extend((0..row.count).map(|j| (row.start.seconds() + j as f64, requests.clone())));
    }
    batches
}

/// Used tokens of KV cache in each stretch.
fn used(results: &Results) -> Vec<u64> {
    results.iterations.iter().map(|row| row.kv_used_tokens).collect()
}

macro_rules! batches {
    ($($start:literal: $requests:expr),* $(,)?) => {vec![$(($start as f64, $requests.to_vec())),*]};
}

#[test]
fn wait_admits_type_by_type_while_there_is_room() {
    // Both types are eligible; a comes first and takes two of the three sequences.
    let wait = Case { scheduler: r#"{"kind": "Wait", "thresholds": 2, "max_seqs": 3}"#, ..UNLIMITED };
    let results = wait.run(&[(0.0, 1, 1, 1), (0.0, 1, 1, 1), (0.0, 0, 1, 1), (0.0, 0, 1, 1)]);
    assert_eq!(batches(&results), batches![0: [2, 3, 0], 1: [1]]);
    // 10 blocks: the second a does not fit the 3 blocks that the first one leaves, and ends its type. So the third,
    // which would fit, does not begin. The b does.
    let wait = Case { scheduler: r#"{"kind": "Wait", "thresholds": {"a": 3, "b": 1}, "max_seqs": null}"#, ..UNLIMITED };
    let wait = Case { kv_tokens: Some(10), ..wait };
    let results = wait.run(&[(0.0, 0, 7, 1), (0.0, 0, 7, 1), (0.0, 0, 1, 1), (0.0, 1, 3, 1)]);
    assert_eq!(batches(&results), batches![0: [0, 3], 1: [1, 2]]);
}

#[test]
fn several_who_are_sent_back_keep_their_order() {
    let wait = Case { scheduler: r#"{"kind": "Wait", "thresholds": 4, "max_seqs": null}"#, ..UNLIMITED };
    let wait = Case { kv_tokens: Some(8), ..wait };
    let results = wait.run(&[(0.0, 0, 3, 2), (0.0, 0, 3, 2), (0.0, 0, 1, 2), (0.0, 0, 1, 2)]);
    // 1: no request is still to arrive, and four decodes need a block each. 3 is preempted, one block is free for
    // three; 2 is preempted, two are free for two. 2: the cache is empty, and each has two tokens to compute.
    assert_eq!(batches(&results), batches![0: [0, 1, 2, 3], 1: [0, 1], 2: [2, 3]]);
    assert_eq!(results.requests.preemptions, [0, 0, 1, 1]);
}

#[test]
fn who_runs_out_of_patience_counts_no_more() {
    let rows = [(0.0, 0, 1, 1), (2.0, 0, 1, 1), (3.0, 0, 1, 1)];
    let patience_s = [1.0, f64::NAN, f64::NAN];
    for scheduler in [
        r#"{"kind": "Wait", "thresholds": 2, "max_seqs": null}"#,
        r#"{"kind": "NestedWait", "segments": [0], "thresholds": [2], "prompt_groups": []}"#,
    ] {
        let results = Case { scheduler, patience_s: &patience_s, ..UNLIMITED }.run(&rows);
        assert_eq!(batches(&results), batches![3: [1, 2]]);
    }
}

#[test]
fn an_admission_always_leads_to_a_token() {
    let wait = Case { scheduler: r#"{"kind": "Wait", "thresholds": {"a": 1, "b": 2}, "max_seqs": null}"#, ..UNLIMITED };
    let wait = Case { kv_tokens: Some(10), first_token: "decode", ..wait };
    let results = wait.run(&[(0.0, 1, 4, 2), (0.0, 1, 4, 2), (1.0, 0, 2, 1), (1.0, 0, 2, 1)]);
    // From 1 on, 8 of 10 blocks belong to b, which pauses. Request 2 could compute its prompt in the other two, but
    // not decode; preempted, it would restart forever. So no request is admitted. After all events, b resumes: it
    // takes the last two blocks at 1. At 2 request 1 is preempted so that 0 has its 6th. 3: the cache is empty, a
    // begins. 5: no a waits, one b waits, no request is still to arrive.
    let expected = batches![0: [0, 1], 1: [0, 1], 2: [0], 3: [2], 4: [2, 3], 5: [3, 1], 6: [1]];
    assert_eq!(batches(&results), expected);
    assert_eq!(results.requests.finish_s, [3.0, 7.0, 5.0, 6.0]);
}

#[test]
fn nested_wait_keeps_the_blocks_of_a_pause_and_sends_back_the_latest_admitted() {
    let nested = r#"{"kind": "NestedWait", "segments": [0, 2], "thresholds": [1, 2], "prompt_groups": []}"#;
    let nested = Case { scheduler: nested, kv_tokens: Some(10), ..UNLIMITED };
    let results = nested.run(&[(0.0, 0, 4, 3), (2.0, 0, 4, 3), (5.0, 0, 1, 1)]);
    // Request 0 is alone at the entry of segment 2 from 1 on, and waits for 1. 5: both decode, and no block is left
    // for 2. 6: that entry is empty, and segment 1 takes part. But 2 has no room, and no request is still to arrive.
    // So 0 and 1 continue: 1, admitted last, is preempted, and no request is admitted. 7: 1 precedes 2 and computes 4
    // + 2 tokens, which emits its third; the threshold admits only one.
    assert_eq!(batches(&results), batches![0: [0], 2: [1], 5: [0, 1], 6: [0], 7: [1], 8: [2]]);
    assert_eq!(used(&results), [4, 8, 10, 6, 6, 1]);
    assert_eq!(results.requests.preemptions, [0, 1, 0]);
    assert_eq!(results.requests.finish_s, [7.0, 8.0, 9.0]);
}

#[test]
fn nested_wait_sends_back_the_latest_admitted_of_all_groups() {
    let nested = r#"{"kind": "NestedWait", "segments": [9], "thresholds": [1], "prompt_groups": [4]}"#;
    let nested = Case { scheduler: nested, kv_tokens: Some(12), ..UNLIMITED };
    let results = nested.run(&[(0.0, 0, 3, 8), (1.0, 0, 5, 2), (2.0, 0, 4, 1)]);
    // From 2 on, request 2 waits for 4 blocks, so its group advances: 0 takes one at 2, 3, 4, 5. At 6 it needs the
    // 8th, and none is free. 1, which pauses in the other group, is preempted; 4 are free, but no request is
    // admitted. 7 and 8: 3 and 2 are free, 2 needs 4 and 1 needs 6. 0 ends at 9.
    let expected = batches![
        0: [0], 1: [1], 2: [0], 3: [0], 4: [0], 5: [0], 6: [0], 7: [0], 8: [0], 9: [2, 1],
    ];
    assert_eq!(batches(&results), expected);
    assert_eq!(results.requests.preemptions, [0, 1, 0]);
    // Unchanged iterations are one stretch: from 2 to 6, and 7 and 8.
    let counts: Vec<u64> = results.iterations.iter().map(|row| row.count).collect();
    assert_eq!(counts, [1, 1, 4, 1, 2, 1]);
}

/// Path and message of the error for an engine with this scheduler.
fn complaint(scheduler: &str, classes: Option<&[Class]>) -> (String, String) {
    let engine: Engine = parse(&format!(
        r#"{{"timing": {{"kind": "Constant", "seconds": 1}}, "kv": {{"tokens": null, "block": 1}},
        "scheduler": {scheduler}, "first_token": "prefill"}}"#
    ))
    .expect("JSON");
    let error = engine.build(classes).err().expect("an error");
    match error.kind() {
        Kind::Config { path, message } => (path.clone(), message.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn thresholds_that_make_no_sense_are_errors_that_name_the_field() {
    let classes = Some(["a".into(), "b".into()]);
    let classes = classes.as_ref().map(|classes| &classes[..]);
    let wait = |thresholds: &str, classes| {
        complaint(&format!(r#"{{"kind": "Wait", "thresholds": {thresholds}, "max_seqs": null}}"#), classes)
    };
    // The numbers are checked before any workload is known.
    assert_eq!(wait("0", None).0, "scheduler.thresholds");
    assert_eq!(wait("{}", None).0, "scheduler.thresholds");
    assert_eq!(wait(r#"{"chat": 0}"#, None).0, "scheduler.thresholds.chat");
    let (path, message) = wait(r#"{"a": 1, "b": 1, "chat": 1}"#, classes);
    assert_eq!(path, "scheduler.thresholds.chat");
    assert!(message.contains("got \"chat\""), "{message}");
    let (path, message) = wait(r#"{"a": 1}"#, classes);
    assert_eq!(path, "scheduler.thresholds");
    assert!(message.contains("\"b\""), "{message}");

    let nested = |segments: &str, thresholds: &str, groups: &str| {
        let scheduler = format!(
            r#"{{"kind": "NestedWait", "segments": {segments}, "thresholds": {thresholds}, "prompt_groups": {groups}}}"#
        );
        complaint(&scheduler, None).0
    };
    assert_eq!(nested("[]", "[]", "[]"), "scheduler.segments");
    assert_eq!(nested("[0, 2, 2]", "[1, 1, 1]", "[]"), "scheduler.segments");
    assert_eq!(nested("[0, 2]", "[1]", "[]"), "scheduler.thresholds");
    assert_eq!(nested("[0, 2]", "[1, 0]", "[]"), "scheduler.thresholds");
    assert_eq!(nested("[0]", "[1]", "[0, 4]"), "scheduler.prompt_groups");
    assert_eq!(nested("[0]", "[1]", "[4, 4]"), "scheduler.prompt_groups");
}
