"""HTML views of objects in notebooks: facts, findings, tables and charts, without network access."""

from __future__ import annotations

from collections.abc import Sequence

from inferq.display.document import Grid, escape
from inferq.display.notebook import view
from inferq.display.style import svg
from inferq.display.text import counted, number, sentence
from inferq.errors import ConfigError, TraceError
from inferq.experiments.capacity_search.capacity_plan import CapacityPlan
from inferq.experiments.comparison.comparison import Comparison
from inferq.experiments.comparison.tables import of_system
from inferq.experiments.plans.fleet_plan import FleetPlan
from inferq.experiments.plans.tables import candidates, frontier
from inferq.reports import identity, run_tables, verdicts
from inferq.results.metric import LABELS
from inferq.results.result import Result
from inferq.systems.engine import Engine
from inferq.workload.workload import Workload

_WIDTH = 520
_MOST_ROWS = 12
_MARKS = {"critical": "✗", "warning": "!", "good": "✓", "info": "·"}


@view.register
def _of_engine(engine: Engine) -> str:
    """The parts of an engine."""
    return _shown("Engine", identity.of_system(engine))


@view.register
def _of_workload(workload: Workload) -> str:
    """The source of a workload and the distribution of its columns; synthetic workloads use seed 0."""
    facts = [
        (name.replace("_", " "), str(workload.metadata[name]))
        for name in ("source", "format", "changes")
        if workload.metadata.get(name)
    ]
    if workload.is_synthetic:
        facts.append(("drawn", repr(workload)))
    try:
        drawn = workload.draw(0)
        rows = [row for row in drawn.describe().rows(named=True)]
    except (ConfigError, TraceError) as error:
        return _shown("Workload", [*facts, ("not shown", str(error))])
    facts.append(("requests", f"{drawn.frame.height:,}" + (" with seed 0" if workload.is_synthetic else "")))
    header = ("", "mean", "p50", "p90", "p99", "min", "max")
    lines = [[row["column"], *(number(row[name]) for name in header[1:])] for row in rows]
    return _shown("Workload", facts, Grid(title="", header=header, lines=lines))


@view.register
def _of_result(result: Result) -> str:
    """The system, the findings, the latencies, and an overview chart."""
    rows = run_tables.rows(result)
    notes: list[tuple[str, str]] = [(finding.severity, sentence(finding)) for finding in result.findings]
    if (verdict := verdicts.of_run(result, None).verdict) is not None:
        notes.insert(0, (verdict.kind, verdict.text))
    grid = run_tables.latencies(rows, names=LABELS)
    try:
        picture = svg(result.plot(_WIDTH))
    except (ConfigError, ImportError):
        picture = ""
    return _shown(
        "Result", identity.of_run(result), run_tables.counts(rows), grid, notes=notes, picture=picture
    )


@view.register
def _of_comparison(comparison: Comparison) -> str:
    """Every difference with its interval, and the findings."""
    others = [name for name in comparison.systems if name != comparison.baseline] or [comparison.baseline]
    rows = comparison.frame.rows(named=True)
    facts = [
        ("runs", f"{counted(len(comparison.seeds), 'seed')}, the same requests for all systems"),
        ("intervals", f"{100 * comparison.confidence:g} %, from {comparison.variation}"),
    ]
    try:
        picture = svg(comparison.plot(_WIDTH))
    except (ConfigError, ImportError):
        picture = ""
    grids = [of_system(rows, comparison.baseline, name) for name in others]
    notes = [(finding.severity, sentence(finding)) for finding in comparison.findings]
    return _shown("Comparison", facts, *grids, notes=notes, picture=picture)


@view.register
def _of_plan(plan: CapacityPlan) -> str:
    """The findings and the chart of a capacity search."""
    notes = [(note.kind, note.text) for note in verdicts.answer_notes(plan.findings)]
    return _shown("CapacityPlan", [("SLO", str(plan.slo))], notes=notes, picture=svg(plan.plot(_WIDTH)))


@view.register
def _of_fleet(plan: FleetPlan) -> str:
    """The findings, the candidates, and cost against latency."""
    notes = [(note.kind, note.text) for note in verdicts.answer_notes(plan.findings)]
    facts = [("SLO", str(plan.slo)), ("requests", f"{plan.requests:,} per run")]
    return _shown("FleetPlan", facts, candidates(plan, _MOST_ROWS), frontier(plan), notes=notes)


def _shown(
    title: str,
    facts: Sequence[tuple[str, str]],
    *grids: Grid,
    notes: Sequence[tuple[str, str]] = (),
    picture: str = "",
) -> str:
    """The parts as HTML."""
    left = 'style="text-align:left"'
    rows = "".join(
        f"<tr><th {left}>{escape(name)}</th><td {left}>{escape(text)}</td></tr>" for name, text in facts
    )
    listed = "".join(f"<li>{_MARKS[kind]} {escape(text)}</li>" for kind, text in notes)
    parts = [
        f"<b>{escape(title)}</b>",
        f"<table>{rows}</table>" if rows else "",
        f'<ul style="list-style:none;padding-left:0">{listed}</ul>' if listed else "",
        *map(_table, grids),
        picture,
    ]
    return f"<div>{''.join(part for part in parts if part)}</div>"


def _table(grid: Grid) -> str:
    sides = ["left" if place < grid.texts else "right" for place in range(len(grid.header))]
    if grid.last_is_text:
        sides[-1] = "left"

    def row(tag: str, cells: Sequence[str]) -> str:
        columns = (
            f'<{tag} style="text-align:{side}">{escape(cell)}</{tag}>'
            for side, cell in zip(sides, cells, strict=True)
        )
        return f"<tr>{''.join(columns)}</tr>"

    caption = f"<p>{escape(grid.title)}</p>" if grid.title else ""
    body = "".join(row("td", line) for line in grid.lines)
    return f"{caption}<table><thead>{row('th', grid.header)}</thead><tbody>{body}</tbody></table>"
