"""The picture of a plan: cost against latency."""

from __future__ import annotations

from typing import Any

from inferq._lazy import alt, pl
from inferq.experiments.plans.fleet_plan import FleetPlan
from inferq.reports.style import BLUE, GREY, VERMILION, shown_safely

_WIDE = 20
"""Shares that differ by more than this factor are drawn on a logarithmic axis."""


def of_frontier(plan: FleetPlan) -> Any:
    """What share of its limit the objective nearest to it has, against the cost of the fleet."""
    rows = plan.frontier.filter(pl.col("share").is_finite(), pl.col("share") > 0)
    rows = rows.with_columns(
        pl.when(pl.col("share") <= 1).then(pl.lit("kept")).otherwise(pl.lit("broken")).alias("SLO"),
        *((pl.col(end) * pl.col("share") / pl.col("value")).alias(f"{end}_share") for end in ("low", "high")),
    )
    shares = [*rows["share"], 1.0]
    scale = alt.Scale(type="log") if max(shares) > _WIDE * min(shares) else alt.Scale(zero=True)
    cost = alt.X("cost:Q", title=f"cost ({plan.unit})", scale=alt.Scale(zero=False, nice=True))
    share = alt.Y("share:Q", title="share of the limit", scale=scale)
    base = alt.Chart(rows)
    line = base.mark_line(color=GREY).encode(cost, share)
    spread = base.mark_rule(color=GREY).encode(
        cost, alt.Y("low_share:Q", scale=scale), alt.Y2("high_share:Q")
    )
    points = base.mark_point(filled=True, size=60).encode(
        cost,
        share,
        alt.Color("SLO:N", scale=alt.Scale(domain=["kept", "broken"], range=[BLUE, VERMILION])),
    )
    limit = alt.Chart(pl.DataFrame({"limit": [1.0]})).mark_rule(strokeDash=[4, 4]).encode(alt.Y("limit:Q"))
    layers = [limit, line, points]
    if not plan.exact:
        layers.insert(1, spread)
    chart = alt.layer(*layers).properties(title="Cost against latency", height=260)
    return shown_safely(chart, ())
