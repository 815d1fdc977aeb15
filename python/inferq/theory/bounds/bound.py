"""What is a limit of theory made of, and which hypotheses are those of every one?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from inferq.systems.routers import LeastRequests, LeastTokens, PowerOfTwo, Random, RoundRobin, Router
from inferq.theory.demands.demand import Demand
from inferq.theory.demands.lengths import Work
from inferq.theory.statement import Hypothesis, number

Kind = Literal["ceiling", "guarantee"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """A limit that theory puts on the rate of a scenario.

    Args:
        name: what is limited, with the place of it where there are several.
        resource: `"tokens"`, `"seats"`, `"memory"`, `"tiles"`, `"batches"`, `"thresholds"`, `"prefills"`,
            `"decodes"`, `"link"` or `"replicas"`.
        kind: `"ceiling"`: no policy of this kind is stable above it; `"guarantee"`: this one is stable below.
        capacity_per_s: requests (of a network: jobs) per second in all.
        rate: λ, how many come; None where that is not known.
        source: the theorem.
        formula: the inequality with its numbers.
        hypotheses: what it needs, each judged for this scenario.
        hit_rate: the share of prompt tokens that it takes prefix caches to find: a ceiling at most so much, a
            guarantee at least; None where there is no prefix cache.
    """

    name: str
    resource: str
    kind: Kind
    capacity_per_s: float
    rate: float | None
    source: str
    formula: str
    hypotheses: tuple[Hypothesis, ...] = ()
    hit_rate: float | None = None

    @property
    def load(self) -> float | None:
        """λ / capacity; None without a rate."""
        return None if self.rate is None else self.rate / self.capacity_per_s

    @property
    def applies(self) -> bool:
        """Whether every hypothesis is met."""
        return all(one.met for one in self.hypotheses)

    @property
    def says(self) -> Literal["stable", "unstable", "nothing"]:
        """What follows from this bound alone."""
        if self.load is None or not self.applies:
            return "nothing"
        if self.kind == "ceiling":
            return "unstable" if self.load > 1 else "nothing"
        return "stable" if self.load < 1 else "nothing"


def stays(demand: Demand) -> tuple[Hypothesis, ...]:
    """Do requests come whatever happens, and wait until they are served? Ceilings need no more than that."""
    loop = "the workload waits for answers" if demand.closed_loop else "requests come by themselves"
    leave = "who waits may give up" if demand.gives_up else "nobody gives up"
    return (
        Hypothesis(name="open loop", met=not demand.closed_loop, why=loop),
        Hypothesis(name="everybody stays", met=not demand.gives_up, why=leave),
    )


def steady(demand: Demand, capacity_per_s: float, work: Work) -> Hypothesis:
    """Do requests come at one rate in the long run, or below the capacity even where they ask for most?

    Args:
        demand: what is asked for.
        capacity_per_s: of the mean request.
        work: what a request asks for, in any unit in which the capacity is its share of.
    """
    if demand.rate is None:
        return Hypothesis(name=_STEADY, met=None, why=demand.arrivals)
    return busiest(demand, demand.rate * demand.peak(work) / capacity_per_s)


def busiest(demand: Demand, load: float) -> Hypothesis:
    """The same, given the load of the part of the arrivals that asks for the most."""
    if demand.order is None and demand.busiest == 1:
        return Hypothesis(name=_STEADY, met=True, why=demand.arrivals)
    why = f"{demand.arrivals}; the busiest part asks {number(load)} of the capacity"
    return Hypothesis(name=_STEADY, met=True if load < 1 else None, why=why)


_STEADY = "arrivals at a steady rate"
_LENGTH_BLIND = (RoundRobin, Random, LeastRequests, LeastTokens, PowerOfTwo)
"""Routers that ask nothing of the request that they send."""


def spreads(
    demand: Demand, router: Router | None, replicas: int, capacity_per_s: float, work: Work
) -> Hypothesis:
    """Does a router keep every one of several replicas busy, if any has work?

    The fewest requests, or tokens, do in any order of requests (while all replicas have work the backlog
    falls, and one that has the most gets nothing until the others have as much), and so does a lot. Turns
    divide requests evenly, not what they ask for: if every second one is long, the same replicas get them.
    """
    name, kind = "a router that spreads the load", type(router).__name__
    if replicas == 1 or router is None:
        return Hypothesis(name=name, met=True, why="there is one replica")
    if isinstance(router, RoundRobin):
        return _turns(demand, replicas, capacity_per_s, work)
    if isinstance(router, Random):
        return Hypothesis(name=name, met=True, why=f"{kind} gives each of {replicas} replicas its share")
    if isinstance(router, (LeastRequests, LeastTokens)):
        return Hypothesis(name=name, met=True, why=f"{kind} is one of li2025 Proposition 1")
    return Hypothesis(name=name, met=None, why=f"no theorem speaks of {kind}")


def _turns(demand: Demand, replicas: int, capacity_per_s: float, work: Work) -> Hypothesis:
    """Does every replica get its share of the work, where they take turns?"""
    name = "a router that spreads the load"
    if demand.lengths.is_fixed:
        why = f"RoundRobin gives each of {replicas} replicas its share of requests, which are all alike"
        return Hypothesis(name=name, met=True, why=why)
    if demand.alike:
        why = f"RoundRobin gives each of {replicas} replicas its share: lengths come in random order"
        return Hypothesis(name=name, met=True, why=why)
    if demand.order is None or demand.rate is None:
        why = "RoundRobin may send the long ones of an order that is not random to the same replicas"
        return Hypothesis(name=name, met=None, why=why)
    load = demand.rate * demand.peak(work, turns=replicas) / capacity_per_s
    why = f"RoundRobin asks the busiest replica for {number(load)} of its capacity in its busiest part"
    return Hypothesis(name=name, met=True if load < 1 else None, why=why)


def in_random_order(demand: Demand, router: Router | None, replicas: int) -> Hypothesis:
    """Are the requests that a replica gets one after another a sample of all?"""
    name = "lengths in random order"
    if demand.lengths.is_fixed:
        return Hypothesis(name=name, met=True, why="all requests are alike")
    if not demand.alike:
        return Hypothesis(name=name, met=None, why=f"{demand.arrivals}: long ones may come together")
    if replicas > 1 and not isinstance(router, _LENGTH_BLIND):
        return Hypothesis(name=name, met=None, why=f"{type(router).__name__} may sort requests by length")
    return Hypothesis(name=name, met=True, why="the length of a request says nothing about the next one")


def ceiling(
    demand: Demand, name: str, capacity_per_s: float, needs: tuple[Hypothesis, ...], **told: str
) -> Bound:
    """A rate that nobody passes whose requests come by themselves and stay."""
    return Bound(
        name=name,
        kind="ceiling",
        capacity_per_s=capacity_per_s,
        rate=demand.rate,
        hypotheses=(*needs, *stays(demand)),
        hit_rate=None,
        **told,
    )


Fleet: TypeAlias = tuple[Demand, Router | None, int]
"""What is asked of how many replicas behind which router."""


def guarantee(
    fleet: Fleet, name: str, capacity_per_s: float, needs: tuple[Hypothesis, ...], work: Work, **told: str
) -> Bound:
    """A rate that is served, given what a request asks for in the unit of the capacity."""
    demand, router, replicas = fleet
    around = (
        spreads(demand, router, replicas, capacity_per_s, work),
        steady(demand, capacity_per_s, work),
        *stays(demand)[:1],
    )
    return Bound(
        name=name,
        kind="guarantee",
        capacity_per_s=capacity_per_s,
        rate=demand.rate,
        hypotheses=(*needs, *around),
        hit_rate=None,
        **told,
    )
