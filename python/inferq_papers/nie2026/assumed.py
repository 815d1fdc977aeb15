"""Engine assumed for the replicas of nie2026, and its rate if one setting changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean
from typing import Literal

import numpy as np
import polars as pl

import inferq as iq
from inferq import Overhead, TimingTable
from inferq.timing import LinearPart
from inferq_papers.nie2026 import runs
from inferq_papers.nie2026.runs import MEMORY_TOKENS, REPLICAS, SETTINGS, Setting

MODEL, GPU = "llama-3.1-8b", "a100-80gb"
"""The table: Llama-3.1-8B has the shape of Llama-3-8B in every layer."""
REQUESTS, CUT = 10_000, 1_000
"""Requests of a run, and the number left out at each end."""
AS_ASSUMED = "as assumed"
CALM, STORM = 5.0, 20.0
"""Arrivals per second at which the paper overloads a replica."""
MIXED = "2:1 then 1:2"
EIGHT_TO_ONE = "8:1"
SEGMENTS_AND_CACHE = "the same, budget of 8,192 and prefix cache"
HOST_S, HOST_PER_SEQUENCE_S = 0.008, 80e-6
"""Host seconds per iteration, about the time of lin2026's iterations beyond measured kernels
(`inferq_papers.lin2026.fits.beyond`), and the same time divided among a hundred sequences."""
MIXED_ABOVE_TOKENS = 128
"""Tokens above which a batch has a chunk, for host time of such batches alone."""


@cache
def table() -> TimingTable:
    """The shipped measured kernel times."""
    return TimingTable.shipped(MODEL, GPU)


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumed:
    """One set of assumptions about the paper's replica, for all rows."""

    timing: Callable[[], iq.timing.TimingModel] = lambda: table()
    scheduler: iq.Scheduler = iq.VllmV1(  # noqa: RUF009  # frozen
        token_budget=512, max_seqs=256, reserve_full_prompt=False, async_scheduling=False
    )
    kv_tokens: int = MEMORY_TOKENS
    block: int = 16
    prefix_cache: Literal["blocks"] | None = None
    overhead: Overhead | None = None
    rate: float = CALM
    tied: bool = False
    """Whether an output is the ratio times its prompt."""

    def engine(self) -> iq.Engine:
        """One replica."""
        return iq.Engine(
            timing=self.timing(),
            scheduler=self.scheduler,
            kv=iq.KvCache(tokens=self.kv_tokens, block=self.block, prefix_cache=self.prefix_cache),
            overhead=self.overhead,
        )

    def workload(self, row: str, requests: int, seed: int) -> iq.Workload:
        """Requests of a row of Table 1, or of the ratio 8:1."""
        if row == MIXED:
            halves = [self.workload(ratio, requests // 2, seed) for ratio in runs.MIXED]
            return _one_after_the_other(halves, seed)
        setting = runs.eight_to_one(0.05) if row == EIGHT_TO_ONE else SETTINGS[row]
        rate = STORM if row == EIGHT_TO_ONE else self.rate
        if not self.tied:
            return setting.workload(rate, requests)
        return iq.Workload.synthetic(
            requests=requests, arrivals=iq.dist.Poisson(rate), lengths=iq.dist.Empirical(_tied(setting))
        )


def _tied(setting: Setting) -> pl.DataFrame:
    """Every prompt of a ratio with the one output that keeps the ratio."""
    prompt = pl.Series("prompt_tokens", range(runs.SHORTEST, setting.prompt + 1))
    output = (prompt * (setting.output / setting.prompt)).round().clip(1).cast(pl.Int64)
    return pl.DataFrame([prompt, output.rename("output_tokens")])


def _one_after_the_other(halves: list[iq.Workload], seed: int) -> iq.Workload:
    first, second = (half.draw(seed + place).frame for place, half in enumerate(halves))
    later = pl.col("arrival_s") + float(first["arrival_s"][-1])
    return iq.Workload(pl.concat([first, second.with_columns(later)]))


def slower_with_a_chunk(original: TimingTable, more_s: float, above_tokens: int) -> TimingTable:
    """The table with `more_s` added to every batch of more than `above_tokens` tokens."""
    tokens, seconds = np.array(original.linear.tokens), np.array(original.linear.seconds)
    few = tokens <= above_tokens
    edge = [above_tokens, above_tokens + 1]
    at = np.interp(edge, tokens, seconds) + np.array([0.0, more_s])
    few &= tokens < above_tokens
    many = tokens > above_tokens + 1
    return TimingTable(
        linear=LinearPart(
            [*tokens[few].tolist(), *edge, *tokens[many].tolist()],
            [*seconds[few].tolist(), *at.tolist(), *(seconds[many] + more_s).tolist()],
        ),
        chunk=original.chunk,
        decode=original.decode,
    )


def windowed_rate(result: iq.Result) -> float:
    """μ_gpu as in section 5.2: completion rate between the 1,001st arrival and the last but 1,000."""
    arrival_s = result.requests["arrival_s"]
    return runs.processing_rate(result, arrival_s[CUT], arrival_s[-CUT - 1])


def finished_rate(result: iq.Result) -> float:
    """Completion rate between the 1,001st request that finishes and the last but 1,000.

    Both halves of a mixed trace count equally. The window by arrivals of an overloaded replica closes
    before most of the second half is served.
    """
    finish_s = result.requests["finish_s"].sort()
    return runs.processing_rate(result, finish_s[CUT], finish_s[-CUT - 1])


def rates(
    assumed: Assumed, row: str, seeds: int, rate: Callable[[iq.Result], float] | None = None
) -> list[float]:
    """Rate of one replica for each seed. Default: `finished_rate` for the mixed row, else `windowed_rate`."""
    server = assumed.engine()
    measure = rate or (finished_rate if row == MIXED else windowed_rate)
    return [
        measure(iq.simulate(assumed.workload(row, REQUESTS, seed), server, seed=seed))
        for seed in range(1, seeds + 1)
    ]


def eight_rates(assumed: Assumed, seeds: int) -> list[float]:
    """Rate of eight replicas for each seed: 56,000 requests at 40 per second behind round robin."""
    fleet = iq.Cluster(assumed.engine(), replicas=REPLICAS, router=iq.RoundRobin())
    workload = SETTINGS["1:1"].workload(REPLICAS * assumed.rate, 7_000 * REPLICAS)
    return [windowed_rate(iq.simulate(workload, fleet, seed=seed)) for seed in range(1, seeds + 1)]


MEASURED = {ratio: setting.printed_gpu for ratio, setting in SETTINGS.items()} | {
    MIXED: runs.PRINTED_MIXED_GPU
}
"""μ_gpu of Table 1."""


def settings() -> Iterator[tuple[str, Assumed]]:
    """The assumptions with one setting changed each, by the name of the change."""
    assumed = Assumed()
    scheduler = assumed.scheduler
    assert isinstance(scheduler, iq.VllmV1)
    by_threshold = replace(scheduler, token_budget=2048, long_prefill_threshold=512)
    free = iq.Sarathi(token_budget=512, max_seqs=256, watermark=0.0, preemption=iq.Swap(per_token=0, base=0))
    yield AS_ASSUMED, assumed
    yield "arrivals: 20 per second", replace(assumed, rate=STORM)
    yield (
        "admission: only when the whole prompt fits (now the default)",
        replace(assumed, scheduler=replace(scheduler, reserve_full_prompt=True)),
    )
    yield (
        "chunks of 512 by long_prefill_threshold, budget of 2,048",
        replace(assumed, scheduler=by_threshold),
    )
    yield "the same, budget of 1,024", replace(assumed, scheduler=replace(by_threshold, token_budget=1024))
    by_segments = replace(assumed, scheduler=replace(by_threshold, token_budget=8192))
    yield "the same, budget of 8,192", by_segments
    yield SEGMENTS_AND_CACHE, replace(by_segments, prefix_cache="blocks")
    yield "prefix cache, which a preempted request finds", replace(assumed, prefix_cache="blocks")
    yield (
        "both: by threshold, and the whole prompt must fit",
        replace(assumed, scheduler=replace(by_threshold, reserve_full_prompt=True)),
    )
    for budget in (2048, 8192):
        yield (
            f"no chunk limit, budget of {budget:,}",
            replace(assumed, scheduler=replace(scheduler, token_budget=budget)),
        )
    for most in (128, 64):
        yield f"max_seqs={most}", replace(assumed, scheduler=replace(scheduler, max_seqs=most))
    yield "block=1", replace(assumed, block=1)
    for share in (-10, 10):
        yield f"memory M {share:+d} %", replace(assumed, kv_tokens=MEMORY_TOKENS * (100 + share) // 100)
    yield (
        "admission: 1 % watermark, whole prompts (Sarathi)",
        replace(assumed, scheduler=iq.Sarathi(token_budget=512, max_seqs=256)),
    )
    yield "preemption costs nothing, whole prompts (Sarathi, Swap)", replace(assumed, scheduler=free)
    yield "outputs tied to prompts (section 5.1)", replace(assumed, tied=True)
    yield f"host: {1000 * HOST_S:g} ms per iteration", replace(assumed, overhead=Overhead(base_s=HOST_S))
    yield (
        f"host: {1e6 * HOST_PER_SEQUENCE_S:g} µs for each sequence of an iteration",
        replace(assumed, overhead=Overhead(per_sequence_s=HOST_PER_SEQUENCE_S)),
    )
    yield (
        f"host: {1000 * HOST_S:g} ms for batches above {MIXED_ABOVE_TOKENS} tokens",
        replace(assumed, timing=lambda: slower_with_a_chunk(table(), HOST_S, MIXED_ABOVE_TOKENS)),
    )
    for gpu in ("a100-80gb", "a100-40gb"):
        yield f"clock: a roofline of {gpu}", replace(assumed, timing=_roofline(gpu))
    yield (
        f"clock: a roofline of a100-40gb; host: {1000 * HOST_S:g} ms per iteration",
        replace(assumed, timing=_roofline("a100-40gb"), overhead=Overhead(base_s=HOST_S)),
    )


def _roofline(gpu: str) -> Callable[[], iq.timing.TimingModel]:
    return lambda: iq.timing.Roofline("llama-3-8b", gpu)


def sensitivity(seeds: int) -> pl.DataFrame:
    """Rate with every setting over μ_gpu for each row of Table 1.

    Returns:
        `setting`, a column of ratios per row, and `uneven`: 2:1 minus the mean of 1:1 and 1:2.
    """
    lines = []
    for name, assumed in settings():
        line = {row: fmean(rates(assumed, row, seeds)) / gpu for row, gpu in MEASURED.items()}
        uneven = line["2:1"] - (line["1:1"] + line["1:2"]) / 2
        lines.append({"setting": name, **line, "uneven": uneven})
    return pl.DataFrame(lines)
