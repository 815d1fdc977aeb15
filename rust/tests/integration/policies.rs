//! The replica's checks of arbitrary policies (R6).

use inferq_core::clock::{Instant, SECOND, Span};
use inferq_core::engine::{Engine, EngineParts, parse};
use inferq_core::error::{Kind, Result};
use inferq_core::plan::{Hold, Limits, Plan, Preemption};
use inferq_core::request::{Phase, Place, Requests};
use inferq_core::results::Status;
use inferq_core::scheduler::{Notice, Scheduler};
use inferq_core::simulation::{Options, simulate};
use proptest::prelude::*;

use crate::scenario::{Columns, Results};
use crate::tier::cases;

const LIMITS: Limits = Limits { token_budget: 16, max_seqs: 4, frees_with_batch: false };

/// A policy made of a function of the waiting requests, the admitted requests in order, and the plan.
struct Scripted<F> {
    waiting: Vec<Place>,
    admitted: Vec<Place>,
    plans: u64,
    script: F,
}

impl<F: FnMut(&mut Plan, &mut Lists) -> Result<()> + Send> Scheduler for Scripted<F> {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn notice(&mut self, notice: Notice, _requests: &Requests) {
        match notice {
            Notice::Arrived(place) => self.waiting.push(place),
            Notice::Ready(_) | Notice::Preempted(_) => {}
            Notice::Left(place) => {
                self.waiting.retain(|&other| other != place);
                self.admitted.retain(|&other| other != place);
            }
        }
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        self.plans += 1;
        let mut lists = Lists { waiting: &mut self.waiting, admitted: &mut self.admitted, plans: self.plans };
        (self.script)(plan, &mut lists)
    }
}

struct Lists<'a> {
    waiting: &'a mut Vec<Place>,
    admitted: &'a mut Vec<Place>,
    plans: u64,
}

impl Lists<'_> {
    /// Admits the head of the queue with the blocks for `tokens` tokens, and computes a chunk of it in the same plan.
    fn admit(&mut self, plan: &mut Plan, tokens: u64, chunk: u64) -> Result<()> {
        let place = self.waiting.remove(0);
        if chunk.is_multiple_of(2) {
            if !plan.try_admit(place, tokens, 0, tokens, chunk)? {
                plan.admit(place, tokens)?;
            }
        } else {
            plan.admit(place, tokens)?;
            plan.chunk(place, chunk)?;
        }
        self.admitted.push(place);
        Ok(())
    }
}

/// Runs with one second per iteration and `tokens` tokens of KV cache in blocks of 4.
fn run_on<F>(columns: &Columns, tokens: u64, stepping: bool, script: F) -> Result<Results>
where
    F: FnMut(&mut Plan, &mut Lists) -> Result<()> + Send + 'static,
{
    let engine: Engine = parse(&format!(
        r#"{{"timing": {{"kind": "Constant", "seconds": 1}}, "kv": {{"tokens": {tokens}, "block": 4}},
            "scheduler": {{"kind": "VllmV0", "token_budget": 1, "max_seqs": 1, "watermark": 0,
                           "preemption": {{"kind": "Recompute"}}}},
            "first_token": "prefill"}}"#
    ))?;
    let policy = Scripted { waiting: Vec::new(), admitted: Vec::new(), plans: 0, script };
    let parts = EngineParts { scheduler: Box::new(policy), ..engine.build(Some(&[]))? };
    let workload = columns.view();
    let options = Options { iterations: true, batches: true, stepping, ..Options::all(&workload) };
    Ok(simulate(&workload, parts, &options, &mut ())?.with_columns(&workload))
}

fn run<F>(requests: &[(f64, i32, i32)], script: F) -> Result<Results>
where
    F: FnMut(&mut Plan, &mut Lists) -> Result<()> + Send + 'static,
{
    run_on(&columns(requests), 64, false, script)
}

fn columns(requests: &[(f64, i32, i32)]) -> Columns {
    Columns {
        arrival_s: requests.iter().map(|request| request.0).collect(),
        prompt_tokens: requests.iter().map(|request| request.1).collect(),
        output_tokens: requests.iter().map(|request| request.2).collect(),
        ..Columns::default()
    }
}

fn ready(plan: &Plan, place: Place) -> bool {
    plan.requests().at(place).phase() == Phase::Started && plan.requests().at(place).is_ready()
}

#[test]
fn a_paused_request_keeps_its_blocks_and_its_gap_is_counted() {
    // Prompt in [0, 1], a decode in [1, 2], a pause until 5 (another prompt in three chunks), decodes to the end.
    let results = run(&[(0.0, 4, 4), (2.0, 9, 1)], |plan, lists| {
        let first = lists.admitted.first().copied();
        match lists.plans {
            1 => lists.admit(plan, 4, 4),
            2 => plan.decode(first.expect("admitted")),
            3 => {
                plan.pause(first.expect("admitted"))?;
                assert_eq!(plan.requests().at(first.expect("admitted")).blocks(), 2);
                lists.admit(plan, 9, 3)
            }
            4 | 5 => plan.chunk(lists.admitted[1], 3),
            6 => plan.decode(first.expect("admitted")),
            _ => Ok(()),
        }
    })
    .expect("a run");
    assert_eq!(results.requests.finish_s, [7.0, 5.0]);
    assert_eq!(results.requests.max_itl_s[0], 4.0);
    assert_eq!((results.itl[0].count(), results.itl[0].sum()), (3, 6 * SECOND));
}

#[test]
fn blocks_taken_ahead_last_before_a_decode_takes_new_ones() {
    // 4 prompt tokens and 14 output tokens: contexts up to 17, so 5 blocks; 3 of them are taken at admission.
    let results = run(&[(0.0, 4, 14)], |plan, lists| {
        if lists.plans == 1 {
            return lists.admit(plan, 12, 4);
        }
        if ready(plan, lists.admitted[0]) {
            plan.decode(lists.admitted[0])?;
        }
        plan.hold(Hold::THROUGH_ARRIVALS);
        Ok(())
    })
    .expect("a run");
    let used: Vec<(u64, u64)> = results.iterations.iter().map(|row| (row.count, row.kv_used_tokens)).collect();
    // The prompt; decodes at contexts 4 … 11 within the taken blocks; then one block at 12 and one at 16.
    assert_eq!(used, [(1, 12), (8, 12), (5, 16)]);
    assert_eq!(results.requests.finish_s, [14.0]);
}

#[test]
fn a_reservation_of_the_maximum_is_never_outgrown() {
    let results = run(&[(0.0, 4, 14)], |plan, lists| {
        if lists.plans == 1 {
            return lists.admit(plan, 64, 4);
        }
        if ready(plan, lists.admitted[0]) {
            plan.decode(lists.admitted[0])?;
        }
        plan.hold(Hold::THROUGH_ARRIVALS);
        Ok(())
    })
    .expect("a run");
    assert!(results.iterations.iter().all(|row| row.kv_used_tokens == 64));
    assert_eq!(results.totals.stretches, 2);
}

#[test]
fn a_policy_that_sleeps_is_woken_at_the_instant_it_names() {
    let results = run(&[(0.5, 4, 1)], |plan, lists| {
        if plan.now() < Instant(3 * SECOND) {
            plan.wake_at(Instant(3 * SECOND));
            return Ok(());
        }
        lists.admit(plan, 4, 4)
    })
    .expect("a run");
    assert_eq!(results.requests.admitted_s, [3.0]);
}

#[test]
fn a_policy_that_waits_for_more_requests_is_drained_at_the_end() {
    let results = run(&[(0.0, 4, 1), (1.0, 4, 1), (2.0, 4, 1)], |plan, lists| {
        let needed = if plan.drain() { 1 } else { 2 };
        if lists.waiting.len() >= needed {
            while !lists.waiting.is_empty() {
                lists.admit(plan, 4, 4)?;
            }
        }
        Ok(())
    })
    .expect("a run");
    assert_eq!(results.requests.admitted_s, [1.0, 1.0, 2.0]);
    assert_eq!(results.drained, [2]);
    assert!(results.findings[0].to_string().starts_with("drained: 1 of 3 requests"), "{:?}", results.findings);
}

#[test]
fn a_policy_that_never_plans_leaves_requests_unfinished_with_a_finding() {
    let results = run(&[(0.0, 4, 1), (1.0, 4, 1)], |_, _| Ok(())).expect("a run");
    assert_eq!(results.requests.status, [Status::Unfinished as u8; 2]);
    assert!(results.findings[0].kind.name() == "stalled", "{:?}", results.findings);
    assert_eq!(results.totals.in_system, results.totals.sojourn);
}

#[test]
fn an_empty_plan_that_preempted_is_repeated_at_once() {
    let results = run(&[(0.0, 8, 1)], |plan, lists| match lists.plans {
        1 => lists.admit(plan, 8, 4),
        2 => {
            let place = lists.admitted.remove(0);
            lists.waiting.push(place);
            plan.preempt(place, Preemption::Recompute)
        }
        _ => lists.admit(plan, 8, 8),
    })
    .expect("a run");
    assert_eq!((results.requests.finish_s[0], results.requests.preemptions[0]), (2.0, 1));
}

#[test]
fn swapping_is_charged_to_the_iteration_that_swaps() {
    let swap = Preemption::Swap { per_token: Span(SECOND / 10), base: Span(SECOND) };
    let results = run(&[(0.0, 8, 2), (0.0, 4, 1)], move |plan, lists| match lists.plans {
        1 => lists.admit(plan, 8, 4),
        2 => {
            // 4 tokens swapped out: 1.4 s, charged to the other request's iteration.
            plan.preempt(lists.admitted[0], swap)?;
            lists.admit(plan, 4, 4)
        }
        3 => {
            plan.swap_in(lists.admitted[0], swap, 8)?;
            plan.chunk(lists.admitted[0], 4)
        }
        _ => plan.decode(lists.admitted[0]),
    })
    .expect("a run");
    // 1 s; 1 + 1.4 s; 1.4 + 1 s; 1 s.
    assert_eq!(results.requests.finish_s, [6.8, 3.4]);
    assert_eq!(results.requests.first_token_s[0], 5.8);
}

#[test]
fn a_policy_that_swaps_in_and_out_forever_is_stopped() {
    let swap = Preemption::Swap { per_token: Span(1), base: Span(1) };
    let error = run(&[(0.0, 8, 1)], move |plan, lists| match lists.plans {
        1 => lists.admit(plan, 8, 4),
        2 => plan.preempt(lists.admitted[0], swap),
        _ => plan.swap_in(lists.admitted[0], swap, 8).and_then(|()| plan.preempt(lists.admitted[0], swap)),
    })
    .expect_err("a policy that never runs anything");
    let rule = "preemption must make progress";
    assert!(matches!(error.kind(), Kind::Rule { rule: broken, .. } if *broken == rule), "{error}");
}

#[test]
fn a_policy_that_recomputes_a_prompt_forever_is_stopped() {
    let error = run(&[(0.0, 8, 1)], |plan, lists| {
        if let Some(&place) = lists.admitted.first() {
            plan.preempt(place, Preemption::Recompute)?;
            lists.waiting.push(place);
            lists.admitted.clear();
            return Ok(());
        }
        lists.admit(plan, 8, 4)
    })
    .expect_err("a policy that never finishes a prompt");
    let rule = "preemption must make progress";
    assert!(matches!(error.kind(), Kind::Rule { rule: broken, .. } if *broken == rule), "{error}");
}

/// The rule that a plan violates.
fn broken<F>(script: F) -> String
where
    F: FnMut(&mut Plan, &mut Lists) -> Result<()> + Send + 'static,
{
    let requests = [(0.0, 8, 3), (0.0, 20, 3), (0.0, 30, 3), (0.0, 2, 3), (0.0, 2, 3)];
    let error = run(&requests, script).expect_err("a broken rule");
    match error.kind() {
        Kind::Rule { rule, .. } => (*rule).to_owned(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_plan_beyond_the_rules_is_an_error_that_names_the_rule() {
    let budget = "an iteration must not load more tokens than the budget";
    assert_eq!(broken(|plan, lists| lists.admit(plan, 20, 8).and_then(|()| lists.admit(plan, 20, 9))), budget);
    let blocks = "a plan takes at most the free blocks";
    assert_eq!(broken(|plan, lists| lists.admit(plan, 65, 8)), blocks);
    let sequences = "at most max_seqs requests can be admitted";
    assert_eq!(broken(|plan, lists| (0..5).try_for_each(|_| lists.admit(plan, 1, 1))), sequences);
    assert_eq!(broken(|plan, lists| (0..5).try_for_each(|_| lists.admit(plan, 2, 2))), sequences);
    let chunk = "a chunk has from 1 token to all tokens that its request has still to compute";
    assert_eq!(broken(|plan, lists| lists.admit(plan, 8, 9)), chunk);
    assert_eq!(broken(|plan, lists| lists.admit(plan, 8, 0)), chunk);
    let batch = "a request is admitted by the batch that computes its first chunk";
    let one_chunk = "only an admitted request can have a chunk in a batch, and only one";
    assert_eq!(broken(|plan, lists| plan.chunk(lists.waiting[0], 1)), one_chunk);
    assert_eq!(
        broken(|plan, lists| lists.admit(plan, 8, 1).and_then(|()| plan.chunk(lists.admitted[0], 1))),
        one_chunk
    );
    assert_eq!(
        broken(|plan, lists| {
            plan.admit(lists.waiting[0], 8)?;
            plan.admit(lists.waiting[3], 2)?;
            plan.chunk(lists.waiting[3], 2)
        }),
        batch
    );
    let waiting = "only a waiting request can be admitted";
    let again = |plan: &mut Plan, lists: &mut Lists| plan.try_admit(lists.admitted[0], 8, 0, 8, 8).map(drop);
    assert_eq!(broken(move |plan, lists| lists.admit(plan, 8, 8).and_then(|()| again(plan, lists))), waiting);
    assert_eq!(broken(|plan, lists| lists.admit(plan, 8, 8).and_then(|()| plan.admit(lists.admitted[0], 8))), waiting);
    let prompt = "no decode before the prompt is complete";
    assert_eq!(
        broken(|plan, lists| match lists.plans {
            1 => lists.admit(plan, 8, 4),
            _ => plan.decode(lists.admitted[0]),
        }),
        prompt
    );
    let once = "a request decodes once in an iteration";
    assert_eq!(
        broken(|plan, lists| match lists.plans {
            1 => lists.admit(plan, 8, 8),
            _ => plan.decode(lists.admitted[0]).and_then(|()| plan.decode(lists.admitted[0])),
        }),
        once
    );
    let admitted = "only an admitted request without a chunk in this batch can decode";
    assert_eq!(broken(|plan, lists| plan.decode(lists.waiting[0])), admitted);
    let victim = "only an admitted request can be preempted";
    assert_eq!(broken(|plan, lists| plan.preempt(lists.waiting[0], Preemption::Recompute)), victim);
    let same_plan = "a plan must not preempt a request that it admits";
    assert_eq!(
        broken(|plan, lists| {
            lists.admit(plan, 8, 8)?;
            plan.preempt(lists.admitted[0], Preemption::Recompute)
        }),
        same_plan
    );
    assert_eq!(broken(|plan, lists| plan.pause(lists.waiting[0])), "only a decoding request can be paused");
    let swap = Preemption::Swap { per_token: Span(1), base: Span(1) };
    let swapped = "only a swapped request can be swapped in";
    assert_eq!(broken(move |plan, lists| plan.swap_in(lists.waiting[0], swap, 8)), swapped);
}

#[test]
fn decodes_that_lack_a_block_are_an_error_if_the_policy_lets_them() {
    // Two prompts of 14 tokens fill a cache of 32 tokens in blocks of 4. The third decodes need a block each.
    let error = run_on(&columns(&[(0.0, 14, 9), (0.0, 14, 9)]), 32, false, |plan, lists| {
        if lists.plans <= 2 {
            return lists.admit(plan, 14, 14);
        }
        for &place in lists.admitted.iter() {
            if ready(plan, place) {
                plan.decode(place)?;
            }
        }
        Ok(())
    })
    .expect_err("too few blocks");
    match error.kind() {
        Kind::Rule { rule, at_s, .. } => {
            assert_eq!((*rule, at_s.as_str()), ("a plan takes at most the free blocks", "4"));
        }
        other => panic!("{other:?}"),
    }
}

/// A policy that makes arbitrary legal decisions from a hash of state and instant.
fn erratic(seed: u64) -> impl FnMut(&mut Plan, &mut Lists) -> Result<()> + Send + 'static {
    move |plan, lists| {
        let mut state = seed ^ (plan.now().0 as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ lists.plans;
        let mut draw = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let swap = Preemption::Swap { per_token: Span(SECOND / 1000), base: Span(SECOND / 100) };
        for place in lists.admitted.clone() {
            let phase = plan.requests().at(place).phase();
            match (phase, draw(6)) {
                (Phase::Decoding, 0) => plan.pause(place)?,
                (Phase::Decoding | Phase::Started, 1) => {
                    let how = if draw(2) == 0 { swap } else { Preemption::Recompute };
                    plan.preempt(place, how)?;
                    if how == Preemption::Recompute {
                        lists.admitted.retain(|&other| other != place);
                        lists.waiting.push(place);
                    }
                }
                _ => {}
            }
        }
        // A request that lacks a block is paused, latest first.
        for &place in lists.admitted.iter().rev() {
            if plan.free_blocks() < 0 && plan.requests().at(place).phase() == Phase::Decoding {
                plan.pause(place)?;
            }
        }
        plan.rest_decodes(draw(5) == 0);
        for place in lists.admitted.clone() {
            let fits = |plan: &Plan, tokens| plan.new_blocks(place, tokens) as i64 <= plan.free_blocks();
            match plan.requests().at(place).phase() {
                Phase::Swapped => {
                    let tokens = plan.requests().context(place);
                    if plan.sequences_left() > 0 && plan.blocks(tokens) as i64 <= plan.free_blocks() {
                        plan.swap_in(place, swap, tokens)?;
                    }
                }
                Phase::Started if draw(8) > 0 => {
                    let tokens = plan.requests().owed(place).min(plan.budget_left()).min(1 + draw(9));
                    if ready(plan, place) && plan.budget_left() > 0 && fits(plan, 1) && draw(4) > 0 {
                        plan.decode(place)?;
                    } else if tokens > 0 && fits(plan, tokens) {
                        plan.chunk(place, tokens)?;
                    }
                }
                _ => {}
            }
        }
        while !lists.waiting.is_empty() && plan.sequences_left() > 0 && plan.budget_left() > 0 && draw(3) > 0 {
            let known = plan.requests().known(lists.waiting[0]);
            let ahead = known + draw(30);
            let chunk = known.min(plan.budget_left()).min(1 + draw(12));
            if plan.blocks(ahead) as i64 > plan.free_blocks() {
                break;
            }
            lists.admit(plan, ahead, chunk)?;
        }
        plan.wake_at(Instant(plan.now().0 + SECOND / 3));
        Ok(())
    }
}

proptest! {
    #![proptest_config(cases(1_500))]

    #[test]
    fn no_policy_can_corrupt_the_state(
        seed: u64,
        requests in prop::collection::vec((0_u32..5, 1_i32..30, 1_i32..20), 1..12),
        tokens in 52_u64..120,
    ) {
        let mut at = 0.0;
        let requests: Vec<(f64, i32, i32)> = requests
            .into_iter()
            .map(|(gap, prompt, output)| {
                at += f64::from(gap);
                (at, prompt, output)
            })
            .collect();
        let mut columns = columns(&requests);
        columns.class = vec![0; requests.len()];
        let results = run_on(&columns, tokens, false, erratic(seed | 1)).expect("legal plans");
        prop_assert!(results.requests.status.iter().all(|&status| status == Status::Finished as u8));
        prop_assert_eq!(results.totals.in_system, results.totals.sojourn);
        for row in &results.iterations {
            prop_assert!(row.prefill_tokens + row.decodes <= LIMITS.token_budget);
            prop_assert!(row.kv_used_tokens <= tokens / 4 * 4);
        }
        for (row, &(_, _, output)) in requests.iter().enumerate() {
            let emitting = results.batches.iter().filter(|batch| batch.request as usize == row && batch.emits);
            let emitted: u64 = emitting.map(|batch| results.iterations[batch.iteration as usize].count).sum();
            prop_assert_eq!(emitted, output as u64);
        }
    }
}
