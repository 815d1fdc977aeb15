//! What both drivers read and write: a list of cases as JSON, and for each what came out.

use std::io::Read;

use serde::{Deserialize, Serialize};

/// A request of a case.
#[derive(Deserialize)]
pub struct Row {
    pub arrival_us: f64,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    /// Lower goes first.
    #[serde(default)]
    pub priority: i32,
    /// The prompt itself, where requests share beginnings.
    #[serde(default)]
    pub tokens: Option<Vec<u32>>,
}

/// An iteration lasts `base + per_token · tokens + per_context_token · (contexts of its decodes before it)`.
#[derive(Deserialize)]
pub struct Price {
    pub base: f64,
    pub per_token: f64,
    pub per_context_token: f64,
}

/// One engine and its requests, by arrival.
#[derive(Deserialize)]
pub struct Case {
    pub requests: Vec<Row>,
    pub kv_tokens: usize,
    pub block_tokens: usize,
    pub token_budget: usize,
    pub max_seqs: usize,
    pub long_prefill_threshold: u32,
    pub policy: String,
    pub prefix: bool,
    pub price_us: Price,
}

/// What came out, by request; and when each iteration began.
#[derive(Default, Serialize)]
pub struct Outcome {
    pub first_token_us: Vec<f64>,
    pub finish_us: Vec<f64>,
    pub preemptions: Vec<u32>,
    pub iterations_us: Vec<f64>,
}

/// Cases from standard input, outcomes to standard output; a case that cannot be run is an error text in its place.
pub fn serve(run: impl Fn(&Case) -> anyhow::Result<Outcome>) -> anyhow::Result<()> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let cases: Vec<Case> = serde_json::from_str(&text)?;
    let outcomes: Vec<Result<Outcome, String>> =
        cases.iter().map(|case| run(case).map_err(|error| format!("{error:#}"))).collect();
    println!("{}", serde_json::to_string(&outcomes)?);
    Ok(())
}
