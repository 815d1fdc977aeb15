"""Points of the lines of a chart as texts, which the script of a page shows at the pointer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from inferq._lazy import alt
from inferq.display.text import number, percent, pictured, seconds

SECONDS = "datum.value < 1 ? format(datum.value * 1000, '.6~g') + ' ms' : format(datum.value, ',.6~g') + ' s'"
COUNT = "datum.value < 10000 ? format(datum.value, ',.6~g') : format(datum.value, '.3~s')"
PERCENT = "format(100 * datum.value, '.3~g') + ' %'"
SHARE = "'P' + format(100 * (1 - pow(10, -datum.value)), '.7~g')"
"""Vega expressions for the labels of axes; the value of `SHARE` is −log10(1 − share)."""

_TEXTS: Mapping[str, Callable[[float], str]] = {
    SECONDS: seconds,
    COUNT: number,
    PERCENT: percent,
    SHARE: lambda tail: f"P{number(100 * (1 - math.pow(10.0, -tail)), 5)}",
}
"""Formats of the values at the pointer, by the labels of their axis."""


def points_of(chart: Any) -> list[dict[str, Any]]:
    """`name` and the texts `x` and `y` of each line of a chart, in drawing order.

    Args:
        chart: an altair chart whose data contains the encoded fields.

    Example:
        >>> import altair as alt, polars as pl
        >>> from inferq.display.points import COUNT, points_of
        >>> frame = pl.DataFrame({"time": [1.0, 2.0], "n": [3.0, 4000.0]})
        >>> y = alt.Y("n:Q", title="requests", axis=alt.Axis(labelExpr=COUNT))
        >>> points_of(alt.Chart(frame).mark_line().encode(x=alt.X("time:Q", title="time, s"), y=y))
        [{'name': 'requests', 'x': ['1 s', '2 s'], 'y': ['3', '4,000']}]
    """
    with alt.data_transformers.enable("default"), alt.data_transformers.disable_max_rows():
        described = chart.to_dict(validate=False)
    return list(_lines(described, described.get("datasets", {}), {}, {}))


def _lines(
    unit: Mapping[str, Any],
    datasets: Mapping[str, Any],
    encoding: Mapping[str, Any],
    data: Mapping[str, Any],
    title: Any = "",
    along: str = "",
) -> Iterator[dict[str, Any]]:
    """The lines of a unit, its layers and its panels, which inherit encoding, data and title."""
    encoding, data = {**encoding, **unit.get("encoding", {})}, unit.get("data") or data
    title = unit.get("title") or title
    for kind in ("layer", "vconcat", "hconcat", "concat"):
        for part in unit.get(kind, ()):
            yield from _lines(part, datasets, encoding, data, title, along or _title_below(unit))
    mark = unit.get("mark")
    if (mark.get("type") if isinstance(mark, dict) else mark) != "line":
        return
    rows = datasets[data["name"]] if "name" in data else data.get("values", [])
    x, y, color = (encoding.get(name, {}) for name in ("x", "y", "color"))
    series: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        series.setdefault(str(row[color["field"]]) if "field" in color else "", []).append(row)
    named = (title.get("text") if isinstance(title, dict) else title) or y.get("title") or y["field"]
    has_legend = color.get("legend", True) is not None
    for name, points in series.items():
        points.sort(key=lambda row: float(row[x["field"]]))
        yield {
            "name": pictured(name if name and has_legend else str(named)),
            "x": [_text({**x, "title": x.get("title") or along}, row) for row in points],
            "y": [_text(y, row) for row in points],
        }


def _title_below(unit: Mapping[str, Any]) -> str:
    """The axis title below the last panel, which the other panels share."""
    for panel in reversed(unit.get("vconcat", ())):
        for part in (panel, *panel.get("layer", ())):
            if title := part.get("encoding", {}).get("x", {}).get("title"):
                return str(title)
    return ""


def _text(channel: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """The formatted value of a channel, with the unit after the comma in its title."""
    value = row[channel["field"]]
    if value is None:
        return "–"
    text = _TEXTS.get((channel.get("axis") or {}).get("labelExpr", ""), number)(float(value))
    _, comma, unit = str(channel.get("title") or "").rpartition(", ")
    return f"{text} {unit}" if comma else text
