"""Palette and style of charts, and rendering as SVG."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from inferq._lazy import alt, load
from inferq.display.text import is_hidden, pictured

# Colors that are distinguishable without red or green (Okabe and Ito), with one meaning on all pages: blue
# for the baseline, gray for older engines, warm colors for the policies under study and for theory.
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
"""Colors on a dark page, whose background replaces `PAPER`."""

PANEL = 360
"""Default width of a plot in pixels: with its labels as wide as a phone, or half a page."""

FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
"""Fonts with the metrics that the renderer uses, so that labels fit in a browser as well."""

_TAG = re.compile(r'<[^<>"]*(?:"[^"]*"[^<>"]*)*>')
_NAME = re.compile(r'(?<=\s)id="([^"]+)"')
_NAMED = re.compile(
    r'(?<=\s)(id="|(?:xlink:)?href="#|(?:clip-path|mask|filter|fill|stroke|style)="url\(#)([^")]+)'
)


def title_lines(text: str, width: int) -> list[str]:
    """A title in lines that fit a plot of a width in pixels.

    >>> title_lines("the SLO is met up to 6.038 per second with 95 % confidence", 286)
    ['the SLO is met up to 6.038 per second', 'with 95 % confidence']
    """
    return textwrap.wrap(text, max(20, width // 7)) or [""]


def colored(column: str, colors: Mapping[str, str], orient: str = "bottom", **legend: Any) -> alt.Color:
    """A color channel for the names in a column, with a legend at `orient`."""
    scale = alt.Scale(domain=list(colors), range=list(colors.values()))
    key = alt.Legend(orient=orient, **legend)  # type: ignore[arg-type]  # altair declares literals
    return alt.Color(f"{column}:N", title=None, scale=scale, legend=key)


def styled(chart: Any, names: Iterable[str] = ()) -> Any:
    """An altair chart in the common style. Altair cannot layer a chart that has a style.

    Args:
        chart: without a style.
        names: user-defined names in the chart; see `shown_safely`.
    """
    made = shown_safely(chart.configure(**_style()), names)
    object.__setattr__(made, "_repr_mimebundle_", partial(_in_a_notebook, made))
    return made


def _in_a_notebook(chart: Any, *args: Any, **options: Any) -> Any:
    """The chart as SVG, which needs no network, unless the user selected a renderer."""
    if alt.renderers.active not in ("default", "html"):
        return type(chart)._repr_mimebundle_(chart, *args, **options)
    return {"image/svg+xml": svg(chart), "text/plain": repr(type(chart))}


def shown_safely(chart: Any, names: Iterable[str]) -> Any:
    """A chart in which user-defined names cannot break the renderer or a page."""
    if all(pictured(name) == name for name in names):
        return chart
    with alt.data_transformers.enable("default"), alt.data_transformers.disable_max_rows():
        return alt.Chart.from_dict(_pictured(chart.to_dict(validate=False)))


def _pictured(value: Any) -> Any:
    if isinstance(value, str):
        return pictured(value)
    if isinstance(value, list):
        return [_pictured(item) for item in value]
    if isinstance(value, dict):
        return {_pictured(name): _pictured(item) for name, item in value.items()}
    return value


def _style() -> dict[str, Any]:
    """The altair configuration of a chart."""
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
        # stacked panels have the same left edge
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
    """The style as a Vega-Lite configuration."""
    return dict(alt.Config(**_style()).to_dict())


@contextmanager
def unchecked() -> Iterator[None]:
    """Build charts without altair's schema checks, which take half of the time; tests use the checks."""
    debug_mode = load("altair.utils.schemapi").debug_mode

    with debug_mode(False):
        yield


def dark(within: str) -> str:
    """CSS rules with the dark colors for the charts inside `within`.

    >>> dark("figure").splitlines()[0]
    'figure svg [fill="#0072B2"] { fill: #4CA6E8; } figure svg [stroke="#0072B2"] { stroke: #4CA6E8; }'
    """
    rules = [
        " ".join(f'{within} svg [{what}="{light}"] {{ {what}: {seen}; }}' for what in ("fill", "stroke"))
        for light, seen in DARK.items()
    ]
    return "\n".join([*rules, f'{within} svg [fill="{PAPER}"] {{ fill: none; }}'])


def svg(chart: Any, prefix: str = "part-") -> str:
    """An altair chart as SVG in the common style; rendering is deterministic.

    Args:
        chart: a chart; the common style replaces its configuration.
        prefix: prefix of every id inside, so that a page can contain several charts.

    Example:
        >>> import altair as alt, polars as pl
        >>> from inferq.display.style import svg
        >>> line = alt.Chart(pl.DataFrame({"x": [0, 1], "y": [1, 3]})).mark_line().encode(x="x:Q", y="y:Q")
        >>> svg(line).startswith("<svg") and svg(line) == svg(line)
        True
    """
    vl_convert = load("vl_convert")

    # Validation would take longer than rendering.
    with alt.data_transformers.enable("default"), alt.data_transformers.disable_max_rows():
        described = {**chart.to_dict(validate=False), "config": _configuration()}
    grammar = "_".join(alt.SCHEMA_VERSION.split(".")[:2])
    # The renderer aborts the process on a character that XML does not allow.
    if is_hidden(json.dumps(described, ensure_ascii=False, default=str)):
        described = _pictured(described)
    text = vl_convert.vegalite_to_svg(described, vl_version=grammar)
    # The renderer numbers clip ids across charts; here each chart has its own numbers.
    defined = (name for tag in _TAG.findall(text) for name in _NAME.findall(tag))
    names = {name: f"{prefix}{place}" for place, name in enumerate(dict.fromkeys(defined), start=1)}

    def renamed(tag: re.Match[str]) -> str:
        return _NAMED.sub(lambda match: match[1] + names.get(match[2], match[2]), tag[0])

    return _TAG.sub(renamed, text)
