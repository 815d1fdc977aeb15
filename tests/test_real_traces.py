"""Do real traces run through every scheduler to their last request?"""

from pathlib import Path

import polars as pl
import pytest

import inferq as iq
from inferq.scheduler import Scheduler

_TRACES = [
    "azure_llm_2023_code.parquet",
    "azure_llm_2023_conv.parquet",
    "mooncake_conversation.parquet",
    "mooncake_synthetic.parquet",
    "raw/AzureLLMInferenceTrace_code.csv",
    "raw/AzureLLMInferenceTrace_conv.csv",
    "raw/conversation_trace.jsonl",
    "raw/synthetic_trace.jsonl",
    "raw/splitwise_code.csv",
    "raw/splitwise_conv.csv",
]
_TIMING = iq.PiecewiseLinear(
    base=0.006,
    per_token=32e-6,
    knee=200,
    per_context_token=40e-9,
    per_prefill_square=650e-12,
    per_chunk_context=1.3e-9,
)
_SCHEDULERS = {
    "sarathi": iq.Sarathi(token_budget=2048, max_seqs=256),
    "spf": iq.Sarathi(token_budget=2048, max_seqs=256, order="spf"),
    "vllm-v1": iq.VllmV1(token_budget=2048, max_seqs=256),
    "vllm-v0": iq.VllmV0(token_budget=262_144, max_seqs=256),
    "sglang": iq.Sglang(max_seqs=256),
    "orca": iq.Orca(max_model_len=200_000, max_seqs=256),
    "orca-chunked": iq.Orca(max_model_len=200_000, max_seqs=256, token_budget=2048, chunked=True),
    "faster-transformer": iq.FasterTransformer(max_model_len=200_000, max_seqs=256, free="batch"),
    "k-fcfs": iq.KFcfs(token_budget=2048, k_prefill=4, k_decode=256),
    "rad": iq.Rad(rows=256, columns=128, reduction=32, requests_per_cycle=1000),
    "rad-phased": iq.RadPhased(rows=256, columns=128, reduction=32, requests_per_cycle=200),
    "slai": iq.Slai(offset=iq.DynamicOffset()),
    "wait": iq.Wait(thresholds=2),
    "nested-wait": iq.NestedWait(segments=[50, 200], thresholds=[2, 1]),
    "slot-greedy": iq.SlotGreedy(chunk=2048),
}


@pytest.mark.parametrize("scheduler", _SCHEDULERS.values(), ids=_SCHEDULERS.keys())
@pytest.mark.parametrize("trace", _TRACES)
def test_every_request_of_a_real_trace_finishes(trace: str, scheduler: Scheduler, shared: Path):
    path = shared / "traces" / trace
    if not path.exists():
        pytest.skip(f"{trace} is not here")
    workload = iq.read_trace(path)
    # Room for the longest prompt of all, and little more than the traces of chats need.
    kv = iq.KvCache(tokens=432_000)
    result = iq.simulate(workload, iq.Engine(timing=_TIMING, scheduler=scheduler, kv=kv))
    requests = result.requests
    assert requests["prompt_tokens"].to_list() == workload.frame["prompt_tokens"].to_list()
    assert requests["status"].unique().to_list() == ["finished"]
    # Little's law in whole attoseconds, and every token but each request's first ends a gap.
    assert result.totals["in_system_as"] == result.totals["sojourn_as"]
    gaps = (workload.frame["output_tokens"].cast(pl.Int64) - 1).sum()
    assert result.tbt["count"].sum() == gaps
