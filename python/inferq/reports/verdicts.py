"""Objectives of a run, with the measured values and a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from inferq._lazy import NDArray, np
from inferq.display.document import Grid, Note, NoteKind
from inferq.display.text import amount, percent, seconds, sentence
from inferq.results.finding import ANSWER, Finding
from inferq.results.result import Result
from inferq.results.slo import Objective, Slo, measured
from inferq.results.summary import in_time
from inferq.results.tables import STATUSES
from inferq.workload.load import Load

STABLE: Mapping[str, NoteKind] = {"stable": "good", "unstable": "critical", "unknown": "info"}
"""The kind of note for each verdict about a queue."""
_ENOUGH = 0.99
"""Share of requests within their own objectives that is good; less than 0.9 is critical."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assessment:
    """The objectives of a run and whether they were met."""

    objectives: str
    verdict: Note | None = None
    """None without objectives."""
    grid: Grid | None = None
    """Each objective with its limit and the measured value."""


def of_run(result: Result, slo: Slo | None, varying: Load | None = None) -> Assessment:
    """A run compared with an SLO, or with the objectives in its workload.

    Args:
        result: the run.
        slo: the SLO. None: the objectives of the workload.
        varying: the load of the run if it varies over time; its peak is evaluated as well.

    Raises:
        ConfigError: an objective of the SLO that no request has a value for.
    """
    if slo is not None:
        return _of_slo(result, slo, varying)
    limits = [
        (label, result._tables.objective(f"{name}_slo_s"))
        for name, label in (("ttft", "TTFT"), ("itl", "longest ITL"))
    ]
    bounds = [f"{label} ≤ {_range(column)}" for label, column in limits if column is not None and column.size]
    if not bounds:
        return Assessment(objectives="none")
    columns = result._tables.requests
    ended = columns["measured"] & (columns["status"] != STATUSES.index("unfinished"))
    good = in_time(result._tables, None, columns)
    share = float(good[ended].mean()) if ended.any() else 0.0
    objectives, peak = " and ".join(bounds), ""
    worst = share
    if varying is not None and (then := ended & _at_peak(columns["arrival_s"], varying)).any():
        at_peak = float(good[then].mean())
        worst = min(share, at_peak)
        peak = f"; {percent(at_peak)} of the requests that arrived at the peak ({varying.when})"
    kind: NoteKind = "good" if worst >= _ENOUGH else "critical" if share < 0.9 else "warning"
    text = f"{percent(share)} of the requests met their objectives: {objectives}{peak}."
    verdict = Note(kind=kind, text=text)
    return Assessment(objectives=f"{objectives}, for each request", verdict=verdict)


def _at_peak(arrival_s: NDArray[np.float64], load: Load) -> NDArray[np.bool_]:
    """The requests that arrived in the busiest window."""
    return (load.start_s <= arrival_s) & (arrival_s < load.start_s + load.window_s)


def _missed_at_peak(result: Result, slo: Slo, load: Load) -> list[str]:
    """Objectives of latencies that the measured requests of the busiest window miss.

    ITL is left out, because its histogram has no times, and so are networks, whose jobs arrive otherwise.
    """
    if result.has_jobs:
        return []
    columns = result._tables.requests
    there = columns["measured"] & _at_peak(columns["arrival_s"], load)
    misses = []
    for objective in slo.objectives:
        metric = objective.metric
        if metric.unit != "s" or metric.quantity == "itl":
            continue
        rows = there
        if objective.class_name is not None:
            rows = rows & (columns["class"] == result._tables.classes.index(objective.class_name))
        values = columns[f"{metric.quantity}_s"][rows]
        values = values[~np.isnan(values)]
        if not values.size:
            continue
        if metric.statistic in ("mean", "max"):
            value = float(values.mean() if metric.statistic == "mean" else values.max())
        elif (share := int(metric.statistic[1:]) / 100) and values.size * (1 - share) >= 1:
            value = float(np.quantile(values, share))
        else:  # too few requests for this percentile
            continue
        if value > objective.limit:
            misses.append(
                f"{label(objective)} is {amount(value, 's')}, the limit is {amount(objective.limit, 's')}"
            )
    return misses


def _of_slo(result: Result, slo: Slo, varying: Load | None) -> Assessment:
    values = measured(slo.objectives, 0.0, result)
    lines, misses = [], []
    for objective, value in zip(slo.objectives, values, strict=True):
        is_met = value <= objective.limit
        unit = objective.metric.unit
        limit = amount(objective.limit, unit)
        text = "–" if value == float("inf") else amount(value, unit)
        room = (
            percent(value / objective.limit - 1, sign=True)
            if objective.limit > 0 and np.isfinite(value)
            else ""
        )
        lines.append([label(objective), limit, text, room, "✓ met" if is_met else "✗ missed"])
        if not is_met:
            misses.append(f"{label(objective)} is {text}, the limit is {limit}")
    grid = Grid(
        title="Objectives",
        header=("objective", "limit", "measured", "relative to limit", "verdict"),
        lines=lines,
        last_is_text=True,
    )
    bounds = " and ".join(
        f"{label(objective)} ≤ {amount(objective.limit, objective.metric.unit)}"
        for objective in slo.objectives
        if objective.limit > 0
    )
    objectives = bounds or str(slo)
    text = f"SLO missed: {'; '.join(misses)}." if misses else f"SLO met: {objectives}."
    note = Note(kind="critical" if misses else "good", text=text)
    if varying is not None and (at_peak := _missed_at_peak(result, slo, varying)):
        text = text.removesuffix(".")
        text = f"{text if misses else text.replace('met:', 'met over the whole run:')}; "
        text += f"missed at the peak ({varying.when}): {'; '.join(at_peak)}."
        note = Note(kind="critical" if misses else "warning", text=text)
    return Assessment(objectives=objectives, verdict=note, grid=grid)


def label(objective: Objective) -> str:
    """The metric of an objective as a label, with its class."""
    metric = objective.metric.label
    return metric if objective.class_name is None else f"{metric} of {objective.class_name}"


def limits_of(slo: Slo | None) -> dict[str, list[float]]:
    """The limits of an SLO for all requests, in seconds by latency."""
    limits: dict[str, list[float]] = {}
    for objective in () if slo is None else slo.objectives:
        if objective.metric.unit == "s" and objective.class_name is None:
            limits.setdefault(objective.metric.quantity, []).append(objective.limit)
    return {name: sorted(set(values)) for name, values in limits.items()}


def questions(slo: Slo | None) -> list[Note]:
    """Notes about limits that look like milliseconds."""
    findings = () if slo is None else slo.questions
    return [Note(kind=finding.severity, text=sentence(finding)) for finding in findings]


def answer_notes(findings: Sequence[Finding], names: Iterable[str] = ()) -> list[Note]:
    """Findings of a search or a plan as notes; the first one is the answer."""
    return [
        Note(
            kind="good" if not index and finding.kind == ANSWER else finding.severity,
            text=sentence(finding, names),
        )
        for index, finding in enumerate(findings)
    ]


def answer(notes: Sequence[Note]) -> tuple[Note, tuple[Note, ...]]:
    """The answer for the top of a page, and the other notes."""
    first, *others = notes
    return first, tuple(others)


def _range(column: NDArray[np.float64]) -> str:
    low, high = float(np.nanmin(column)), float(np.nanmax(column))
    return seconds(low) if low == high else f"{seconds(low)} to {seconds(high)}"
