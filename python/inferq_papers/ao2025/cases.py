"""Common requests, engine and measures of the ao2025 experiments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

import inferq as iq

BASE_S, PER_TOKEN_S, KV_TOKENS = 0.015, 2.6e-7, 125_000
"""d0, d1 and C, about Llama-2-7B on an A100; not printed in the paper."""
LOADS = (0.05, 0.15, 0.3, 0.45, 0.55, 0.6)
LONG_PROMPTS = 16_384
"""A token budget that never binds: whole prompts, as in WAIT."""
CHAT_SHARES = (23, 11, 8, 7, 6, 4, 3, 2, 1, 1)
"""Section 6.2: shares of the chats in ten bins of 50 output tokens each."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of the paper: lengths in tokens and arrival rate."""

    prompt_tokens: int
    output_tokens: int
    rate: float

    @property
    def name(self) -> str:
        """Class name in workloads and formulas."""
        return f"output {self.output_tokens}"

    def times(self, factor: float) -> Kind:
        """The same lengths at another rate."""
        return Kind(self.prompt_tokens, self.output_tokens, self.rate * factor)


Kinds = tuple[Kind, ...]

LOW: Kinds = (Kind(10, 10, 1000), Kind(10, 20, 1000))
HIGH: Kinds = (Kind(20, 100, 6000), Kind(20, 200, 4000), Kind(20, 300, 2000))
NESTED: Kinds = tuple(Kind(10, tokens, tokens) for tokens in (20, 40, 80, 160))
CHAT: Kinds = tuple(
    Kind(60, 50 * place, 55 * share / sum(CHAT_SHARES)) for place, share in enumerate(CHAT_SHARES, start=1)
)
"""Instances of section 6 with printed rates; only the ratio is printed for the third, 55/s for the last."""


def timing() -> iq.research.MemoryLinear:
    """Model (1)."""
    return iq.research.MemoryLinear(base=BASE_S, per_kv_token=PER_TOKEN_S)


def request_classes(kinds: Kinds) -> list[iq.theory.RequestClass]:
    """The types as request classes of the formulas."""
    return [
        iq.theory.RequestClass(
            name=kind.name, rate=kind.rate, prompt=kind.prompt_tokens, output=kind.output_tokens
        )
        for kind in kinds
    ]


def settled(kinds: Kinds, kv_tokens: int | None = KV_TOKENS) -> iq.theory.Fluid:
    """The fluid of these types."""
    return iq.theory.fluid(request_classes(kinds), timing(), kv_tokens=kv_tokens, first_token="decode")


def load(kinds: Kinds) -> float:
    """d1·Σ λ (l' + 1)(l + l'/2)."""
    found = settled(kinds).cache_load
    assert found is not None
    return found


def at_load(kinds: Kinds, target: float) -> Kinds:
    """The same types at another demand."""
    factor = target / load(kinds)
    return tuple(kind.times(factor) for kind in kinds)


def wait_thresholds(kinds: Kinds, thresholds: Sequence[int] | None = None) -> iq.theory.WaitThresholds:
    """The least thresholds by (9), or an evaluation of given thresholds, for any cache."""
    named = None
    if thresholds is not None:
        named = {kind.name: count for kind, count in zip(kinds, thresholds, strict=True)}
    return iq.theory.wait_thresholds(request_classes(kinds), timing(), first_token="decode", thresholds=named)


def nested_thresholds(
    kinds: Kinds, thresholds: Sequence[int] | None = None, iterations: int | None = None
) -> iq.theory.NestedWaitThresholds:
    """A segment for each length, with the least thresholds by (10), or an evaluation of given thresholds."""
    return iq.theory.nested_wait_thresholds(
        request_classes(kinds),
        timing(),
        first_token="decode",
        segments=[kind.output_tokens for kind in kinds],
        thresholds=thresholds,
        iterations=iterations,
    )


def printed_thresholds(kinds: Kinds, limit: int) -> list[int]:
    """n_j = B·ρ_j / (l'_j + 1), the rule of section 6.1, in whole numbers."""
    total = sum(kind.rate for kind in kinds)
    return [max(1, round(limit * kind.rate / total / (kind.output_tokens + 1))) for kind in kinds]


def workload(kinds: Kinds, requests: int, seed: int = 1) -> iq.Workload:
    """A Poisson process of each type, its class named after its output length."""
    total = sum(kind.rate for kind in kinds)
    parts = [
        iq.Workload.synthetic(
            requests=max(1, round(requests * kind.rate / total)),
            arrivals=iq.dist.Poisson(kind.rate),
            prompt=iq.dist.Fixed(kind.prompt_tokens),
            output=iq.dist.Fixed(kind.output_tokens),
        ).with_classes(kind.name)
        for kind in kinds
    ]
    return parts[0].concat(*parts[1:]).draw(seed)


def wait(kinds: Kinds, n: Sequence[int]) -> iq.research.Wait:
    """WAIT with a threshold for each type."""
    return iq.research.Wait(thresholds={kind.name: count for kind, count in zip(kinds, n, strict=True)})


def nested(kinds: Kinds, n: Sequence[int]) -> iq.research.NestedWait:
    """Nested WAIT with a segment for each type."""
    return iq.research.NestedWait(segments=[kind.output_tokens for kind in kinds], thresholds=list(n))


def deployed(limit: int) -> dict[str, iq.Scheduler]:
    """The policies of real engines, with at most `limit` requests in a batch."""
    return {
        "VllmV1": iq.VllmV1(token_budget=LONG_PROMPTS, max_seqs=limit, async_scheduling=False),
        "Sarathi": iq.Sarathi(token_budget=LONG_PROMPTS, max_seqs=limit, watermark=0.0),
    }


def unbounded() -> iq.VllmV1:
    """A policy with every request in each iteration from its arrival on, as in the fluid."""
    return iq.VllmV1(token_budget=2**20, max_seqs=2**16, async_scheduling=False)


def run(
    requests: iq.Workload, scheduler: iq.Scheduler, kv_tokens: int | None = KV_TOKENS, **options: Any
) -> iq.Result:
    """A run on kind replica; a tenth of the requests at each end is not measured."""
    engine = iq.Engine(
        timing=timing(),
        scheduler=scheduler,
        kv=iq.KvCache(tokens=kv_tokens, block=1),
        first_token="decode",
    )
    tenth = requests.frame.height // 10
    return iq.simulate(requests, engine, warmup=tenth, cooldown=tenth, **options)


def measures(result: iq.Result) -> dict[str, float | int]:
    """Throughput while requests arrive (without the drain after the last arrival), and latencies.

    As in section 2.3 the tokens of a request count when it is complete. `served` is relative to arriving
    tokens.
    """
    requests = result.requests
    start_s = requests["arrival_s"][requests.height // 10]
    end_s = requests.group_by("class").agg(pl.col("arrival_s").max())["arrival_s"].min()
    assert isinstance(end_s, float)

    def tokens_per_s(column: str) -> float:
        inside = requests.filter(pl.col(column).is_between(start_s, end_s))
        return float(inside["output_tokens"].sum()) / float(end_s - start_s)

    summary = result.summary().row(0, named=True)
    peak = result.timeline["kv_used_tokens"].max()
    assert isinstance(peak, int)
    return {
        "tokens/s": round(tokens_per_s("finish_s")),
        "served": min(1.0, tokens_per_s("finish_s") / tokens_per_s("arrival_s")),
        "mean E2E, s": summary["e2e_mean"],
        "P99 E2E, s": summary["e2e_p99"],
        "mean TTFT, s": summary["ttft_mean"],
        "preempted": int(requests["preemptions"].sum()),
        "most tokens held": peak,
    }
