//! L12 for the exponential slot model: special cases match queueing theory.
//!
//! Closed forms are computed from the balance equations. Each must lie in a 99 % confidence interval from 40
//! independent replications (seeds 1 to 40), each long and without its warm-up, whose means follow Student's t. The
//! interval must be at most ±3 % of the expected number, so that the test can fail. The seeds are fixed.

use inferq_core::clock::{Instant, SECOND};
use inferq_core::distributions::{DrawnColumns, Synthetic, seconds};
use inferq_core::engine::parse;
use inferq_core::gate_and_route::GateAndRoute;
use inferq_core::gate_and_route::exponential::{ExponentialOptions, ExponentialResults, Stage, simulate};
use inferq_core::workload::Workload;

const REPLICATIONS: u64 = 40;
/// Student's t with 39 degrees of freedom: 99 % are within this many standard errors.
const STUDENT_99: f64 = 2.7079;
const NARROW: f64 = 0.03;
const REQUESTS: usize = 40_000;
/// Share of the span of the arrivals; far longer than a service or a patience.
const WARM_UP: f64 = 0.1;

/// One class; a prefill takes 1 s and a decode 2 s on average, also next to a prefill.
struct Queue {
    replicas: u32,
    slots: u32,
    mixed: u32,
    rate: f64,
    impatience: f64,
}

impl Queue {
    fn run(&self, seed: u64) -> ExponentialResults {
        let synthetic = format!(
            r#"{{"requests": {REQUESTS}, "arrivals": {{"kind": "Poisson", "rate": {:?}}},
            "prompt": {{"kind": "Fixed", "tokens": 100}}, "output": {{"kind": "Fixed", "tokens": 200}}}}"#,
            self.rate
        );
        let DrawnColumns { arrival_ns, prompt_tokens, output_tokens } =
            parse::<Synthetic>(&synthetic).and_then(|synthetic| synthetic.draw(seed)).expect("a workload");
        let arrival_s: Vec<f64> = arrival_ns.into_iter().map(seconds).collect();
        let workload = Workload {
            arrival_s: &arrival_s,
            prompt_tokens: &prompt_tokens,
            output_tokens: &output_tokens,
            class_count: 1,
            ..Workload::default()
        };
        let share = f64::from(self.mixed) / f64::from(self.replicas);
        let setup = format!(
            r#"{{"kind": "GateAndRoute", "allocation": {{"prefill": {{"default": {share:?}}}}}, "replicas": {}, "slots": {}, "chunk": 1,
            "timing": {{"kind": "MixedSolo", "alpha": 0.01, "beta": 0, "solo": 0.01}}, "abandonment": {:?},
            "prices": {{"prefill": 1, "decode": 1}}, "gate": "fcfs", "router": "greedy", "planned": true,
            "service": "exponential", "kv": {{"tokens": null, "block": 16}}}}"#,
            self.replicas, self.slots, self.impatience
        );
        let setup =
            parse::<GateAndRoute>(&setup).and_then(|setup| setup.build(&["default".to_string()])).expect("a set-up");
        let last = (arrival_s[REQUESTS - 1] * 1e9) as u64;
        let warmup = Instant::from_nanoseconds((WARM_UP * last as f64) as u64);
        let options =
            ExponentialOptions { seed, horizon: Some(Instant::from_nanoseconds(last)), warmup, timeline: None };
        simulate(&workload, &setup, &options, &mut ()).expect("a run")
    }

    /// Checks that the mean over all replications matches the theory.
    fn agrees(&self, expected: f64, of: impl Fn(&ExponentialResults) -> f64) {
        let means: Vec<f64> = (1..=REPLICATIONS).map(|seed| of(&self.run(seed))).collect();
        let number = REPLICATIONS as f64;
        let mean = means.iter().sum::<f64>() / number;
        let variance = means.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (number - 1.0);
        let half_width = STUDENT_99 * (variance / number).sqrt();
        let message = format!("theory {expected}, simulated {mean} ± {half_width}");
        assert!(half_width <= NARROW * expected, "the interval is too wide: {message}");
        assert!((mean - expected).abs() <= half_width, "{message}");
    }
}

/// The mean queue length with Poisson arrivals, `servers` servers and exponential patience, from its balance
/// equations: from k to k + 1 at the arrival rate, back at min(k + 1, servers) / service + (k + 1 − servers)⁺ ·
/// impatience.
fn mean_queue(rate: f64, service_s: f64, servers: u32, impatience: f64) -> f64 {
    let (mut weight, mut total, mut waiting) = (1.0_f64, 1.0, 0.0);
    for k in 1..20_000_u32 {
        let busy = f64::from(k.min(servers));
        let waits = f64::from(k.saturating_sub(servers));
        weight *= rate / (busy / service_s + waits * impatience);
        total += weight;
        waiting += weight * waits;
    }
    waiting / total
}

fn average(results: &ExponentialResults, stage: Stage) -> f64 {
    results.areas[0][stage as usize] as f64 / results.end.since(results.warmup).0 as f64
}

/// Share of abandoned requests among those that arrived after the warm-up.
fn abandoned_share(results: &ExponentialResults) -> f64 {
    let from = results.warmup.0 as f64 / SECOND as f64;
    let after: Vec<usize> = (0..REQUESTS).filter(|&id| results.requests.arrival_s[id] >= from).collect();
    let abandoned =
        after.iter().filter(|&&id| results.requests.status[id] == 2 && results.requests.admitted_s[id].is_nan());
    abandoned.count() as f64 / after.len() as f64
}

/// λ = 4.4 for 4 servers of 1 s: overloaded if no request abandoned.
const ERLANG_A: Queue = Queue { replicas: 10, slots: 20, mixed: 4, rate: 4.4, impatience: 0.5 };

#[test]
fn the_prefills_are_erlang_a() {
    let waiting = mean_queue(4.4, 1.0, 4, 0.5);
    ERLANG_A.agrees(waiting, |results| average(results, Stage::PrefillQueue));
    // Requests abandon at the rate θ Q.
    ERLANG_A.agrees(0.5 * waiting / 4.4, abandoned_share);
    // A request that does not abandon is served.
    ERLANG_A.agrees(4.4 - 0.5 * waiting, |results| average(results, Stage::Prefill));
}

#[test]
fn without_impatience_the_prefills_are_m_m_c() {
    let queue = Queue { mixed: 4, rate: 2.8, impatience: 0.0, ..ERLANG_A };
    queue.agrees(mean_queue(2.8, 1.0, 4, 0.0), |results| average(results, Stage::PrefillQueue));
}

/// By Burke's theorem the ends of the prefills are Poisson. Both speeds are equal here, so decodes have 2 · 2 + 3 · 1
/// = 7 servers of 2 s: one slot of each of the 3 mixed replicas is reserved for prefills.
#[test]
fn without_impatience_the_decodes_are_m_m_c_too() {
    let queue = Queue { replicas: 5, slots: 2, mixed: 3, rate: 2.6, impatience: 0.0 };
    queue.agrees(mean_queue(2.6, 2.0, 7, 0.0), |results| average(results, Stage::DecodeQueue));
}
