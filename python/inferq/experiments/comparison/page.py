"""The page of a comparison: significant differences, all intervals, and the scenario."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from inferq.display.document import Chapter, Document, FittedChart, Note, NoteKind, cut
from inferq.display.text import counted, listed, percent, sentence
from inferq.errors import ConfigError
from inferq.experiments.comparison.charts import shown_systems
from inferq.experiments.comparison.comparison import Comparison
from inferq.experiments.comparison.tables import difference, of_system, row_name
from inferq.reports import identity
from inferq.results.recorded_system import system_from

_MOST_NAMED = 4
"""Metrics in a sentence, those with the largest differences."""
_MOST_SYSTEMS = 12
"""Systems with sentences; the tables have all."""
_MOST_RUNS = 400
"""Values of single runs that are shown."""
MATTERS = 0.01
"""Smaller relative differences are not reported as relevant, even if they are significant."""
_HEADS: Mapping[NoteKind, str] = {
    "critical": "▼ Worse",
    "warning": "! Caveats",
    "good": "▲ Better",
    "info": "Not significant, or small",
}


def document(comparison: Comparison, title: str | None) -> Document:
    """The page: significant differences, all differences with intervals, and the values of every run."""
    others = [name for name in comparison.systems if name != comparison.baseline]
    rows = comparison.frame.rows(named=True)
    notes = [
        note
        for name in others[:_MOST_SYSTEMS]
        for note in _differences(name, [row for row in rows if row["system"] == name])
    ]
    if len(others) > _MOST_SYSTEMS:
        further = f"The tables below have {len(others) - _MOST_SYSTEMS:,} more systems."
        notes.append(Note(kind="info", text=further))
    names = [*comparison.systems, *comparison.frame["metric"].unique()]
    notes += [Note(kind=finding.severity, text=sentence(finding, names)) for finding in comparison.findings]
    many = f"{len(others):,} systems" if len(others) > _MOST_SYSTEMS else listed(others) if others else ""
    against = f"{many} against {comparison.baseline}" if others else comparison.baseline
    return Document(
        title=title if title is not None else against,
        setting=_setting(comparison, others),
        verdict=_verdict(rows, others) if others else None,
        lead=_picture(comparison),
        setup=_ran(comparison),
        notes=tuple(notes),
        heads=_HEADS,
        chapters=(
            Chapter(
                title="Differences",
                text=_confidence(comparison),
                grids=tuple(
                    of_system(rows, comparison.baseline, name) for name in others or [comparison.baseline]
                ),
            ),
            _runs(comparison),
        ),
    )


def _ran(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    """A line about each system."""
    described = json.loads(comparison.scenario).get("systems", {})
    lines = []
    for name in comparison.systems[:_MOST_SYSTEMS]:
        try:
            lines.append((name, identity.name_of(system_from(described[name]))))
        except (ConfigError, KeyError):  # a user-defined class
            continue
    return tuple(lines)


def _setting(comparison: Comparison, others: list[str]) -> str:
    many = len(others)
    against = (
        f"{', '.join(others) if many <= _MOST_SYSTEMS else f'{many:,} systems'} against " if others else ""
    )
    same = ", the same for all" if others else ""
    return f"{against}{comparison.baseline}: {comparison.requests}{same}; {comparison.stopped}."


def _confidence(comparison: Comparison) -> str:
    chance = {
        "seeds": "independent runs, pair by pair: runs of the same seed served the same requests",
        "blocks": "blocks of consecutive arrivals of the trace, pair by pair: they are about such requests",
    }
    sure = percent(comparison.confidence, 6)
    return f"The intervals hold with {sure} confidence, from {chance[comparison.variation]}."


def _verdict(rows: list[dict[str, Any]], others: list[str]) -> Note:
    """The numbers of relevant differences of each system."""
    texts, verdicts = [], set()
    for name in others[:_MOST_SYSTEMS]:
        relevant = [row["verdict"] for row in rows if row["system"] == name and _matters(row)]
        better, worse = relevant.count("better"), relevant.count("worse")
        verdicts |= {"better"} if better else set()
        verdicts |= {"worse"} if worse else set()
        texts.append(f"{name} is better in {counted(better, 'metric')} and worse in {worse}")
    kinds: dict[frozenset[str], NoteKind] = {frozenset({"better"}): "good", frozenset({"worse"}): "critical"}
    return Note(kind=kinds.get(frozenset(verdicts), "info"), text=f"{'; '.join(texts)}.")


def _differences(name: str, rows: list[dict[str, Any]]) -> Iterator[Note]:
    """Metrics in which a system is better or worse than the baseline, and small differences."""
    kinds: tuple[tuple[NoteKind, str, list[dict[str, Any]]], ...] = (
        ("good", "is better in", [row for row in rows if row["verdict"] == "better" and _matters(row)]),
        ("critical", "is worse in", [row for row in rows if row["verdict"] == "worse" and _matters(row)]),
        (
            "info",
            f"differs by less than {percent(MATTERS)} in",
            [row for row in rows if row["verdict"] in ("better", "worse") and not _matters(row)],
        ),
        (
            "info",
            "shows no significant difference in",
            [row for row in rows if row["verdict"] == "not distinguishable"],
        ),
        (
            "warning",
            "differs, without a verdict, in",
            [row for row in rows if row["verdict"] is None and row["relative"] is not None],
        ),
    )
    for kind, words, matches in kinds:
        matches.sort(key=lambda row: -abs(row["relative"] or 0.0))
        if matches:
            names = [row_name(row) + _by(row) for row in matches[:_MOST_NAMED]]
            if len(matches) > _MOST_NAMED:
                names.append(f"{len(matches) - _MOST_NAMED:,} more")
            yield Note(kind=kind, text=f"{name} {words} {listed(names)}.")
    if all(row["verdict"] == "same" for row in rows):
        yield Note(kind="info", text=f"{name} is equal in all compared metrics.")


def _matters(row: Mapping[str, Any]) -> bool:
    """Whether a difference is at least 1 % of the baseline, or from 0."""
    return row["relative"] is None or abs(row["relative"]) >= MATTERS


def _by(row: Mapping[str, Any]) -> str:
    relative = row["relative"]
    if relative is None:
        return ""
    if row["verdict"] == "not distinguishable":
        return f" ({difference(row)})"
    note = f"; {row['note']}" if row["note"] else ""
    return f" ({percent(relative, sign=True)}{note})"


def _picture(comparison: Comparison) -> tuple[FittedChart, ...]:
    try:
        comparison.plot()
    except ConfigError:
        return ()
    shown, drawn = len(shown_systems(comparison.frame)), len(comparison.systems) - 1
    left_out = f" The first {shown} of {drawn} systems." if shown < drawn else ""
    caption = (
        f"Differences to the baseline with their intervals. An interval without 0 is significant.{left_out}"
    )
    return (FittedChart(title="Differences", caption=caption, chart=comparison.plot),)


def _runs(comparison: Comparison) -> Chapter:
    """The values of every run, the report as text, and the scenario."""
    values = comparison.values
    lines = ["\t".join(values.columns)]
    lines += [
        "\t".join("" if value is None else str(value) for value in row)
        for row in values.head(_MOST_RUNS).rows()
    ]
    if values.height > _MOST_RUNS:
        lines.append(f"… and {values.height - _MOST_RUNS:,} more; `Comparison.values` has all values")
    seeds = comparison.seeds
    label = f"Seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds):,} seeds, {_in_short(seeds)}"
    text = f"{label}. The same scenario and seeds give the same numbers, bit for bit, on every machine."
    folded = (
        ("Report as text", comparison.explain()),
        ("Values of every run", "\n".join(lines)),
        ("Scenario as JSON: workload, systems, seeds, options", cut(comparison.scenario)),
    )
    return Chapter(title="Reproduce", text=text, folded=folded)


def _in_short(seeds: tuple[int, ...]) -> str:
    """Seeds in short form.

    >>> _in_short((0, 1, 2, 3)), _in_short((3, 7))
    ('0 to 3', '3, 7')
    """
    if seeds == tuple(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds[:20])) + (", …" if len(seeds) > 20 else "")
