//! A scheduler as a user describes it.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    Queue, Scheduler, Watermark, class_priority, faster_transformer, k_fcfs, nested_wait, orca, rad, rad_phased,
    sarathi, sglang, slai, slot_greedy, vllm_v0, vllm_v1, wait,
};
use crate::clock::{Span, attoseconds};
use crate::engine::Class;
use crate::error::{Error, Result};
use crate::plan::{Limits, Preemption};

/// A policy and its parameters. The documentation of each stands with its Python class.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields carry the names of the Python classes, which document them")]
pub enum SchedulerConfig {
    /// Sarathi-Serve: decodes first, chunked prefills fill the budget.
    Sarathi { token_budget: u64, max_seqs: u64, order: QueueOrder, watermark: f64, preemption: PreemptionKind },
    /// vLLM v1: every request just owes tokens.
    VllmV1 {
        token_budget: u64,
        max_seqs: u64,
        long_prefill_threshold: u64,
        policy: VllmV1Policy,
        reserve_full_prompt: bool,
    },
    /// vLLM v0 without chunking: prefill-only iterations first.
    VllmV0 { token_budget: u64, max_seqs: u64, watermark: f64, preemption: PreemptionKind },
    /// SGLang: prompts first, as far as the expected lengths of outputs leave memory; otherwise decodes.
    Sglang {
        policy: SglangPolicy,
        chunk_tokens: Option<u64>,
        max_prefill_tokens: u64,
        max_seqs: u64,
        mixed: bool,
        conservativeness: f64,
        ignore_eos: bool,
    },
    /// Orca: new prompts first, mixed with decodes; the maximum length is reserved.
    Orca { max_seqs: u64, max_model_len: u64, token_budget: Option<u64>, chunked: bool },
    /// FasterTransformer: a batch of requests runs until all of them end.
    FasterTransformer { max_seqs: u64, max_model_len: u64, free: Free },
    /// The work-conserving family of li2025: the oldest decodes, then the oldest prefills.
    KFcfs { token_budget: u64, k_prefill: u64, k_decode: u64 },
    /// Tiles filled exactly, prefills between decodes.
    Rad { rows: u64, columns: u64, reduction: u64, requests_per_cycle: u64 },
    /// Tiles filled exactly, all prefills of a cycle before its decodes.
    RadPhased { rows: u64, columns: u64, reduction: u64, requests_per_cycle: u64 },
    /// Decodes no sooner than their deadline asks for.
    Slai {
        token_budget: u64,
        max_active: u64,
        max_decodes: u64,
        offset: Offset,
        order: QueueOrder,
        class_first: Option<String>,
    },
    /// WAIT: a type joins the batch when enough of it wait.
    Wait { thresholds: Thresholds, max_seqs: Option<u64> },
    /// Nested WAIT: segments of decode stages, each with its threshold.
    NestedWait { segments: Vec<u64>, thresholds: Vec<u64>, prompt_groups: Vec<u64> },
    /// Whoever's next step fits, in order of arrival.
    SlotGreedy { chunk: u64 },
    /// A policy for each class, the classes in order.
    ClassPriority { order: Vec<String>, inner: Box<SchedulerConfig> },
}

/// The order in which waiting requests are served; equal ones by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueOrder {
    /// First come, first served.
    Fcfs,
    /// Shortest prompt first.
    Spf,
    /// Fewest tokens to load first, prompt and output, as they were on arrival.
    Srf,
    /// Longest prompt first.
    Lpf,
    /// By the workload's `queue_key`, lowest first.
    #[serde(rename = "ByKey")]
    ByKey,
}

impl QueueOrder {
    /// An empty queue in this order; requests of the class `first` go before all others.
    pub(super) fn queue(self, first: Option<u32>) -> Queue {
        match (self, first) {
            (QueueOrder::Fcfs, None) => Queue::fcfs(),
            (QueueOrder::Fcfs, _) => Queue::by(|_| 0, first),
            (QueueOrder::Spf, _) => Queue::by(|arrival| i64::from(arrival.prompt_tokens), first),
            (QueueOrder::Srf, _) => {
                Queue::by(|arrival| i64::from(arrival.prompt_tokens) + i64::from(arrival.output_tokens), first)
            }
            (QueueOrder::Lpf, _) => Queue::by(|arrival| -i64::from(arrival.prompt_tokens), first),
            (QueueOrder::ByKey, _) => Queue::by(|arrival| arrival.queue_key, first),
        }
    }
}

/// vLLM v1's two scheduling policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VllmV1Policy {
    /// First come, first served; victims from the tail of the running list.
    Fcfs,
    /// By (priority, arrival); victims are the worst by it.
    Priority,
}

/// SGLang's two orders of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SglangPolicy {
    /// First come, first served; the retracted go to the tail.
    Fcfs,
    /// Longest part of the prompt in the prefix cache first.
    Lpm,
}

/// When the blocks of a request that is done are freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Free {
    /// When it ends.
    Each,
    /// When the last of its batch ends.
    Batch,
}

/// By how many mean batch times a decode is critical before its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Offset {
    /// Always the same.
    Fixed(f64),
    /// By how full the KV cache is.
    Dynamic(DynamicOffset),
}

/// Two offsets, and the share of the blocks in use from which the second one applies.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields carry the names of the Python class, which documents them")]
pub enum DynamicOffset {
    /// The only kind.
    DynamicOffset { low: f64, high: f64, kv_share: f64 },
}

/// How many requests of a class must wait before it joins the batch.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Thresholds {
    /// The same for every class.
    Same(u64),
    /// By the name of the class.
    ByClass(BTreeMap<String, u64>),
}

/// Rule 12's preemptions as a user describes them; times in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", deny_unknown_fields)]
pub enum PreemptionKind {
    /// Forget the context, compute it again.
    Recompute {},
    /// Keep the context on the host.
    Swap {
        /// Per token of context, each way.
        per_token: f64,
        /// For each move.
        base: f64,
    },
}

impl PreemptionKind {
    fn build(self) -> Result<Preemption> {
        Ok(match self {
            PreemptionKind::Recompute {} => Preemption::Recompute,
            PreemptionKind::Swap { per_token, base } => Preemption::Swap {
                per_token: Span(attoseconds(per_token, "preemption.per_token")?),
                base: Span(attoseconds(base, "preemption.base")?),
            },
        })
    }
}

/// Tests that a count is one.
pub(super) fn count(field: &str, value: u64) -> Result<u64> {
    if (1..=Limits::NONE).contains(&value) {
        return Ok(value);
    }
    Err(Error::config(field, format!("{value}: it must be at least 1 and at most 2^40")))
}

/// Limits with a budget and a cap.
fn limits(token_budget: u64, max_seqs: u64) -> Result<Limits> {
    let (token_budget, max_seqs) = (count("token_budget", token_budget)?, count("max_seqs", max_seqs)?);
    Ok(Limits { token_budget, max_seqs, frees_with_batch: false })
}

/// The code of a class of the workload. Where no workload is known yet, any name will do.
pub(super) fn class_code(field: &str, name: &str, classes: Option<&[Class]>) -> Result<u32> {
    let Some(classes) = classes else { return Ok(0) };
    let code = classes.iter().position(|class| class.name == name);
    code.map(|code| code as u32).ok_or_else(|| {
        let names: Vec<&str> = classes.iter().map(|class| class.name.as_str()).collect();
        Error::config(field, format!("no request has the class {name:?}; the workload has {}", names.join(", ")))
    })
}

impl SchedulerConfig {
    /// The scheduler itself, for a workload with these classes; `None` only tests the parameters.
    pub fn build(&self, classes: Option<&[Class]>) -> Result<Box<dyn Scheduler>> {
        Ok(match *self {
            SchedulerConfig::Sarathi { token_budget, max_seqs, order, watermark, preemption } => {
                Box::new(sarathi::Sarathi::new(
                    limits(token_budget, max_seqs)?,
                    order,
                    Watermark::new(watermark)?,
                    preemption.build()?,
                ))
            }
            SchedulerConfig::VllmV1 { token_budget, max_seqs, long_prefill_threshold, policy, reserve_full_prompt } => {
                Box::new(vllm_v1::VllmV1::new(
                    limits(token_budget, max_seqs)?,
                    long_prefill_threshold,
                    policy,
                    reserve_full_prompt,
                ))
            }
            SchedulerConfig::VllmV0 { token_budget, max_seqs, watermark, preemption } => Box::new(
                vllm_v0::VllmV0::new(limits(token_budget, max_seqs)?, Watermark::new(watermark)?, preemption.build()?),
            ),
            SchedulerConfig::Sglang {
                policy,
                chunk_tokens,
                max_prefill_tokens,
                max_seqs,
                mixed,
                conservativeness,
                ignore_eos,
            } => Box::new(sglang::Sglang::new(sglang::Settings {
                policy,
                chunk_tokens: chunk_tokens
                    .filter(|&tokens| tokens > 0)
                    .map(|tokens| count("chunk_tokens", tokens))
                    .transpose()?,
                max_prefill_tokens: count("max_prefill_tokens", max_prefill_tokens)?,
                max_seqs: count("max_seqs", max_seqs)?,
                mixed,
                conservativeness,
                ignore_eos,
            })?),
            SchedulerConfig::Orca { max_seqs, max_model_len, token_budget, chunked } => {
                if chunked && token_budget.is_none() {
                    return Err(Error::config("token_budget", "a chunk is cut to the budget: chunked=True needs one"));
                }
                let limits = limits(token_budget.unwrap_or(Limits::NONE), max_seqs)?;
                Box::new(orca::Orca::new(limits, count("max_model_len", max_model_len)?, chunked))
            }
            SchedulerConfig::FasterTransformer { max_seqs, max_model_len, free } => {
                let limits = Limits { frees_with_batch: free == Free::Batch, ..limits(Limits::NONE, max_seqs)? };
                Box::new(faster_transformer::FasterTransformer::new(limits, count("max_model_len", max_model_len)?))
            }
            SchedulerConfig::KFcfs { token_budget, k_prefill, k_decode } => Box::new(k_fcfs::KFcfs::new(
                limits(token_budget, Limits::NONE)?,
                count("k_prefill", k_prefill)?,
                count("k_decode", k_decode)?,
            )),
            SchedulerConfig::Rad { rows, columns, reduction, requests_per_cycle } => Box::new(rad::Rad::new(
                rad::Tiles::new(rows, columns, reduction)?,
                count("requests_per_cycle", requests_per_cycle)?,
            )),
            SchedulerConfig::RadPhased { rows, columns, reduction, requests_per_cycle } => {
                Box::new(rad_phased::RadPhased::new(
                    rad::Tiles::new(rows, columns, reduction)?,
                    count("requests_per_cycle", requests_per_cycle)?,
                ))
            }
            SchedulerConfig::Slai { token_budget, max_active, max_decodes, offset, order, ref class_first } => {
                let code = |name: &String| class_code("class_first", name, classes);
                let limits = Limits { max_seqs: count("max_active", max_active)?, ..limits(token_budget, 1)? };
                let first = class_first.as_ref().map(code).transpose()?;
                Box::new(slai::Slai::new(limits, count("max_decodes", max_decodes)?, offset, order.queue(first))?)
            }
            SchedulerConfig::Wait { ref thresholds, max_seqs } => {
                let limits = limits(Limits::NONE, max_seqs.unwrap_or(Limits::NONE))?;
                Box::new(wait::Wait::new(limits, thresholds, classes)?)
            }
            SchedulerConfig::NestedWait { ref segments, ref thresholds, ref prompt_groups } => {
                Box::new(nested_wait::NestedWait::new(segments, thresholds, prompt_groups)?)
            }
            SchedulerConfig::SlotGreedy { chunk } => Box::new(slot_greedy::SlotGreedy::new(count("chunk", chunk)?)),
            SchedulerConfig::ClassPriority { ref order, ref inner } => {
                Box::new(class_priority::ClassPriority::new(order, inner, classes)?)
            }
        })
    }

    /// Does it load tokens up to its budget whenever it can?
    pub(super) fn fills_a_budget(&self) -> bool {
        match *self {
            SchedulerConfig::Sarathi { .. } | SchedulerConfig::KFcfs { .. } | SchedulerConfig::VllmV1 { .. } => true,
            SchedulerConfig::Orca { chunked, .. } => chunked,
            _ => false,
        }
    }
}
