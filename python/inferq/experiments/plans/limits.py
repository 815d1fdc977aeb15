"""Fleets that theory rules out before any run: a load above an upper bound, a limit below one iteration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inferq.display.text import amount, number, seconds
from inferq.errors import ConfigError
from inferq.experiments.plans.engines import Family
from inferq.results.slo import Objective
from inferq.systems.cluster import Cluster
from inferq.systems.disaggregated import Disaggregated, Link
from inferq.systems.routers import Router
from inferq.theory.bounds.bound import Bound
from inferq.theory.bounds.stability import stability
from inferq.theory.capacities.iteration_cost import least_iteration_s
from inferq.theory.demands.demand import Demand

_AT_LEAST_ONE_ITERATION = ("ttft", "itl", "tpot", "e2e")
_ROUNDING_OF_TIMES = 1e-6
"""A limit is below the shortest iteration if it is so by more than this share."""
_ROUNDING = 1e-9
"""A load is rounded down to a whole number if it is above it by less than this share."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The proved minimum size of a fleet."""

    least: float
    """Minimum units that can serve the load with any policy. Infinite if no number of units can."""
    reason: str
    """The bound and its theorem. Empty if no bound is known."""


NO_LIMIT = Limit(1, "")


@dataclass(frozen=True, slots=True)
class UpperBounds:
    """Theoretical bounds of a family of engines, shared by all its ratios of disaggregated pools."""

    bounds: tuple[Bound, ...]
    """Bounds of one replica, or of one replica per pool."""
    batch_limits: str
    """The largest batch limits in the family, as text. Empty for a family of one engine."""
    impossible: str = ""
    """The reason why no number of replicas is enough, if there is one."""

    def limit(self, ratio: tuple[int, int] | None) -> Limit:
        """The minimum units that theory allows.

        A bound covers the resources of all units, so n units carry n times the load of one, except for a
        link shared by all units. A bound is about the long run: above it the queue grows as long as the load
        lasts.
        """
        if self.impossible:
            return Limit(math.inf, self.impossible)
        limit = NO_LIMIT
        for bound in self.bounds:
            least = _least(bound, ratio)
            if least > limit.least:
                limit = Limit(least, self._reason(bound))
        return limit

    def _reason(self, bound: Bound) -> str:
        hypotheses = ", ".join(hypothesis.name for hypothesis in bound.hypotheses)
        even = f", even with {self.batch_limits}" if self.batch_limits else ""
        return (
            f"{bound.name} ({bound.source}): no policy sustains more than {number(bound.capacity_per_s)} per "
            f"second on one replica{even}; the load is {number(bound.rate)}; {bound.inequality}; hypotheses "
            f"met: {hypotheses}"
        )


def upper_bounds_of(
    demand: Demand | None, family: Family, router: Router, link: Link | None, objectives: Sequence[Objective]
) -> UpperBounds:
    """Theoretical bounds of a family, computed for its largest engine.

    That engine can form every batch of every member, so its upper bounds hold for the whole family. No
    latency that contains an iteration is below the shortest iteration, whatever the number of replicas.

    Args:
        demand: the load in the long run. None for a plan about exactly these requests, whose queue may grow
            as long as it ends in time.
        family: the engines.
        router: router in front of the replicas.
        link: link between prefill and decode pools. None if every replica does both.
        objectives: the limits of the SLO.
    """
    engine = family.largest
    if engine is None:
        return UpperBounds((), "")
    shortest_s = least_iteration_s(engine)
    for objective in objectives:
        metric = objective.metric
        is_below = objective.limit < shortest_s * (1 - _ROUNDING_OF_TIMES)
        if metric.quantity in _AT_LEAST_ONE_ITERATION and is_below and metric.unit == "s":
            return UpperBounds(
                (),
                family.batch_limits,
                f"{metric.name} ≤ {amount(objective.limit, 's')} is below the shortest iteration, "
                f"{seconds(shortest_s)}",
            )
    if demand is None:
        return UpperBounds((), family.batch_limits)
    pool = (engine, 1)
    system = (
        Cluster(engine, replicas=1, router=router)
        if link is None
        else Disaggregated(prefill=pool, decode=pool, link=link, prefill_router=router, decode_router=router)
    )
    try:
        verdict = stability(demand, system)
    except ConfigError as error:  # no request fits; another member of the family may have room
        return UpperBounds((), family.batch_limits, str(error) if family.members == 1 else "")
    return UpperBounds(
        tuple(
            bound
            for bound in verdict.bounds
            if bound.kind == "upper_bound" and bound.applies and bound.load is not None
        ),
        family.batch_limits,
    )


def _least(bound: Bound, ratio: tuple[int, int] | None) -> float:
    """The minimum units that carry the load of a bound on one unit."""
    assert bound.load is not None
    if bound.resource == "link":
        return math.inf if bound.load > 1 else 1
    if ratio is None:
        return max(1, math.ceil(bound.load * (1 - _ROUNDING)))
    for pool, count in zip(("prefill side", "decode side"), ratio, strict=True):
        if bound.name.startswith(pool):
            return max(1, math.ceil(bound.load / count * (1 - _ROUNDING)))
    return 1
