"""Panels of charts in one style, with aligned edges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from inferq._lazy import alt, pl
from inferq.display.points import COUNT, PERCENT, SECONDS, SHARE
from inferq.display.style import BLUE, GRAY, GREEN, INK, ORANGE, PURPLE, SKY, VERMILION, colored

OF_SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, GRAY)
"""Colors of classes or runs, in order."""
_DASHES = ([1, 0], [7, 3], [3, 2], [9, 2, 2, 2], [5, 5], [2, 4])
"""Dashes of classes or runs, so that a line is visible below another."""
GAP = 22
"""Pixels between panels."""


def titled(panel: Any, text: str, *further: str) -> Any:
    """A panel with a title above it, which replaces the title of the vertical axis."""
    title = alt.TitleParams(text, subtitle=list(further)) if further else alt.TitleParams(text)
    return panel.properties(title=title)


def series(column: str, names: Sequence[str], width: int) -> dict[str, Any]:
    """Color and dash channels for names, with a legend above the chart."""
    several = len(names) > 1
    columns = max(1, min(len(names), 3, width // 130))
    key = alt.Legend(
        orient="top",
        title=None,
        symbolType="stroke",
        symbolSize=300,
        labelLimit=max(90, width // columns - 40),
        columns=columns,
    )
    colors = alt.Scale(domain=list(names), range=list(OF_SERIES[: len(names)]))
    dashes = alt.Scale(domain=list(names), range=[list(dash) for dash in _DASHES[: len(names)]])
    return {
        "color": alt.Color(f"{column}:N", title=None, scale=colors, legend=key if several else None),
        **(
            {"strokeDash": alt.StrokeDash(f"{column}:N", title=None, scale=dashes, legend=key)}
            if several
            else {}
        ),
    }


def percentiles(
    curves: pl.DataFrame,
    channels: dict[str, Any],
    width: int,
    height: int,
    limits: Sequence[float] = (),
) -> Any:
    """Percentile curves of one latency; limits are dashed.

    Args:
        curves: `tail` (−log10(1 − share)), `seconds`, and the column of `channels`.
        channels: the result of `series`.
        width: width of the panel.
        height: height of the panel.
        limits: seconds.
    """
    tails = [*([-math.log10(0.5)] if width >= 300 else []), *(float(nines) for nines in range(1, 8))]
    shares = alt.Axis(values=tails, labelExpr=SHARE, labelOverlap="greedy", labelFlush=False, labelPadding=4)
    last = max(float(curves["tail"].max()), 0.302)  # type: ignore[arg-type]
    along = alt.Scale(domain=[0, last], nice=False)
    base = alt.Chart(curves).encode(
        x=alt.X("tail:Q", title="percentile", scale=along, axis=shares),
        y=log_seconds("seconds", [*curves["seconds"], *limits]),
        **channels,
    )
    layers = [base.mark_line(strokeWidth=2)]
    alone = curves.filter(pl.len().over("class") == 1)
    if not alone.is_empty():  # a line of one point is invisible
        layers.append(base.mark_point(filled=True, opacity=1, size=50).properties(data=alone))
    return alt.layer(*_limits(limits, "y"), *layers).properties(width=width, height=height)


def histogram(
    bins: pl.DataFrame,
    marks: pl.DataFrame,
    color: str,
    width: int,
    height: int,
    scale_of: pl.DataFrame | None = None,
    limits: Sequence[float] = (),
) -> Any:
    """Bars of shares with logarithmic scales, and rules at percentiles and limits.

    Args:
        bins: the result of `run_data.gaps`.
        marks: the result of `run_data.gap_percentiles`.
        color: color of the bars.
        width: width of the panel.
        height: height of the panel.
        scale_of: the bins of all panels, which share their scales. Default: `bins`.
        limits: seconds.
    """
    every = bins if scale_of is None else scale_of
    low, high = float(every["lower_s"].min()), float(every["upper_s"].max())  # type: ignore[arg-type]
    low, high = min(low, *limits, low), max(high, *(1.05 * limit for limit in limits), high)
    if high < 2 * low:
        low, high = low / 1.5, high * 1.5
    floor = 10.0 ** math.floor(math.log10(every["share"].min()) - 1e-9)  # type: ignore[arg-type]
    across = alt.X(
        "lower_s:Q",
        title="inter-token latency",
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=decades(low, high),
    )
    shares = alt.Axis(values=powers(floor, 1.0), labelExpr=PERCENT)
    scale = alt.Scale(type="log", domain=[floor, 1], nice=False)
    bars = (
        alt.Chart(bins.with_columns(floor=pl.lit(floor)))
        .mark_rect(color=color)
        .encode(
            x=across,
            x2="upper_s",
            y=alt.Y("share:Q", title=None, scale=scale, axis=shares),
            y2="floor",
            description="label:N",
        )
    )
    rules = alt.Chart(marks).mark_rule(color=INK, strokeDash=[4, 3]).encode(x=alt.X("seconds:Q"))
    return alt.layer(bars, rules, *_limits(limits, "x")).properties(width=width, height=height)


def line(
    points: pl.DataFrame,
    time: Any,
    title: tuple[str, ...],
    channels: dict[str, Any] | str,
    width: int,
    height: int,
    *,
    most: float | None = None,
    axis: str = COUNT,
    band: bool = True,
) -> Any:
    """Means over time with a band over their samples.

    Args:
        points: `time`, `mean`, with a band `low` and `high`, and the column of `channels`.
        time: the axis of time.
        title: title of the panel, and further lines.
        channels: the result of `series`, or one color.
        width: width of the panel.
        height: height of the panel.
        most: end of the vertical axis. Default: from the data.
        axis: format of its labels.
        band: whether to draw the band.
    """
    top = points["high" if band else "mean"].max() or 0.0
    if most is None and not top:
        most = 1.0
    ticks = alt.Axis(tickCount=3, tickMinStep=1 if axis == COUNT else alt.Undefined, labelExpr=axis)
    scale = alt.Scale(zero=True) if most is None else alt.Scale(domain=[0, most], nice=False)
    drawn = {"color": alt.value(channels)} if isinstance(channels, str) else channels
    base = alt.Chart(points).encode(x=time, **drawn)
    layers = [
        base.mark_line(strokeWidth=1.6).encode(y=alt.Y("mean:Q", title=None, axis=ticks, scale=scale)),
    ]
    if band and not (points["low"].equals(points["mean"]) and points["high"].equals(points["mean"])):
        around = alt.Chart(points).encode(x=time, **{k: v for k, v in drawn.items() if k == "color"})
        low = alt.Y("low:Q", title=None, axis=ticks, scale=scale)
        layers.insert(0, around.mark_area(opacity=0.25, line=False).encode(y=low, y2="high"))
    return titled(alt.layer(*layers).properties(width=width, height=height), *title)


def stacked(panels: Sequence[Any]) -> Any:
    """Panels in a column with one horizontal axis, whose title is below the last panel."""
    for panel in panels[:-1]:
        for layer in panel.layer:
            if layer.encoding.x is not alt.Undefined and layer.encoding.x.title is not alt.Undefined:
                layer.encoding.x = layer.encoding.x.copy(deep=False)
                layer.encoding.x.title = None  # the script of a page uses the title of the last panel
    return panels[0] if len(panels) == 1 else alt.vconcat(*panels, spacing=GAP)


def in_time(samples: pl.DataFrame) -> tuple[pl.DataFrame, Any]:
    """Samples with `time` in a readable unit, and its axis."""
    first_s, last_s = (float(end) for end in (samples["time_s"].min(), samples["time_s"].max()))  # type: ignore[arg-type]
    unit, seconds = "s", 1.0
    for name, longer, least_s in (
        ("min", 60.0, 600.0),
        ("h", 3600.0, 14_400.0),
        ("days", 86_400.0, 345_600.0),
    ):
        if last_s >= least_s:
            unit, seconds = name, longer
    axis = alt.Axis(tickCount=6, grid=False, labelFlush=False)
    samples = samples.with_columns(time=pl.col("time_s") / seconds).drop("time_s")
    # an explicit domain gives stacked panels the same ends
    ends = alt.Undefined if first_s == last_s else [first_s / seconds, last_s / seconds]
    scale = alt.Scale(nice=False, domain=ends)
    return samples, alt.X("time:Q", title=f"time, {unit}", axis=axis, scale=scale)


def keyed(column: str, names: Sequence[str], colors: Sequence[str]) -> Any:
    """A color for each name, with a legend above the chart."""
    color_of = dict(zip(names, colors, strict=True))
    return colored(column, color_of, orient="top", symbolType="stroke", symbolOpacity=1, labelLimit=260)


def log_seconds(column: str, values: Sequence[float]) -> Any:
    """A logarithmic axis of seconds that contains the values."""
    low, high = min(values), max(values)
    if high < 2 * low:
        low, high = low / 1.5, high * 1.5
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    return alt.Y(f"{column}:Q", title=None, scale=scale, axis=decades(low, high))


def decades(low: float, high: float) -> Any:
    """A logarithmic axis of seconds with distinguishable ticks."""
    return alt.Axis(values=powers(low, high), labelExpr=SECONDS, labelOverlap="greedy")


def powers(low: float, high: float) -> list[float]:
    """At most seven round numbers within a range for a logarithmic scale.

    >>> powers(0.01, 100.0), powers(0.006, 0.017), powers(0.03, 0.5)
    ([0.01, 0.1, 1.0, 10.0, 100.0], [0.006, 0.008, 0.01, 0.012, 0.014, 0.016], [0.03, 0.1, 0.3])
    """
    if high < 4 * low:
        step = 10.0 ** math.floor(math.log10(high - low))
        step = next(step * part for part in (0.2, 0.5, 1.0, 2.0) if (high - low) / (step * part) <= 7)
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        return [float(f"{place * step:.12g}") for place in range(first, last + 1)]
    decade = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks: list[float] = []
    for steps in ((1,), (1, 3), (1, 2, 5)):
        every = [float(f"{step}e{power}") for power in decade for step in steps]
        marks = [mark for mark in every if low * (1 - 1e-9) <= mark <= high * (1 + 1e-9)]
        if len(marks) >= 3:
            break
    return marks[:: -(-len(marks) // 7)]


def _limits(limits: Sequence[float], channel: str) -> list[Any]:
    """A red rule at each limit."""
    if not limits:
        return []
    rows = alt.Chart(pl.DataFrame({"limit": list(map(float, limits))}))
    rule = rows.mark_rule(color=VERMILION, strokeDash=[6, 3], strokeWidth=1.5)
    return [rule.encode(**{channel: "limit:Q"})]


def columns(width: int, panels: int) -> tuple[int, int]:
    """The number of panels side by side, and the width of each.

    >>> columns(850, 4), columns(850, 3), columns(360, 4), columns(850, 1)
    ((2, 387), (3, 232), (1, 360), (1, 850))
    """
    count = 1 if width < 600 else 3 if panels == 3 else min(panels, 2)
    return count, (width - 76 * (count - 1)) // count
