"""The page about a comparison: what is real first, then every difference, and what repeats it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from inferq.display.document import Chapter, Document, FittedPicture, Note, NoteKind, cut
from inferq.display.text import listed, percent, sentence
from inferq.errors import ConfigError
from inferq.experiments.comparison.charts import shown_systems
from inferq.experiments.comparison.comparison import Comparison
from inferq.experiments.comparison.tables import of_system, row_name
from inferq.reports import identity
from inferq.results.recorded_system import system_from

_MOST_NAMED = 4
"""So many metrics are named in a sentence, those with the largest differences."""
_MOST_TOLD = 12
"""So many systems have sentences; the tables have all."""
_MOST_RUNS = 400
"""So many numbers of single runs are shown."""
MATTERS = 0.01
"""A smaller share of the baseline is no headline, however sure it is."""
_HEADS: Mapping[NoteKind, str] = {
    "critical": "▼ Worse",
    "warning": "! Caveats",
    "good": "▲ Better",
    "info": "No relevant difference",
}


def document(comparison: Comparison, title: str | None) -> Document:
    """The page: what is real first, then every difference with its interval, and the numbers of every run."""
    others = [name for name in comparison.systems if name != comparison.baseline]
    rows = comparison.frame.rows(named=True)
    notes = [
        note
        for name in others[:_MOST_TOLD]
        for note in _told(name, [row for row in rows if row["system"] == name])
    ]
    if len(others) > _MOST_TOLD:
        further = f"The tables below have {len(others) - _MOST_TOLD:,} more systems."
        notes.append(Note(kind="info", text=further))
    names = [*comparison.systems, *comparison.frame["metric"].unique()]
    notes += [Note(kind="warning", text=sentence(one, names)) for one in comparison.findings]
    many = f"{len(others):,} systems" if len(others) > _MOST_TOLD else listed(others) if others else ""
    against = f"{many} against {comparison.baseline}" if others else comparison.baseline
    return Document(
        title=title if title is not None else against,
        setting=_setting(comparison, others),
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
                pictures=_picture(comparison),
            ),
            _runs(comparison),
        ),
    )


def _ran(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    """What each system is made of, in a line."""
    described = json.loads(comparison.scenario).get("systems", {})
    lines = []
    for name in comparison.systems[:_MOST_TOLD]:
        try:
            lines.append((name, identity.name_of(system_from(described[name]))))
        except (ConfigError, KeyError):  # of a class of the user's, of which the name alone is kept
            continue
    return tuple(lines)


def _setting(comparison: Comparison, others: list[str]) -> str:
    many = len(others)
    against = f"{', '.join(others) if many <= _MOST_TOLD else f'{many:,} systems'} against " if others else ""
    same = "with the same requests for all; " if others else ""
    return f"{against}{comparison.baseline}, {same}{comparison.stopped}."


def _confidence(comparison: Comparison) -> str:
    chance = {
        "seeds": "independent runs, pair by pair: runs of the same seed served the same requests",
        "blocks": "blocks of consecutive arrivals of the trace, pair by pair: they are about such requests",
    }
    sure = percent(comparison.confidence, 6)
    return f"The intervals hold with {sure} confidence, from {chance[comparison.chance]}."


def _told(name: str, rows: list[dict[str, Any]]) -> Iterator[Note]:
    """What a system does better and worse than the baseline, and what is too small to matter."""
    kinds: tuple[tuple[NoteKind, str, list[dict[str, Any]]], ...] = (
        ("good", "is better in", [row for row in rows if row["verdict"] == "better" and _matters(row)]),
        ("critical", "is worse in", [row for row in rows if row["verdict"] == "worse" and _matters(row)]),
        (
            "info",
            f"differs by less than {percent(MATTERS)} in",
            [row for row in rows if row["verdict"] in ("better", "worse") and not _matters(row)],
        ),
        ("info", "shows no difference in", [row for row in rows if row["verdict"] == "not distinguishable"]),
        (
            "warning",
            "differs, by chance or not, in",
            [row for row in rows if row["verdict"] is None and row["relative"] is not None],
        ),
    )
    silent = all(row["verdict"] == "same" for row in rows)
    for kind, words, found in kinds:
        found.sort(key=lambda row: -abs(row["relative"] or 0.0))
        if found:
            names = [row_name(row) + _by(row) for row in found[:_MOST_NAMED]]
            if len(found) > _MOST_NAMED:
                names.append(f"{len(found) - _MOST_NAMED:,} more")
            unsure = ", which are not judged" if kind == "warning" else ""
            yield Note(kind=kind, text=f"{name} {words} {listed(names)}{unsure}.")
    if silent:
        yield Note(kind="info", text=f"{name} is the same in everything that was compared.")


def _matters(row: Mapping[str, Any]) -> bool:
    """Whether a real difference is large enough for a headline: 1 % of the baseline, or one from 0."""
    return row["relative"] is None or abs(row["relative"]) >= MATTERS


def _by(row: Mapping[str, Any]) -> str:
    relative = row["relative"]
    if row["verdict"] == "not distinguishable" or relative is None:
        return ""
    return f" ({percent(relative, sign=True)})"


def _picture(comparison: Comparison) -> tuple[FittedPicture, ...]:
    try:
        comparison.plot()
    except ConfigError:
        return ()
    shown, drawn = len(shown_systems(comparison.frame)), len(comparison.systems) - 1
    left_out = f" Shown are the first {shown} of {drawn} systems." if shown < drawn else ""
    caption = f"Each difference to the baseline with its interval. One that keeps off 0 is real.{left_out}"
    return (FittedPicture(title="Differences", caption=caption, chart=comparison.plot),)


def _runs(comparison: Comparison) -> Chapter:
    """The numbers of every run, all of it in words, and what repeats it."""
    values = comparison.values
    lines = ["\t".join(values.columns)]
    lines += [
        "\t".join("" if one is None else str(one) for one in row) for row in values.head(_MOST_RUNS).rows()
    ]
    if values.height > _MOST_RUNS:
        lines.append(f"… and {values.height - _MOST_RUNS:,} more: `Comparison.values` has all of them")
    seeds = comparison.seeds
    many = (
        f"The seed is {seeds[0]}" if len(seeds) == 1 else f"The seeds are {len(seeds):,}, {_in_short(seeds)}"
    )
    text = f"{many}. The same scenario and seeds give the same numbers, bit for bit, on every machine."
    folded = (
        ("All of it in words", comparison.explain()),
        ("The numbers of every run", "\n".join(lines)),
        ("The scenario as JSON: workload, systems, seeds, options", cut(comparison.scenario)),
    )
    return Chapter(title="Repeat it", text=text, folded=folded)


def _in_short(seeds: tuple[int, ...]) -> str:
    """Seeds in few words.

    >>> _in_short((0, 1, 2, 3)), _in_short((3, 7))
    ('0 to 3', '3, 7')
    """
    if seeds == tuple(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds[:20])) + (", …" if len(seeds) > 20 else "")
