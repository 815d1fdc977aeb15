"""Occupancies and revenue of a lin2026 fleet (section 6.2) under each policy.

Two classes, prompts of 300 and 3,000 tokens, outputs of 1,000 and 400 on average, half a request of each per
second and replica. Waiting requests abandon after 10 s on average. Services are exponential, the paper's
stochastic model.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Literal

import polars as pl

from inferq import Interval, Prices, Workload, simulate
from inferq.dist import Fixed, Poisson
from inferq.research import GateAndRoute, MixedSolo
from inferq.theory import AllocationPlan, RequestClass, allocation
from inferq_papers.report import interval

CLASSES = ("decode-heavy", "prefill-heavy")
Measured = dict[str, float]
Scheme = Literal["bundled", "separate"]
STAGES = ("prefill", "mixed", "solo", "prefill_queue", "decode_queue")
"""Stages of a request, as in an `AllocationPlan`."""


@dataclass(frozen=True)
class Instance:
    """Section 6.2; `slots` is B."""

    slots: int = 16
    chunk: int = 256
    alpha_s: float = 0.0174
    beta_s: float = 6.2e-5
    solo_s: float = 0.022
    prompt: tuple[int, int] = (300, 3000)
    output: tuple[int, int] = (1000, 400)
    rate: tuple[float, float] = (0.5, 0.5)
    impatience: float = 0.1
    prices: tuple[float, float] = (0.1, 0.2)

    @property
    def timing(self) -> MixedSolo:
        """α, β and 1/γ."""
        return MixedSolo(alpha=self.alpha_s, beta=self.beta_s, solo=self.solo_s)

    @property
    def mixed_s(self) -> float:
        """τ, an iteration with a prefill."""
        return self.alpha_s + self.beta_s * self.chunk

    def prefill_rate(self, i: int) -> float:
        """μ_p,i."""
        return self.chunk / (self.prompt[i] * self.mixed_s)

    def decode_rate(self, i: int, *, solo: bool) -> float:
        """μ_s,i or μ_m,i."""
        return 1 / (self.output[i] * (self.solo_s if solo else self.mixed_s))

    def classes(self) -> list[RequestClass]:
        """Request classes at the arrival rates of one replica."""
        return [
            RequestClass(name=name, rate=rate, prompt=prompt, output=output, abandonment=self.impatience)
            for name, rate, prompt, output in zip(CLASSES, self.rate, self.prompt, self.output, strict=True)
        ]


@dataclass(frozen=True)
class Limits:
    """Limits of (43), (45) and (47). Default: no limit."""

    prefill_fairness: float | None = None
    decode_fairness: float | None = None
    tpot_s: float | None = None


FREE = Limits()


@cache
def plan(instance: Instance, scheme: Scheme = "bundled", limits: Limits = FREE) -> AllocationPlan:
    """The optimum of (40), or of (42), under limits."""
    return allocation(
        instance.classes(),
        timing=instance.timing,
        slots=instance.slots,
        chunk=instance.chunk,
        prices=Prices(prefill=instance.prices[0], decode=instance.prices[1]),
        scheme=scheme,
        prefill_fairness=limits.prefill_fairness,
        decode_fairness=limits.decode_fairness,
        tpot_s=limits.tpot_s,
    )


def optimum(instance: Instance, scheme: Scheme = "bundled", limits: Limits = FREE) -> float:
    """R*, money per replica and second."""
    revenue = plan(instance, scheme, limits).revenue_per_replica_s
    assert revenue is not None, "the instance has a plan"
    return revenue


def planned(instance: Instance, scheme: Scheme = "bundled", limits: Limits = FREE) -> dict[str, float]:
    """Planned occupancies by stage, and by stage and class (`"solo 1"`)."""
    made = plan(instance, scheme, limits).allocation
    values: dict[str, float] = {}
    for stage in STAGES:
        table = getattr(made, stage)
        values[stage] = sum(table.values())
        values |= {f"{stage} {i}": table[name] for i, name in enumerate(CLASSES)}
    return values


@dataclass(frozen=True)
class Policy:
    """A gate, a router, and the linear program whose plan they follow."""

    gate: Literal["occupancy", "queue", "priority", "fcfs"]
    router: Literal["greedy", "randomized", "general", "immediate", "fcfs"]
    planned: bool = True
    scheme: Scheme = "bundled"
    limits: Limits = FREE


GREEDY = Policy("occupancy", "greedy")
SLI_AWARE = Policy("occupancy", "randomized")
PRIORITY = Policy("priority", "greedy", scheme="separate")
POLICIES = {
    "GG-SP, occupancy gate": GREEDY,
    "GG-SP, queue gate": Policy("queue", "greedy"),
    "FG-SP": Policy("fcfs", "greedy"),
    "GF-WSP, occupancy gate": Policy("occupancy", "fcfs", planned=False),
    "GF-WSP, queue gate": Policy("queue", "fcfs", planned=False),
    "GI-WSP, occupancy gate": Policy("occupancy", "immediate", planned=False),
    "GI-WSP, queue gate": Policy("queue", "immediate", planned=False),
    "FI-WSP (Sarathi)": Policy("fcfs", "immediate", planned=False),
}


def cluster(instance: Instance, replicas: int, policy: Policy) -> GateAndRoute:
    """The instance under a policy."""
    return GateAndRoute(
        plan(instance, policy.scheme, policy.limits),
        replicas=replicas,
        timing=instance.timing,
        slots=instance.slots,
        chunk=instance.chunk,
        prices=Prices(prefill=instance.prices[0], decode=instance.prices[1]),
        abandonment=instance.impatience,
        gate=policy.gate,
        router=policy.router,
        planned=policy.planned,
    )


def requests(instance: Instance, replicas: int, until_s: float, seed: int) -> Workload:
    """Poisson arrivals of both classes until after the horizon: six standard deviations above the mean."""
    rate = replicas * sum(instance.rate)
    number = math.ceil(rate * until_s + 6 * math.sqrt(rate * until_s))
    placeholder = Fixed(1)
    workload = Workload.synthetic(
        requests=number, arrivals=Poisson(rate), prompt=placeholder, output=placeholder
    )
    shares = {name: share / sum(instance.rate) for name, share in zip(CLASSES, instance.rate, strict=True)}
    frame = workload.with_classes(shares).draw(seed).frame

    def lengths(of: tuple[int, int]) -> pl.Expr:
        return pl.col("class").replace_strict(dict(zip(CLASSES, of, strict=True)), return_dtype=pl.Int32)

    return Workload(
        frame.with_columns(
            lengths(instance.prompt).alias("prompt_tokens"), lengths(instance.output).alias("output_tokens")
        )
    )


def measure(
    instance: Instance, replicas: int, policy: Policy, until_s: float, seed: int, warmup_s: float = 500.0
) -> Measured:
    """Revenue per replica and second, and occupancies per replica by stage, in total and by class.

    The usual warm-up is twenty mean decodes and fifty mean patiences.
    """
    workload, made = requests(instance, replicas, until_s, seed), cluster(instance, replicas, policy)
    result = simulate(workload, made, horizon_s=until_s, warmup=f"{warmup_s}s", seed=seed)
    last = result.revenue.row(-1, named=True)
    values = {name: last[f"{name}_per_replica_s"] for name in ("bundled", "separate")}
    for stage in STAGES:
        column = result.occupancy[stage].to_list()
        values |= {stage: sum(column), **{f"{stage} {i}": value for i, value in enumerate(column)}}
    return values


@dataclass(frozen=True)
class Effort:
    """Size of the simulations."""

    seeds: int
    sizes: tuple[int, ...]
    """Numbers of replicas in charts."""
    least_s: float
    most_s: float
    replica_seconds: float
    """A run lasts this divided by the replicas, within `least_s` and `most_s`."""
    warmup_s: float

    def until_s(self, replicas: int) -> float:
        """Duration of a run; large clusters require less time for an equal interval."""
        return min(self.most_s, max(self.least_s, self.replica_seconds / replicas))


QUICK = Effort(
    seeds=3, sizes=(5, 20, 50, 200, 500), least_s=400, most_s=2500, replica_seconds=60_000, warmup_s=150
)
FULL = Effort(
    seeds=5,
    sizes=(5, 20, 50, 200, 500, 2000),
    least_s=1500,
    most_s=10_000,
    replica_seconds=800_000,
    warmup_s=500,
)


@cache
def estimated(effort: Effort, instance: Instance, replicas: int, policy: Policy) -> dict[str, Interval]:
    """Intervals of all values of `measure` over seeds 1, 2, …, one thread per processor."""
    until_s, seeds = effort.until_s(replicas), range(1, effort.seeds + 1)
    plan(instance, policy.scheme, policy.limits)

    def measured(seed: int) -> Measured:
        return measure(instance, replicas, policy, until_s, seed, effort.warmup_s)

    with ThreadPoolExecutor(min(effort.seeds, os.cpu_count() or 1)) as pool:
        runs = list(pool.map(measured, seeds))
    return {name: interval([run[name] for run in runs]) for name in runs[0]}
