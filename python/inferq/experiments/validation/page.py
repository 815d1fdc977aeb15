"""The page of a validation: errors, the worst runs, and assumptions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from inferq._lazy import pl
from inferq.display.document import Chapter, Document, FittedChart, Grid, Note
from inferq.display.text import NONE, counted, number, seconds
from inferq.experiments.validation.validation import Validation

NAMES = {
    **{
        f"{short}_{which}": f"{long}, {which}"
        for short, long in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "E2E"))
        for which in ("mean", "p50", "p90", "p95", "p99")
    },
    "req_s": "requests/s",
    "out_tok_s": "output tokens/s",
}
"""Displayed names of metrics."""
MAIN = ("ttft_mean", "tpot_mean", "e2e_mean", "req_s", "out_tok_s")
_MOST_TOGETHER = 8
_MOST_LETTERS = 28


def document(validation: Validation, title: str | None) -> Document:
    """The page."""
    evaluated = int(validation.runs["evaluated"].sum())
    left_out = validation.runs.height - evaluated
    metric = "e2e_mean" if "e2e_mean" in validation.frame["metric"] else str(validation.frame["metric"][0])
    return Document(
        title=title if title is not None else "Simulated and measured runs",
        setting=f"{counted(validation.runs.height, 'run')}, {evaluated} evaluated; simulated with their "
        "published settings.",
        notes=(Note(kind="info", text=f"{counted(left_out, 'run')} not evaluated, see below."),)
        if left_out
        else (),
        verdict=Note(kind="info", text=_verdict(validation, metric)),
        key_facts=tuple(_key_facts(validation)),
        lead=(chart(validation),),
        chapters=(
            Chapter(
                title="Errors",
                text="Error: simulated / measured − 1. Median and P90: of |error|. Bias: signed median.",
                grids=(
                    errors_grid(validation),
                    errors_grid(validation, ("engine", "engine_version", "tp"), MAIN),
                ),
            ),
            Chapter(
                title="Worst runs",
                text=f"By {NAMES[metric]}.",
                grids=(worst_grid(validation, metric, 10), common_grid(validation, metric)),
            ),
            *_excluded(validation),
            Chapter(
                title="Assumptions",
                text="Settings that were not published, and features that are not simulated.",
                grids=(assumed_grid(validation),),
                folded=(("By run", "\n".join(assumptions(validation))),),
            ),
        ),
    )


def not_evaluated(validation: Validation) -> list[tuple[str, list[str]]]:
    """Runs that are not evaluated, by reason, the most frequent first."""
    together = (
        validation.runs.filter(~pl.col("evaluated"))
        .group_by("exclusion", maintain_order=True)
        .agg("run", pl.len())
    )
    rows = together.sort("len", descending=True, maintain_order=True).rows(named=True)
    return [(row["exclusion"], row["run"]) for row in rows]


def _excluded(validation: Validation) -> Iterator[Chapter]:
    """The chapter of runs that are not evaluated."""
    if not (reasons := not_evaluated(validation)):
        return
    yield Chapter(
        title="Runs that are not evaluated",
        text="These runs are excluded from errors. All except those not simulated are shown.",
        grids=(
            Grid(
                title="",
                header=("reason", "runs"),
                lines=[[reason, f"{len(runs):,}"] for reason, runs in reasons],
                texts=1,
            ),
        ),
        folded=(
            (
                "List of runs",
                "\n".join(
                    f"{reason}:\n{''.join(f'  {run}{chr(10)}' for run in runs)}" for reason, runs in reasons
                ),
            ),
        ),
    )


def _verdict(validation: Validation, metric: str) -> str:
    """The error of the main metric."""
    row = validation.errors().filter(pl.col("metric") == metric).row(0, named=True)
    return (
        f"{NAMES[metric]}: median |error| {_share(row['median'])}, P90 {_share(row['p90'])}, on "
        f"{counted(row['runs'], 'run')}."
    )


def _key_facts(validation: Validation) -> Iterator[tuple[str, str]]:
    """The median error of four metrics."""
    medians = {row["metric"]: row["median"] for row in validation.errors().rows(named=True)}
    for name in MAIN[:4]:
        if name in medians:
            yield f"median |error|, {NAMES[name]}", _share(medians[name])


def chart(validation: Validation) -> FittedChart:
    """The chart of all errors."""
    return FittedChart(
        title="Error of each run",
        caption="A dot is a run, a tick the median of its row. Left of the dashed line, simulated values are "
        "lower than measured ones. Errors beyond 100 % are at the edge.",
        chart=validation.chart,
    )


def errors_grid(validation: Validation, by: Sequence[str] = (), metrics: Sequence[str] | None = None) -> Grid:
    """Errors by metric, and by further columns."""
    rows = validation.errors(list(by)).rows(named=True)
    lines = []
    for row in rows:
        if metrics is not None and row["metric"] not in metrics:
            continue
        lines.append(
            [
                *(NONE if row[name] is None else str(row[name]) for name in by),
                NAMES[row["metric"]],
                f"{row['runs']:,}",
                *(_share(row[name]) for name in ("median", "p90")),
                _share(row["bias"], sign=True),
                _share(row["worst"]),
            ]
        )
    header = (*(name.rpartition("_")[2] for name in by), "metric", "runs", "median", "P90", "bias", "worst")
    title = f"Errors by {', '.join(name.replace('_', ' ') for name in by)}" if by else "Errors"
    return Grid(title=title, header=header, lines=lines, texts=len(by) + 1)


def worst_grid(validation: Validation, metric: str, most: int) -> Grid:
    """The runs with the largest errors."""
    unit = number if metric in ("req_s", "out_tok_s") else seconds
    lines = [
        [
            _short(row["run"]),
            row["load"],
            unit(row["measured"]),
            unit(row["simulated"]),
            _share(row["error"], sign=True),
        ]
        for row in validation.worst(metric, most).rows(named=True)
    ]
    return Grid(
        title="Worst runs",
        header=("run", "load", "measured", "simulated", "error"),
        lines=lines,
        texts=2,
    )


def common_grid(validation: Validation, metric: str) -> Grid:
    """Settings that are more frequent in the worst quarter of runs."""
    lines = [
        [
            row["column"].replace("_", " "),
            row["value"],
            _share(row["of_worst"]),
            _share(row["of_all"]),
            _share(row["median"]),
        ]
        for row in validation.in_common(metric).head(_MOST_TOGETHER).rows(named=True)
    ]
    return Grid(
        title="Common settings of the worst quarter",
        header=("setting", "value", "share of worst", "share of all", "median error"),
        lines=lines,
        texts=2,
    )


def assumed_grid(validation: Validation) -> Grid:
    """Assumptions, with the number of runs."""
    together = (
        validation.assumed.group_by("setting", "reason", maintain_order=True)
        .agg(pl.len().alias("runs"), pl.col("value").unique(maintain_order=True))
        .sort("setting", "runs", descending=[False, True], maintain_order=True)
    )
    lines = [
        [row["setting"].replace("_", " "), _some(row["value"]), row["reason"], f"{row['runs']:,}"]
        for row in together.rows(named=True)
    ]
    return Grid(title="", header=("setting", "assumed", "reason", "runs"), lines=lines, texts=3)


def assumptions(validation: Validation) -> list[str]:
    """All assumptions, one per line."""
    rows = validation.assumed.rows(named=True)
    return [f"{row['run']}: {row['setting']} = {row['value']} ({row['reason']})" for row in rows]


def markdown(validation: Validation, beyond: Sequence[str], metric: str) -> str:
    """The report as Markdown, for a pull request."""
    parts = ["## Measured runs\n", f"{validation!r}\n"]
    parts += [f"- ✗ {line}" for line in beyond] + ([""] if beyond else [])
    for grid in (errors_grid(validation), worst_grid(validation, metric, 5), common_grid(validation, metric)):
        parts += [f"**{grid.title}**\n", *_table(grid), ""]
    return "\n".join(parts) + "\n"


def _table(grid: Grid) -> list[str]:
    marks = ["---" if place < grid.texts else "---:" for place in range(len(grid.header))]
    lines: list[Sequence[str]] = [grid.header, marks, *grid.lines]
    return [f"| {' | '.join(cell.replace('|', '¦') for cell in line)} |" for line in lines]


def _short(name: str) -> str:
    """The end of a long name, which distinguishes it."""
    return name if len(name) <= _MOST_LETTERS else f"…{name[1 - _MOST_LETTERS :]}"


def _share(value: float | None, *, sign: bool = False) -> str:
    """A share in percent with one decimal; without decimals from 100 %."""
    if value is None:
        return NONE
    digits = 0 if abs(value) >= 1 else 1
    mark = "−" if value < 0 else "+" if sign and value > 0 else ""
    return f"{mark}{100 * abs(value):,.{digits}f} %"


def _some(values: list[Any]) -> str:
    shown = ", ".join(str(value) for value in values[:3])
    return shown if len(values) <= 3 else f"{shown}, … ({len(values)} values)"
