"""The picture of a search for the capacity: each objective against the rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferq._lazy import alt, pl
from inferq.experiments.capacity_search.slo import Objective
from inferq.reports.style import BLUE, GREY, INK, ORANGE, PANEL, SKY, VERMILION, coloured

_VERDICTS = {"kept": BLUE, "broken": VERMILION, "undecided": GREY}
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
            still = [*_bracket(rate, high), *_ceiling(ceiling, rows)]
            panels.append(_panel(still, rows.sort("rate"), str(objective), objective.limit))
    chart = panels[0] if len(panels) == 1 else alt.vconcat(*panels)
    return chart.properties(title=title)


def _panel(still: list[Any], rows: pl.DataFrame, name: str, limit: float) -> Any:
    """One objective: what stands still below, then the line through the means, intervals and points."""
    unit = " (s)" if rows["unit"].item(0) == "s" else " (share)"
    values = [value for value in (*rows["value"], *rows["low"], *rows["high"], limit) if value is not None]
    wide = min(values) > 0 and max(values) > _WIDE * min(values)
    rate = alt.X(
        "rate:Q",
        title="rate (per second)",
        scale=alt.Scale(zero=False, nice=True),
        axis=alt.Axis(tickCount=6),
    )
    value = alt.Y(
        "value:Q",
        title=name + unit,
        scale=alt.Scale(type="log") if wide else alt.Scale(zero=True),
    )
    colour = coloured("metric_verdict", _VERDICTS, orient="top")
    tooltips = [alt.Tooltip(field, format=".4g") for field in ("rate:Q", "value:Q", "low:Q", "high:Q")]
    base = alt.Chart(rows).encode(x=rate)
    layers = [
        *still,
        alt.Chart(_row(value=limit)).mark_rule(color=INK, strokeDash=[6, 4]).encode(y="value:Q"),
        base.mark_line(color=GREY, strokeWidth=1).encode(y=value),
        base.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q"), y2="high:Q", color=colour),
        base.mark_circle(size=55, opacity=1).encode(
            y=value,
            color=colour,
            tooltip=[*tooltips, alt.Tooltip("seeds:Q"), alt.Tooltip("metric_verdict:N", title="verdict")],
        ),
    ]
    return alt.layer(*layers).properties(width=PANEL, height=_HEIGHT)


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
    rule = alt.Chart(_row(rate=ceiling, label="no policy is stable beyond"))
    return [
        rule.mark_rule(color=ORANGE, strokeWidth=2).encode(x="rate:Q"),
        rule.mark_text(align="right", dx=-5, baseline="top", y=4).encode(x="rate:Q", text="label:N"),
    ]


def _row(**values: object) -> pl.DataFrame:
    return pl.DataFrame([values])
