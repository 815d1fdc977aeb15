"""The page about measured runs: how far the simulation is off, where most, and what was assumed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from inferq._lazy import pl
from inferq.display.document import Chapter, Document, Grid, Note, Picture
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
"""What each metric is called on screen."""
MAIN = ("ttft_mean", "tpot_mean", "e2e_mean", "req_s", "out_tok_s")
_MOST_TOGETHER = 8
_MOST_LETTERS = 28


def document(found: Validation, title: str | None) -> Document:
    """The page of a validation."""
    judged = int(found.runs["judged"].sum())
    left_out = found.runs.height - judged
    metric = "e2e_mean" if "e2e_mean" in found.frame["metric"] else str(found.frame["metric"][0])
    return Document(
        title=title if title is not None else "Simulated beside measured",
        setting=f"{counted(found.runs.height, 'run')}, {judged} judged; simulated with their own settings.",
        notes=(Note(kind="info", text=f"{counted(left_out, 'run')} not judged, as said below."),)
        if left_out
        else (),
        chapters=(
            Chapter(
                title="Errors",
                text="Error is simulated / measured − 1. Median and P90 are of its size, bias is the median "
                "with its sign.",
                grids=(errors_grid(found), errors_grid(found, ("engine", "engine_version", "tp"), MAIN)),
                pictures=(picture(found),),
            ),
            Chapter(
                title="The runs that are furthest off",
                text=f"By {NAMES[metric]}.",
                grids=(worst_grid(found, metric, 10), common_grid(found, metric)),
            ),
            *_unjudged(found),
            Chapter(
                title="What was assumed",
                text="What the runs do not say, and what is not simulated.",
                grids=(assumed_grid(found),),
                folded=(("Run by run", "\n".join(assumptions(found))),),
            ),
        ),
    )


def unjudged(found: Validation) -> list[tuple[str, list[str]]]:
    """Why some runs are not judged, and which, the most of one reason first."""
    together = (
        found.runs.filter(~pl.col("judged")).group_by("why_not", maintain_order=True).agg("run", pl.len())
    )
    rows = together.sort("len", descending=True, maintain_order=True).rows(named=True)
    return [(row["why_not"], row["run"]) for row in rows]


def _unjudged(found: Validation) -> Iterator[Chapter]:
    """Which runs do not count, and why."""
    if not (reasons := unjudged(found)):
        return
    yield Chapter(
        title="What is not judged",
        text="These runs are simulated and shown, and count in no error.",
        grids=(
            Grid(
                title="",
                header=("why", "runs"),
                lines=[[why, f"{len(runs):,}"] for why, runs in reasons],
                texts=1,
            ),
        ),
        folded=(
            (
                "Which they are",
                "\n".join(f"{why}:\n{''.join(f'  {run}{chr(10)}' for run in runs)}" for why, runs in reasons),
            ),
        ),
    )


def picture(found: Validation) -> Picture:
    """The picture of all errors."""
    return Picture(
        title="How far each run is off",
        caption="A dot is a run, a tick the median of its row. Left of the dashed line the simulation is "
        "lower than what was measured. What is beyond 100 % stands at the edge.",
        chart=found.chart,
    )


def errors_grid(found: Validation, by: Sequence[str] = (), metrics: Sequence[str] | None = None) -> Grid:
    """Errors by metric, and by columns where asked."""
    rows = found.errors(list(by)).rows(named=True)
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


def worst_grid(found: Validation, metric: str, most: int) -> Grid:
    """The runs that are furthest off."""
    unit = number if metric in ("req_s", "out_tok_s") else seconds
    lines = [
        [
            _short(row["run"]),
            row["load"],
            unit(row["measured"]),
            unit(row["simulated"]),
            _share(row["error"], sign=True),
        ]
        for row in found.worst(metric, most).rows(named=True)
    ]
    return Grid(
        title="The worst",
        header=("run", "load", "measured", "simulated", "error"),
        lines=lines,
        texts=2,
    )


def common_grid(found: Validation, metric: str) -> Grid:
    """What the worst quarter have in common."""
    lines = [
        [
            row["column"].replace("_", " "),
            row["value"],
            _share(row["of_worst"]),
            _share(row["of_all"]),
            _share(row["median"]),
        ]
        for row in found.in_common(metric).head(_MOST_TOGETHER).rows(named=True)
    ]
    return Grid(
        title="What the worst quarter have in common",
        header=("what", "", "of the worst", "of all", "median error"),
        lines=lines,
        texts=2,
    )


def assumed_grid(found: Validation) -> Grid:
    """What was assumed, and of how many runs."""
    together = (
        found.assumed.group_by("setting", "why", maintain_order=True)
        .agg(pl.len().alias("runs"), pl.col("value").unique(maintain_order=True))
        .sort("setting", "runs", descending=[False, True], maintain_order=True)
    )
    lines = [
        [row["setting"].replace("_", " "), _some(row["value"]), row["why"], f"{row['runs']:,}"]
        for row in together.rows(named=True)
    ]
    return Grid(title="", header=("setting", "assumed", "why", "runs"), lines=lines, texts=3)


def assumptions(found: Validation) -> list[str]:
    """What was assumed of each run, a line each."""
    rows = found.assumed.rows(named=True)
    return [f"{row['run']}: {row['setting']} = {row['value']} ({row['why']})" for row in rows]


def markdown(found: Validation, beyond: Sequence[str], metric: str) -> str:
    """The report as Markdown, for a pull request."""
    parts = ["## Measured runs\n", f"{found!r}\n"]
    parts += [f"- ✗ {line}" for line in beyond] + ([""] if beyond else [])
    for grid in (errors_grid(found), worst_grid(found, metric, 5), common_grid(found, metric)):
        parts += [f"**{grid.title}**\n", *_table(grid), ""]
    return "\n".join(parts) + "\n"


def _table(grid: Grid) -> list[str]:
    marks = ["---" if place < grid.texts else "---:" for place in range(len(grid.header))]
    lines: list[Sequence[str]] = [grid.header, marks, *grid.lines]
    return [f"| {' | '.join(cell.replace('|', '¦') for cell in line)} |" for line in lines]


def _short(name: str) -> str:
    """The end of a long name, which is what tells it from others."""
    return name if len(name) <= _MOST_LETTERS else f"…{name[1 - _MOST_LETTERS :]}"


def _share(value: float | None, *, sign: bool = False) -> str:
    """A share in percent with one decimal, or with none from 100 % on."""
    if value is None:
        return NONE
    digits = 0 if abs(value) >= 1 else 1
    mark = "−" if value < 0 else "+" if sign and value > 0 else ""
    return f"{mark}{100 * abs(value):,.{digits}f} %"


def _some(values: list[Any]) -> str:
    shown = ", ".join(str(value) for value in values[:3])
    return shown if len(values) <= 3 else f"{shown}, … ({len(values)} values)"
