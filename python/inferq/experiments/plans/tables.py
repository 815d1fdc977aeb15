"""Tables of a plan, for pages, notebooks and terminals."""

from __future__ import annotations

from inferq.display.document import Grid
from inferq.display.text import NONE, amount, number
from inferq.experiments.plans.fleet_plan import FleetPlan, shown_value
from inferq.experiments.plans.outcome import ordered


def candidates(plan: FleetPlan, most: int | None = None) -> Grid:
    """The outcome of each candidate, best first.

    Args:
        plan: the plan.
        most: maximum number of rows. Default: all.
    """
    lines = []
    for outcome in ordered(plan.outcomes)[:most]:
        candidate, units = outcome.candidate, outcome.units
        gpus = None if units is None else candidate.gpus_of(units)
        least = NONE if outcome.at_least is None else f"≥ {number(outcome.at_least)}"
        cost = least if outcome.cost is None else number(outcome.cost)
        size = [cost] if plan.prices is None else [number(gpus), cost]
        lines.append([plan.name(candidate, units), outcome.kind, *size, shown_value(outcome.trial)])
    misfits = plan.grid.misfits[: None if most is None else max(0, most - len(lines))]
    none = [NONE] * (2 if plan.prices is None else 3)
    lines += [[", ".join(misfit.labels.values()), "does not fit", *none] for misfit in misfits]
    left = len(plan.outcomes) + len(plan.grid.misfits) - len(lines)
    return Grid(
        title="Candidates",
        header=["candidate", "outcome", *costs(plan), "largest value relative to its limit"],
        lines=lines,
        texts=2,
        last_is_text=True,
        note=f"{left:,} more are in `candidates`." if left else "",
    )


def frontier(plan: FleetPlan) -> Grid:
    """Cost against latency: fleets run on all requests, without a cheaper fleet that is as fast."""
    lines = []
    for row in plan.frontier.rows(named=True):
        objective = next(
            objective for objective in plan.prober.objectives if objective.metric.name == row["metric"]
        )
        value, low, high = (amount(row[name], objective.metric.unit) for name in ("value", "low", "high"))
        interval = NONE if row["low"] is None else f"{low} to {high}"
        verdict = "met" if row["share"] <= 1 else "violated"
        size = [number(row["gpus"]), number(row["cost"])][: len(costs(plan))]
        lines.append([row["fleet"], *size, row["metric"], value, interval, verdict])
    return Grid(
        title="Cost against latency",
        header=["fleet", *costs(plan), "metric", "value", "interval", "SLO"],
        lines=lines,
        texts=1,
        last_is_text=True,
    )


def windows(plan: FleetPlan, most: int) -> Grid:
    """The replicas that each window of the plan's schedule needs."""
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
    """The column headers of costs. Without prices the cost is the number of GPUs."""
    return ["GPUs"] if plan.prices is None else ["GPUs", plan.unit]
