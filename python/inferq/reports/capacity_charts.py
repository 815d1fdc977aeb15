"""What does a search for the capacity look like?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferq._lazy import pl
from inferq.reports.style import BLUE, GREY, INK, ORANGE, PANEL, SKY, VERMILION

if TYPE_CHECKING:
    from inferq.experiments.capacity_search.capacity import CapacityPlan

_VERDICTS = {"kept": BLUE, "broken": VERMILION, "undecided": GREY}
_WIDE = 20
"""Values that differ by more than this factor are drawn on a logarithmic axis."""
_HEIGHT = 170


def of_plan(plan: CapacityPlan) -> Any:
    """Each objective against the rate: a point a probe with its interval, the limit, the bracket, theory.

    Rates far below the answer are left out: a quarter of it is the lowest that is shown, where there is an
    answer.

    Args:
        plan: of `inferq.capacity`.

    Returns:
        An altair chart without a style of its own, one panel for each objective that is not 0 throughout.
    """
    import altair as alt

    probes = plan.probes
    if plan.rate > 0:
        probes = probes.filter(pl.col("rate") >= 0.24 * plan.rate)
    panels: list[Any] = []
    for objective in plan.slo.objectives:
        name = pl.lit(objective.class_name, pl.String)
        found = probes.filter(pl.col("metric") == objective.metric.name, pl.col("class").eq_missing(name))
        found = found.filter(pl.col("value").is_finite())
        if found["value"].max() or not panels:
            panels.append(_panel(plan, found.sort("rate"), str(objective), objective.limit))
    chart = panels[0] if len(panels) == 1 else alt.vconcat(*panels)
    return chart.properties(title=_title(plan))


def _title(plan: CapacityPlan) -> str:
    if plan.rate == 0:
        return "no rate was found that keeps the SLO"
    sure = "for these requests" if plan.exact else f"with {100 * plan.confidence:g} % confidence"
    limited = ", limited by the length of the runs" if plan.limited_by_length else ""
    return f"{plan.rate:.4g} per second keep the SLO {sure}{limited}"


def _panel(plan: CapacityPlan, found: pl.DataFrame, name: str, limit: float) -> Any:
    """One objective: what stands still below, then the line through the means, intervals and points."""
    import altair as alt

    unit = " (s)" if found["unit"].item(0) == "s" else " (share)"
    values = [value for value in (*found["value"], *found["low"], *found["high"], limit) if value is not None]
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
    colour = alt.Color(
        "metric_verdict:N",
        legend=alt.Legend(orient="top", title=None),
        scale=alt.Scale(domain=list(_VERDICTS), range=list(_VERDICTS.values())),
    )
    told = [alt.Tooltip(field, format=".4g") for field in ("rate:Q", "value:Q", "low:Q", "high:Q")]
    base = alt.Chart(found).encode(x=rate)
    layers = [
        *_bracket(plan),
        alt.Chart(_row(value=limit)).mark_rule(color=INK, strokeDash=[6, 4]).encode(y="value:Q"),
        *_ceiling(plan, found),
        base.mark_line(color=GREY, strokeWidth=1).encode(y=value),
        base.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q"), y2="high:Q", color=colour),
        base.mark_circle(size=55, opacity=1).encode(
            y=value,
            color=colour,
            tooltip=[*told, alt.Tooltip("seeds:Q"), alt.Tooltip("metric_verdict:N", title="verdict")],
        ),
    ]
    return alt.layer(*layers).properties(width=PANEL, height=_HEIGHT)


def _bracket(plan: CapacityPlan) -> list[Any]:
    """Between the largest rate that is kept and the smallest that is broken."""
    import altair as alt

    if plan.rate == 0 or plan.high is None:
        return []
    band = alt.Chart(_row(rate=plan.rate, end=plan.high))
    return [band.mark_rect(color=SKY, opacity=0.25).encode(x="rate:Q", x2="end:Q")]


def _ceiling(plan: CapacityPlan, found: pl.DataFrame) -> list[Any]:
    """What no policy passes, where it lies among the probes."""
    import altair as alt

    ceiling = plan.ceiling_per_s
    if ceiling is None or not found["rate"].min() <= ceiling <= 1.5 * found["rate"].max():  # type: ignore[operator]
        return []
    rule = alt.Chart(_row(rate=ceiling, said="no policy is stable beyond"))
    return [
        rule.mark_rule(color=ORANGE, strokeWidth=2).encode(x="rate:Q"),
        rule.mark_text(align="right", dx=-5, baseline="top", y=4).encode(x="rate:Q", text="said:N"),
    ]


def _row(**values: object) -> pl.DataFrame:
    return pl.DataFrame([values])
