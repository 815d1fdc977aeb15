"""Is a run good enough? Its objectives, each with what was measured, and how grave its findings are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from inferq._lazy import NDArray, np
from inferq.display.document import Grid, Note, NoteKind
from inferq.display.text import amount, percent, seconds, sentence
from inferq.results.finding import ANSWER, Finding
from inferq.results.result import Result
from inferq.results.slo import Slo, measured
from inferq.results.summary import in_time
from inferq.results.tables import STATUSES

STABLE: Mapping[str, NoteKind] = {"stable": "good", "unstable": "critical", "unknown": "info"}
"""The kind of note for each verdict about a queue."""
_ENOUGH = 0.99
"""The share of requests within their own objectives that is good news; below nine of ten it is bad."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """What was asked of a run, and whether it was kept."""

    asked: str
    """The objectives in words, or that there are none."""
    notes: tuple[Note, ...] = ()
    grid: Grid | None = None
    """Each objective with its limit and what was measured."""


def of_run(result: Result, slo: Slo | None) -> Judged:
    """A run held against an SLO, or against the objectives that its workload carries.

    Raises:
        ConfigError: an objective of the SLO of which no request tells anything.
    """
    if slo is not None:
        return _of_slo(result, slo)
    limits = [
        (words, result._tables.objective(f"{name}_slo_s"))
        for name, words in (("ttft", "TTFT"), ("itl", "longest gap between tokens"))
    ]
    told = [f"{words} ≤ {_range(column)}" for words, column in limits if column is not None and column.size]
    if not told:
        return Judged(asked="none stated, so nothing here says whether this is good enough")
    columns = result._tables.requests
    counted = columns["measured"]
    ended = counted & (columns["status"] != STATUSES.index("unfinished"))
    share = float(in_time(result._tables, None, columns)[ended].mean()) if ended.any() else 0.0
    kind: NoteKind = "good" if share >= _ENOUGH else "critical" if share < 0.9 else "warning"
    note = Note(
        kind=kind, text=f"{percent(share)} of the requests kept their objectives: {' and '.join(told)}."
    )
    return Judged(asked=f"{' and '.join(told)}, of each request", notes=(note,))


def _of_slo(result: Result, slo: Slo) -> Judged:
    values = measured(slo.objectives, 0.0, result)
    lines, broken = [], []
    for one, value in zip(slo.objectives, values, strict=True):
        kept = value <= one.limit
        unit = one.metric.unit
        told = "–" if value == float("inf") else amount(value, unit)
        room = percent(value / one.limit - 1, sign=True) if one.limit > 0 and np.isfinite(value) else ""
        lines.append([str(one), amount(one.limit, unit), told, room, "✓ kept" if kept else "✗ broken"])
        if not kept:
            broken.append(f"{one} is {told} where {amount(one.limit, unit)} is allowed")
    grid = Grid(
        title="Objectives",
        header=("objective", "limit", "measured", "to the limit", "verdict"),
        lines=lines,
        last_is_text=True,
    )
    text = f"The SLO is broken: {'; '.join(broken)}." if broken else f"The SLO is kept: {slo}."
    note = Note(kind="critical" if broken else "good", text=text)
    return Judged(asked=str(slo), notes=(note,), grid=grid)


def limits_of(slo: Slo | None) -> dict[str, list[float]]:
    """The limits of an SLO for all requests, in seconds by latency."""
    found: dict[str, list[float]] = {}
    for one in () if slo is None else slo.objectives:
        if one.metric.unit == "s" and one.class_name is None:
            found.setdefault(one.metric.quantity, []).append(one.limit)
    return {name: sorted(set(limits)) for name, limits in found.items()}


def questions(slo: Slo | None) -> list[Note]:
    """What to ask about limits that look like milliseconds."""
    return [Note(kind="warning", text=sentence(one)) for one in (() if slo is None else slo.questions)]


def answer_notes(findings: Sequence[Finding], names: Iterable[str] = ()) -> list[Note]:
    """Findings of a search or a plan as notes; the first one is the answer."""
    return [
        Note(
            kind="good" if not index and finding.kind == ANSWER else finding.severity,
            text=sentence(finding, names),
        )
        for index, finding in enumerate(findings)
    ]


def _range(column: NDArray[np.float64]) -> str:
    low, high = float(np.nanmin(column)), float(np.nanmax(column))
    return seconds(low) if low == high else f"{seconds(low)} to {seconds(high)}"
