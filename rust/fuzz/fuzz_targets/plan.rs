//! A policy with arbitrary plans for the requests of its replica: the replica rejects invalid plans with an error.

#![no_main]

use arbitrary::Arbitrary;
use inferq_core::clock::{Instant, Span};
use inferq_core::engine::{Engine, parse};
use inferq_core::error::Result;
use inferq_core::plan::{Hold, Limits, Plan, Preemption};
use inferq_core::request::{Place, Requests};
use inferq_core::scheduler::{Notice, Scheduler};
use inferq_fuzz::{Columns, Row, run};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Operation {
    Decode,
    Pause,
    Chunk(u8),
    Admit(u8),
    SwapIn(u8),
    Recompute,
    Swap,
    RestDecodes(bool),
    Hold(u8),
    WakeIn(u16),
}

#[derive(Arbitrary, Debug)]
struct Scenario {
    rows: Vec<Row>,
    /// Operation per request; each plan attempts a few more of them.
    operations: Vec<(u8, Operation)>,
    wishes_a_plan: u8,
    kv_blocks: u8,
    has_cache: bool,
    /// Whether a rejected operation ends the run; otherwise it is ignored.
    insists: bool,
}

struct Capricious {
    operations: Vec<(u8, Operation)>,
    next: usize,
    wishes_a_plan: usize,
    insists: bool,
    places: Vec<Place>,
    plans: usize,
}

const SWAP: Preemption = Preemption::Swap { per_token: Span(1_000_000_000), base: Span(0) };

impl Capricious {
    fn attempt(&self, attempt: Operation, place: Place, plan: &mut Plan) -> Result<()> {
        match attempt {
            Operation::Decode => plan.decode(place),
            Operation::Pause => plan.pause(place),
            Operation::Chunk(tokens) => plan.chunk(place, tokens.into()),
            Operation::Admit(tokens) => plan.admit(place, tokens.into()),
            Operation::SwapIn(tokens) => plan.swap_in(place, SWAP, tokens.into()),
            Operation::Recompute => plan.preempt(place, Preemption::Recompute),
            Operation::Swap => plan.preempt(place, SWAP),
            Operation::RestDecodes(rest) => {
                plan.rest_decodes(rest);
                Ok(())
            }
            Operation::Hold(iterations) => {
                plan.hold(Hold { iterations: u64::from(iterations) + 1, through_arrivals: false });
                Ok(())
            }
            Operation::WakeIn(microseconds) => {
                plan.wake_at(Instant(plan.now().0 + (u128::from(microseconds) + 1) * 1_000_000_000_000));
                Ok(())
            }
        }
    }
}

impl Scheduler for Capricious {
    fn limits(&self) -> Limits {
        Limits { token_budget: 64, max_seqs: 8, frees_with_batch: false }
    }

    fn notice(&mut self, notice: Notice, _requests: &Requests) {
        match notice {
            Notice::Arrived(place) => self.places.push(place),
            Notice::Left(place) => self.places.retain(|&other| other != place),
            Notice::Ready(_) | Notice::Preempted(_) => {}
        }
    }

    fn plan(&mut self, plan: &mut Plan) -> Result<()> {
        self.plans += 1;
        for _ in 0..self.wishes_a_plan {
            let Some(&(which, attempt)) = self.operations.get(self.next % self.operations.len().max(1)) else { break };
            let Some(&place) = self.places.get(usize::from(which) % self.places.len().max(1)) else { break };
            self.next += 1;
            if let Err(error) = self.attempt(attempt, place, plan)
                && self.insists
            {
                return Err(error);
            }
        }
        // Ends runs in which no operation makes progress.
        if self.plans > 2000 { Err(inferq_core::error::Error::config("scheduler", "too many plans")) } else { Ok(()) }
    }
}

const ENGINE: &str = r#"{"timing": {"kind": "Constant", "seconds": 0.001}, "scheduler": {"kind": "SlotGreedy", "chunk": 64},
    "kv": {"tokens": TOKENS, "block": 16, "prefix_cache": CACHE}, "first_token": "prefill"}"#;

fuzz_target!(|scenario: Scenario| {
    let engine = ENGINE
        .replace("TOKENS", &((u64::from(scenario.kv_blocks) + 1) * 16).to_string())
        .replace("CACHE", if scenario.has_cache { r#""blocks""# } else { "null" });
    let mut parts = parse::<Engine>(&engine).and_then(|engine| engine.build(None)).expect("an engine");
    parts.scheduler = Box::new(Capricious {
        operations: scenario.operations,
        next: 0,
        wishes_a_plan: usize::from(scenario.wishes_a_plan % 16) + 1,
        insists: scenario.insists,
        places: Vec::new(),
        plans: 0,
    });
    let columns = Columns::of(&scenario.rows);
    if let Ok(results) = run(&columns.view(), parts, false) {
        assert_eq!(results.totals.in_system, results.totals.sojourn, "Little's law");
    }
});
