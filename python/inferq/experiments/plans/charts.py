"""The chart of a plan: cost against latency."""

from __future__ import annotations

from typing import Any

from inferq._lazy import alt, pl
from inferq.display.panels import titled
from inferq.display.points import COUNT, PERCENT
from inferq.display.style import BLUE, GRAY, INK, PANEL, VERMILION, colored, styled
from inferq.display.text import number, percent
from inferq.experiments.plans.fleet_plan import FleetPlan

_WIDE = 20
"""Shares that differ by more than this factor use a logarithmic axis."""
_HEIGHT = 200
_MOST_TICKS = 6
"""Up to this number of costs, each has a tick."""


def of_frontier(plan: FleetPlan, width: int = PANEL) -> Any:
    """The largest value relative to its limit, against the cost of the fleet."""
    rows = plan.frontier.filter(pl.col("share").is_finite(), pl.col("share") > 0)
    descriptions = [
        f"{row['fleet']}, {number(row['cost'])} {plan.unit}: "
        f"{row['metric']} at {percent(row['share'])} of its limit"
        for row in rows.rows(named=True)
    ]
    rows = rows.with_columns(
        pl.Series("description", descriptions, dtype=pl.String),
        pl.when(pl.col("share") <= 1).then(pl.lit("met")).otherwise(pl.lit("violated")).alias("verdict"),
        *((pl.col(end) * pl.col("share") / pl.col("value")).alias(f"{end}_share") for end in ("low", "high")),
    )
    costs = rows["cost"].unique().sort().to_list()
    shares = [*rows["share"], 1.0]
    scale = alt.Scale(type="log") if max(shares) > _WIDE * min(shares) else alt.Scale(zero=True)
    cost = alt.X(
        "cost:Q",
        title=plan.unit,
        scale=alt.Scale(zero=False, nice=True),
        axis=alt.Axis(
            labelExpr=COUNT, grid=False, values=costs if len(costs) <= _MOST_TICKS else alt.Undefined
        ),
    )
    share = alt.Y("share:Q", title=None, scale=scale, axis=alt.Axis(tickCount=5, labelExpr=PERCENT))
    base = alt.Chart(rows).encode(x=cost)
    color = colored("verdict", {"met": BLUE, "violated": VERMILION}, orient="top")
    limit = alt.Chart(pl.DataFrame({"limit": [1.0]}))
    layers = [
        limit.mark_rule(color=INK, strokeDash=[6, 4]).encode(alt.Y("limit:Q")),
        *([] if plan.exact else [base.mark_rule(color=GRAY).encode(alt.Y("low_share:Q"), y2="high_share:Q")]),
        base.mark_line(color=GRAY, strokeWidth=1).encode(y=share),
        base.mark_circle(size=55, opacity=1).encode(y=share, color=color, description="description:N"),
    ]
    chart = alt.layer(*layers).properties(width=width, height=_HEIGHT)
    return styled(
        titled(chart, "value relative to its limit, by cost", "dashed: the limit"), rows["fleet"].unique()
    )
