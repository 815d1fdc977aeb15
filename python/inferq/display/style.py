"""The palette and the style of all pictures, and how one becomes SVG."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from inferq._lazy import alt
from inferq.display.text import is_hidden, pictured

# Colors that people who do not see red or green can tell apart (Okabe and Ito). One meaning over all pages:
# blue is the policy that is compared with, gray the older engines, warm colors the policies under study and
# what a theory says.
BLUE, SKY = "#0072B2", "#56B4E9"
ORANGE, VERMILION = "#E69F00", "#D55E00"
GREEN, PURPLE = "#009E73", "#CC79A7"
GRAY, INK = "#8A8A8A", "#222222"
GRID, PAPER = "#E6E6E6", "white"

DARK = {
    BLUE: "#4CA6E8",
    SKY: "#9AD8FA",
    ORANGE: "#F0B440",
    VERMILION: "#F78B4F",
    GREEN: "#3CC79B",
    PURPLE: "#E3A0C6",
    GRAY: "#9298A1",
    INK: "#E3E5E9",
    GRID: "#343941",
}
"""What each color becomes on a dark page, whose own ground takes the place of `PAPER`."""

PANEL = 360
"""Pixels of width that a picture plots on: with its labels as wide as a phone, or half a page."""

FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
"""Faces of one width, that of the letters by which the renderer lays a picture out: labels that fit there fit
in a browser too."""

_TAG = re.compile(r'<[^<>"]*(?:"[^"]*"[^<>"]*)*>')
_NAME = re.compile(r'(?<=\s)id="([^"]+)"')
_NAMED = re.compile(
    r'(?<=\s)(id="|(?:xlink:)?href="#|(?:clip-path|mask|filter|fill|stroke|style)="url\(#)([^")]+)'
)


def colored(column: str, colors: Mapping[str, str], orient: str = "bottom", **legend: Any) -> alt.Color:
    """The names in a column, each in its color, told below the picture or where `orient` says."""
    scale = alt.Scale(domain=list(colors), range=list(colors.values()))
    key = alt.Legend(orient=orient, **legend)  # type: ignore[arg-type]  # altair lists the words
    return alt.Color(f"{column}:N", title=None, scale=scale, legend=key)


def styled(chart: Any, names: Iterable[str] = ()) -> Any:
    """An altair chart in the common style. What has a style of its own cannot be laid over another chart.

    Args:
        chart: without a style.
        names: given by users, that stand in it; see `shown_safely`.
    """
    made = shown_safely(chart.configure(**_style()), names)
    # what altair keeps of a chart itself are the parts of its description
    object.__setattr__(made, "_repr_mimebundle_", partial(_in_a_notebook, made))
    return made


def _in_a_notebook(chart: Any, *given: Any, **named: Any) -> Any:
    """A chart as a notebook shows it: as SVG, which needs no network, unless the user chose a renderer."""
    if alt.renderers.active not in ("default", "html"):
        return type(chart)._repr_mimebundle_(chart, *given, **named)
    return {"image/svg+xml": svg(chart), "text/plain": repr(type(chart))}


def shown_safely(chart: Any, names: Iterable[str]) -> Any:
    """A chart in which names that users give are such that neither a renderer nor a page breaks over them."""
    if all(pictured(name) == name for name in names):
        return chart
    with alt.data_transformers.enable("default"), alt.data_transformers.disable_max_rows():
        return alt.Chart.from_dict(_pictured(chart.to_dict(validate=False)))


def _pictured(value: Any) -> Any:
    if isinstance(value, str):
        return pictured(value)
    if isinstance(value, list):
        return [_pictured(one) for one in value]
    if isinstance(value, dict):
        return {_pictured(name): _pictured(one) for name, one in value.items()}
    return value


def _style() -> dict[str, Any]:
    """What altair calls the configuration of a chart."""
    return {
        "background": PAPER,
        "font": FONT,
        "padding": 8,
        "view": alt.ViewConfig(stroke=None),
        "axis": alt.AxisConfig(
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            labelColor=INK,
            titleColor=INK,
            gridColor=GRID,
            domainColor=GRAY,
            tickColor=GRAY,
        ),
        "legend": alt.LegendConfig(
            labelFontSize=12, labelColor=INK, labelLimit=400, symbolStrokeWidth=2.5, symbolSize=90
        ),
        "header": alt.HeaderConfig(labelFontSize=12, labelColor=INK, titleColor=INK),
        # panels one above the other have the same left edge
        "axisLeft": alt.AxisConfig(minExtent=52),
        "title": alt.TitleConfig(
            fontSize=13,
            fontWeight="bold",
            color=INK,
            anchor="start",
            frame="group",
            offset=8,
            subtitleFontSize=12,
            subtitleColor=GRAY,
            subtitlePadding=2,
        ),
        "text": alt.MarkConfig(fontSize=12, color=INK),
    }


@cache
def _configuration() -> dict[str, Any]:
    """The style as Vega-Lite reads it."""
    return dict(alt.Config(**_style()).to_dict())


@contextmanager
def unchecked() -> Iterator[None]:
    """Inside, altair makes charts without a check of every part against its schema: in half the time.

    For pictures that this package composes; tests make the same ones with the check.
    """
    from altair.utils.schemapi import debug_mode

    with debug_mode(False):
        yield


def dark(within: str) -> str:
    """The rules of a style sheet that give the pictures inside `within` the colors for a dark page.

    >>> dark("figure").splitlines()[0]
    'figure svg [fill="#0072B2"] { fill: #4CA6E8; } figure svg [stroke="#0072B2"] { stroke: #4CA6E8; }'
    """
    rules = [
        " ".join(f'{within} svg [{what}="{light}"] {{ {what}: {seen}; }}' for what in ("fill", "stroke"))
        for light, seen in DARK.items()
    ]
    return "\n".join([*rules, f'{within} svg [fill="{PAPER}"] {{ fill: none; }}'])


def svg(chart: Any, prefix: str = "part-") -> str:
    """An altair chart as SVG, in the common style; the same bytes whenever it is drawn.

    Args:
        chart: its own configuration, if it has one, is overruled by the style.
        prefix: with what every name inside begins, so that several pictures can stand in one page.

    Example:
        >>> import altair as alt, polars as pl
        >>> from inferq.display.style import svg
        >>> line = alt.Chart(pl.DataFrame({"x": [0, 1], "y": [1, 3]})).mark_line().encode(x="x:Q", y="y:Q")
        >>> svg(line).startswith("<svg") and svg(line) == svg(line)
        True
    """
    import vl_convert

    # A check of the whole against the schema would take longer than drawing it.
    with alt.data_transformers.enable("default"), alt.data_transformers.disable_max_rows():
        described = {**chart.to_dict(validate=False), "config": _configuration()}
    grammar = "_".join(alt.SCHEMA_VERSION.split(".")[:2])
    # The renderer ends the process over a character that XML does not have.
    if is_hidden(json.dumps(described, ensure_ascii=False, default=str)):
        described = _pictured(described)
    text = vl_convert.vegalite_to_svg(described, vl_version=grammar)
    # The renderer counts the names of clips on from picture to picture: here each picture counts its own.
    defined = (name for tag in _TAG.findall(text) for name in _NAME.findall(tag))
    names = {name: f"{prefix}{place}" for place, name in enumerate(dict.fromkeys(defined), start=1)}

    def renamed(tag: re.Match[str]) -> str:
        return _NAMED.sub(lambda one: one[1] + names.get(one[2], one[2]), tag[0])

    return _TAG.sub(renamed, text)
