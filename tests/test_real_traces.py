"""Do real traces run through every scheduler to their last request?"""

from pathlib import Path

import polars as pl
import pytest

import inferq as iq
from inferq.scheduler import Scheduler

from .policies import POLICIES

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
_SCHEDULERS = {name: made for policy in POLICIES.values() for name, made in policy.on_real_traces.items()}


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
    assert result.itl["count"].sum() == gaps
