"""Simulations of replicas limited by KV cache memory: rates and queue growth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import polars as pl

import inferq as iq
from inferq.theory import KvCapacity, RequestClass, kv_capacity, request_memory, slot
from inferq.timing import TimingModel

MEMORY_TOKENS, CHUNK = 131_000, 512
REPLICAS = 8
SHORTEST = 10
"""Fewest tokens of a prompt and of an output."""
CONTEXT_OF_LONGBENCH, OUTPUT_OF_LONGBENCH = 120_000, 128
"""Prompt cut and output limit of the benchmark's own script, in tokens."""

ABOUT_A100 = iq.PiecewiseLinear(
    base=0.012,
    per_token=7.5e-5,
    knee=160,
    per_context_token=6.4e-8,
    per_prefill_square=1.7e-9,
    per_chunk_context=3.4e-9,
)
"""About Llama-3-8B on an A100: weights and overhead in 12 ms, 16 GFLOP a token at two thirds of 312 TFLOP/s,
131,072 bytes of keys and values for each token of context at 2.04 TB/s. Chosen, not measured."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the simulations."""

    seeds: int
    requests: int
    """In each run of a fleet in overload."""
    arrivals: int
    """To each replica in each run of a queue over time."""
    longbench: int
    policies: int
    """Requests in the runs that compare estimators."""
    settings: int = 1
    """Seeds of the runs that change one setting of an engine."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Longest prompt and output of a ratio, slot in seconds, and printed rates."""

    ratio: str
    prompt: int
    output: int
    slot_s: float
    printed_theory: float
    printed_gpu: float
    overload_per_s: float = 5.0
    """Arrival rate that overloads a replica."""

    @property
    def lengths(self) -> tuple[iq.dist.Uniform, iq.dist.Uniform]:
        """The distributions of prompt and output, discrete and uniform."""
        return iq.dist.Uniform(SHORTEST, self.prompt), iq.dist.Uniform(SHORTEST, self.output)

    def workload(self, rate: float, requests: int) -> iq.Workload:
        """Poisson arrivals at `rate` per second."""
        prompt, output = self.lengths
        return iq.Workload.synthetic(
            requests=requests, arrivals=iq.dist.Poisson(rate), prompt=prompt, output=output
        )

    @cache  # noqa: B019  # a few settings per process
    def capacity(self, slot_s: float | None = None, kv_tokens: int = MEMORY_TOKENS) -> KvCapacity:
        """μ and its bounds. Default: with the printed slot."""
        return kv_capacity(
            self.workload(1.0, 1),
            kv_tokens=kv_tokens,
            slot_s=self.slot_s if slot_s is None else slot_s,
            chunk=CHUNK,
            first_token="decode",
        )


SETTINGS = {
    setting.ratio: setting
    for setting in (
        Setting("1:1", 1600, 1600, 0.0372, 3.263, 3.387),
        Setting("2:1", 2133, 1066, 0.0430, 3.956, 3.650),
        Setting("1:2", 1066, 2133, 0.0337, 2.902, 2.969),
    )
}
MIXED = ("2:1", "1:2")
"""The halves of the mixed trace, one after the other."""
PRINTED_MIXED, PRINTED_MIXED_GPU = 3.385, 3.137
PRINTED_EIGHT, PRINTED_EIGHT_GPU = 25.808, 26.710
PRINTED_LONGBENCH, PRINTED_LONGBENCH_GPU = 0.561, 0.610
PRINTED_EIGHT_TO_ONE = {0.05: 4.977, 0.10: 5.862}
"""By the share of the longest slots that the mean leaves out."""
PRINTED_EIGHT_TO_ONE_GPU = 5.470


def mixed_capacity() -> KvCapacity:
    """μ of the mixed trace: equal numbers of requests, each ratio with its own slot."""
    halves = [SETTINGS[ratio] for ratio in MIXED]
    return kv_capacity(
        [
            RequestClass(name=half.ratio, rate=1.0, prompt=half.lengths[0], output=half.lengths[1])
            for half in halves
        ],
        kv_tokens=MEMORY_TOKENS,
        slot_s={half.ratio: half.slot_s for half in halves},
        chunk=CHUNK,
        first_token="decode",
    )


def eight_to_one(trim: float) -> Setting:
    """The ratio 8:1, whose lengths and slot are not printed.

    As for the other ratios, the longest lengths add up to 3,200, here divided 8:1 and rounded down. The slot
    is solved from (1) and the printed rate.
    """
    unit = Setting("8:1", 2844, 355, 1.0, 0.0, 0.0)
    printed = PRINTED_EIGHT_TO_ONE[trim]
    return Setting("8:1", 2844, 355, unit.capacity().mu / printed, printed, PRINTED_EIGHT_TO_ONE_GPU, 20.0)


def engine(timing: TimingModel, kv_tokens: int = MEMORY_TOKENS) -> iq.Engine:
    """A replica with the paper's own policy; every decode follows the prompt."""
    return iq.Engine(
        timing=timing,
        scheduler=iq.research.SlotGreedy(chunk=CHUNK),
        kv=iq.KvCache(tokens=kv_tokens, block=1),
        first_token="decode",
    )


def overloaded(setting: Setting, replicas: int, requests: int, seed: int) -> iq.Result:
    """A fleet of equal replicas in overload, behind round robin as in section 5.3."""
    fleet = iq.Cluster(engine(iq.Constant(setting.slot_s)), replicas=replicas, router=iq.RoundRobin())
    return iq.simulate(setting.workload(setting.overload_per_s * replicas, requests), fleet, seed=seed)


def backlogged_window(result: iq.Result) -> tuple[float, float]:
    """From when 5 % of the requests were finished until 95 % were.

    For runs in overload from time 0: memory is full at the start of the window, and at its end the rest
    exceeds the memory. A backlog may exist although all requests are admitted: if a first chunk is small
    compared with the free memory of a slot, every request starts at once, is preempted and then waits.
    """
    finish_s = result.requests["finish_s"]
    start_s, end_s = finish_s.quantile(0.05), finish_s.quantile(0.95)
    assert isinstance(start_s, float) and isinstance(end_s, float)
    return start_s, end_s


def processing_rate(result: iq.Result, start_s: float, end_s: float) -> float:
    """Requests that finish in a window, per second."""
    inside = result.requests["finish_s"].is_between(start_s, end_s, closed="right")
    return float(inside.sum()) / (end_s - start_s)


def saturated_rates(setting: Setting, replicas: int, requests: int, seeds: int) -> list[float]:
    """Completion rate of a fleet with a backlog, for each seed.

    The memory-time of a request has a coefficient of variation of 0.8, so a rate over n requests has a
    relative standard deviation of 0.8/√n.
    """
    rates = []
    for seed in range(1, seeds + 1):
        result = overloaded(setting, replicas, requests, seed)
        rates.append(processing_rate(result, *backlogged_window(result)))
    return rates


def rate_in_the_papers_window(setting: Setting, replicas: int) -> float:
    """Rate between the 1,001st arrival and the last but 1,000, 7,000 requests per replica (section 5.2)."""
    result = overloaded(setting, replicas, 7_000 * replicas, seed=1)
    arrival_s = result.requests["arrival_s"]
    return processing_rate(result, arrival_s[1000], arrival_s[-1001])


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory in use during slots with a backlog."""

    mean: float
    """Mean share of the memory: rate over μ of whole chunks, without the randomness of the
    arrivals."""
    least: float
    """Share in the emptiest slot."""
    slots: int


def memory_use(workload: iq.Workload, kv_tokens: int, seed: int = 1) -> MemoryUse:
    """Memory use of an overloaded replica with slots of one second.

    The use of an iteration is that of its batch at its end; `stepping` records every iteration.
    """
    server = engine(iq.Constant(1.0), kv_tokens)
    result = iq.simulate(workload.speed(1000.0), server, seed=seed, iterations=True, stepping=True)
    start_s, end_s = backlogged_window(result)
    used = result.iterations.filter(pl.col("start_s").is_between(start_s, end_s, closed="left"))
    shares = used["kv_used_tokens"] / kv_tokens
    mean, least = shares.mean(), shares.min()
    assert isinstance(mean, float) and isinstance(least, float)
    return MemoryUse(mean, least, used.height)


def filling(setting: Setting, until_s: float, seed: int = 1) -> pl.DataFrame:
    """Tokens in memory slot by slot from an empty replica on: columns `start_s` and `kv_used_tokens`."""
    rate = setting.overload_per_s
    result = iq.simulate(
        setting.workload(rate, math.ceil(2 * rate * until_s)),
        engine(iq.Constant(setting.slot_s)),
        seed=seed,
        horizon_s=until_s,
        iterations=True,
        stepping=True,
    )
    return result.iterations.select("start_s", "kv_used_tokens")


WARM_UP_S = 200.0
"""Start of the growth measurement: several request durations (mean 30 s) after memory is full."""


def queue_run(rate: float, replicas: int, until_s: float, seed: int) -> iq.Result:
    """Requests 1:1 at `rate` per second until `until_s`, with samples of the queue every second."""
    setting, mean = SETTINGS["1:1"], rate * until_s
    return iq.simulate(
        setting.workload(rate, math.ceil(mean + 10 * math.sqrt(mean))),  # more than arrive by then
        iq.Cluster(engine(iq.Constant(setting.slot_s)), replicas=replicas, router=iq.RoundRobin()),
        seed=seed,
        horizon_s=until_s,
        timeline_s=1.0,
    )


def growth_per_s(result: iq.Result, until_s: float) -> float:
    """Arrivals minus departures per second from `WARM_UP_S` on."""
    requests = result.requests
    arrived = requests["arrival_s"].is_between(WARM_UP_S, until_s, closed="right").sum()
    left = requests["left_s"].is_between(WARM_UP_S, until_s, closed="right").sum()
    return (int(arrived) - int(left)) / (until_s - WARM_UP_S)


def waiting(result: iq.Result) -> pl.DataFrame:
    """Waiting requests of all replicas: columns `time_s` and `waiting`."""
    return result.timeline.group_by("time_s", maintain_order=True).agg(pl.col("waiting").sum())


def longbench(
    traces: Path, context: int = CONTEXT_OF_LONGBENCH, output: int = OUTPUT_OF_LONGBENCH
) -> pl.DataFrame:
    """The prompts of LongBench v2 cut to `context` tokens, each with an output of `output` tokens."""
    frame = pl.read_parquet(traces / "longbench_v2_trunc120k.parquet")
    return frame.select(
        pl.col("prompt_tokens").clip(upper_bound=context), pl.lit(output, pl.Int32).alias("output_tokens")
    )


def longbench_workload(frame: pl.DataFrame, requests: int, rate: float = 20.0) -> iq.Workload:
    """Requests drawn from the benchmark's pairs at the paper's 20 per second."""
    return iq.Workload.synthetic(
        requests=requests, arrivals=iq.dist.Poisson(rate), lengths=iq.dist.Empirical(frame)
    )


def longbench_memory(frame: pl.DataFrame) -> float:
    """E[g] over the benchmark's requests, tokens times slots."""
    occupied = request_memory(frame["prompt_tokens"].to_numpy(), frame["output_tokens"].to_numpy(), CHUNK)
    return float(occupied.mean())


def longbench_rates(frame: pl.DataFrame, slot_s: float, requests: int, seeds: int) -> list[float]:
    """Completion rate of a replica with a backlog of LongBench v2, for each seed."""
    rates = []
    for seed in range(1, seeds + 1):
        result = iq.simulate(longbench_workload(frame, requests), engine(iq.Constant(slot_s)), seed=seed)
        rates.append(processing_rate(result, *backlogged_window(result)))
    return rates


ESTIMATORS: dict[str, tuple[Literal["median", "mean", "trimmed"], float]] = {
    "mean": ("mean", 0.0),
    "5 % trimmed": ("trimmed", 0.05),
    "10 % trimmed": ("trimmed", 0.10),
    "median": ("median", 0.0),
}
POLICIES: dict[str, iq.Scheduler] = {
    "SlotGreedy": iq.research.SlotGreedy(chunk=CHUNK),
    "VllmV1, 512 a batch": iq.VllmV1(token_budget=512, max_seqs=1024, async_scheduling=False),
    "VllmV1, 2,048 a batch": iq.VllmV1(token_budget=2048, max_seqs=1024, async_scheduling=False),
}


def estimated(setting: Setting, policy: str, requests: int) -> dict[str, object]:
    """μ by each estimator of the slot over the served rate, for iterations of different durations."""
    block = 1 if policy == "SlotGreedy" else 16
    server = iq.Engine(
        timing=ABOUT_A100,
        scheduler=POLICIES[policy],
        kv=iq.KvCache(tokens=MEMORY_TOKENS, block=block),
        first_token="decode",
    )
    result = iq.simulate(setting.workload(20.0, requests), server, seed=1, iterations=True)
    start_s, end_s = backlogged_window(result)
    rate = processing_rate(result, start_s, end_s)
    inside = result.iterations.filter(pl.col("start_s").is_between(start_s, end_s, closed="left"))
    used = int((inside["kv_used_tokens"] * inside["count"]).sum()) / int(inside["count"].sum())
    estimates: dict[str, object] = {
        "lengths": setting.ratio,
        "policy": policy,
        "served": rate,
        "memory used": used / MEMORY_TOKENS,
    }
    for name, (estimator, trim) in ESTIMATORS.items():
        slot_s = slot(inside, estimator, trim=trim)
        estimates[f"slot, {name}"] = 1000 * slot_s
        estimates[f"μ, {name}"] = setting.capacity(slot_s).mu_whole_chunks / rate
    return estimates
