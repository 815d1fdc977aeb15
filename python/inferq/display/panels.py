"""What the charts of runs are made of: panels of one style, whose left edges and widths are the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from inferq._lazy import alt, pl
from inferq.display.points import COUNT, PERCENT, SECONDS, SHARE
from inferq.display.style import BLUE, GRAY, GREEN, INK, ORANGE, PURPLE, SKY, VERMILION, colored

OF_SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, GRAY)
"""The colors of classes, or of runs, in their order."""
_DASHES = ([1, 0], [7, 3], [3, 2], [9, 2, 2, 2], [5, 5], [2, 4])
"""And their lines: where two are the same, the one below is seen between the dashes of the other."""
GAP = 22
"""Pixels between panels."""


def titled(panel: Any, text: str, *further: str) -> Any:
    """A panel with what it shows above it: names and units stand there and not beside the axis."""
    title = alt.TitleParams(text, subtitle=list(further)) if further else alt.TitleParams(text)
    return panel.properties(title=title)


def series(column: str, names: Sequence[str], width: int) -> dict[str, Any]:
    """The channels that tell some names apart, by color and dash, with a key above the picture."""
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
    dashes = alt.Scale(domain=list(names), range=[list(one) for one in _DASHES[: len(names)]])
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
    """Percentile curves of one latency: which time is not exceeded by which share; limits are dashed.

    Args:
        curves: `tail` (−log10(1 − share)), `seconds`, and the column of `channels`.
        channels: of `series`.
        width: of the panel.
        height: of the panel.
        limits: seconds.
    """
    tails = [*([-math.log10(0.5)] if width >= 300 else []), *(float(nines) for nines in range(1, 8))]
    shares = alt.Axis(values=tails, labelExpr=SHARE, labelOverlap="greedy", labelFlush=False, labelPadding=4)
    last = max(float(curves["tail"].max()), 0.302)  # type: ignore[arg-type]
    along = alt.Scale(domain=[0, last], nice=False)
    base = alt.Chart(curves).encode(
        x=alt.X("tail:Q", title="share of requests", scale=along, axis=shares),
        y=log_seconds("seconds", [*curves["seconds"], *limits]),
        **channels,
    )
    layers = [base.mark_line(strokeWidth=2)]
    alone = curves.filter(pl.len().over("class") == 1)
    if not alone.is_empty():  # one request: a line of one point cannot be seen
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
    """Bars of shares, both scales logarithmic, with rules where percentiles and limits are.

    Args:
        bins: of `run_data.gaps`.
        marks: of `run_data.gap_percentiles`.
        color: of the bars.
        width: of the panel.
        height: of the panel.
        scale_of: the bins of all panels, which share their scales; None takes `bins`.
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
        title="gap between tokens",
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
            description="told:N",
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
    """Means over time with the band of what they are means of.

    Args:
        points: `time`, `mean`, with a band `low` and `high`, and the column of `channels`.
        time: the axis.
        title: of what is shown, above the panel, and further lines.
        channels: of `series`, or one color.
        width: of the panel.
        height: of the panel.
        most: where the other axis ends; None lets the data say.
        axis: how its labels are written.
        band: whether there is one.
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
    """Panels one above the other, over one time or one scale of gaps: it is named below the last."""
    for panel in panels[:-1]:
        for layer in panel.layer:
            if layer.encoding.x is not alt.Undefined and layer.encoding.x.title is not alt.Undefined:
                layer.encoding.x = layer.encoding.x.copy(deep=False)
                layer.encoding.x.title = None  # a page's script takes that of the last
    return panels[0] if len(panels) == 1 else alt.vconcat(*panels, spacing=GAP)


def in_time(samples: pl.DataFrame) -> tuple[pl.DataFrame, Any]:
    """Samples with `time` in a unit that can be read, and its axis."""
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
    # the ends are said, so that panels one above the other have the same, whichever samples each has
    ends = alt.Undefined if first_s == last_s else [first_s / seconds, last_s / seconds]
    scale = alt.Scale(nice=False, domain=ends)
    return samples, alt.X("time:Q", title=f"time, {unit}", axis=axis, scale=scale)


def keyed(column: str, names: Sequence[str], colors: Sequence[str]) -> Any:
    """A color for each name, told above the picture."""
    color_of = dict(zip(names, colors, strict=True))
    return colored(column, color_of, orient="top", symbolType="stroke", symbolOpacity=1, labelLimit=260)


def log_seconds(column: str, values: Sequence[float]) -> Any:
    """The axis of seconds on a scale of logarithms that holds some values."""
    low, high = min(values), max(values)
    if high < 2 * low:
        low, high = low / 1.5, high * 1.5
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    return alt.Y(f"{column}:Q", title=None, scale=scale, axis=decades(low, high))


def decades(low: float, high: float) -> Any:
    """The axis of seconds on a scale of logarithms, whose ticks can be told apart."""
    return alt.Axis(values=powers(low, high), labelExpr=SECONDS, labelOverlap="greedy")


def powers(low: float, high: float) -> list[float]:
    """Round numbers within a range for a scale of logarithms: at most seven.

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
        marks = [one for one in every if low * (1 - 1e-9) <= one <= high * (1 + 1e-9)]
        if len(marks) >= 3:
            break
    return marks[:: -(-len(marks) // 7)]


def _limits(limits: Sequence[float], channel: str) -> list[Any]:
    """A red rule at each limit."""
    if not limits:
        return []
    rows = alt.Chart(pl.DataFrame({"limit": [float(one) for one in limits]}))
    rule = rows.mark_rule(color=VERMILION, strokeDash=[6, 3], strokeWidth=1.5)
    return [rule.encode(**{channel: "limit:Q"})]


def half(width: int) -> tuple[int, int]:
    """How many panels stand side by side in a width, and how wide each is.

    >>> half(850), half(360), half(286)
    ((2, 387), (1, 360), (1, 286))
    """
    return (2, (width - 76) // 2) if width >= 600 else (1, width)
