"""Simulated token deadlines (SLAI): section 7, Figures 6 and 8 and appendix F.3 of bari2025."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl

from inferq import (
    ConfigError,
    Engine,
    KvCache,
    PiecewiseLinear,
    Result,
    Sarathi,
    Scheduler,
    VllmV0,
    Workload,
    simulate,
)
from inferq.dist import Empirical, Poisson
from inferq.research import DynamicOffset, Slai
from inferq_papers.edge import edge, unit
from inferq_papers.report import Row, interval

Case = TypeVar("Case")
Outcome = TypeVar("Outcome")

FILE = "openchat_sharegpt4_8k.parquet"
NEEDS = f"requires the lengths of {FILE}: --trace FOLDER"
LONGEST_TOKENS = 8192
PAYING_SHARE = 0.05
ITL_SLO_S = {"paying": 0.1, "free": 0.5}
TTFT_LIMIT_S = 0.5
FITTED_RATE, HIGH_RATE = 1.15, 1.6
SARATHI, SLAI = "Sarathi, fcfs", "Slai, spf, dynamic"
UNBOUND_SEQS = 1024
"""Sequence limit above the token budget, so it never binds."""


@dataclass(frozen=True)
class Hardware:
    """Mistral-7B on an RTX 6000 Ada with 48 GB and 960 GB/s.

    14.5 GB of weights are read in 15 ms, the 131,072 bytes of a token of cache in 0.137 µs; 229,000 of those
    are 30 GB.
    """

    base_s: float = 0.015
    per_context_token_s: float = 1.37e-7
    kv_tokens: int | None = 229_000

    def engine(self, per_token_s: float, scheduler: Scheduler) -> Engine:
        """An engine with `per_token_s` seconds per token of an iteration."""
        timing = PiecewiseLinear(
            base=self.base_s, per_token=per_token_s, per_context_token=self.per_context_token_s
        )
        kv = KvCache.unlimited() if self.kv_tokens is None else KvCache(tokens=self.kv_tokens)
        return Engine(timing=timing, scheduler=scheduler, kv=kv)


POLICIES: dict[str, Scheduler] = {
    SARATHI: Sarathi(token_budget=512, max_seqs=128),
    "Sarathi, spf": Sarathi(token_budget=512, max_seqs=128, order="spf"),
    "Slai, fcfs, fixed": Slai(order="fcfs", offset=10),
    "Slai, spf, fixed": Slai(order="spf", offset=10),
    SLAI: Slai(order="spf", offset=DynamicOffset(low=5, high=10, kv_share=0.96)),
    "VllmV0": VllmV0(token_budget=8192, max_seqs=128),
}
PRIORITY = Slai(order="spf", offset=DynamicOffset(low=5, high=10, kv_share=0.96), class_first="paying")

VARIANTS = {
    "as above": Hardware(),
    "base 0": Hardware(base_s=0.0),
    "base 30 ms": Hardware(base_s=0.03),
    "context at no cost": Hardware(per_context_token_s=0.0),
    "cache without limit": Hardware(kv_tokens=None),
    "cache of 150,000": Hardware(kv_tokens=150_000),
    "cache of 120,000": Hardware(kv_tokens=120_000),
}


@dataclass(frozen=True)
class Size:
    """Size of the simulations."""

    requests: int
    seeds: tuple[int, ...]
    variant_seeds: tuple[int, ...]
    steps: int
    """Of a bisection of the rate."""
    fit_steps: int
    edge_steps: int
    """Of a bisection of what is stable."""
    rate_step: float
    """Between two points of the curves."""


FULL = Size(20_000, (1, 2, 3, 4, 5), (1, 2, 3), steps=11, fit_steps=12, edge_steps=8, rate_step=0.1)
QUICK = Size(6_000, (1, 2, 3), (1,), steps=8, fit_steps=9, edge_steps=6, rate_step=0.2)


@dataclass(frozen=True)
class Study:
    """Lengths, share of paying requests, and size of the simulations."""

    lengths: pl.DataFrame
    size: Size
    paying: float = PAYING_SHARE

    def requests(self, rate: float, seed: int) -> Workload:
        """Requests drawn from the measured lengths, with their classes and deadlines."""
        workload = Workload.synthetic(
            requests=self.size.requests, arrivals=Poisson(rate), lengths=Empirical(self.lengths)
        )
        frame = workload.with_classes({"paying": self.paying, "free": 1 - self.paying}).draw(seed).frame
        slo = pl.col("class").cast(pl.String).replace_strict(ITL_SLO_S, return_dtype=pl.Float64)
        return Workload(frame.with_columns(slo.alias("itl_slo_s")))

    def run(self, engine: Engine, rate: float, seed: int) -> Result:
        """A run; its first tenth is warm-up."""
        return simulate(self.requests(rate, seed), engine, warmup=self.size.requests // 10)

    def median_ttft_s(self, engine: Engine, rate: float, seed: int) -> float:
        """Median TTFT of all requests in seconds."""
        return float(self.run(engine, rate, seed).summary()["ttft_p50"].item())

    def measures(self, engine: Engine, rate: float, seed: int) -> dict[str, float]:
        """Median TTFT of all requests and P99 ITL by class, in seconds."""
        result = self.run(engine, rate, seed)
        gaps = dict(result.summary(by="class").select("class", "itl_p99").iter_rows())
        return {
            "median TTFT": float(result.summary()["ttft_p50"].item()),
            "P99 ITL, paying": float(gaps["paying"]),
            "P99 ITL, free": float(gaps["free"]),
        }

    def capacity(self, engine: Engine, seed: int) -> float:
        """The largest rate with a median TTFT within the limit."""

        def holds(rate: float) -> bool:
            return self.median_ttft_s(engine, rate, seed) <= TTFT_LIMIT_S

        return bisect(0.3, 2.5, holds, self.size.steps)

    def fitted(self, hardware: Hardware) -> float:
        """Seconds per token at which Sarathi exactly meets the limit at the paper's rate, over the seeds."""

        def holds(per_token_s: float) -> bool:
            engine = hardware.engine(per_token_s, POLICIES[SARATHI])
            medians = [self.median_ttft_s(engine, FITTED_RATE, seed) for seed in self.size.variant_seeds]
            return sum(medians) / len(medians) <= TTFT_LIMIT_S

        return bisect(1e-5, 3e-4, holds, self.size.fit_steps)


def bisect(low: float, high: float, holds: Callable[[float], bool], steps: int) -> float:
    """The largest number for which a monotone condition holds."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return (low + high) / 2


def together(work: Callable[[Case], Outcome], cases: Iterable[Case]) -> list[Outcome]:
    """The outcomes in order, computed on a few threads; runs release the GIL."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        return list(pool.map(work, cases))


def capped(lengths: pl.DataFrame) -> pl.DataFrame:
    """The pairs of lengths with at most 8,192 tokens in total: longer outputs are cut."""
    prompt = pl.col("prompt_tokens").clip(upper_bound=LONGEST_TOKENS - 1)
    output = pl.min_horizontal(pl.col("output_tokens"), LONGEST_TOKENS - prompt)
    return lengths.select(prompt, output.alias("output_tokens"))


def read_lengths(traces: Path) -> pl.DataFrame:
    """The measured lengths.

    Raises:
        ConfigError: the folder lacks the file.
    """
    path = Path(traces) / FILE
    if not path.is_file():
        raise ConfigError("trace", f"the folder {traces} has no {FILE}")
    return capped(pl.read_parquet(path, columns=["prompt_tokens", "output_tokens"]))


@dataclass(frozen=True)
class Simulated:
    """A simulated value with its interval."""

    value: float
    half_width: float | None = None
    theory: float | None = None

    @classmethod
    def over(cls, values: Sequence[float]) -> Simulated:
        """Mean over the seeds, with a 99 % interval."""
        mean = interval(values)
        return cls(mean.mean, mean.half_width if len(values) > 1 else None)


ROWS: tuple[tuple[str, str, str, str, float | None, str], ...] = (
    ("prompt p50", "Table 1", "median prompt", "tokens", 1730, ""),
    ("prompt p90", "Table 1", "P90 of prompts", "tokens", 5696, ""),
    ("prompt std", "Table 1", "standard deviation of prompts", "tokens", 2088, ""),
    ("output p50", "Table 1", "median output", "tokens", 415, ""),
    ("output p90", "Table 1", "P90 of outputs", "tokens", 834, ""),
    ("output std", "Table 1", "standard deviation of outputs", "tokens", 101, "a slip: see below"),
    ("cost", "Section 7", "cost of a token", "µs", None, "fitted to Sarathi at 1.15/s; not in the paper"),
    *(
        (
            f"capacity {name}",
            "Figure 6c",
            f"rate with median TTFT ≤ 0.5 s: {name}",
            "requests/s",
            {SARATHI: 1.15, SLAI: 1.45}.get(name),
            {SARATHI: "fitted to the paper's number", SLAI: ""}.get(name, "the paper has only a curve"),
        )
        for name in POLICIES
    ),
    (
        "stable",
        "Section 7",
        "stable up to: Sarathi, unlimited sequences and cache",
        "requests/s",
        None,
        "theory: a full budget of 512 tokens in every iteration; no number in the paper",
    ),
    ("gain", "Figure 6c", f"capacity, {SLAI} over {SARATHI}", "%", 26, ""),
    *(
        (
            f"ttft {name}",
            "Figure 6c, 1.6/s",
            f"median TTFT: {name}",
            "s",
            {SARATHI: 1.5, SLAI: 0.7}.get(name),
            {
                SARATHI: "depends on the memory size, which is not printed: see the table of hardware",
                SLAI: "depends on the memory size as well",
            }.get(name, "the paper has only a curve"),
        )
        for name in POLICIES
    ),
    ("fall", "Figure 6c, 1.6/s", f"median TTFT, {SLAI} over {SARATHI}", "%", -53, ""),
    *(
        (
            f"itl {group} {name}",
            "Figures 6a, 6b, 1.6/s",
            f"P99 ITL, {group}: {name}",
            "s",
            None,
            f"the paper has only a curve; promised: {promise} s",
        )
        for name in (SARATHI, SLAI, "VllmV0")
        for group, promise in ITL_SLO_S.items()
    ),
    *(
        (
            f"{key} {group}",
            "Figure 8, 1.6/s",
            f"mean TTFT, {group}{how}",
            "s",
            None,
            "the paper has only a curve",
        )
        for key, how in (("plain", f": {SLAI}"), ("first", f": {SLAI}, paying first"))
        for group in ITL_SLO_S
    ),
    *(
        row
        for share, rate, high, low in ((50, 1.4, 1.5, 0.73), (95, 1.25, 2.0, 0.75))
        for row in (
            (f"{share} capacity", f"F.3, {share} % pay", f"capacity: {SLAI}", "requests/s", rate, ""),
            (
                f"{share} gain",
                f"F.3, {share} % pay",
                f"capacity over {SARATHI}",
                "%",
                (rate / 1.15 - 1) * 100,
                "",
            ),
            (f"{share} ttft sarathi", f"F.3, {share} % pay, 1.6/s", f"median TTFT: {SARATHI}", "s", high, ""),
            (f"{share} ttft", f"F.3, {share} % pay, 1.6/s", f"median TTFT: {SLAI}", "s", low, ""),
        )
    ),
)
"""Rows: key of the result, place, quantity, unit, the paper's number, note."""


def rows_of(answers: Mapping[str, Simulated] | None) -> tuple[Row, ...]:
    """The rows with simulated values, or with a note on the required file."""
    rows = []
    for key, where, what, measured_in, paper, note in ROWS:
        answer = None if answers is None else answers[key]
        rows.append(
            Row(
                where=where,
                what=what,
                unit=measured_in,
                paper=paper,
                theory=None if answer is None else answer.theory,
                simulation=None if answer is None else answer.value,
                half_width=None if answer is None else answer.half_width,
                note=note if answer else "; ".join(part for part in (NEEDS, note) if part),
            )
        )
    return tuple(rows)


def described(lengths: pl.DataFrame) -> dict[str, Simulated]:
    """Medians, 90th percentiles and standard deviations of the lengths."""
    found = {}
    for side in ("prompt", "output"):
        tokens = lengths[f"{side}_tokens"].to_numpy()
        found[f"{side} p50"] = Simulated(float(np.median(tokens)))
        found[f"{side} p90"] = Simulated(float(np.percentile(tokens, 90)))
        found[f"{side} std"] = Simulated(float(np.std(tokens)))
    return found


def answered(study: Study, cost: float) -> dict[str, Simulated]:
    """Results for all rows, on the assumed hardware with the fitted cost of a token."""
    engines = {name: Hardware().engine(cost, scheduler) for name, scheduler in POLICIES.items()}
    seeds = study.size.seeds
    found = {**described(study.lengths), "cost": Simulated(1e6 * cost)}
    capacities, high = {}, {}
    for name, engine in engines.items():
        capacities[name] = together(partial(study.capacity, engine), seeds)
        high[name] = together(partial(study.measures, engine, HIGH_RATE), seeds)
        found[f"capacity {name}"] = Simulated.over(capacities[name])
        found[f"ttft {name}"] = Simulated.over([values["median TTFT"] for values in high[name]])
        for group in ITL_SLO_S:
            found[f"itl {group} {name}"] = Simulated.over(
                [values[f"P99 ITL, {group}"] for values in high[name]]
            )
    found["gain"] = ratio(capacities[SLAI], capacities[SARATHI])
    found["fall"] = ratio(*([values["median TTFT"] for values in high[name]] for name in (SLAI, SARATHI)))
    for key, engine in (("plain", engines[SLAI]), ("first", Hardware().engine(cost, PRIORITY))):
        runs = together(partial(study.run, engine, HIGH_RATE), seeds)
        means = [dict(run.summary(by="class").select("class", "ttft_mean").iter_rows()) for run in runs]
        for group in ITL_SLO_S:
            found[f"{key} {group}"] = Simulated.over([float(mean[group]) for mean in means])
    found["stable"] = stable(study, cost)
    for share in (50, 95):
        other = replace(study, paying=share / 100)
        slai = together(partial(other.capacity, engines[SLAI]), seeds)
        found[f"{share} capacity"] = Simulated.over(slai)
        found[f"{share} gain"] = ratio(slai, capacities[SARATHI])
        # Sarathi ignores classes, so its times do not depend on the share of paying requests.
        found[f"{share} ttft sarathi"] = found[f"ttft {SARATHI}"]
        high_s = together(partial(other.median_ttft_s, engines[SLAI], HIGH_RATE), seeds)
        found[f"{share} ttft"] = Simulated.over(high_s)
    return found


def stable(study: Study, cost: float) -> Simulated:
    """The largest stable rate of Sarathi if only its budget binds: in closed form and by bisection.

    A request loads p + o − 1 tokens, at most 512 per iteration, and its decodes read p, p + 1, …, p + o − 2
    tokens of context: (2.3) and (A.1) of li2025 with a full budget.
    """
    hardware = replace(Hardware(), kv_tokens=None)
    engine = hardware.engine(cost, Sarathi(token_budget=512, max_seqs=UNBOUND_SEQS))
    decodes = pl.col("output_tokens").cast(pl.Float64) - 1
    tokens = pl.col("prompt_tokens") + decodes
    read = decodes * pl.col("prompt_tokens") + decodes * (decodes - 1) / 2
    request_s = tokens * (cost + hardware.base_s / 512) + read * hardware.per_context_token_s
    mean, spread = study.lengths.select(request_s.mean().alias("mean"), request_s.std().alias("std")).row(0)
    requests = 10 * study.size.requests
    workload = Workload.synthetic(requests=requests, arrivals=Poisson(1.0), lengths=Empirical(study.lengths))
    work = unit(workload, seed=1)
    found = edge(
        lambda rate: simulate(work.speed(rate), engine), 0.75 / mean, 1.1 / mean, steps=study.size.edge_steps
    )
    chance = 2.576 * spread / mean / math.sqrt(0.75 * requests) * found.rate
    return Simulated(found.rate, max(chance, found.step), 1 / mean)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Simulated:
    """Relative difference in percent over paired seeds."""
    return Simulated.over([100 * (value / other - 1) for value, other in zip(ours, theirs, strict=True)])


def curves(study: Study, cost: float) -> pl.DataFrame:
    """The three measures of every policy against the rate, on the first seed."""
    steps = round(1 / study.size.rate_step)
    rates = [round(0.6 + study.size.rate_step * step, 1) for step in range(steps + 1)]
    cases = [(name, rate) for rate in rates for name in POLICIES]

    def row(case: tuple[str, float]) -> dict[str, Any]:
        name, rate = case
        engine = Hardware().engine(cost, POLICIES[name])
        return {"policy": name, "rate": rate, **study.measures(engine, rate, study.size.seeds[0])}

    return pl.DataFrame(together(row, cases))


def sensitivity(study: Study) -> pl.DataFrame:
    """For every hardware the fitted cost and the largest rate of each policy, its mean over the seeds."""
    seeds = study.size.variant_seeds

    def row(case: tuple[str, Hardware]) -> dict[str, Any]:
        name, hardware = case
        cost = study.fitted(hardware)
        found: dict[str, Any] = {"hardware": name, "µs a token": 1e6 * cost}
        for policy, scheduler in POLICIES.items():
            engine = hardware.engine(cost, scheduler)
            found[policy] = sum(study.capacity(engine, seed) for seed in seeds) / len(seeds)
        for policy in (SARATHI, SLAI):
            engine = hardware.engine(cost, POLICIES[policy])
            ttft_s = [study.median_ttft_s(engine, HIGH_RATE, seed) for seed in seeds]
            found[f"TTFT at 1.6/s, {policy}"] = sum(ttft_s) / len(seeds)
        return found

    return pl.DataFrame(together(row, VARIANTS.items()))


def run_lengths(study: Study, cost: float) -> pl.DataFrame:
    """Median time to first token at the high rate against the number of requests, mean over the seeds."""
    rows = []
    for factor in (0.025, 0.1, 1.0, 5.0):
        number = round(factor * study.size.requests)
        longer = replace(study, size=replace(study.size, requests=number))
        row: dict[str, Any] = {"requests": number}
        for policy in (SARATHI, SLAI):
            engine = Hardware().engine(cost, POLICIES[policy])
            found = [longer.median_ttft_s(engine, HIGH_RATE, seed) for seed in study.size.variant_seeds]
            row[f"{policy}, s"] = sum(found) / len(found)
        rows.append(row)
    return pl.DataFrame(rows)
