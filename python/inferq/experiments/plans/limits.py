"""What theory rules out before anything is run: rates above a ceiling, limits below an iteration."""

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

_FLOORED = ("ttft", "itl", "tpot", "e2e")
_ROUNDING = 1e-9
"""A load above a whole number by a smaller share than this is that whole number."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What is proved of a candidate."""

    least: float
    """Fewer units than this serve the rate under no policy; infinite where no number is enough."""
    why: str
    """The bound with its theorem; empty where none is known."""


NO_LIMIT = Limit(1, "")


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What theory says of a family of engines, together or apart: asked once, whatever the ratio."""

    bounds: tuple[Bound, ...]
    """Of one replica, or of one on each side."""
    told: str
    """What the family may do at most, in words; empty where it is one engine."""
    hopeless: str = ""
    """Why no number is enough, where none is."""

    def limit(self, ratio: tuple[int, int] | None) -> Limit:
        """The fewest units that theory allows.

        A ceiling counts what all units have together, so that n of them carry n times what one does; but a
        link that all share.

        A ceiling speaks of the long run: above it the queue grows for as long as requests come like this. A
        run that is short enough may end before that shows.
        """
        if self.hopeless:
            return Limit(math.inf, self.hopeless)
        found = NO_LIMIT
        for bound in self.bounds:
            least = _least(bound, ratio)
            if least > found.least:
                found = Limit(least, self._said(bound))
        return found

    def _said(self, bound: Bound) -> str:
        """The theorem in words."""
        met = ", ".join(one.name for one in bound.hypotheses)
        even = f", even with {self.told}" if self.told else ""
        return (
            f"{bound.name} ({bound.source}): no policy carries more than {number(bound.capacity_per_s)} per "
            f"second with one{even}, and {number(bound.rate)} come; {bound.inequality}; met: {met}"
        )


def ceilings_of(
    demand: Demand, family: Family, router: Router, link: Link | None, objectives: Sequence[Objective]
) -> Ceilings:
    """What theory says of a family: of its roomiest engine, which may form every batch that one of it may.

    So a ceiling of that one is a ceiling of all. No token comes faster than the shortest iteration, so no
    latency that has one in it is shorter, whatever the number of replicas.

    Args:
        demand: what is asked.
        family: the engines.
        router: before them.
        link: between those that prefill and those that decode; None where each does both.
        objectives: the limits.
    """
    engine = family.roomiest
    if engine is None:
        return Ceilings((), "")
    floor_s = least_iteration_s(engine)
    for one in objectives:
        if one.metric.quantity in _FLOORED and one.limit < floor_s and one.metric.unit == "s":
            return Ceilings(
                (),
                family.told,
                f"{one.metric.name} ≤ {amount(one.limit, 's')} is below the shortest iteration, "
                f"{seconds(floor_s)}: no token comes faster",
            )
    side = (engine, 1)
    system = (
        Cluster(engine, replicas=1, router=router)
        if link is None
        else Disaggregated(prefill=side, decode=side, link=link, prefill_router=router, decode_router=router)
    )
    try:
        verdict = stability(demand, system)
    except ConfigError as error:  # what has no room for any request; another one of the family may have it
        return Ceilings((), family.told, str(error) if family.members == 1 else "")
    ceilings = (one for one in verdict.bounds if one.kind == "ceiling" and one.applies)
    return Ceilings(tuple(one for one in ceilings if one.load is not None), family.told)


def _least(bound: Bound, ratio: tuple[int, int] | None) -> float:
    """The fewest units that carry the load of one."""
    assert bound.load is not None
    if bound.resource == "link":
        return math.inf if bound.load > 1 else 1
    if ratio is None:
        return max(1, math.ceil(bound.load * (1 - _ROUNDING)))
    for side, count in zip(("prefill side", "decode side"), ratio, strict=True):
        if bound.name.startswith(side):
            return max(1, math.ceil(bound.load / count * (1 - _ROUNDING)))
    return 1
