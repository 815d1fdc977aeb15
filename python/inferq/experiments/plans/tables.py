"""The tables of a plan, on pages and terminals alike."""

from __future__ import annotations

from inferq.display.document import Grid
from inferq.display.text import NONE, amount, number
from inferq.experiments.plans.fleet_plan import FleetPlan, shown_value


def candidates(plan: FleetPlan, most: int | None = None) -> Grid:
    """What became of each candidate, those that keep the SLO first, by cost.

    Args:
        plan: whose.
        most: so many at most; None: all.
    """
    lines = []
    for one in plan.fates.ordered(most):
        units = None if one.units is None else one.candidate.gpus_of(one.units)
        least = NONE if one.at_least is None else f"≥ {number(one.at_least)}"
        cost = least if one.cost is None else number(one.cost)
        size = [cost] if plan.prices is None else [number(units), cost]
        lines.append([plan.name(one.candidate, one.units), one.kind, *size, shown_value(one.trial)])
    misfits = plan.choices.engines.misfits[: None if most is None else max(0, most - len(lines))]
    none = [NONE] * (2 if plan.prices is None else 3)
    lines += [[", ".join(misfit.labels.values()), "does not fit", *none] for misfit in misfits]
    left = len(plan.fates) + len(plan.choices.engines.misfits) - len(lines)
    return Grid(
        title="What became of each choice?",
        header=["choice", "fate", *costs(plan), "its trial"],
        lines=lines,
        texts=2,
        last_is_text=True,
        note=f"{left:,} more are in `candidates`." if left else "",
    )


def frontier(plan: FleetPlan) -> Grid:
    """Cost against latency: no cheaper fleet that was run on all requests is as fast."""
    lines = []
    for row in plan.frontier.rows(named=True):
        metric = next(one for one in plan.prober.objectives if one.metric.name == row["metric"])
        value, low, high = (amount(row[name], metric.metric.unit) for name in ("value", "low", "high"))
        between = NONE if row["low"] is None else f"{low} to {high}"
        kept = "kept" if row["share"] <= 1 else "broken"
        size = [number(row["gpus"]), number(row["cost"])][: len(costs(plan))]
        lines.append([row["fleet"], *size, row["metric"], value, between, kept])
    return Grid(
        title="What does a lower latency cost?",
        header=["fleet", *costs(plan), "metric", "value", "between", "SLO"],
        lines=lines,
        texts=1,
        last_is_text=True,
    )


def windows(plan: FleetPlan, most: int) -> Grid:
    """How many replicas each window of the plan's schedule needs."""
    assert plan.scheduled is not None
    rows = plan.scheduled.frame.rows(named=True)
    lines = [
        [
            *(amount(row["start_s"], "s"), number(row["rate_per_s"]), number(row["replicas"])),
            *[number(row["gpus"]), number(row["cost"])][: len(costs(plan))],
        ]
        for row in rows[:most]
    ]
    return Grid(
        title="",
        header=["from", "requests/s", "replicas", *costs(plan)],
        lines=lines,
        texts=0,
        note=f"{len(rows) - most:,} more are in `schedule().frame`." if len(rows) > most else "",
    )


def costs(plan: FleetPlan) -> list[str]:
    """The columns of what a fleet costs: without prices its GPUs are the cost."""
    return ["GPUs"] if plan.prices is None else ["GPUs", plan.unit]
