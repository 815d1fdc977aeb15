//! SLAI: each rule in a worked example, and the whole policy against a literal implementation.

use std::collections::BTreeMap;

use inferq_core::clock::{Instant, SECOND, Span, attoseconds};
use inferq_core::engine::{Engine, EngineParts, parse};
use inferq_core::error::Result;
use inferq_core::plan::{Limits, Plan, Preemption};
use inferq_core::request::{Phase, Place, Requests};
use inferq_core::scheduler::{Notice, Scheduler};
use inferq_core::simulation::{Options, simulate};
use proptest::prelude::*;

use crate::scenario::{Columns, Results, Scenario, scenario};
use crate::tier::cases;

/// No ITL objective.
const NONE: f64 = f64::NAN;

/// An engine for worked examples: 1 s per iteration, 4 tokens each, and an offset of 1, which is one second.
#[derive(Clone)]
struct Worked {
    timing: &'static str,
    budget: u64,
    max_active: u64,
    max_decodes: u64,
    offset: &'static str,
    order: &'static str,
    class_first: &'static str,
    kv: &'static str,
    first_token: &'static str,
}

const WORKED: Worked = Worked {
    timing: r#"{"kind": "Constant", "seconds": 1}"#,
    budget: 4,
    max_active: 8,
    max_decodes: 8,
    offset: "1",
    order: "fcfs",
    class_first: "null",
    kv: r#"{"tokens": null, "block": 1}"#,
    first_token: "prefill",
};

impl Worked {
    fn build(&self) -> Result<EngineParts> {
        let Worked { timing, budget, max_active, max_decodes, offset, order, class_first, kv, first_token } = self;
        let engine: Engine = parse(&format!(
            r#"{{"timing": {timing}, "kv": {kv}, "first_token": "{first_token}",
                "scheduler": {{"kind": "Slai", "token_budget": {budget}, "max_active": {max_active},
                    "max_decodes": {max_decodes}, "offset": {offset}, "order": "{order}",
                    "class_first": {class_first}}}}}"#
        ))?;
        engine.build(Some(&["a".into(), "b".into()]))
    }

    /// Runs requests of (arrival, prompt, output, ITL); those in `class_b` have that class.
    fn run(&self, requests: &[(f64, i32, i32, f64)], class_b: &[usize]) -> Results {
        let columns = Columns {
            arrival_s: requests.iter().map(|request| request.0).collect(),
            prompt_tokens: requests.iter().map(|request| request.1).collect(),
            output_tokens: requests.iter().map(|request| request.2).collect(),
            itl_slo_s: requests.iter().map(|request| request.3).collect(),
            class: (0..requests.len()).map(|row| u32::from(class_b.contains(&row))).collect(),
            ..Columns::default()
        };
        let workload = columns.view();
        let options = Options { iterations: true, batches: true, ..Options::all(&workload) };
        let results = simulate(&workload, self.build().expect("an engine"), &options, &mut ()).expect("a run");
        results.with_columns(&workload)
    }

    /// The requests of each iteration with their tokens, in order of admission.
    fn batches(&self, requests: &[(f64, i32, i32, f64)]) -> Vec<Vec<(u32, u64)>> {
        batches(&self.run(requests, &[]))
    }
}

fn batches(results: &Results) -> Vec<Vec<(u32, u64)>> {
    let rows_of = |iteration| results.batches.iter().filter(move |row| row.iteration == iteration as u64);
    let batch = |iteration| rows_of(iteration).map(|row| (row.request, row.tokens)).collect();
    let repeated = |(iteration, row): (usize, &inferq_core::results::IterationRow)| {
        std::iter::repeat_n(batch(iteration), row.count as usize)
    };
    results.iterations.iter().enumerate().flat_map(repeated).collect()
}

#[test]
fn a_decode_waits_behind_prompts_until_its_last_schedulable_time() {
    // Request 0 is ready at e = 1 and critical from C = 1 + 3 − 1 = 3 on, inclusive; then e = 4 and C = 6.
    let results = WORKED.run(&[(0.0, 2, 3, 3.0), (0.0, 40, 1, NONE)], &[]);
    let expected: [&[(u32, u64)]; 8] = [
        &[(0, 2), (1, 2)],
        &[(1, 4)],
        &[(1, 4)],
        &[(0, 1), (1, 3)],
        &[(1, 4)],
        &[(1, 4)],
        &[(0, 1), (1, 3)],
        &[(1, 4)],
    ];
    assert_eq!(batches(&results)[..8], expected);
    assert_eq!((results.requests.finish_s[0], results.requests.max_itl_s[0]), (7.0, 3.0));
    // Nothing changes between two critical times, so two iterations are one stretch. The remaining 16 tokens of the
    // prompt are a stretch of three and the iteration that completes it.
    let counts: Vec<u64> = results.iterations.iter().map(|row| row.count).collect();
    assert_eq!(counts, [1, 2, 1, 2, 1, 3, 1]);
}

#[test]
fn critical_decodes_go_by_deadline_and_ties_by_id() {
    // All decodes are critical, and one may run at a time. Ready at 1, deadlines 6 and 4: request 1 runs twice (4,
    // then 5).
    let engine = Worked { max_decodes: 1, offset: "100", ..WORKED };
    let first = [(0, 1), (1, 1)];
    let by_deadline = engine.batches(&[(0.0, 1, 3, 5.0), (0.0, 1, 3, 3.0)]);
    assert_eq!(by_deadline, [&first[..], &[(1, 1)], &[(1, 1)], &[(0, 1)], &[(0, 1)]]);
    // Deadlines 6 and 6; 7 and 6; 7 and 8.
    let by_id = engine.batches(&[(0.0, 1, 3, 5.0), (0.0, 1, 3, 5.0)]);
    assert_eq!(by_id, [&first[..], &[(0, 1)], &[(1, 1)], &[(0, 1)], &[(1, 1)]]);
}

#[test]
fn without_an_itl_a_decode_is_never_critical_and_is_last_by_id() {
    // For every offset, requests 0 and 2 wait for the prompt that fills the budget, and request 1 does not. Then one
    // decode runs at a time: 1 before 0 and 2, then 0 until it ends.
    let engine = Worked { max_decodes: 1, offset: "1e9", ..WORKED };
    let batches = engine.batches(&[(0.0, 1, 3, NONE), (0.0, 1, 5, 1e9), (0.0, 1, 2, NONE), (0.5, 7, 1, NONE)]);
    let expected: [&[(u32, u64)]; 8] = [
        &[(0, 1), (1, 1), (2, 1)],
        &[(1, 1), (3, 3)],
        &[(1, 1), (3, 3)],
        &[(1, 1), (3, 1)],
        &[(1, 1)],
        &[(0, 1)],
        &[(0, 1)],
        &[(2, 1)],
    ];
    assert_eq!(batches, expected);
}

#[test]
fn other_decodes_take_what_prompts_leave_by_deadline_and_up_to_the_limit() {
    // Ready at 1, deadlines 101, 51 and 101. The prompt of 3 tokens leaves budget for one decode. Then two may run.
    // Their deadlines move behind that of request 2, which waited.
    let engine = Worked { max_decodes: 2, ..WORKED };
    let batches = engine.batches(&[(0.0, 1, 9, 100.0), (0.0, 1, 9, 50.0), (0.0, 1, 9, 100.0), (0.5, 3, 1, NONE)]);
    assert_eq!(batches[1], [(1, 1), (3, 3)]);
    // Deadlines 101, 52, 101; then 103, 53, 101; then 103, 54, 104.
    assert_eq!(batches[2..5], [[(0, 1), (1, 1)], [(1, 1), (2, 1)], [(0, 1), (1, 1)]]);
}

#[test]
fn a_critical_decode_takes_blocks_from_the_latest_arrival_not_yet_placed() {
    // 6 blocks of 4. Request 0 is always critical and holds 2 blocks from t = 1 on, request 1 the other 4. At t = 5
    // request 0 has filled its 8 tokens. Request 1, in prefill, is preempted and not readmitted in that step. At t =
    // 6 its 14 tokens do not fit next to the 3 blocks of request 0, at t = 7 they do.
    let engine = Worked { offset: "100", kv: r#"{"tokens": 24, "block": 4}"#, ..WORKED };
    let results = engine.run(&[(0.0, 4, 7, 1.0), (0.0, 14, 1, NONE)], &[]);
    let both = [(0, 1), (1, 3)];
    let expected: [&[(u32, u64)]; 11] =
        [&[(0, 4)], &both, &both, &both, &both, &[(0, 1)], &[(0, 1)], &[(1, 4)], &[(1, 4)], &[(1, 4)], &[(1, 2)]];
    assert_eq!(batches(&results), expected);
    assert_eq!(results.requests.preemptions, [0, 1]);
}

#[test]
fn another_decode_takes_no_blocks_from_a_prompt_of_its_batch() {
    // 3 blocks of 4. At t = 1 the prompt of request 1 takes the two free blocks, and its budget leaves one decode.
    // Request 0 finds no block, and all other requests are placed, so it is preempted itself. It returns with 5
    // tokens.
    let engine = Worked { budget: 9, kv: r#"{"tokens": 12, "block": 4}"#, ..WORKED };
    let results = engine.run(&[(0.0, 4, 3, NONE), (0.5, 8, 1, NONE)], &[]);
    assert_eq!(batches(&results), [[(0, 4)], [(1, 8)], [(0, 5)], [(0, 1)]]);
    assert_eq!((&results.requests.preemptions[..], results.requests.finish_s[0]), (&[1, 0][..], 4.0));
}

#[test]
fn where_a_prompt_brings_no_token_it_must_find_room_for_one_more() {
    // 2 blocks of 4. Request 1 would fit the block that is free at t = 1, which request 0 needs for its next token.
    // But then each could take the other's block forever without emitting a token. So request 1 waits until request 0
    // has decoded four times.
    let kv = r#"{"tokens": 8, "block": 4}"#;
    let engine = Worked { budget: 8, kv, first_token: "decode", ..WORKED };
    let results = engine.run(&[(0.0, 4, 4, NONE), (0.5, 4, 4, NONE)], &[]);
    assert_eq!(results.requests.preemptions, [0, 0]);
    assert_eq!((&results.requests.admitted_s[..], &results.requests.finish_s[..]), (&[0.0, 5.0][..], &[5.0, 10.0][..]));
}

#[test]
fn the_first_e_is_the_end_of_the_prompts_last_batch_though_it_emits_nothing() {
    // Ready at e = 1, C = 1 + 3 − 1 = 3: the decode in [3, 4] emits the first token.
    let engine = Worked { first_token: "decode", ..WORKED };
    let results = engine.run(&[(0.0, 2, 1, 3.0), (0.0, 40, 1, NONE)], &[]);
    assert_eq!(results.requests.first_token_s[0], 4.0);
}

#[test]
fn decodes_that_fill_the_cache_bring_the_high_offset_in_the_midst_of_a_long_prompt() {
    // Request 0 decodes in every iteration from t = 1 on (C = e + 1 − 1), when 1 + 1 + 40 blocks are in use. So 49 of
    // the 98 blocks are in use at t = 8. Request 1 is critical from 1 + 10 − 1 = 10 on, and with the high offset from
    // 1 + 10 − 5 = 6 on.
    let offset = r#"{"kind": "DynamicOffset", "low": 1, "high": 5, "kv_share": 0.5}"#;
    let engine = Worked { offset, kv: r#"{"tokens": 98, "block": 1}"#, ..WORKED };
    let batches = engine.batches(&[(0.0, 1, 15, 1.0), (0.0, 1, 3, 10.0), (0.0, 40, 1, NONE)]);
    assert!(batches[1..8].iter().all(|batch| batch == &[(0, 1), (2, 3)]));
    assert_eq!(batches[8], [(0, 1), (1, 1), (2, 2)]);
}

/// A literal implementation of the rule: everything is decided anew for each request and iteration.
struct Literal {
    limits: Limits,
    max_decodes: usize,
    low: u128,
    high: u128,
    share: Option<u128>,
    /// Sort key of the queue; `None`: by arrival, preempted requests at the head.
    key: Option<fn(&inferq_core::workload::Arrival) -> i64>,
    first: Option<u32>,
    waiting: Vec<Place>,
    running: Vec<Place>,
    /// Ready requests with their e, once a plan has seen them.
    ready: BTreeMap<u32, Option<Instant>>,
    placed: Vec<Place>,
    victims: Vec<Place>,
}

impl Literal {
    fn new(description: &serde_json::Value) -> Literal {
        let number = |name: &str| description[name].as_u64().expect("a number");
        let offset = &description["offset"];
        let read = |value: &serde_json::Value| attoseconds(value.as_f64().expect("a number"), "x").expect("fits");
        let is_dynamic = offset.is_object();
        let (low, high) = if is_dynamic { (&offset["low"], &offset["high"]) } else { (offset, offset) };
        let first = description["class_first"].as_str().map(|_| 1);
        let key: Option<fn(&inferq_core::workload::Arrival) -> i64> = match description["order"].as_str() {
            Some("fcfs") if first.is_none() => None,
            Some("fcfs") => Some(|_| 0),
            Some("spf") => Some(|arrival| i64::from(arrival.prompt_tokens)),
            Some("srf") => Some(|arrival| i64::from(arrival.prompt_tokens) + i64::from(arrival.output_tokens)),
            Some("lpf") => Some(|arrival| -i64::from(arrival.prompt_tokens)),
            _ => Some(|arrival| arrival.queue_key),
        };
        Literal {
            limits: Limits {
                token_budget: number("token_budget"),
                max_seqs: number("max_active"),
                frees_with_batch: false,
            },
            max_decodes: number("max_decodes") as usize,
            low: read(low),
            high: read(high),
            share: is_dynamic.then(|| read(&offset["kv_share"])),
            key,
            first,
            waiting: Vec::new(),
            running: Vec::new(),
            ready: BTreeMap::new(),
            placed: Vec::new(),
            victims: Vec::new(),
        }
    }

    fn sort_queue(&mut self, requests: &Requests) {
        if let Some(key) = self.key {
            let order_of = |place: &Place| {
                let arrival = requests.arrival(*place);
                let is_other = self.first.is_some_and(|first| first != arrival.class);
                (is_other, key(arrival), requests.order(*place))
            };
            self.waiting.sort_by_key(order_of);
        }
    }

    fn decode(&mut self, place: Place, plan: &mut Plan) -> Result<()> {
        while plan.new_blocks(place, 1) as i64 > plan.free_blocks() {
            let others = self.running.iter().filter(|&&other| other != place && !self.placed.contains(&other));
            let latest = others.max_by_key(|&&other| plan.requests().order(other)).copied();
            let victim = latest.unwrap_or(place);
            plan.preempt(victim, Preemption::Recompute)?;
            self.running.retain(|&other| other != victim);
            self.ready.remove(&victim.0);
            self.victims.push(victim);
            let victims = self.victims.clone();
            self.waiting.retain(|other| !victims.contains(other));
            self.victims.sort_by_key(|&victim| plan.requests().order(victim));
            self.waiting.splice(0..0, self.victims.clone());
            self.sort_queue(plan.requests());
            if victim == place {
                return Ok(());
            }
        }
        plan.decode(place)?;
        self.placed.push(place);
        self.ready.insert(place.0, None);
        Ok(())
    }
}

impl Scheduler for Literal {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn notice(&mut self, notice: Notice, requests: &Requests) {
        match notice {
            Notice::Arrived(place) => {
                self.waiting.push(place);
                self.sort_queue(requests);
            }
            Notice::Ready(place) => drop(self.ready.insert(place.0, None)),
            Notice::Preempted(_) => {}
            Notice::Left(place) => {
                self.waiting.retain(|&other| other != place);
                self.running.retain(|&other| other != place);
                self.ready.remove(&place.0);
            }
        }
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        let now = plan.now();
        (self.placed, self.victims) = (Vec::new(), Vec::new());
        for (&place, end) in &mut self.ready {
            end.get_or_insert(now);
            if plan.requests().at(Place(place)).phase() == Phase::Decoding {
                plan.pause(Place(place))?;
            }
        }
        let used = u128::from(plan.all_blocks()) - plan.free_blocks() as u128;
        let is_high = |share| plan.all_blocks() < 1 << 62 && used * SECOND >= share * u128::from(plan.all_blocks());
        let offset = if self.share.is_some_and(is_high) { self.high } else { self.low };
        let mean = plan.busy().0.checked_div(u128::from(plan.iterations())).unwrap_or(0);
        let margin = offset * mean / SECOND;
        let mut order: Vec<(Instant, u32, Place)> = Vec::new();
        for (&place, end) in &self.ready {
            let arrival = plan.requests().arrival(Place(place));
            let end = end.expect("every ready request has been served");
            let deadline = if arrival.itl_slo == Span::NEVER { Instant::NEVER } else { end.after(arrival.itl_slo)? };
            order.push((deadline, arrival.id, Place(place)));
        }
        order.sort_by_key(|&(deadline, id, _)| (deadline, id));
        let is_critical = |deadline: Instant| deadline != Instant::NEVER && now.0 + margin >= deadline.0;
        let mut decodes = 0;
        for &(deadline, _, place) in &order {
            let has_place = decodes < self.max_decodes && plan.budget_left() > 0;
            if is_critical(deadline) && has_place && !self.victims.contains(&place) {
                self.decode(place, plan)?;
                decodes += usize::from(self.placed.last() == Some(&place));
            }
        }
        self.running.sort_by_key(|&place| plan.requests().order(place));
        for &place in self.running.iter().filter(|place| !self.ready.contains_key(&place.0)) {
            let tokens = plan.requests().owed(place).min(plan.budget_left());
            if tokens > 0 {
                plan.chunk(place, tokens)?;
                self.placed.push(place);
            }
        }
        while let Some(&place) = self.waiting.first() {
            if plan.budget_left() == 0 || self.victims.contains(&place) {
                break;
            }
            let blocks = plan.blocks(plan.requests().until_next_token(place));
            if plan.sequences_left() == 0 || blocks as i64 > plan.free_blocks() {
                break;
            }
            let known = plan.requests().known(place);
            plan.admit(place, known)?;
            plan.chunk(place, known.min(plan.budget_left()))?;
            self.waiting.remove(0);
            self.running.push(place);
            self.placed.push(place);
        }
        for &(_, _, place) in &order {
            let is_open = self.running.contains(&place) && !self.placed.contains(&place);
            if is_open && decodes < self.max_decodes && plan.budget_left() > 0 {
                self.decode(place, plan)?;
                decodes += usize::from(self.placed.last() == Some(&place));
            }
        }
        Ok(())
    }
}

fn agrees_with_the_rule_read_literally(scenario: &Scenario) -> std::result::Result<(), TestCaseError> {
    let engine: serde_json::Value = serde_json::from_str(&scenario.engine).expect("JSON");
    let literal = EngineParts { scheduler: Box::new(Literal::new(&engine["scheduler"])), ..scenario.parts() };
    let workload = scenario.columns.view();
    let expected = simulate(&workload, literal, &scenario.options(true), &mut ()).expect("a run");
    let expected = expected.with_columns(&workload);
    let results = scenario.run(true);
    prop_assert_eq!(results.requests.preemptions, expected.requests.preemptions);
    prop_assert_eq!(results.batches, expected.batches);
    for (of_class, expected) in results.itl.iter().zip(&expected.itl) {
        prop_assert_eq!(of_class.bins().collect::<Vec<_>>(), expected.bins().collect::<Vec<_>>());
        prop_assert_eq!((of_class.sum(), of_class.longest()), (expected.sum(), expected.longest()));
    }
    prop_assert_eq!(results.iterations.len(), expected.iterations.len());
    Ok(())
}

proptest! {
    #![proptest_config(cases(1_500))]

    #[test]
    fn slai_agrees_with_its_rule_read_literally(scenario in scenario("Slai"), every in 1_usize..4) {
        agrees_with_the_rule_read_literally(&scenario)?;
        agrees_with_the_rule_read_literally(&scenario.on_boundaries(every))?;
    }
}
