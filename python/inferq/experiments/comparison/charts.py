"""The chart of a comparison: differences with intervals."""

from __future__ import annotations

import math
from typing import Any

from inferq._lazy import alt, pl
from inferq.display.style import BLUE, GRAY, PANEL, VERMILION, title_lines
from inferq.display.text import number, percent
from inferq.errors import ConfigError

COLORS = {"better": BLUE, "worse": VERMILION, "not distinguishable": GRAY, "same": GRAY, "no verdict": GRAY}
SHAPES = {
    "better": "triangle-up",
    "worse": "triangle-down",
    "not distinguishable": "circle",
    "same": "square",
    "no verdict": "diamond",
}


MOST_ROWS = 60
"""Maximum differences in a chart; further systems and rows are omitted."""
_WIDE_PERCENT = 200.0
"""Differences beyond this use an axis that is linear near 0 and logarithmic further out."""
_LINEAR_PERCENT = 10.0


def of_comparison(frame: pl.DataFrame, baseline: str, confidence: float, width: int = PANEL) -> Any:
    """Plot the relative difference of every metric with its interval, a panel per system.

    Color and shape show the verdict. Metrics without a relative difference (baseline 0, or missing values)
    are omitted. At most `MOST_ROWS` differences are drawn; the title reports omitted systems. If differences
    vary widely, the axis is logarithmic beyond ±10 %. Returns an Altair chart without a style.

    Args:
        frame: `Comparison.frame` of two systems or more.
        baseline: name of the baseline.
        confidence: confidence level of the intervals.
        width: width of the chart in pixels, including names.

    Raises:
        ConfigError: there is no difference to plot.
    """
    every = _drawn(frame)
    if every.is_empty():
        raise ConfigError("plot", "there is no difference to plot")
    systems, many = shown_systems(frame), every["system"].n_unique()
    drawn = (
        every.filter(pl.col("system").is_in(systems)).group_by("system", maintain_order=True).head(MOST_ROWS)
    )
    of = f"difference to {baseline} (%), {percent(confidence, 6)} interval"
    scale, ticks = _across(drawn)
    titled = of if len(systems) == 1 else None

    def across(column: str) -> Any:
        return alt.X(f"{column}:Q", title=titled, scale=scale, axis=ticks)

    verdicts = [verdict for verdict in COLORS if verdict in set(drawn["verdict"])]
    legend = alt.Legend(orient="top", title=None, columns=1 if width < 600 else len(verdicts))
    color = alt.Color("verdict:N", legend=legend).scale(
        domain=verdicts, range=[COLORS[verdict] for verdict in verdicts]
    )
    shape = alt.Shape("verdict:N", legend=legend).scale(
        domain=verdicts, range=[SHAPES[verdict] for verdict in verdicts]
    )
    longest = max(len(name) for name in drawn["metric"])
    labels = min(170, max(52, 7 * longest + 12))  # room for the widest common font
    panels = []
    for name in systems:
        order = drawn.filter(system=name)["metric"].to_list()
        rows = alt.Chart().encode(
            y=alt.Y("metric:N", title=None, sort=order, axis=alt.Axis(labelLimit=165, minExtent=labels))
        )
        panel = alt.layer(
            alt.Chart().mark_rule(color=GRAY).encode(x=alt.datum(0)),
            rows.mark_rule(strokeWidth=2).encode(x=across("low"), x2="high:Q", color=color),
            rows.mark_point(filled=True, size=70, opacity=1).encode(
                x=across("percent"), color=color, shape=shape, description="description:N"
            ),
            data=drawn,
        ).transform_filter(alt.FieldEqualPredicate(field="system", equal=name))
        title = f"{name} against {baseline}" if len(systems) == 1 else name
        step = alt.Step(26 if drawn.height <= 20 else 19)
        panels.append(panel.properties(width=width + 46 - labels, height=step, title=title))
    if len(panels) == 1:
        return panels[0]
    left_out = f"; the first {len(systems)} of {many} systems" if len(systems) < many else ""
    return alt.vconcat(
        *panels, title=alt.TitleParams(title_lines(f"{of}{left_out}", width - labels)), spacing=14
    )


def shown_systems(frame: pl.DataFrame) -> list[str]:
    """The first systems, with at most `MOST_ROWS` differences in total."""
    rows = 0
    shown: list[str] = []
    for name in frame["system"].unique(maintain_order=True):
        drawn = _drawn(frame.filter(system=name)).height
        rows += drawn
        if drawn and (rows <= MOST_ROWS or not shown):
            shown.append(name)
    return shown


def _drawn(frame: pl.DataFrame) -> pl.DataFrame:
    """The differences in percent: `system`, `verdict`, `metric`, `percent`, `low`, `high`."""
    label = pl.col("metric")
    if "class" in frame.columns:
        label = pl.when(pl.col("class").is_null()).then(label).otherwise(label + " of " + pl.col("class"))
    half = pl.col("relative_half_width")
    drawn = frame.filter(pl.col("relative").is_not_null()).select(
        "system",
        pl.col("verdict").fill_null("no verdict"),
        label.alias("metric"),
        (100 * pl.col("relative")).alias("percent"),
        (100 * (pl.col("relative") - half)).alias("low"),
        (100 * (pl.col("relative") + half)).alias("high"),
    )
    descriptions = [
        f"{row['metric']}: {number(row['percent'], 3, sign=True)} %, {row['verdict']}"
        for row in drawn.rows(named=True)
    ]
    return drawn.with_columns(pl.Series("description", descriptions, dtype=pl.String))


def _across(drawn: pl.DataFrame) -> tuple[Any, Any]:
    """The scale and axis of all panels."""
    values = [value for name in ("percent", "low", "high") for value in drawn[name].drop_nulls()]
    low, high = min(0.0, *values), max(0.0, *values)
    if low == high:
        low, high = -1.0, 1.0
    if max(-low, high) <= _WIDE_PERCENT:
        return alt.Scale(domain=[low, high], nice=True), alt.Axis(tickCount=6)
    powers = [_LINEAR_PERCENT * 10.0**power for power in range(math.ceil(math.log10(max(-low, high))))]
    ticks = [*(-power for power in reversed(powers)), 0.0, *powers]
    ticks = [tick for tick in ticks if 2 * low <= tick <= 2 * high]
    scale = alt.Scale(
        type="symlog", constant=_LINEAR_PERCENT, domain=[min(low, ticks[0]), max(high, ticks[-1])], nice=False
    )
    return scale, alt.Axis(values=ticks, labelExpr="format(datum.value, ',.6~g')", labelOverlap="greedy")
