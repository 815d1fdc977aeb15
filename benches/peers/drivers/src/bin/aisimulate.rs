//! The engine of AISimulate, which is Dynamo's mocker, as its crate has it.

use std::num::NonZeroU32;
use std::sync::Arc;

use aisimulate_core::engine::generalized::{EngineIdentity, SchedulerCommand};
use aisimulate_core::engine::{
    Command, EngineConfig, EngineFactory, ForwardPassMetrics, PressureKind, Request, TimingModel,
};
use anyhow::{Context, Result, ensure};
use inferq_peers::{Case, Outcome, Price};
use uuid::Uuid;

/// Passes take no time of their own: the price of a pass, which sees prefill and decodes together, is added outside.
struct Free;

impl TimingModel for Free {
    fn prefill_batch_validation_can_fail(&self) -> bool {
        false
    }

    fn prefill_prediction_can_fail(&self) -> bool {
        false
    }

    fn predict_prefill_ms(&self, _: usize, _: usize, _: usize) -> Result<f64> {
        Ok(0.0)
    }

    fn predict_decode_ms(&self, _: usize, _: usize, _: usize, _: usize) -> Result<f64> {
        Ok(0.0)
    }
}

fn price_us(price: &Price, pass: &ForwardPassMetrics) -> f64 {
    let decodes = f64::from(pass.num_decode_requests);
    let contexts = pass.sum_decode_kv_tokens as f64 - decodes;
    price.base + price.per_token * (pass.sum_prefill_tokens as f64 + decodes) + price.per_context_token * contexts
}

fn run(case: &Case) -> Result<Outcome> {
    ensure!(case.policy == "fcfs", "it has no policy {}", case.policy);
    ensure!(case.long_prefill_threshold == 0, "it has no threshold of long prompts");
    let config = EngineConfig {
        num_gpu_blocks: case.kv_tokens / case.block_tokens,
        block_size: case.block_tokens,
        max_num_seqs: case.max_seqs,
        max_num_batched_tokens: case.token_budget,
        enable_prefix_caching: case.prefix,
        ..EngineConfig::default()
    };
    let factory = EngineFactory::with_timing_model(config, Arc::new(Free))?;
    let mut engine = factory.build(EngineIdentity::new(0), NonZeroU32::MIN)?;
    let count = case.requests.len();
    let mut outcome = Outcome {
        first_token_us: vec![f64::NAN; count],
        finish_us: vec![f64::NAN; count],
        preemptions: vec![0; count],
        ..Outcome::default()
    };
    let (mut now_us, mut next, mut left) = (0.0, 0, count);
    while left > 0 {
        if !engine.is_ready() {
            now_us = f64::max(now_us, case.requests.get(next).context("it waits for ever")?.arrival_us);
        }
        while let Some(row) = case.requests.get(next).filter(|row| row.arrival_us <= now_us) {
            // A prompt of its own where none is given.
            let own = || (0..row.prompt_tokens).map(|token| next as u32 ^ token.wrapping_mul(0x9e37_79b9)).collect();
            let request = Request {
                request_id: Uuid::from_u128(next as u128),
                tokens: row.tokens.clone().unwrap_or_else(own),
                max_output_tokens: row.output_tokens as usize,
                output_token_ids: None,
            };
            engine.apply_command_effects(SchedulerCommand::new(0, Command::Submit(request)), now_us / 1e3)?;
            next += 1;
        }
        let Some(started) = engine.execute_pass(now_us / 1e3)? else { continue };
        for event in started.by_rank.iter().flat_map(|rank| &rank.effects.pressure_events) {
            ensure!(event.kind == PressureKind::VllmPreemption, "an engine of another kind");
            outcome.preemptions[event.request_id.as_u128() as usize] += 1;
        }
        let ended = engine.complete_pass(started.pass_id, started.end_ms)?;
        let pass = &ended.effects.by_rank.first().context("a pass of nothing")?.effects;
        if pass.forward_pass_metrics.num_prefill_requests + pass.forward_pass_metrics.num_decode_requests == 0 {
            now_us = f64::max(now_us, case.requests.get(next).context("it makes no progress")?.arrival_us);
            continue;
        }
        outcome.iterations_us.push(now_us);
        now_us += price_us(&case.price_us, &pass.forward_pass_metrics);
        for output in &pass.outputs {
            ensure!(!output.rejected, "request {} is refused", output.request_id.as_u128());
            let request = output.request_id.as_u128() as usize;
            if outcome.first_token_us[request].is_nan() {
                outcome.first_token_us[request] = now_us;
            }
            if output.completed {
                outcome.finish_us[request] = now_us;
                left -= 1;
            }
        }
    }
    Ok(outcome)
}

fn main() -> Result<()> {
    inferq_peers::serve(run)
}
