"""What does the page of a comparison say, in which order?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from inferq.errors import ConfigError
from inferq.picture.document import Chapter, Document, Grid, Picture
from inferq.picture.numbers import NONE, number, percent, seconds

if TYPE_CHECKING:
    from inferq.experiment.comparing.comparison import Comparison

_MOST_RUNS = 400
"""So many numbers of single runs are shown."""


def document(comparison: Comparison, title: str | None) -> Document:
    """The page: what is real first, then every difference with its interval, and the numbers of every run."""
    others = [name for name in comparison.systems if name != comparison.baseline]
    rows = comparison.frame.rows(named=True)
    told = [_verdict(name, [row for row in rows if row["system"] == name]) for name in others]
    return Document(
        title=title if title is not None else f"Which is better than {comparison.baseline}?",
        setting=_setting(comparison, others),
        findings=(*told, *comparison.findings),
        chapters=(
            Chapter(
                title="Which differences are real?",
                text=_confidence(comparison),
                grids=tuple(_grid(comparison, name, rows) for name in others or [comparison.baseline]),
                pictures=_picture(comparison),
            ),
            _runs(comparison),
        ),
    )


def _setting(comparison: Comparison, others: list[str]) -> str:
    against = f"{', '.join(others)} against {comparison.baseline}, " if others else f"{comparison.baseline}, "
    same = "with the same requests for all; " if others else ""
    return f"{against}{same}{comparison.stopped}."


def _confidence(comparison: Comparison) -> str:
    chance = {
        "seeds": "independent runs, pair by pair: runs of the same seed served the same requests",
        "blocks": "blocks of consecutive arrivals of the trace, pair by pair: they are about such requests",
    }
    sure = percent(comparison.confidence)
    return f"The intervals hold with {sure} confidence, from {chance[comparison.chance]}."


def _verdict(name: str, rows: list[dict[str, Any]]) -> str:
    """What one system does better and worse than the baseline, in a sentence."""
    parts = []
    for verdict, words in (
        ("better", "better"),
        ("worse", "worse"),
        ("not distinguishable", "no difference seen"),
    ):
        found = [_metric(row) + _by(row, verdict) for row in rows if row["verdict"] == verdict]
        if found:
            parts.append(f"{words} in {', '.join(found)}")
    if not parts:
        return f"{name}: the same in everything that was compared."
    return f"{name}: {'; '.join(parts)}."


def _by(row: Mapping[str, Any], verdict: str) -> str:
    relative = row["relative"]
    if verdict == "not distinguishable" or relative is None:
        return ""
    return f" ({_signed(relative)})"


def _signed(share: float) -> str:
    return f"{'−' if share < 0 else '+'}{percent(abs(share))}"


def _grid(comparison: Comparison, name: str, rows: list[dict[str, Any]]) -> Grid:
    """The metrics of a system beside those of the baseline."""
    base = {(row.get("class"), row["metric"]): row for row in rows if row["system"] == comparison.baseline}
    of_system = [row for row in rows if row["system"] == name]
    if name == comparison.baseline:
        lines = [[_metric(row), _value(row, "mean"), _half(row, "half_width")] for row in of_system]
        return Grid(title=name, header=("metric", "mean", "±"), lines=lines)
    lines = [
        [
            _metric(row),
            _value(base[row.get("class"), row["metric"]], "mean"),
            _value(row, "mean"),
            NONE if row["relative"] is None else _signed(row["relative"]),
            NONE if row["relative_half_width"] is None else f"± {percent(row['relative_half_width'])}",
            row["verdict"] or NONE,
        ]
        for row in of_system
    ]
    header = ("metric", comparison.baseline, name, "difference", "", "verdict")
    return Grid(title=f"{name} against {comparison.baseline}", header=header, lines=lines, last_is_text=True)


def _metric(row: Mapping[str, Any]) -> str:
    named = row.get("class")
    return str(row["metric"]) if named is None else f"{row['metric']} of {named}"


def _value(row: Mapping[str, Any], column: str) -> str:
    return seconds(row[column]) if row["unit"] == "s" else number(row[column])


def _half(row: Mapping[str, Any], column: str) -> str:
    return NONE if row[column] is None else f"± {_value(row, column)}"


def _picture(comparison: Comparison) -> tuple[Picture, ...]:
    try:
        made = comparison.plot()
    except ConfigError:
        return ()
    caption = "Each difference to the baseline with its interval. One that keeps off 0 is real."
    return (Picture(title="Differences", caption=caption, chart=lambda: made),)


def _runs(comparison: Comparison) -> Chapter:
    """The numbers of every run, and all of it in words."""
    values = comparison.values
    lines = ["\t".join(values.columns)]
    lines += [
        "\t".join("" if one is None else str(one) for one in row) for row in values.head(_MOST_RUNS).rows()
    ]
    if values.height > _MOST_RUNS:
        lines.append(f"… and {values.height - _MOST_RUNS:,} more: `Comparison.values` has all of them")
    folded = (("All of it in words", comparison.explain()), ("The numbers of every run", "\n".join(lines)))
    return Chapter(title="Where does it come from?", folded=folded)
