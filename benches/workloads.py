"""The workloads and the engine of the benches, the same as in `rust/benches/replica.rs`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import inferq as iq

ENGINE = iq.Engine(
    timing=iq.PiecewiseLinear(
        base=0.006,
        per_token=32e-6,
        knee=200,
        per_context_token=40e-9,
        per_prefill_square=650e-12,
        per_chunk_context=1.3e-9,
    ),
    scheduler=iq.Sarathi(token_budget=512, max_seqs=256, watermark=0.01),
    kv=iq.KvCache(tokens=432_000, block=16),
)

LENGTHS: dict[str, dict[str, Any]] = {
    "W1": {"prompt": iq.dist.Lognormal(230, 90, cap=4096), "output": iq.dist.Lognormal(250, 150, cap=4096)},
    "W3": {
        "prompt": iq.dist.Lognormal(500, 350, cap=8192),
        "output": iq.dist.Lognormal(4000, 3000, cap=32_000),
    },
    "W4": {"prompt": iq.dist.LogUniform(10_000, 100_000), "output": iq.dist.Lognormal(100, 80, cap=1000)},
    "W1 with outputs of 4000": {
        "prompt": iq.dist.Lognormal(230, 90, cap=4096),
        "output": iq.dist.Lognormal(4000, 2400, cap=65_536),
    },
}

_BESIDE = Path(__file__).parents[2] / "shared/traces/raw/AzureLLMInferenceTrace_conv.csv"
AZURE_TRACE = Path(os.environ.get("AZURE_TRACE", _BESIDE))
"""The trace that W2 draws its pairs from; it is no part of the project."""


def lengths(name: str) -> dict[str, Any]:
    """The distributions of a workload's lengths."""
    if name != "W2":
        return LENGTHS[name]
    return {"lengths": iq.dist.Empirical(iq.read_trace(AZURE_TRACE).frame)}


def saturated_rate(name: str, requests: int = 100_000, engine: iq.Engine = ENGINE) -> float:
    """Requests per second that an engine serves when all of them come at time 0."""
    import polars as pl

    frame = synthetic(name, requests, rate=1.0).draw(1).frame
    result = iq.simulate(frame.with_columns(arrival_s=pl.lit(0.0)), engine)
    return requests / float(result.requests["left_s"].max())  # type: ignore[arg-type]


def synthetic(name: str, requests: int, rate: float) -> iq.Workload:
    """A workload that is not drawn yet."""
    return iq.Workload.synthetic(requests=requests, arrivals=iq.dist.Poisson(rate), **lengths(name))
