"""What theory rules out before anything is run: rates above a ceiling, limits below an iteration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from inferq.errors import ConfigError
from inferq.experiments.capacity_search.slo import Objective
from inferq.experiments.plans.candidate import Candidate
from inferq.reports.text import amount, number, seconds
from inferq.theory.bounds.bound import Bound
from inferq.theory.bounds.stability import stability
from inferq.theory.capacities.iteration_cost import least_iteration_s
from inferq.theory.demands.demand import Demand

_FLOORED = ("ttft", "tbt", "tpot", "e2e")
_ROUNDING = 1e-9
"""A load above a whole number by a smaller share than this is that whole number."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What is proved of a candidate."""

    least: float
    """Fewer units than this serve the rate under no policy; infinite where no number is enough."""
    why: str
    """The bound with its theorem; empty where none is known."""
    proved: bool = True
    """Whether it is a theorem that rules out, and not a request that finds no room."""


def limit_of(demand: Demand, candidate: Candidate, objectives: tuple[Objective, ...]) -> Limit:
    """The fewest units that theory allows.

    A ceiling counts what all units have together, so that n of them carry n times what one does; but a link
    that all share. No token comes faster than the shortest iteration, so no latency that has one in it is
    shorter, whatever the number of replicas.

    A ceiling speaks of the long run: above it the queue grows for as long as requests come like this. A run
    that is short enough may end before that shows.
    """
    floor_s = least_iteration_s(candidate.engine)
    for one in objectives:
        if one.metric.quantity in _FLOORED and one.limit < floor_s and one.metric.unit == "s":
            return Limit(
                math.inf,
                f"{one.metric.name} ≤ {amount(one.limit, 's')} is below the shortest iteration, "
                f"{seconds(floor_s)}: no token comes faster",
            )
    try:
        verdict = stability(demand, candidate.system(1))
    except ConfigError as error:
        return Limit(math.inf, str(error), proved=False)
    found = Limit(1, "")
    for bound in verdict.bounds:
        if bound.kind == "ceiling" and bound.applies and bound.load is not None:
            least = _least(bound)
            if least > found.least:
                found = Limit(least, _said(bound))
    return found


def _least(bound: Bound) -> float:
    assert bound.load is not None
    if bound.resource == "link":
        return math.inf if bound.load > 1 else 1
    return max(1, math.ceil(bound.load * (1 - _ROUNDING)))


def _said(bound: Bound) -> str:
    """The theorem in words."""
    met = ", ".join(one.name for one in bound.hypotheses)
    return (
        f"{bound.name} ({bound.source}): no policy carries more than {number(bound.capacity_per_s)} per "
        f"second with one, and {number(bound.rate)} come; {bound.inequality}; met: {met}"
    )
