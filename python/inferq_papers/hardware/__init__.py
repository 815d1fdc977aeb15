"""Accuracy of simulated servers, replicas, iterations and kernels against published measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from inferq import MeasuredRun, Validation, read_runs, validate
from inferq.timing import roofline_against_tables, shipped_tables
from inferq_papers.hardware.deployments import deployments_section
from inferq_papers.hardware.engines import one_at_a_time, without_times
from inferq_papers.hardware.residual_charts import MOST, of_residuals
from inferq_papers.lin2026.fits import fits_section
from inferq_papers.nie2026 import FULL, QUICK
from inferq_papers.nie2026.on_gpus import measured
from inferq_papers.report import Chart, Report, Row, Section, Table

WORST_MEDIAN, WORST_P95 = 0.03, 0.20
"""Largest interpolation errors allowed for a shipped table."""


def report(
    *, quick: bool = False, traces: Path | None = None, tell: Callable[[str], None] = lambda text: None
) -> Report:
    """Compare measured runs, rates, iterations and kernels with the simulation.

    Args:
        quick: fewer seeds for the same rows.
        traces: folder with `longbench_v2_trunc120k.parquet`. Default: its row stays empty.
        tell: receives one line per step.

    Raises:
        OSError: `traces` lacks the file.
    """
    tell("measured runs")
    runs = measured_section()
    tell("deployments")
    deployed = deployments_section(MEASURED)
    tell("replicas: nie2026's rates")
    served = measured(QUICK if quick else FULL, traces)
    tell("iterations: lin2026's fits")
    iterations = fits_section()
    tell("kernels: tables and rooflines")
    held_out, roofline = tables_section(), roofline_section()
    whole = Section(
        title="Rates in overload",
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
        title="Accuracy against hardware",
        citation="`inferq paper hardware --trace FOLDER` computes every number and chart of this page, "
        "without the folder all except LongBench v2. `make papers` writes the page.",
        setting="A simulator is as accurate as its timing model, and a model that is accurate for kernels "
        "need not be accurate for a server. This page compares, in this order: latencies and throughput of "
        "servers, requests per second in overload, durations of iterations, and kernels. Nothing is "
        "calibrated on the data it is compared with, except the efficiencies of the roofline and the values "
        "listed in the first section.",
        sections=(runs, deployed, whole, *renamed, held_out, roofline),
        slips=(),
        quick=quick,
    )


ANSWER = (
    "Requests per second of a replica in overload, from published measurements, with one set of assumptions "
    "for all rows. Expect these errors from uncalibrated tables when the engine's settings are only half "
    "known. `inferq.timing.fit` fits a timing model to iterations of your own server, see [Calibrate "
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
        note="The closed form uses iteration times measured on the same GPU; the simulation uses nothing "
        "from it. LongBench v2 is excluded: settings missing from the paper change its rate a hundredfold.",
    )


def _reach(frame: pl.DataFrame) -> str:
    """The range of each row over the varied settings, in %."""
    ranges = []
    for row in frame.columns[1:4]:
        least, most = frame[row].min(), frame[row].max()
        assert isinstance(least, float) and isinstance(most, float)
        ranges.append(f"{least:+.0f} to {most:+.0f} % ({row})")
    return (
        f"**Settings missing from the paper change these rows by more than their errors**: "
        f"{', '.join(ranges)} over the settings varied below. So a small error shows only that the timing "
        "model is plausible, not that it is accurate."
    )


def _not_compared() -> tuple[str, ...]:
    return (
        "**Not compared, because no sufficient measurements are published**: servers on A100, H200 and L40S, "
        "quantized weights, TensorRT-LLM. For these, only kernels are compared.",
        "**Not modeled**: variation of host and API times between requests; thermal throttling of a GPU.",
        "**Decode attention of small batches is optimistic** in all tables: their benchmark reads "
        "the keys of one layer repeatedly, so few short contexts stay in the L2 "
        "cache.",
    )


MEASURED = Path(__file__).resolve().parents[3] / "tests" / "measured"
"""The measured runs, with their sources, in a checkout."""
MAIN = ("ttft_mean", "tpot_mean", "e2e_mean", "req_s", "out_tok_s")


def measured_section() -> Section:
    """Errors of whole servers, run by run, against published measurements."""
    if not MEASURED.is_dir():
        return Section(title="Errors of measured servers", text=RUNS_TEXT, remarks=_not_compared())
    runs = read_runs(MEASURED / "runs.csv", requests=MEASURED / "requests.csv")
    validation = validate(runs)
    parts = stages(runs)
    assumed = (
        validation.assumed.rename({"reason": "why"})
        .group_by("setting", "why", maintain_order=True)
        .agg(pl.len().alias("runs"), pl.col("value").unique(maintain_order=True))
        .with_columns(assumed=pl.col("value").list.head(3).list.join(", "))
        .sort("setting", "runs", descending=[False, True], maintain_order=True)
    )
    evaluated = int(validation.runs["evaluated"].sum())
    common = validation.in_common().head(6)
    return Section(
        title="Errors of measured servers",
        text=f"{RUNS_TEXT} {validation.runs.height} runs of four publishers, {evaluated} of them evaluated: "
        "three lost more than 5 % of their requests, and the rest calibrated a value of a server. Error is "
        "simulated / measured − 1 in %; median and P90 are of the absolute error, bias is the median of the "
        "signed error.",
        pictures=(
            Chart(
                title="Error of each run",
                caption="A dot is a run, a tick the median of its row. Left of the dashed line the simulated "
                "value is lower than the measured value. Errors beyond 100 % are drawn at the edge.",
                chart=validation.chart,
            ),
        ),
        tables=(
            _errors_table("Errors of all runs, %", validation.errors()),
            replace(_errors_table("Errors by engine, %", validation.errors("engine")), note=BY_ENGINE),
            evaluated_table(validation, parts, by_load=False),
            evaluated_table(validation, parts, by_load=True),
            alternatives_table(validation, runs),
            Table(
                title="Properties that the worst quarter of runs share, by mean E2E",
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
                title="Assumed settings and number of runs",
                frame=assumed.select("setting", "assumed", "why", "runs"),
            ),
        ),
        remarks=(*RUNS_REMARKS, *_not_compared()),
    )


def stages(runs: list[MeasuredRun]) -> tuple[Validation, Validation]:
    """Validations without host and API times: without async scheduling, and with that of the release."""
    return validate(runs, engine=one_at_a_time), validate(runs, engine=without_times)


def evaluated_table(validation: Validation, stages: tuple[Validation, Validation], *, by_load: bool) -> Table:
    """Errors with each part of the model, by release and number of GPUs or, for the KubeCon runs, by load."""
    load = validation.runs.select("run", pl.col("load").alias("simulated load"))
    key = ["engine", "engine_version", "gpu", "tp", "metric"]
    if by_load:
        key = ["rows", "simulated load", "metric"]
    frames = []
    for name, stage in (("one at a time", stages[0]), ("by rule", stages[1]), ("preset", validation)):
        rows = stage.frame.filter(pl.col("metric").is_in(MAIN)).join(load, on="run")
        if by_load:
            words = (
                pl.when("evaluated")
                .then(pl.lit("evaluated, 192 sequences"))
                .otherwise(pl.lit("calibration, 128"))
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
            "The 14 KubeCon runs by load of the simulated server, %"
            if by_load
            else "By engine, release, GPU and number of GPUs: error with each part of the model, %"
        ),
        frame=frame.rename({"engine_version": "release", "tp": "GPUs"}, strict=False),
        decimals={name: 1 for name in frame.columns if name.endswith(("median", "P90"))},
        note="One at a time: each batch is planned after the previous batch ended. By rule: planned as in "
        "the release. Preset: with its host and API times. All columns use the same runs."
        + (
            " The seven runs of 128 sequences calibrated the preset: their last two columns "
            "show the fit and are no evaluation. The other columns use no value from any run."
            if by_load
            else ""
        ),
    )


RUNS_TEXT = (
    "`inferq validate RUNS` simulates measured runs with their published settings and reports the error of "
    "every metric; your own runs work too. `tests/measured/` has the runs of this page with their sources. A "
    "server is simulated by the preset of its release, `Engine.on(…, server=)`, including host and API "
    "times. No run used for calibration is used for evaluation."
)
BY_ENGINE = (
    "`compare`, `capacity`, `plan` and `gate` print these medians next to verdicts with a smaller margin. "
    "For other engines and metrics they state that none was measured."
)
RUNS_REMARKS = (
    "**Async scheduling is a rule, not a fit.** Since 0.14, vLLM plans a batch while the previous batch "
    "runs, and runs of those releases are simulated this way.",
    "**Calibrated values and their runs.** vLLM 0.11: 1 ms per iteration, 10 µs per sequence, 3 ms for a "
    "batch of more than 512 tokens and 16.5 ms for the API, from the KubeCon runs with 128 sequences. "
    "Several GPUs: 40 µs per sequence, from the vLLM 0.12 runs with prompts below 1,500 tokens. SGLang: 0.5 "
    "ms and 20 µs, from such runs of 0.5.1. API since vLLM 0.14: 7.5 ms, from CodeLlama under 0.15.1. "
    "The 3 ms are split equally over the layers, 0.1 ms each. 0.14 and later use the host times of 0.11, "
    "overlapped with GPU execution. The evaluated runs are other runs of the same publishers: they confirm "
    "the form of the model, not its values for another machine.",
    "**Large batches cost more** above 512 tokens on this page, vLLM's largest captured graph for at least "
    "256 sequences. For 128 sequences vLLM's rule gives 256 tokens, but the KubeCon runs of 128 fit better "
    "with 512 (mean E2E error 1.3 % instead of 4.7 %). It is not confirmed that the graphs are the reason: "
    "no GPU was available to measure step times around that size, or a server of our own through saturation.",
    "**KubeCon's TTFT below saturation is not the engine's.** At one request per second it is 31 and 33 ms. "
    "A mostly cached prompt takes 11 ms of it under vLLM 0.11 with its host. The "
    "remaining 14 to 20 ms do not grow with the load up to 90 requests in flight and appear in no gap "
    "between tokens, so they are neither queueing nor compute. The same client shows 7 to 9 ms with vLLM "
    "0.15.1. The time lies between the client's clock and the engine: HTTP, tokenization, and for KubeCon "
    "the network of a cluster. The share of each is not published.",
    "**In closed loops of equal requests**, TTFT depends on how the users synchronize. For vLLM 0.12 "
    "with prompts of 1,024 tokens (runs not used for evaluation) simulated TTFT is three times the measured "
    "value; E2E and throughput agree. The token budget of those servers is not published. Users that start "
    "10 to 300 ms apart reduce the error only to 42 %, and raise that of the SGLang 0.5.1 runs, measured by "
    "the same publisher's client, from 15 to up to 95 %; so the client's start is not the cause. A budget of "
    "one prompt plus the users gives 5 % for prompts of 1,024 tokens and 21 % for 4,096 tokens, for which a "
    "budget of 4,096 fits best. No known rule of that release gives either budget, so neither is used.",
    "**SGLang's memory share** applies to the memory free before the weights, 78.4 GB of an H100's 79.65. "
    "The publisher's servers had less than the defaults of their releases, 0.868 and 0.835. Three runs of "
    "0.5.1 on two GPUs, in which the cache is full, give 0.80, the column `gpu_mem_util` of their rows; "
    "`Engine.on` needs `gpu_memory_utilization=0.8` for them. With it, SGLang 0.5.8 on one GPU, where "
    "the weights leave hardly 7,000 tokens, has an error of 2 %; with the default it is twice too fast. "
    "Those six runs calibrated nothing, but their large error was the reason to look for 0.80 in the three "
    "runs. So the three are excluded, and the six are no blind test.",
    "**SGLang's first tokens are late when prefills follow each other.** With its overlap scheduler, SGLang "
    "processes a batch when the next is launched, which takes long for a prefill without a graph (its pull "
    "request 11856 and issue 10514). This is not simulated: mean TTFT of 0.5.1 is 14 % too short, and half "
    "of that would be due to it.",
    "**Two GPUs have one run each, under vLLM 0.19.0**: an RTX 4090, by its roofline, is 18 % too slow in "
    "mean E2E, and two RTX PRO 6000, by measured kernels, 29 % too fast. One run cannot separate the GPU's "
    "clock, the link between two GPUs without NVLink, and the publisher's settings. Nothing was "
    "adjusted for them.",
    "**One choice was made with these runs in view**: measured kernels of experts, and of decode attention "
    "with as many key heads as query heads (Llama-2-7b), are SGLang's if vLLM's were not tuned ([Measured "
    "tables](../reference/measured-tables.md)). The runs of Llama-2-7b and Mixtral are no evidence for "
    "it; before, their E2E was 10 to 75 % and 1 to 22 % too long.",
)
ALTERNATIVES: tuple[tuple[str, str, Callable[[MeasuredRun], dict[str, Any]]], ...] = (
    ("vLLM 0.12: a token budget of 4,096", "0.12.0", lambda _: {"max_num_batched_tokens": 4096}),
    ("vLLM 0.12: a token budget of 2,048", "0.12.0", lambda _: {"max_num_batched_tokens": 2048}),
    (
        "vLLM 0.12: 512 sequences, a budget of prompt + 2,012, no prefix cache",
        "0.12.0",
        lambda run: {
            "max_num_seqs": 512,
            "max_num_batched_tokens": 512 + round(run.input_mean or 0) + 1500,
            "prefix_cache": "none",
        },
    ),
    ("SGLang 0.5.1: its default memory share", "0.5.1.post1", lambda _: {"gpu_mem_util": 0.868}),
    ("SGLang 0.5.8: its default memory share", "0.5.8.post1", lambda _: {"gpu_mem_util": 0.835}),
)
"""Possible values of unpublished settings, by release. The third is written by a later release
of the publisher's own deployment tool."""


def alternatives_table(validation: Validation, runs: list[MeasuredRun]) -> Table:
    """Median errors if an unpublished setting differs from its default."""
    lines = []
    for name, release, change in ALTERNATIVES:
        release_runs = [run for run in runs if run.engine_version == release]
        changed = validate([replace(run, **change(run)) for run in release_runs])
        for metric in MAIN:
            before, after = (
                errors.frame.filter(
                    pl.col("run").is_in([run.id for run in release_runs]), evaluated=True, metric=metric
                )["error"].abs()
                for errors in (validation, changed)
            )
            if before.len():
                median = {"as assumed": before.median(), "with this value": after.median()}
                lines.append(
                    {"setting": name, "metric": metric.replace("_", " "), "runs": before.len()}
                    | {key: 100 * value for key, value in median.items()}  # type: ignore[operator]  # floats
                )
    return Table(
        title="Possible values of unpublished settings: median errors, %",
        frame=pl.DataFrame(lines),
        decimals={"as assumed": 1, "with this value": 1},
        note="Unpublished settings, each for the evaluated runs of its release. They prove nothing and are "
        "used in no other table. The third is written by a later release of the publisher's deployment tool.",
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
    """Interpolation error of shipped tables against their source database."""
    frame = shipped_tables()
    parts = ("linear", "chunk", "decode", "mixed_iteration")
    shown = frame.group_by("model", "weights", "backend", maintain_order=True).agg(
        pl.len().alias("tables"),
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
        title="Kernels: interpolation error of tables",
        text="Each shipped table is a grid of some hundred points sampled from a database of measured "
        "kernels (aiconfigurator, NVIDIA). Its error is measured on thousands of random points between grid "
        "points, in % of the database's value; *mixed* is a whole iteration with a chunk and decodes.",
        tables=(
            Table(
                title="Error on held-out points, %",
                frame=shown,
                decimals=dict.fromkeys(shown.columns[4:], 2),
                note="The largest error over GPUs and parallelism. "
                f"At most {100 * worst['median']:.2f} % in the median and {100 * worst['p95']:.2f} % "
                f"in the 95th percentile; {100 * WORST_MEDIAN:.0f} and {100 * WORST_P95:.0f} % are the "
                "limits of every table.",
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
    """Errors of rooflines against tables, by regime."""
    frame = roofline_against_tables()
    whole, by_gpu = by_regime(frame), by_regime(frame, "gpu").sort("regime", "gpu")
    by_table = by_regime(frame, "model", "gpu")
    worst = by_table.sort("P95 of |error|")[-1]
    experts = pl.col("model").str.starts_with("mixtral")
    dense = by_regime(frame.filter(~experts))
    decimals = {"median": 1, "P95 of |error|": 1}
    summary = "; ".join(
        f"{row['regime']}: {round(row['median']):+d} % and {row['P95 of |error|']:.0f} %"
        for row in dense.to_dicts()
    )
    return Section(
        title="Kernels: rooflines against tables",
        text="`Roofline` uses the model's shape, the datasheet and efficiencies that were fitted "
        "once to 24 of the shipped tables together. Each table and its roofline price the same batches: "
        "only decodes, only chunks, both. Error is roofline / table − 1.",
        pictures=(
            Chart(
                title="Error of the roofline, every table by regime",
                caption="Dots: medians over the batches of a regime. Lines: from the 5th to the 95th "
                "percentile. Left of the dashed line the roofline is too fast. Errors beyond "
                f"{100 * MOST:.0f} % are drawn at the edge.",
                chart=lambda: of_residuals(frame),
            ),
        ),
        tables=(
            Table(title="All tables by regime, %", frame=whole, decimals=decimals),
            Table(title="By regime and GPU, %", frame=by_gpu, decimals=decimals),
        ),
        remarks=(
            f"**Without experts**, median and P95: {summary}.",
            f"**The largest error** is {worst['model'][0]} on {worst['gpu'][0]}, {worst['regime'][0]}: "
            f"{worst['P95 of |error|'][0]:.0f} % in the 95th percentile.",
            "**Use a table if available.** A roofline serves for a GPU or a model without measurements, "
            "and for the direction of a change.",
        ),
    )
