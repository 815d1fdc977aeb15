"""Comparison of a replica on measured kernel times with the GPU measurements of nie2026."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

import inferq as iq
from inferq import Interval
from inferq.theory import slot
from inferq_papers.nie2026 import pictures, runs
from inferq_papers.nie2026.assumed import (
    AS_ASSUMED,
    CALM,
    CUT,
    EIGHT_TO_ONE,
    HOST_S,
    MEASURED,
    MIXED,
    REQUESTS,
    SEGMENTS_AND_CACHE,
    STORM,
    Assumed,
    eight_rates,
    rates,
    sensitivity,
    windowed_rate,
)
from inferq_papers.nie2026.runs import MEMORY_TOKENS, REPLICAS, SETTINGS, Sizes
from inferq_papers.report import Chart, Row, Rows, Section, Table, interval

WHAT, RATE = "rate, GPU and engine", "requests/s"


def distance(found: float, measured: float) -> str:
    """A signed percentage.

    >>> distance(3.2, 4.0), distance(4.4, 4.0)
    ('−20.0 %', '+10.0 %')
    """
    share = 100 * (found / measured - 1)
    return f"{'−' if share < 0 else '+'}{abs(share):.1f} %"


def _sensitivity_table(frame: pl.DataFrame, seeds: int) -> Table:
    shown = frame.select(
        "setting",
        *((100 * (pl.col(row) - 1)).alias(row) for row in MEASURED),
        (100 * pl.col("uneven")).alias("2:1 above 1:1 and 1:2"),
    )
    return Table(
        title="One setting changed at a time: simulated rate from the GPU's, %",
        frame=shown,
        decimals=dict.fromkeys(shown.columns[1:], 1),
        note=f"Every setting is changed for all rows at once; means over the same {seeds} seeds. The last "
        "column is the error of 2:1 minus the "
        "mean error of 1:1 and 1:2. A common change of speed in all rows does not remove it.",
    )


def _slots(seed: int = 1) -> Table:
    """Durations of simulated iterations, b̄ and the mean slot that μ_gpu implies."""
    lines = []
    for ratio, setting in SETTINGS.items():
        result = iq.simulate(
            Assumed().workload(ratio, REQUESTS, seed), Assumed().engine(), seed=seed, iterations=True
        )
        arrival_s = result.requests["arrival_s"]
        start_s, end_s = float(arrival_s[CUT]), float(arrival_s[-CUT - 1])
        inside = result.iterations.filter(pl.col("start_s").is_between(start_s, end_s, closed="left"))
        count = int(inside["count"].sum())
        held = int((inside["kv_used_tokens"] * inside["count"]).sum()) / count / MEMORY_TOKENS
        chunks = int(inside.filter(pl.col("prefill_tokens") > 0)["count"].sum()) / count
        again = int(result.requests["preemptions"].sum()) / REQUESTS
        lines.append(
            {
                "lengths": ratio,
                "b̄ of the paper": 1000 * setting.slot_s,
                "M / (μ_gpu · E[g])": 1000 * setting.capacity(1.0).mu_whole_chunks / setting.printed_gpu,
                "mean": 1000 * slot(inside, "mean"),
                "median": 1000 * slot(inside, "median"),
                "with a chunk, share": chunks,
                "memory used": held,
                "preemptions a request": again,
            }
        )
    return Table(
        title="Iterations: slot of the paper, slot implied by its rate, and simulated slot",
        frame=pl.DataFrame(lines),
        decimals=dict.fromkeys(("b̄ of the paper", "M / (μ_gpu · E[g])", "mean", "median"), 1),
        note="Slots in ms. The third column is the mean slot of a replica that serves μ_gpu with all of M in "
        "use and without preemption.",
    )


def longbench_grid(traces: Path, requests: int) -> pl.DataFrame:
    """Rate of a replica on LongBench v2 by prompt cut and output length."""
    lines = []
    for context in (8_064, 16_000, 32_000, 64_000, 120_000):
        line: dict[str, float] = {"prompts cut to": context}
        for output in (7, 128, 1_024):
            frame = runs.longbench(traces, context, output)
            workload = runs.longbench_workload(frame, requests, STORM)
            result = iq.simulate(workload, Assumed().engine(), seed=1)
            line[f"outputs of {output:,}"] = runs.processing_rate(result, *runs.backlogged_window(result))
        lines.append(line)
    return pl.DataFrame(lines)


def measured(sizes: Sizes, traces: Path | None) -> Section:
    """Measured rates of the paper's GPUs compared with the closed form and a simulated engine."""
    found: dict[str, Interval] = {}
    drawn: dict[str, list[float]] = {}
    rows = Rows()

    def row(where: str, gpu: float, theory: float | None, values: list[float], note: str = "") -> None:
        mean = interval(values)
        found[where] = mean
        drawn[where] = values
        closed = "" if theory is None else f"; the closed form: {distance(theory, gpu)}"
        errors = f"from the GPU: {distance(mean.mean, gpu)}{closed}"
        rows.add(
            where, WHAT, RATE, mean, paper=gpu, theory=theory, note=f"{errors}. {note}" if note else errors
        )

    calm, storm = Assumed(), Assumed(rate=STORM)
    for ratio, setting in SETTINGS.items():
        for assumed in (calm, storm):
            values = rates(assumed, ratio, sizes.seeds)
            row(f"Table 1, {ratio}, λ = {assumed.rate:g}", setting.printed_gpu, setting.capacity().mu, values)
    mixed = runs.mixed_capacity().mu
    row(
        f"Table 1, {MIXED}, λ = {CALM:g}",
        runs.PRINTED_MIXED_GPU,
        mixed,
        rates(calm, MIXED, sizes.seeds),
        "from the 1,001st request that finishes to the last but 1,000",
    )
    row(
        f"Table 1, {MIXED}, by arrivals",
        runs.PRINTED_MIXED_GPU,
        mixed,
        rates(calm, MIXED, sizes.seeds, windowed_rate),
        "in the paper's window, which closes before most of the second half is served",
    )
    eight = REPLICAS * SETTINGS["1:1"].capacity().mu
    row(
        f"Table 3, 1:1, λ = {REPLICAS * CALM:g}",
        runs.PRINTED_EIGHT_GPU,
        eight,
        eight_rates(calm, sizes.seeds),
    )
    row(
        "Table 4, 8:1, λ = 20",
        runs.PRINTED_EIGHT_TO_ONE_GPU,
        None,
        rates(calm, EIGHT_TO_ONE, sizes.seeds),
        "lengths are not printed; assumed: uniform from 10 to 2,844 and to 355",
    )
    tables = [_slots()]
    changes = sensitivity(sizes.settings)
    tables.append(_sensitivity_table(changes, sizes.settings))
    if traces is None:
        rows.add(
            "Table 2, LongBench v2",
            WHAT,
            RATE,
            paper=runs.PRINTED_LONGBENCH_GPU,
            note="needs the lengths of LongBench v2: --trace FOLDER with longbench_v2_trunc120k.parquet",
        )
    else:
        rows += longbench_rows(sizes, traces)
        tables.append(_longbench_table(longbench_grid(traces, sizes.longbench)))
    chart = Chart(
        title="Error of simulated rates against the GPU",
        caption="Circles with 99 % intervals: as assumed. Ticks: one setting changed, each for all rows. "
        "Diamonds: the paper's closed form with the paper's own slot. 0 % is the measured rate of the GPU.",
        chart=lambda: pictures.distances(*_drawn(found, changes)),
    )
    return Section(
        title="Against the paper's GPU measurements",
        text=TEXT,
        rows=tuple(rows),
        tables=tuple(tables),
        pictures=(chart,),
        remarks=_remarks(drawn, changes),
    )


def longbench_rows(sizes: Sizes, traces: Path) -> list[Row]:
    """Table 2 for two possible cuts of the prompts."""
    rows = []
    for context, why in (
        (8_064, "the model's context of 8,192 less the output"),
        (runs.CONTEXT_OF_LONGBENCH, "as the benchmark's script cuts"),
    ):
        frame = runs.longbench(traces, context)
        workload, server = runs.longbench_workload(frame, sizes.longbench, STORM), Assumed().engine()
        values = []
        for seed in range(1, sizes.seeds + 1):
            result = iq.simulate(workload, server, seed=seed)
            values.append(runs.processing_rate(result, *runs.backlogged_window(result)))
        mean = interval(values)
        rows.append(
            Row(
                where=f"Table 2, LongBench v2, cut to {context:,}",
                what=WHAT,
                unit=RATE,
                paper=runs.PRINTED_LONGBENCH_GPU,
                simulation=mean.mean,
                half_width=round(mean.half_width, 9),
                note=f"from the GPU: {distance(mean.mean, runs.PRINTED_LONGBENCH_GPU)}. Neither cut nor "
                f"outputs are printed; assumed: prompts cut to {context:,} ({why}), outputs of "
                f"{runs.OUTPUT_OF_LONGBENCH}",
            )
        )
    return rows


def _longbench_table(frame: pl.DataFrame) -> Table:
    return Table(
        title="LongBench v2: requests per second by unpublished settings (the paper's GPU: 0.610)",
        frame=frame,
        decimals=dict.fromkeys(frame.columns[1:], 3),
    )


def _drawn(found: dict[str, Interval], changes: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows and settings of the chart, relative to the measured rate of the GPU."""
    theory = {ratio: setting.capacity().mu for ratio, setting in SETTINGS.items()}
    theory[MIXED] = runs.mixed_capacity().mu
    lines = []
    for name, gpu in MEASURED.items():
        mean = found[f"Table 1, {name}, λ = {CALM:g}"]
        lines.append(
            (name, mean.mean / gpu - 1, mean.low / gpu - 1, mean.high / gpu - 1, theory[name] / gpu - 1)
        )
    eight, gpu = found[f"Table 3, 1:1, λ = {REPLICAS * CALM:g}"], runs.PRINTED_EIGHT_GPU
    closed = REPLICAS * theory["1:1"] / gpu - 1
    lines.append(
        ("1:1, eight replicas", eight.mean / gpu - 1, eight.low / gpu - 1, eight.high / gpu - 1, closed)
    )
    schema = ["row", "found", "low", "high", "closed"]
    ticks = changes.unpivot(on=list(MEASURED), index="setting", variable_name="row", value_name="share")
    return pl.DataFrame(lines, schema=schema, orient="row"), ticks.with_columns(pl.col("share") - 1)


def _remarks(drawn: dict[str, list[float]], changes: pl.DataFrame) -> tuple[str, ...]:
    names = changes["setting"].to_list()

    def of(start: str, row: str) -> float:
        place = next(at for at, name in enumerate(names) if name.startswith(start))
        return 100 * (float(changes[row][place]) - 1)

    def listed(start: str) -> str:
        return ", ".join(distance(1 + of(start, row) / 100, 1.0) for row in SETTINGS)

    def points(start: str) -> str:
        return ", ".join(_signed(of(start, row) - of(AS_ASSUMED, row)) for row in SETTINGS)

    held = MEMORY_TOKENS * 131_072 + 2 * 8.03e9
    implied = [1000 * one.capacity(1.0).mu_whole_chunks / one.printed_gpu for one in SETTINGS.values()]
    uneven = dict(zip(names, (100 * float(one) for one in changes["uneven"]), strict=True))
    by_threshold = next(name for name in names if name.startswith("chunks of 512"))
    unheld = [by_threshold]
    unheld += [name for name in names if name.startswith("the same, budget") and name != SEGMENTS_AND_CACHE]
    others = [one for name, one in uneven.items() if name not in unheld]
    calm = [drawn[f"Table 1, {ratio}, λ = {CALM:g}"] for ratio in SETTINGS]
    spread = [100 * float(np.std(values, ddof=1) / np.mean(values)) for values in calm]
    cards = {card: iq.timing.KvMemory.of("llama-3-8b", card).tokens for card in ("a100-40gb", "a100-80gb")}
    harmonic = 2 / sum(1 / SETTINGS[ratio].printed_gpu for ratio in runs.MIXED)
    return (
        "**Chunking and admission of prompts matter most**, and the paper specifies only segments of a "
        "fixed size of 512. Until pull request 37307 of March 2026 added a choice, vLLM admitted a request "
        "as soon as its first chunk fit; prompts without memory for their next chunk are preempted and "
        f"recomputed. Whole prompts (its newest default) change the rows by {points('admission: only')} "
        f"points (1:1, 2:1, 1:2), chunks by threshold within a budget of 2,048 by {points('chunks of 512')}, "
        f"both by {points('both')}.",
        f"**2:1 is too fast compared with 1:1 and 1:2** by {uneven[AS_ASSUMED]:.0f} points. A factor on the "
        f"timing does not fix that: it changes all rows. The gap is {min(others):.0f} to {max(others):.0f} "
        "points for every setting except one: with chunks by threshold, no check of whole prompts and no "
        f"prefix cache it is {', '.join(f'{uneven[name]:.0f}' for name in unheld)} (budgets of 2,048, 1,024 "
        f"and 8,192), and all rows are similarly too slow ({listed('chunks of 512')} with 2,048). A request "
        "is then preempted more than three times, and the cost of recomputation dominates. The bound, "
        f"free preemption and whole prompts, gives {listed('preemption costs nothing')}.",
        "**With the prefix cache, on by default in vLLM, a preempted request finds many of its blocks.** It "
        f"changes the rows as assumed by {points('prefix cache')} points. *Segments of a fixed size of 512* "
        "read as `long_prefill_threshold`, with vLLM's budget of 8,192 and the cache on, give "
        f"{listed(SEGMENTS_AND_CACHE)}, and 2:1 is {uneven[SEGMENTS_AND_CACHE]:.0f} points above the others; "
        f"without the cache {listed('the same, budget of 8,192')}. It is the closest interpretation, but "
        "only an interpretation: it was chosen with the rates in view, and equally plausible ones are not "
        "close.",
        "**The error grows with the share of prompt tokens**, up to 8:1, where every batch of 512 "
        "tokens is full and memory is not the limit: if the lengths are as assumed, the paper's iterations "
        f"take longer than their kernels. {1000 * HOST_S:g} ms more only for batches with a chunk, "
        "as measured for lin2026 on another "
        f"server, change the rows by {points(f'host: {1000 * HOST_S:g} ms for batches above')} points.",
        f"**The GPU probably has 40 GB.** The paper names only an A100. {MEMORY_TOKENS:,} tokens of 131,072 "
        f"bytes and the weights are {held / 1e9:.1f} GB, which leaves a few GB of the 90 % that vLLM uses "
        f"of 40 GB for activations. By `KvMemory` such a GPU stores {cards['a100-40gb']:,} tokens, one of "
        f"80 GB {cards['a100-80gb']:,}. Memory of the 40 GB GPU has 1,555 GB/s, not 2,039. Rooflines of the "
        f"two differ by {_between(changes)} points. There is no table of that GPU and ours is not scaled. If "
        "this is right, small errors above are partly due to cancellation.",
        f"**Host time only lowers the simulated rates**: {1000 * HOST_S:g} ms an iteration by "
        f"{points(f'host: {1000 * HOST_S:g} ms per')} points. "
        "This is an upper bound from another server, not a value for this one.",
        "**The paper's own numbers are inconsistent.** A replica that serves μ_gpu out of M tokens has "
        f"mean slots of at most {implied[0]:.1f}, {implied[1]:.1f} and {implied[2]:.1f} ms. The paper prints "
        "medians of 37.2, 43.0 and 33.7, with over 80 % of the slots nearly equal: for 1:1 and 1:2 the mean "
        "would be below the median although slots with a chunk are the longer ones; with outputs tied to "
        "prompts, as in section 5.1, even further below. Simulated slots have two durations, with and "
        f"without a chunk. And the mixed trace served {runs.PRINTED_MIXED_GPU} but the measured rates of its "
        f"halves give {harmonic:.3f}.",
        "**LongBench v2 cannot be evaluated.** Over the possible cuts and outputs the rate "
        "differs a hundredfold, and 0.610 lies in between. A cut at about 16,000 tokens with outputs of 128 "
        "reproduces it, but a value chosen for that reason is no evidence.",
        f"**Randomness**: one run of the paper's window has a standard deviation of {min(spread):.1f} to "
        f"{max(spread):.1f} %, in the paper as well.",
    )


def _signed(points: float) -> str:
    return f"{'−' if points < 0 else '+'}{abs(points):.0f}"


def _between(changes: pl.DataFrame) -> str:
    large, small = (
        changes.filter(changes["setting"] == f"clock: a roofline of {gpu}")
        for gpu in ("a100-80gb", "a100-40gb")
    )
    points = [100 * (float(small[row][0]) - float(large[row][0])) for row in SETTINGS]
    return ", ".join(_signed(point) for point in points)


TEXT = (
    "The rate of one replica with `VllmV1` on the measured kernel times of Llama-3.1-8B on an A100 of "
    "80 GB (`TimingTable.shipped`, vLLM 0.14), uncalibrated; Llama-3-8B has the same shape. One set of "
    "assumptions for all rows: `token_budget=512`, with which vLLM makes chunks of at most 512; "
    "`max_seqs=256`, its default on an A100; `reserve_full_prompt=False`, as vLLM was before March 2026 "
    "(the paper, of May, names no version); "
    "blocks of 16; M = 131,000; no prefix cache (see below for its effect); no host time; independent "
    "lengths; Poisson arrivals. Each "
    "follows the paper or vLLM and none is fitted to a rate, but they were chosen with the rates in "
    "view; alternatives are listed below. The rate "
    "is that of section 5.2: requests finished between the 1,001st arrival and the last but 1,000 of 10,000, "
    "divided by that time. *Theory* is the closed form with the paper's slot; notes give both errors against "
    "the GPU."
)
