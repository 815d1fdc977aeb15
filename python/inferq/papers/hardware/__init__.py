"""How far is a simulated replica from a real one? What was measured by others, all on one page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from inferq._lazy import pl
from inferq.experiments.validation.host import host_of, one_at_a_time, with_host
from inferq.experiments.validation.measured_run import MeasuredRun
from inferq.experiments.validation.reading import read_runs
from inferq.experiments.validation.validate import validate
from inferq.experiments.validation.validation import Validation
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
        "calibrated to what it is compared with, but the efficiencies of the roofline.",
        sections=(runs, whole, *renamed, held_out, roofline),
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
        "**Not compared, for want of published numbers that say enough**: A100, H200 and L40S as a whole, "
        "quantised weights, TensorRT-LLM. For these there are kernels alone.",
        "**Not in the model**: what the host takes, where `Overhead` does not say it; the way between client "
        "and engine; the clock of a GPU that runs hot.",
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
    server = ("engine", "engine_version", "tp")
    by_server = found.errors(server).filter(pl.col("metric").is_in(MAIN))
    kubecon = found.errors(("source", "load")).filter(
        pl.col("source").str.contains("inference-perf") & pl.col("metric").is_in(MAIN)
    )
    assumed = (
        found.assumed.group_by("setting", "why", maintain_order=True)
        .agg(pl.len().alias("runs"), pl.col("value").unique(maintain_order=True))
        .with_columns(assumed=pl.col("value").list.head(3).list.join(", "))
        .sort("setting", "runs", descending=[False, True], maintain_order=True)
    )
    judged = int(found.runs["judged"].sum())
    common = found.in_common().head(6)
    return Section(
        title="How far off is it?",
        text=f"{RUNS_TEXT} {found.runs.height} runs of four publishers, {judged} of them judged: the others "
        "lost more than a twentieth of their requests. Error is simulated / measured − 1 in %; median and "
        "P90 are of its size, bias is the median with its sign.",
        pictures=(
            Picture(
                title="How far each run is off",
                caption="A dot is a run, a tick the median of its row. Left of the dashed line the "
                "simulation is lower than what was measured. What is beyond 100 % stands at the edge.",
                chart=found.chart,
            ),
        ),
        tables=(
            _errors_table("Errors of all runs, %", found.errors()),
            _errors_table("By server, release and number of GPUs, %", by_server),
            judged_table(found, stages(runs)),
            _errors_table("KubeCon's rows by how loaded the simulated server was, %", kubecon.drop("source")),
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
    """One batch at a time, and with the host's time: the runs of releases whose host's time is known."""
    known = [run for run in runs if host_of(run) is not None]
    return validate(known, engine=one_at_a_time), validate(known, engine=with_host)


def judged_table(found: Validation, others: tuple[Validation, Validation]) -> Table:
    """What each step is worth, on rows of which no number was taken."""
    runs = read_runs(MEASURED / "runs.csv", requests=MEASURED / "requests.csv")
    hosts = {run.id: host for run in runs if (host := host_of(run)) is not None and not host.is_taken_on(run)}
    load = found.runs.select("run", pl.col("load").alias("simulated load"))
    key = ["engine", "engine_version", "tp", "simulated load", "metric"]
    frames = []
    for name, one in (("one at a time", others[0]), ("as released", found), ("with host", others[1])):
        rows = one.frame.filter(
            pl.col("run").is_in(list(hosts)) & pl.col("judged") & pl.col("metric").is_in(MAIN)
        ).join(load, on="run")
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
    frame = frame.sort("engine", "engine_version", "tp", "simulated load", order).with_columns(
        pl.col("metric").str.replace_all("_", " ")
    )
    return Table(
        title="What planning ahead and the host's time are worth, on rows of which no number was taken, %",
        frame=frame.rename({"engine_version": "release", "tp": "GPUs"}),
        decimals={name: 1 for name in frame.columns if name.endswith(("median", "P90"))},
    )


RUNS_TEXT = (
    "`inferq validate RUNS` simulates measured runs, your own or others', with the settings that were "
    "published, and shows how far every metric is off; `tests/measured/` has the runs of this page, with "
    "where each was published. Nothing is tuned to a row."
)
RUNS_REMARKS = (
    "**Planning ahead is a rule, and halves the error of TTFT.** vLLM plans a batch while the one before it "
    "runs from 0.14 on, so runs of those releases are simulated so; nothing was fitted. One batch at a time, "
    "the mean TTFT of the 21 judged runs of 0.15.1 was 50.1 % off (P90 56.2), their mean E2E 3.4 % (6.9); "
    "planned ahead they are 18.8 % (27.9) and 3.0 % (6.5) off. That of all 97 falls from 42.0 % to 21.3 %.",
    "**The host's time is most of what was missing from vLLM 0.11**, also in overload, and a part of it "
    "from 0.12 and SGLang. It is taken on some rows of a release (0.11: 1 ms and 20 µs a sequence, on "
    "KubeCon's with 128 sequences; 0.12: 60 µs a sequence, and SGLang 0.5.1: 0.5 ms and 20 µs, on prompts "
    "below 1,500 tokens; 0.15: nothing, on CodeLlama) and judged on the others. Both kinds of rows come "
    "from one publisher, and that there is such a time was known from all of them: it says that the form "
    "holds, not that another machine has these numbers. All other tables of this page are without it.",
    "**Some milliseconds are missing from every TTFT**: HTTP, tokenising and the first delivery are outside "
    "the engine and not simulated.",
    "**Saturated servers are simulated too fast** without the host's time: KubeCon's by 23 %.",
    "**Closed loops stay in step**: users whose requests are equal and start together stay together in the "
    "simulation, and as far as the figures say under SGLang, not under vLLM.",
    "**SGLang 0.5.8 on one card** held far fewer tokens of Qwen3-32B than the defaults of that release "
    "leave; which flags it had is not published.",
    "**One choice was made in view of rows**: measured kernels of decode attention with as many heads of "
    "keys as of queries (Llama-2-7b), and of experts, are SGLang's where vLLM's were not tuned ([Measured "
    "tables](measured-tables.md)). The rows of Llama-2-7b and of Mixtral are no evidence for it; before, "
    "their E2E was 10 to 75 % and 1 to 22 % too long.",
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
