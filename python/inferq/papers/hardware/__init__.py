"""How far is a simulated replica from a real one? What was measured by others, all on one page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from inferq._lazy import pl
from inferq.papers.lin2026.fits import fits_section
from inferq.papers.nie2026 import FULL, QUICK
from inferq.papers.nie2026.on_gpus import measured
from inferq.papers.report import Picture, Report, Row, Section, Table
from inferq.reports.residual_charts import MOST, of_residuals
from inferq.timing import roofline_against_tables, shipped_tables

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
    tell("replicas: nie2026's rates")
    served = measured(QUICK if quick else FULL, traces)
    tell("iterations: lin2026's fits")
    iterations = fits_section()
    tell("kernels: tables and rooflines")
    held_out, roofline = tables_section(), roofline_section()
    whole = Section(
        title="How far off is it?",
        text=ANSWER,
        tables=(_glance(served.rows),),
        remarks=(_reach(served.tables[1].frame), *_not_compared()),
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
        "right for a server. This page goes from the outside in: requests per second of whole servers, "
        "milliseconds of their iterations, kernels. Nothing in it is calibrated to what it is compared "
        "with, but the efficiencies of the roofline.",
        sections=(whole, *renamed, held_out, roofline),
        slips=(),
        quick=quick,
    )


ANSWER = (
    "Requests per second of a replica in overload, from published measurements, one set of assumptions for "
    "all rows. Expect this from uncalibrated tables where the engine's settings are only half known; from "
    "iterations of your own server `inferq.timing.fit` makes a clock of its own, see [Calibrate "
    "timing](calibrate-timing.md)."
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
        "**Not compared, for want of published numbers that say enough**: latencies (TTFT, TPOT and their "
        "percentiles) of a server, any H100, H200 or L40S as a whole, tensor parallelism, experts, "
        "quantised weights, SGLang and TensorRT-LLM. For these there are kernels alone.",
        "**Not in the model**: prefix caches, asynchronous scheduling but for `Overhead(overlapped=True)`, "
        "speculative decoding, the clock of a GPU that runs hot, and the way between client and engine.",
        "**Decode attention of small batches is optimistic** in all tables: the benchmark behind them reads "
        "the keys of one layer again and again, so that few and short contexts stay in the second-level "
        "cache.",
    )


def tables_section() -> Section:
    """How well a shipped table gives back the database that it was sampled from."""
    frame = shipped_tables()
    parts = ("linear", "chunk", "decode", "mixed_iteration")
    shown = frame.select(
        *("model", "gpu", "tensor_parallel"),
        *(
            (100 * pl.col(f"{part}_{name}")).alias(f"{part.split('_')[0]}, {label}")
            for part in parts
            for name, label in (("median", "median"), ("p95", "P95"))
        ),
    ).rename({"tensor_parallel": "GPUs"})
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
                decimals=dict.fromkeys(shown.columns[3:], 2),
                note=f"At most {100 * worst['median']:.2f} % in the median and {100 * worst['p95']:.2f} % "
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
        "once to all shipped tables together. Each table and its roofline price the same batches: decodes "
        "alone, chunks alone, both. Error is roofline / table − 1.",
        pictures=(
            Picture(
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
