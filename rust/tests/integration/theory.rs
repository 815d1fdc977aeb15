//! L12: settings that reduce to a known queue match its theory.
//!
//! Every expected number comes from a formula and must lie in a 99 % confidence interval: 40 independent replications
//! (seeds 1 to 40), each long and without its warm-up, yield 40 means, which follow Student's t. The interval must
//! also be narrow, at most ±3 % of the expected number, so that the test can fail. The seeds are fixed, so the result
//! is reproducible.
//!
//! Throughout, λ is `rate`, ρ is `load`, d is `slot_s`: prompts have one token, and the first iteration of a request
//! emits its first token, so a request of o tokens takes part in o iterations.

use inferq_core::distributions::{DrawnColumns, Synthetic, seconds};
use inferq_core::engine::{Engine, parse};
use inferq_core::results::RequestColumns;
use inferq_core::simulation::{Options, simulate};
use inferq_core::workload::Workload;

const REPLICATIONS: u64 = 40;
/// Student's t with 39 degrees of freedom: 99 % are within this many standard errors.
const STUDENT_99: f64 = 2.7079;
/// Requests per replication, and the number of warm-up requests among them.
const REQUESTS: usize = 100_000;
const WARM_UP: usize = 10_000;
/// Maximum half-width of the interval, relative to the expected number.
const NARROW: f64 = 0.03;

/// Iterations of a constant length with at most `max_seqs` requests per batch.
fn constant(slot_s: f64, max_seqs: u32) -> String {
    engine(&format!(r#"{{"kind": "Constant", "seconds": {slot_s}}}"#), max_seqs)
}

/// Each row of a batch adds `slot_s` to its iteration; nothing else takes time.
fn shared(slot_s: f64) -> String {
    let rest = r#""knee": 0, "per_context_token": 0, "per_prefill_square": 0, "per_chunk_context": 0"#;
    engine(&format!(r#"{{"kind": "PiecewiseLinear", "base": 0, "per_token": {slot_s}, {rest}}}"#), 1_000_000)
}

fn engine(timing: &str, max_seqs: u32) -> String {
    format!(
        r#"{{"timing": {timing},
        "scheduler": {{"kind": "Sarathi", "token_budget": 1000000, "max_seqs": {max_seqs}, "order": "fcfs",
                       "watermark": 0, "preemption": {{"kind": "Recompute"}}}},
        "kv": {{"tokens": null, "block": 16}}, "first_token": "prefill"}}"#
    )
}

/// Checks that the mean of `mean_of` over all replications matches the theory.
fn agrees(expected: f64, engine: &str, rate: f64, output: &str, mean_of: impl Fn(&RequestColumns) -> &[f64]) {
    let synthetic = format!(
        r#"{{"requests": {REQUESTS}, "arrivals": {{"kind": "Poisson", "rate": {rate:?}}},
        "prompt": {{"kind": "Fixed", "tokens": 1}}, "output": {output}}}"#
    );
    let synthetic = parse::<Synthetic>(&synthetic).expect("a workload");
    let engine = parse::<Engine>(engine).expect("an engine");
    let replicate = |seed| {
        let DrawnColumns { arrival_ns, prompt_tokens, output_tokens } = synthetic.draw(seed).expect("a workload");
        let arrival_s: Vec<f64> = arrival_ns.into_iter().map(seconds).collect();
        let workload = Workload {
            arrival_s: &arrival_s,
            prompt_tokens: &prompt_tokens,
            output_tokens: &output_tokens,
            class_count: 1,
            ..Workload::default()
        };
        let options = Options { measured: WARM_UP as u32..REQUESTS as u32, ..Options::all(&workload) };
        let parts = engine.build(Some(&[])).expect("a replica");
        let results = simulate(&workload, parts, &options, &mut ()).expect("a run").with_columns(&workload);
        // Requests are selected by arrival, so that slow ones are not missed.
        let values = &mean_of(&results.requests)[WARM_UP..];
        values.iter().sum::<f64>() / values.len() as f64
    };
    let means: Vec<f64> = (1..=REPLICATIONS).map(replicate).collect();
    let number = REPLICATIONS as f64;
    let mean = means.iter().sum::<f64>() / number;
    let variance = means.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (number - 1.0);
    let half_width = STUDENT_99 * (variance / number).sqrt();
    let relative = half_width / expected;
    let message =
        format!("theory {expected}, simulated {mean} ± {half_width} ({:.2} % of the theory)", 100.0 * relative);
    assert!(relative <= NARROW, "the interval is too wide: {message}");
    assert!((mean - expected).abs() <= half_width, "{message}");
}

fn waiting(requests: &RequestColumns) -> &[f64] {
    &requests.queue_s
}

/// One token per request, one request at a time: M/D/1, W = ρ·d / (2(1 − ρ)).
#[test]
fn one_token_at_a_time_is_m_d_1() {
    let slot_s = 1.0;
    for load in [0.5, 0.8] {
        let expected = load * slot_s / (2.0 * (1.0 - load));
        agrees(expected, &constant(slot_s, 1), load / slot_s, r#"{"kind": "Fixed", "tokens": 1}"#, waiting);
    }
}

/// Geometric outputs o, one request at a time: M/G/1 with S = d·o. By Pollaczek–Khinchine W = λ·E\[S²\] / (2(1 − ρ)).
/// On 1, 2, 3, … with success probability p, E\[o\] = 1/p and E\[o²\] = (2 − p)/p². No cap truncates the tail.
#[test]
fn geometric_outputs_one_at_a_time_are_m_g_1() {
    let (slot_s, mean_tokens) = (0.125, 8.0);
    let p = 1.0 / mean_tokens;
    for load in [0.5, 0.8] {
        let rate = load / (slot_s * mean_tokens);
        let second_moment = slot_s * slot_s * (2.0 - p) / (p * p);
        let expected = rate * second_moment / (2.0 * (1.0 - load));
        agrees(expected, &constant(slot_s, 1), rate, &geometric(mean_tokens), waiting);
    }
}

/// One token per request, any number at a time: bulk service without a bound.
///
/// Every request that waits when an iteration ends is in the next one, so the numbers of requests that arrive during
/// iterations are independent and Poisson with mean a = λ·d. With probability exp(−a) none arrives, and the replica
/// idles for 1/λ. It is busy for the share a / (a + exp(−a)) of the time, which is the probability that an arrival
/// meets a busy replica; then it waits for the rest of the iteration, on average d/2. So W = (d/2)·a / (a + exp(−a)).
#[test]
fn one_token_all_at_once_is_bulk_service() {
    let slot_s = 1.0;
    for load in [0.5_f64, 2.0] {
        let expected = slot_s / 2.0 * load / (load + (-load).exp());
        let engine = constant(slot_s, 1_000_000);
        agrees(expected, &engine, load / slot_s, r#"{"kind": "Fixed", "tokens": 1}"#, waiting);
    }
}

/// Geometric outputs, all at once, d per row of a batch: processor sharing in turns of d.
///
/// Let N be the number of requests in a batch. It takes N·d; each member stays with probability 1 − p, and
/// Poisson(λ·N·d) requests arrive meanwhile. So N is a branching process with offspring of mean m = 1 − p + λ·d and
/// variance v = p(1 − p) + λ·d: one ancestor ends an idle period of mean 1/λ, and extinction begins the next. Over
/// the generations of a busy period ΣE\[N\] = 1/(1 − m), and E\[N'²\] = m²E\[N²\] + v·E\[N\] implies ΣE\[N²\] = (1 +
/// v/(1 − m)) / (1 − m²).
/// An iteration adds N·(N·d) + λ(N·d)²/2 to ∫ number in system dt, so by Little's law
///
/// ```text
///     T = d(1 + λd/2)·ΣE[N²] / (1 + λd·ΣE[N])
/// ```
///
/// For p → 0 at a fixed load this is 1/p·d / (1 − ρ): processor sharing, M/M/1-PS.
#[test]
fn geometric_outputs_by_turns_are_processor_sharing() {
    let sojourn = |p: f64, load: f64, slot_s: f64| {
        // λ·d, since ρ = λ·d/p.
        let a = load * p;
        let (m, v) = (1.0 - p + a, p * (1.0 - p) + a);
        let members = 1.0 / (1.0 - m);
        let squares = (1.0 + v / (1.0 - m)) / (1.0 - m * m);
        slot_s * (1.0 + a / 2.0) * squares / (1.0 + a * members)
    };
    for load in [0.5, 0.8] {
        let limit = 1.0 / (1.0 - load);
        assert!((sojourn(1e-6, load, 1e-6) / limit - 1.0).abs() < 1e-5, "the limit is processor sharing");
        for mean_tokens in [2.0, 50.0] {
            let slot_s = 1.0 / mean_tokens;
            let expected = sojourn(1.0 / mean_tokens, load, slot_s);
            agrees(expected, &shared(slot_s), load, &geometric(mean_tokens), |requests| &requests.e2e_s);
        }
    }
}

fn geometric(mean_tokens: f64) -> String {
    format!(r#"{{"kind": "Geometric", "mean": {mean_tokens}, "cap": null}}"#)
}
