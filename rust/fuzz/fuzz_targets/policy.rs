//! Every policy and timing model with arbitrary parameters: stretches equal stepping (L8).

#![no_main]

use arbitrary::Arbitrary;
use inferq_core::dice::{Dice, Scale};
use inferq_core::engine::{Engine, parse};
use inferq_core::scheduler::SchedulerConfig;
use inferq_core::timing::TimingModel;
use inferq_fuzz::{Columns, Row, classes, run};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Scenario {
    rows: Vec<Row>,
    words: Vec<u32>,
    policy: u8,
    model: u8,
    block: u8,
    token_budget: u8,
    max_seqs: u8,
    kv_blocks: Option<u8>,
    decode_is_first: bool,
}

fuzz_target!(|scenario: Scenario| {
    let of = |kinds: &[&'static str], place: u8| kinds[usize::from(place) % kinds.len()];
    let block = u64::from(scenario.block % 32) + 1;
    let scale = Scale {
        token_budget: u64::from(scenario.token_budget) + 1,
        max_seqs: u64::from(scenario.max_seqs % 32) + 1,
        longest: 512,
        block,
    };
    let mut dice = Dice::new(scenario.words, scale);
    let scheduler = SchedulerConfig::sample(of(SchedulerConfig::KINDS, scenario.policy), &mut dice);
    let timing = TimingModel::sample(of(TimingModel::KINDS, scenario.model), &mut dice);
    let engine = serde_json::json!({
        "scheduler": scheduler,
        "timing": timing,
        "kv": {"tokens": scenario.kv_blocks.map(|blocks| (u64::from(blocks) + 1) * block), "block": block},
        "first_token": if scenario.decode_is_first { "decode" } else { "prefill" },
    });
    let engine = engine.to_string();
    let columns = Columns::of(&scenario.rows);
    let workload = columns.view();
    let at = |stepping| {
        let parts = parse::<Engine>(&engine).and_then(|engine| engine.build(Some(&classes())))?;
        run(&workload, parts, stepping)
    };
    match (at(false), at(true)) {
        (Ok(stretched), Ok(stepped)) => {
            // Columns contain NaN for events that did not happen, so their printed forms are compared.
            assert_eq!(format!("{:?}", stretched.requests), format!("{:?}", stepped.requests));
            assert_eq!(stretched.itl, stepped.itl);
            assert_eq!(stretched.timeline, stepped.timeline);
            assert_eq!(stretched.findings, stepped.findings);
            assert_eq!(stretched.totals.in_system, stretched.totals.sojourn, "Little's law");
        }
        (Err(stretched), Err(stepped)) => assert_eq!(stretched.to_string(), stepped.to_string()),
        _ => panic!("only one of the two runs failed"),
    }
});
