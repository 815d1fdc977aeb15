"""The chart of a capacity search: each objective against the rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferq._lazy import alt, pl
from inferq.display.panels import log_seconds, titled
from inferq.display.points import COUNT, PERCENT, SECONDS
from inferq.display.style import BLUE, GRAY, INK, ORANGE, PANEL, SKY, VERMILION, colored, title_lines
from inferq.display.text import amount, counted, number
from inferq.results.slo import Objective

_VERDICTS = {"met": BLUE, "violated": VERMILION, "undecided": GRAY}
_WIDE = 20
"""Values that differ by more than this factor use a logarithmic axis."""
_HEIGHT = 170


def of_search(
    probes: pl.DataFrame,
    objectives: Sequence[Objective],
    *,
    rate: float,
    high: float | None,
    upper_bound: float | None,
    title: str,
    width: int = PANEL,
) -> Any:
    """Plot each objective against the rate, with intervals, limit, bracket and theoretical upper bound.

    If there is an answer, rates below a quarter of it are omitted.

    Args:
        probes: `CapacityPlan.probes`.
        objectives: of the SLO.
        rate: the answer, or 0.
        high: the upper end of the bracket, or None.
        upper_bound: the rate above which no policy is stable, or None.
        title: title of the chart.
        width: width of the plot in pixels.

    Returns:
        An Altair chart without a style, with one panel per objective that is not always 0.
    """
    if rate > 0:
        probes = probes.filter(pl.col("rate") >= 0.24 * rate)
    panels: list[Any] = []
    for objective in objectives:
        name = pl.lit(objective.class_name, pl.String)
        rows = probes.filter(pl.col("metric") == objective.metric.name, pl.col("class").eq_missing(name))
        rows = rows.filter(pl.col("value").is_finite())
        if rows["value"].max() or not panels:
            bound = _upper_bound(upper_bound, rows)
            background = [*_bracket(rate, high), *bound]
            beyond = f"orange: no scheduler is stable above {number(upper_bound)}" if bound else ""
            panels.append(
                _panel(background, rows.sort("rate"), str(objective), objective.limit, beyond, width)
            )
    return alt.vconcat(*panels, title=title_lines(title, width), spacing=22)


def _panel(
    background: list[Any], rows: pl.DataFrame, name: str, limit: float, beyond: str, width: int
) -> Any:
    """One objective: the background, then the line through the means, intervals and points."""
    unit = str(rows["unit"].item(0))
    values = [value for value in (*rows["value"], *rows["low"], *rows["high"], limit) if value is not None]
    wide = min(values) > 0 and max(values) > _WIDE * min(values)
    rate = alt.X(
        "rate:Q",
        title="requests per second",
        scale=alt.Scale(zero=False, nice=True),
        axis=alt.Axis(tickCount=6, labelExpr=COUNT, grid=False),
    )
    if wide:
        value = log_seconds("value", values)
    else:
        axis = alt.Axis(tickCount=5, labelExpr=SECONDS if unit == "s" else PERCENT)
        value = alt.Y("value:Q", title=None, scale=alt.Scale(zero=True), axis=axis)
    color = colored("metric_verdict", _VERDICTS, orient="top")
    descriptions = [
        f"{number(row['rate'], 4)} per second: {name} {amount(row['value'], unit)}, {row['metric_verdict']} "
        f"with {counted(row['seeds'], 'seed')}"
        for row in rows.rows(named=True)
    ]
    base = alt.Chart(rows.with_columns(pl.Series("description", descriptions, dtype=pl.String))).encode(
        x=rate
    )
    layers = [
        *background,
        alt.Chart(_row(value=limit)).mark_rule(color=INK, strokeDash=[6, 4]).encode(y="value:Q"),
        base.mark_line(color=GRAY, strokeWidth=1).encode(y=value),
        base.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q"), y2="high:Q", color=color),
        base.mark_circle(size=55, opacity=1).encode(y=value, color=color, description="description:N"),
    ]
    panel = alt.layer(*layers).properties(width=width, height=_HEIGHT)
    return titled(panel, f"{name}, dashed: limit {amount(limit, unit)}", *([beyond] if beyond else []))


def _bracket(rate: float, high: float | None) -> list[Any]:
    """The band between the largest rate that meets the SLO and the smallest that violates it."""
    if rate == 0 or high is None:
        return []
    band = alt.Chart(_row(rate=rate, end=high))
    return [band.mark_rect(color=SKY, opacity=0.25).encode(x="rate:Q", x2="end:Q")]


def _upper_bound(bound: float | None, rows: pl.DataFrame) -> list[Any]:
    """A rule at the theoretical upper bound, if it is within the range of the probes."""
    if bound is None or not rows["rate"].min() <= bound <= 1.5 * rows["rate"].max():  # type: ignore[operator]
        return []
    rule = alt.Chart(_row(rate=bound))
    return [rule.mark_rule(color=ORANGE, strokeWidth=2).encode(x="rate:Q")]


def _row(**values: object) -> pl.DataFrame:
    return pl.DataFrame([values])
