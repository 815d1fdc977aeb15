"""How far is a simulated replica from a real one? What was measured by others, all on one page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from inferq import MeasuredRun, Validation, read_runs, validate
from inferq.timing import roofline_against_tables, shipped_tables
from inferq_papers.hardware.engines import one_at_a_time, without_times
from inferq_papers.hardware.residual_charts import MOST, of_residuals
from inferq_papers.lin2026.fits import fits_section
from inferq_papers.nie2026 import FULL, QUICK
from inferq_papers.nie2026.on_gpus import measured
from inferq_papers.report import Chart, Report, Row, Section, Table

WORST_MEDIAN, WORST_P95 = 0.03, 0.10
"""Shares that the interpolation of a shipped table keeps to."""


def report(
    *, quick: bool = False, traces: Path | None = None, tell: Callable[[str], None] = lambda said: None
) -> Report:
    """Measured rates, measured iterations, measured kernels: each beside what inferq says.

    Args:
        quick: fewer seeds; the same rows.
        traces: folder that has `longbench_v2_trunc120k.parquet`; None leaves its row empty.
        tell: is told what is being computed.

    Raises:
        OSError: `traces` has no such file.
    """
    tell("measured runs")
    runs = measured_section()
    tell("replicas: nie2026's rates")
    served = measured(QUICK if quick else FULL, traces)
    tell("iterations: lin2026's fits")
    iterations = fits_section()
    tell("kernels: tables and rooflines")
    held_out, roofline = tables_section(), roofline_section()
    whole = Section(
        title="How far are rates in overload?",
        text=ANSWER,
        tables=(_glance(served.rows),),
        remarks=(_reach(served.tables[1].frame),),
    )
    named = (("nie2026", served), ("lin2026", iterations))
    renamed = tuple(
        replace(section, title=f"{name}: {section.title[0].lower()}{section.title[1:]}")
        for name, section in named
    )
    return Report(
        name="hardware",
        title="How far is it from hardware?",
        citation="Every number and picture of this page comes from `inferq paper hardware --trace FOLDER`, "
        "without the folder all but LongBench v2; `make papers` writes the page.",
        setting="A simulator is as good as its clock, and a clock that is right for kernels is not yet "
        "right for a server. This page goes from the outside in: latencies and throughput of measured "
        "servers, requests per second in overload, milliseconds of iterations, kernels. Nothing in it is "
        "calibrated to what it is compared with, but the efficiencies of the roofline and what the first "
        "part says.",
        sections=(runs, whole, *renamed, held_out, roofline),
        slips=(),
        quick=quick,
    )


ANSWER = (
    "Requests per second of a replica in overload, from published measurements, one set of assumptions for "
    "all rows. Expect this from uncalibrated tables where the engine's settings are only half known; from "
    "iterations of your own server `inferq.timing.fit` makes a clock of its own, see [Calibrate "
    "timing](../guides/calibrate-timing.md)."
)


def _glance(rows: tuple[Row, ...]) -> Table:
    lines = [
        {
            "measured": row.where,
            "GPU": row.paper,
            "simulated": row.simulation,
            "simulated from GPU, %": 100 * (row.simulation / row.paper - 1),
            "closed form from GPU, %": None if row.theory is None else 100 * (row.theory / row.paper - 1),
        }
        for row in rows
        if row.simulation is not None and row.paper is not None and "LongBench" not in row.where
    ]
    frame = pl.DataFrame(lines)
    return Table(
        title="nie2026, requests per second: Llama-3-8B on an A100 under vLLM",
        frame=frame,
        decimals={"GPU": 3, "simulated": 3} | dict.fromkeys(frame.columns[3:], 1),
        note="The closed form has the iterations' lengths from the same GPU; the simulation has nothing "
        "from it. LongBench v2 is left out: what the paper does not say of it moves its rate a hundredfold.",
    )


def _reach(frame: pl.DataFrame) -> str:
    """From where to where the settings move the rows; column by column of the table of settings, in %."""
    told = []
    for row in frame.columns[1:4]:
        least, most = frame[row].min(), frame[row].max()
        assert isinstance(least, float) and isinstance(most, float)
        told.append(f"{least:+.0f} to {most:+.0f} % ({row})")
    return (
        f"**What the paper leaves open moves these rows by more than their distance**: {', '.join(told)} "
        "over the settings that are varied below. So a row that is near says that the clock is not far off, "
        "not that it is right."
    )


def _not_compared() -> tuple[str, ...]:
    return (
        "**Not compared, for want of published numbers that say enough**: A100, H200 and L40S as a whole, "
        "quantized weights, TensorRT-LLM. For these there are kernels alone.",
        "**Not in the model**: what a host or an API takes that differs from request to request; the clock "
        "of a GPU that runs hot.",
        "**Decode attention of small batches is optimistic** in all tables: the benchmark behind them reads "
        "the keys of one layer again and again, so that few and short contexts stay in the second-level "
        "cache.",
    )


MEASURED = Path(__file__).resolve().parents[4] / "tests" / "measured"
"""The measured runs, with their sources, in a checkout."""
MAIN = ("ttft_mean", "tpot_mean", "e2e_mean", "req_s", "out_tok_s")


def measured_section() -> Section:
    """How far whole servers are, run by run, from measurements that others published."""
    if not MEASURED.is_dir():
        return Section(title="How far off is it?", text=RUNS_TEXT, remarks=_not_compared())
    runs = read_runs(MEASURED / "runs.csv", requests=MEASURED / "requests.csv")
    found = validate(runs)
    steps = stages(runs)
    assumed = (
        found.assumed.rename({"reason": "why"})
        .group_by("setting", "why", maintain_order=True)
        .agg(pl.len().alias("runs"), pl.col("value").unique(maintain_order=True))
        .with_columns(assumed=pl.col("value").list.head(3).list.join(", "))
        .sort("setting", "runs", descending=[False, True], maintain_order=True)
    )
    judged = int(found.runs["evaluated"].sum())
    common = found.in_common().head(6)
    return Section(
        title="How far off is it?",
        text=f"{RUNS_TEXT} {found.runs.height} runs of four publishers, {judged} of them judged: three lost "
        "more than a twentieth of their requests, and on the others a number of a server was taken. Error "
        "is simulated / measured − 1 in %; median and P90 are of its size, bias is the median with its "
        "sign.",
        pictures=(
            Chart(
                title="How far each run is off",
                caption="A dot is a run, a tick the median of its row. Left of the dashed line the "
                "simulation is lower than what was measured. What is beyond 100 % stands at the edge.",
                chart=found.chart,
            ),
        ),
        tables=(
            _errors_table("Errors of all runs, %", found.errors()),
            judged_table(found, steps, by_load=False),
            judged_table(found, steps, by_load=True),
            readings_table(found, runs),
            Table(
                title="What the worst quarter have in common, by mean E2E",
                frame=common.select(
                    "column",
                    "value",
                    (100 * pl.col("of_worst")).alias("of the worst, %"),
                    (100 * pl.col("of_all")).alias("of all, %"),
                    (100 * pl.col("median")).alias("median error, %"),
                ),
                decimals=dict.fromkeys(("of the worst, %", "of all, %", "median error, %"), 1),
            ),
            Table(
                title="What was assumed, and of how many runs",
                frame=assumed.select("setting", "assumed", "why", "runs"),
            ),
        ),
        remarks=(*RUNS_REMARKS, *_not_compared()),
    )


def stages(runs: list[MeasuredRun]) -> tuple[Validation, Validation]:
    """One batch at a time, and planned as the release does, both without times of the host and of the API."""
    return validate(runs, engine=one_at_a_time), validate(runs, engine=without_times)


def judged_table(found: Validation, others: tuple[Validation, Validation], *, by_load: bool) -> Table:
    """What each step is worth: errors by release and number of GPUs, or of KubeCon's rows by load."""
    load = found.runs.select("run", pl.col("load").alias("simulated load"))
    key = ["engine", "engine_version", "gpu", "tp", "metric"]
    if by_load:
        key = ["rows", "simulated load", "metric"]
    frames = []
    for name, one in (("one at a time", others[0]), ("by rule", others[1]), ("preset", found)):
        rows = one.frame.filter(pl.col("metric").is_in(MAIN)).join(load, on="run")
        if by_load:
            words = (
                pl.when("evaluated").then(pl.lit("judged, 192 sequences")).otherwise(pl.lit("taken on, 128"))
            )
            rows = rows.filter(pl.col("source").str.contains("inference-perf")).with_columns(rows=words)
        else:
            rows = rows.filter("evaluated")
        size = 100 * pl.col("error").abs()
        frames.append(
            rows.group_by(key, maintain_order=True).agg(
                pl.len().alias("runs"),
                size.median().alias(f"{name}, median"),
                size.quantile(0.9, "linear").alias(f"{name}, P90"),
            )
        )
    frame = frames[0].join(frames[1].drop("runs"), on=key).join(frames[2].drop("runs"), on=key)
    order = pl.col("metric").replace_strict({metric: place for place, metric in enumerate(MAIN)})
    frame = frame.sort(*key[:-1], order).with_columns(pl.col("metric").str.replace_all("_", " "))
    return Table(
        title=(
            "KubeCon's 14 rows by how loaded the simulated server was, %"
            if by_load
            else "By server, release, card and number of GPUs: what each step is worth, %"
        ),
        frame=frame.rename({"engine_version": "release", "tp": "GPUs"}, strict=False),
        decimals={name: 1 for name in frame.columns if name.endswith(("median", "P90"))},
        note="One at a time: each batch planned when the one before it has ended. By rule: planned as the "
        "release does. Preset: with the times of its host and of its API. All on the same rows."
        + (
            " On the seven rows of 128 sequences the preset's times were taken: there the last two columns "
            "show how well it fits, and judge nothing; the columns before them have no number from any row."
            if by_load
            else ""
        ),
    )


RUNS_TEXT = (
    "`inferq validate RUNS` simulates measured runs, your own or others', with the settings that were "
    "published, and shows how far every metric is off; `tests/measured/` has the runs of this page, with "
    "where each was published. A server is simulated as `Engine.on(…, server=)` has its release, with the "
    "times of its host and of its API. No row judges a number that was taken from it."
)
RUNS_REMARKS = (
    "**Planning ahead is a rule.** vLLM plans a batch while the one before it runs from 0.14 on, so runs of "
    "those releases are simulated so; nothing was fitted.",
    "**What was taken from rows, and from which**: of vLLM 0.11 1 ms an iteration, 10 µs a sequence, 3 ms "
    "for a batch of more than 512 tokens and 16.5 ms for the API, from KubeCon's rows with 128 sequences; "
    "that several GPUs take 40 µs a sequence, from vLLM 0.12's with prompts below 1,500 tokens; SGLang's "
    "0.5 ms and 20 µs, from such rows of 0.5.1; 7.5 ms for the API since 0.14, from CodeLlama under 0.15.1. "
    "The 3 ms are given to each layer alike, 0.1 ms; 0.14 and later have the host of 0.11, hidden behind "
    "the GPU. Judged are other rows of the same publishers: it says that the form holds, not that another "
    "machine has these numbers.",
    "**Where a large batch begins to cost more** is 512 tokens on this page, vLLM's largest captured graph "
    "where 256 sequences or more may run. With 128 its rule says 256 tokens, and KubeCon's rows of 128 are "
    "nearer with 512 (mean E2E 1.3 % off, not 4.7 %). That the graphs are the reason is not shown: no GPU "
    "was at hand for step times around that size, nor for a server of our own through saturation.",
    "**KubeCon's TTFT below saturation is not the engine's.** With one request a second it is 31 and 33 ms, "
    "of which a prompt that is mostly cached takes 11 under vLLM 0.11 with its host. What is "
    "missing, 14 to 20 ms, does not grow with the load up to 90 requests in flight, and no gap between "
    "tokens has it, so it is neither a wait nor a step. The same client shows 7 to 9 ms beside vLLM 0.15.1. "
    "It lies between the client's clock and the engine: HTTP, tokenising, and in KubeCon's case the network "
    "of a cluster; what of it is which is not published.",
    "**Closed loops of equal requests** decide their TTFT by how users fall into step: that of vLLM 0.12 "
    "with prompts of 1,024 tokens, rows that judge nothing, is three times what was measured, E2E and "
    "throughput are not. Which token budget those servers had is not published. Users who start 10 to 300 ms "
    "apart make it no better than 42 %, and the rows of SGLang 0.5.1, which the same publisher's client "
    "measured, up to 95 % wrong instead of 15: it is not how the client starts. A budget of one prompt and "
    "the users would give 5 % for prompts of 1,024 tokens and 21 % for those of 4,096, for which 4,096 "
    "tokens are nearest. No rule of that release is known that says either, and none was put in.",
    "**SGLang's share of the memory** is of what is free before the weights, 78.4 GB of an H100's 79.65. "
    "The publisher's servers had less than the defaults of their releases, 0.868 and 0.835: 0.80 is what "
    "three rows of 0.5.1 on two cards show, where the cache is full. With it SGLang 0.5.8 on one card, "
    "beside whose weights hardly 7,000 tokens are left, is 2 % off; with its default, twice too fast. On "
    "those six rows nothing was taken, but 0.80 was looked for in the three after it had been seen that "
    "the six were so far off: the three are set aside, and the six are no blind test of it.",
    "**SGLang's first tokens come late where one prefill follows another.** Planning ahead, it settles a "
    "batch when the next is launched, which takes long for a prefill, without a graph (its pull request "
    "11856 and issue 10514). That is not simulated: mean TTFT of 0.5.1 is 14 % too short, and half of it "
    "would be this.",
    "**Two cards have one row each, under vLLM 0.19.0**: an RTX 4090, by its roofline, is 18 % too slow in "
    "mean E2E, and two RTX PRO 6000, by measured kernels, 29 % too fast. One row cannot say whether it is "
    "the clock of the cards, the link between two without NVLink, or the publisher's settings; nothing was "
    "adjusted for them.",
    "**One choice was made in view of rows**: measured kernels of decode attention with as many heads of "
    "keys as of queries (Llama-2-7b), and of experts, are SGLang's where vLLM's were not tuned ([Measured "
    "tables](../reference/measured-tables.md)). The rows of Llama-2-7b and of Mixtral are no evidence for "
    "it; before, their E2E was 10 to 75 % and 1 to 22 % too long.",
)
READINGS: tuple[tuple[str, str, Callable[[MeasuredRun], dict[str, Any]]], ...] = (
    ("vLLM 0.12: a token budget of 4,096", "0.12.0", lambda _: {"max_num_batched_tokens": 4096}),
    ("vLLM 0.12: a token budget of 2,048", "0.12.0", lambda _: {"max_num_batched_tokens": 2048}),
    (
        "vLLM 0.12: 512 sequences, a budget of the prompt and 2,012, no prefix cache",
        "0.12.0",
        lambda run: {
            "max_num_seqs": 512,
            "max_num_batched_tokens": 512 + round(run.input_mean or 0) + 1500,
            "prefix_cache": "none",
        },
    ),
    ("SGLang 0.5.1: its default share of the memory", "0.5.1.post1", lambda _: {"gpu_mem_util": 0.868}),
    ("SGLang 0.5.8: its default share of the memory", "0.5.8.post1", lambda _: {"gpu_mem_util": 0.835}),
)
"""What a setting that is not published would do, of the rows of a release. The third is what a later release
of the publisher's own tool for deployments writes into its configurations."""


def readings_table(found: Validation, runs: list[MeasuredRun]) -> Table:
    """Median errors where a setting that is not published is another than its default."""
    lines = []
    for name, release, other in READINGS:
        mine = [run for run in runs if run.engine_version == release]
        read = validate([replace(run, **other(run)) for run in mine])
        for metric in MAIN:
            before, after = (
                one.frame.filter(
                    pl.col("run").is_in([run.id for run in mine]), evaluated=True, metric=metric
                )["error"].abs()
                for one in (found, read)
            )
            if before.len():
                median = {"as assumed": before.median(), "so read": after.median()}
                lines.append(
                    {"reading": name, "metric": metric.replace("_", " "), "runs": before.len()}
                    | {key: 100 * value for key, value in median.items()}  # type: ignore[operator]  # floats
                )
    return Table(
        title="Readings of what is not published: median errors, %",
        frame=pl.DataFrame(lines),
        decimals={"as assumed": 1, "so read": 1},
        note="Settings that nobody published, each for the judged rows of its release: no proof, and in no "
        "other table. The third is what a later release of the publisher's tool for deployments writes.",
    )


def _errors_table(title: str, errors: pl.DataFrame) -> Table:
    shares = ("median", "p90", "bias", "worst")
    frame = errors.with_columns(
        pl.col("metric").str.replace("_", " ").str.replace("_", " "), *(pl.col(name) * 100 for name in shares)
    ).rename({"p90": "P90"})
    names = {"engine_version": "release", "tp": "GPUs", "load": "simulated load"}
    frame = frame.rename({old: new for old, new in names.items() if old in frame.columns})
    return Table(title=title, frame=frame, decimals=dict.fromkeys(("median", "P90", "bias", "worst"), 1))


def tables_section() -> Section:
    """How well a shipped table gives back the database that it was sampled from."""
    frame = shipped_tables()
    parts = ("linear", "chunk", "decode", "mixed_iteration")
    shown = frame.group_by("model", "gpu", "backend", "weights", maintain_order=True).agg(
        pl.col("tensor_parallel").sort().cast(pl.String).str.join(", ").alias("GPUs"),
        *(
            (100 * pl.col(f"{part}_{name}").max()).alias(f"{part.split('_')[0]}, {label}")
            for part in parts
            for name, label in (("median", "median"), ("p95", "P95"))
        ),
    )
    worst = {
        name: max(float(frame[f"{part}_{name}"].max()) for part in parts)  # type: ignore[arg-type]  # shares
        for name in ("median", "p95")
    }
    return Section(
        title="Kernels: does a table give back its measurements?",
        text="Each shipped table is a grid of some hundred points sampled from a database of measured "
        "kernels (aiconfigurator, NVIDIA). Its error was measured on thousands of random points beside the "
        "grid, in % of what the database says; *mixed* is a whole iteration with a chunk and decodes.",
        tables=(
            Table(
                title="Error on held-out points, %",
                frame=shown,
                decimals=dict.fromkeys(shown.columns[5:], 2),
                note="The largest over the numbers of GPUs. "
                f"At most {100 * worst['median']:.2f} % in the median and {100 * worst['p95']:.2f} % "
                f"in the 95th percentile; {100 * WORST_MEDIAN:.0f} and {100 * WORST_P95:.0f} % are what "
                "every table must keep.",
            ),
        ),
    )


def by_regime(frame: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Signed median and 95th percentile of the absolute error of a roofline, in %, by regime and `keys`."""
    return frame.group_by("regime", *keys, maintain_order=True).agg(
        pl.len().alias("batches"),
        (100 * pl.col("error").median()).alias("median"),
        (100 * pl.col("error").abs().quantile(0.95, "linear")).alias("P95 of |error|"),
    )


def roofline_section() -> Section:
    """How far a roofline is from the tables, by regime."""
    frame = roofline_against_tables()
    whole, by_gpu = by_regime(frame), by_regime(frame, "gpu").sort("regime", "gpu")
    by_table = by_regime(frame, "model", "gpu")
    worst = by_table.sort("P95 of |error|")[-1]
    experts = pl.col("model").str.starts_with("mixtral")
    dense = by_regime(frame.filter(~experts))
    decimals = {"median": 1, "P95 of |error|": 1}
    told = "; ".join(
        f"{row['regime']}: {round(row['median']):+d} % and {row['P95 of |error|']:.0f} %"
        for row in dense.to_dicts()
    )
    return Section(
        title="Kernels: how far is a roofline from the tables?",
        text="`Roofline` knows the model's shape and the datasheet, and efficiencies that were fitted "
        "once to 24 of the shipped tables together. Each table and its roofline price the same batches: "
        "decodes "
        "alone, chunks alone, both. Error is roofline / table − 1.",
        pictures=(
            Chart(
                title="Error of the roofline, every table by regime",
                caption="Dots: medians over the batches of a regime. Lines: from the 5th to the 95th "
                "percentile. Left of the dashed line the roofline is too fast. What is beyond "
                f"{100 * MOST:.0f} % stands at the edge.",
                chart=lambda: of_residuals(frame),
            ),
        ),
        tables=(
            Table(title="All tables by regime, %", frame=whole, decimals=decimals),
            Table(title="By regime and GPU, %", frame=by_gpu, decimals=decimals),
        ),
        remarks=(
            f"**Without experts**, median and P95: {told}.",
            f"**The worst of all** is {worst['model'][0]} on {worst['gpu'][0]}, {worst['regime'][0]}: "
            f"{worst['P95 of |error|'][0]:.0f} % in the 95th percentile.",
            "**Where there is a table, use it**; a roofline is for a card or a model without measurements, "
            "and for the direction of a change.",
        ),
    )
