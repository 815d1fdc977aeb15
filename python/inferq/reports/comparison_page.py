"""The page about a comparison: what is real first, then every difference, and what repeats it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferq.errors import ConfigError
from inferq.experiments.comparison.comparison import Comparison
from inferq.reports.comparison_charts import shown_systems
from inferq.reports.comparison_tables import of_system, row_name
from inferq.reports.document import Chapter, Document, Picture, cut
from inferq.reports.text import listed, percent, sentence

_MOST_NAMED = 4
"""So many metrics are named in a sentence, those with the largest differences."""
_MOST_TOLD = 12
"""So many systems have sentences; the tables have all."""
_MOST_RUNS = 400
"""So many numbers of single runs are shown."""


def document(comparison: Comparison, title: str | None) -> Document:
    """The page: what is real first, then every difference with its interval, and the numbers of every run."""
    others = [name for name in comparison.systems if name != comparison.baseline]
    rows = comparison.frame.rows(named=True)
    verdicts = [
        _verdict(name, [row for row in rows if row["system"] == name]) for name in others[:_MOST_TOLD]
    ]
    if len(others) > _MOST_TOLD:
        verdicts.append(f"The tables below have {len(others) - _MOST_TOLD:,} more systems.")
    names = [*comparison.systems, *comparison.frame["metric"].unique()]
    return Document(
        title=title if title is not None else f"Which is better than {comparison.baseline}?",
        setting=_setting(comparison, others),
        findings=(*verdicts, *(sentence(one, names) for one in comparison.findings)),
        chapters=(
            Chapter(
                title="Which differences are real?",
                text=_confidence(comparison),
                grids=tuple(
                    of_system(rows, comparison.baseline, name) for name in others or [comparison.baseline]
                ),
                pictures=_picture(comparison),
            ),
            _runs(comparison),
        ),
    )


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


def _verdict(name: str, rows: list[dict[str, Any]]) -> str:
    """What one system does better and worse than the baseline: a short sentence for each."""
    parts: list[str] = []
    for verdict, words in (
        ("better", "is better in"),
        ("worse", "is worse in"),
        ("not distinguishable", "shows no difference in"),
    ):
        with_verdict = [row for row in rows if row["verdict"] == verdict]
        with_verdict.sort(key=lambda row: -abs(row["relative"] or 0.0))
        if with_verdict:
            names = [row_name(row) + _by(row, verdict) for row in with_verdict[:_MOST_NAMED]]
            if len(with_verdict) > _MOST_NAMED:
                names.append(f"{len(with_verdict) - _MOST_NAMED:,} more")
            parts.append(f"{'It' if parts else name} {words} {listed(names)}.")
    return " ".join(parts) or f"{name} is the same in everything that was compared."


def _by(row: Mapping[str, Any], verdict: str) -> str:
    relative = row["relative"]
    if verdict == "not distinguishable" or relative is None:
        return ""
    return f" ({percent(relative, sign=True)})"


def _picture(comparison: Comparison) -> tuple[Picture, ...]:
    try:
        picture = comparison.plot()
    except ConfigError:
        return ()
    shown, drawn = len(shown_systems(comparison.frame)), len(comparison.systems) - 1
    left_out = f" Shown are the first {shown} of {drawn} systems." if shown < drawn else ""
    caption = f"Each difference to the baseline with its interval. One that keeps off 0 is real.{left_out}"
    return (Picture(title="Differences", caption=caption, chart=lambda: picture),)


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
    return Chapter(title="Where does it come from, and what repeats it?", text=text, folded=folded)


def _in_short(seeds: tuple[int, ...]) -> str:
    """Seeds in few words.

    >>> _in_short((0, 1, 2, 3)), _in_short((3, 7))
    ('0 to 3', '3, 7')
    """
    if seeds == tuple(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds[:20])) + (", …" if len(seeds) > 20 else "")
