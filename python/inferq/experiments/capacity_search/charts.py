"""The picture of a search for the capacity: each objective against the rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferq._lazy import alt, pl
from inferq.display.panels import log_seconds, titled
from inferq.display.points import COUNT, PERCENT, SECONDS
from inferq.display.style import BLUE, GRAY, INK, ORANGE, PANEL, SKY, VERMILION, colored
from inferq.display.text import amount, counted, number
from inferq.results.slo import Objective

_VERDICTS = {"kept": BLUE, "broken": VERMILION, "undecided": GRAY}
_WIDE = 20
"""Values that differ by more than this factor are drawn on a logarithmic axis."""
_HEIGHT = 170


def of_search(
    probes: pl.DataFrame,
    objectives: Sequence[Objective],
    *,
    rate: float,
    high: float | None,
    ceiling: float | None,
    title: str,
    width: int = PANEL,
) -> Any:
    """Each objective against the rate: a point a probe with its interval, the limit, the bracket, theory.

    Rates far below the answer are left out: a quarter of it is the lowest that is shown, where there is an
    answer.

    Args:
        probes: `CapacityPlan.probes`.
        objectives: of the SLO.
        rate: the answer, 0 where there is none.
        high: the upper end of the bracket; None where there is none.
        ceiling: the rate above which no policy is stable; None where none is known.
        title: of the picture.
        width: pixels to plot on.

    Returns:
        An altair chart without a style of its own, one panel for each objective that is not 0 throughout.
    """
    if rate > 0:
        probes = probes.filter(pl.col("rate") >= 0.24 * rate)
    panels: list[Any] = []
    for objective in objectives:
        name = pl.lit(objective.class_name, pl.String)
        rows = probes.filter(pl.col("metric") == objective.metric.name, pl.col("class").eq_missing(name))
        rows = rows.filter(pl.col("value").is_finite())
        if rows["value"].max() or not panels:
            drawn = _ceiling(ceiling, rows)
            still = [*_bracket(rate, high), *drawn]
            beyond = f"orange: no scheduler is stable beyond {number(ceiling)}" if drawn else ""
            panels.append(_panel(still, rows.sort("rate"), str(objective), objective.limit, beyond, width))
    return alt.vconcat(*panels, title=title, spacing=22)


def _panel(still: list[Any], rows: pl.DataFrame, name: str, limit: float, beyond: str, width: int) -> Any:
    """One objective: what stands still below, then the line through the means, intervals and points."""
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
    told = [
        f"{number(row['rate'], 4)} per second: {name} {amount(row['value'], unit)}, {row['metric_verdict']} "
        f"with {counted(row['seeds'], 'seed')}"
        for row in rows.rows(named=True)
    ]
    base = alt.Chart(rows.with_columns(pl.Series("told", told, dtype=pl.String))).encode(x=rate)
    layers = [
        *still,
        alt.Chart(_row(value=limit)).mark_rule(color=INK, strokeDash=[6, 4]).encode(y="value:Q"),
        base.mark_line(color=GRAY, strokeWidth=1).encode(y=value),
        base.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q"), y2="high:Q", color=color),
        base.mark_circle(size=55, opacity=1).encode(y=value, color=color, description="told:N"),
    ]
    panel = alt.layer(*layers).properties(width=width, height=_HEIGHT)
    return titled(panel, f"{name}, limit {amount(limit, unit)} dashed", *([beyond] if beyond else []))


def _bracket(rate: float, high: float | None) -> list[Any]:
    """Between the largest rate that is kept and the smallest that is broken."""
    if rate == 0 or high is None:
        return []
    band = alt.Chart(_row(rate=rate, end=high))
    return [band.mark_rect(color=SKY, opacity=0.25).encode(x="rate:Q", x2="end:Q")]


def _ceiling(ceiling: float | None, rows: pl.DataFrame) -> list[Any]:
    """What no policy passes, where it lies among the probes."""
    if ceiling is None or not rows["rate"].min() <= ceiling <= 1.5 * rows["rate"].max():  # type: ignore[operator]
        return []
    rule = alt.Chart(_row(rate=ceiling))
    return [rule.mark_rule(color=ORANGE, strokeWidth=2).encode(x="rate:Q")]


def _row(**values: object) -> pl.DataFrame:
    return pl.DataFrame([values])
