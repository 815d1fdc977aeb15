"""Published errors of the model, next to differences that are smaller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferq.display.text import percent
from inferq.results.finding import Finding

PUBLISHED: Mapping[str, tuple[float, float]] = {
    "ttft_mean": (0.072, 0.25),
    "ttft_p50": (0.046, 0.198),
    "ttft_p90": (0.047, 0.305),
    "ttft_p95": (0.048, 0.354),
    "ttft_p99": (0.153, 0.681),
    "tpot_mean": (0.039, 0.096),
    "tpot_p50": (0.195, 0.24),
    "tpot_p90": (0.208, 0.242),
    "tpot_p95": (0.169, 0.238),
    "tpot_p99": (0.193, 0.238),
    "e2e_mean": (0.027, 0.072),
    "e2e_p50": (0.036, 0.074),
    "e2e_p90": (0.048, 0.077),
    "e2e_p95": (0.041, 0.088),
    "e2e_p99": (0.081, 0.262),
    "request_throughput": (0.001, 0.013),
    "output_throughput": (0.032, 0.11),
}
"""Median and P90 of the absolute error on measured vLLM and SGLang servers: docs/explanation/accuracy.md."""


def of_rows(rows: Iterable[Mapping[str, Any]]) -> Finding | None:
    """A finding about significant differences within the median error of the model, or None."""
    finer = {
        row["metric"]
        for row in rows
        if row["verdict"] in ("better", "worse")
        and row["relative"] is not None
        and abs(row["relative"]) < PUBLISHED.get(row["metric"], (0.0, 0.0))[0]
    }
    if not finer:
        return None
    errors = {name: PUBLISHED[name] for name in PUBLISHED if name in finer}
    texts = ", ".join(
        f"{name} (median {percent(median)}, P90 {percent(p90)})" for name, (median, p90) in errors.items()
    )
    return Finding(
        "model-error",
        f"differences are smaller than the published error on vLLM and SGLang servers in {texts}; "
        "the interval covers only the randomness of the runs",
        {name: median for name, (median, _) in errors.items()},
    )
