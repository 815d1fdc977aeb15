//! The engine of inference-lab, as its crate has it.

use std::hash::{DefaultHasher, Hash, Hasher};

use anyhow::{Context, Result, anyhow, ensure};
use inference_lab::config::ModelConfig;
use inference_lab::request::Request;
use inference_lab::simulation::{Engine, Topology};
use inferq_peers::{Case, Outcome};

const MODEL: &str = "llama-3.1-8b-instruct";

/// Of each whole block of a prompt: a hash of it and all before it, and one of it alone.
fn hashes(tokens: &[u32], block: usize) -> (Vec<u64>, Vec<u64>) {
    let hash = |tokens: &[u32]| {
        let mut hasher = DefaultHasher::new();
        tokens.hash(&mut hasher);
        hasher.finish()
    };
    let blocks = tokens.len() / block;
    ((1..=blocks).map(|n| hash(&tokens[..n * block])).collect(), tokens.chunks_exact(block).map(hash).collect())
}

fn run(case: &Case) -> Result<Outcome> {
    let price = &case.price_us;
    let model = inference_lab::catalog::model(MODEL).map_err(|error| anyhow!("{error}"))?;
    let capacity = (case.kv_tokens / case.block_tokens) as u64 * model.kv_block_bytes(case.block_tokens as u32);
    // A decode attends to the token that it computes too.
    let config = format!(
        "model = \"{MODEL}\"
        [scheduler]
        max_num_batched_tokens = {}
        max_num_seqs = {}
        policy = \"{}\"
        enable_chunked_prefill = true
        long_prefill_token_threshold = {}
        block_size = {}
        kv_cache_capacity = {capacity}
        [hardware.h100]
        tp = 1
        step_cost = {{ model = \"linear\", t0 = {:e}, tp = {:e}, td = {:e}, tk = {:e} }}",
        case.token_budget,
        case.max_seqs,
        case.policy,
        case.long_prefill_threshold,
        case.block_tokens,
        price.base / 1e6,
        price.per_token / 1e6,
        (price.per_token - price.per_context_token) / 1e6,
        price.per_context_token / 1e6,
    );
    let deployment = ModelConfig::from_toml(&config)
        .map_err(|error| anyhow!("{error}"))?
        .deployment(Some("h100"))
        .map_err(|error| anyhow!("{error}"))?;
    let (cluster, model) = (deployment.cluster(), deployment.model.clone());
    let topology =
        Topology::aggregated(cluster, model, deployment.scheduler.clone()).map_err(|error| anyhow!(error))?;
    let mut engine = Engine::new(topology);

    let count = case.requests.len();
    let mut outcome = Outcome {
        first_token_us: vec![f64::NAN; count],
        finish_us: vec![f64::NAN; count],
        preemptions: vec![0; count],
        ..Outcome::default()
    };
    let (mut next, mut left) = (0, count);
    while left > 0 {
        // In the order of arrival, and no earlier than the engine gets there.
        while let Some(row) = case.requests.get(next) {
            if engine.next_event_time().is_some_and(|event_s| event_s < row.arrival_us / 1e6) {
                break;
            }
            let arrival_s = row.arrival_us / 1e6;
            let mut request =
                Request::new(next.to_string(), row.priority, arrival_s, row.prompt_tokens, row.output_tokens);
            if let Some(tokens) = row.tokens.as_ref().filter(|_| case.prefix) {
                (request.prompt_block_hashes, request.prompt_local_block_hashes) = hashes(tokens, case.block_tokens);
            }
            engine.submit(request);
            next += 1;
        }
        let step = engine.step().map_err(|error| anyhow!(error))?;
        outcome.iterations_us.extend(step.iteration.map(|iteration| iteration.start_time * 1e6));
        for ended in step.completions {
            ensure!(!ended.rejected, "request {} is refused", ended.request_id);
            let request: usize = ended.request_id.parse().context("an id that is no number")?;
            outcome.first_token_us[request] = ended.first_token_time * 1e6;
            outcome.finish_us[request] = ended.completion_time * 1e6;
            outcome.preemptions[request] = ended.num_preemptions;
            left -= 1;
        }
    }
    Ok(outcome)
}

fn main() -> Result<()> {
    inferq_peers::serve(run)
}
