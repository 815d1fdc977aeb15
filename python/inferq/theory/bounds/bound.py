"""What a limit of theory is made of, and the hypotheses that many of them share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from inferq.errors import Renamed
from inferq.systems.engine import Engine
from inferq.systems.routers import Router
from inferq.theory.capacities.iteration_cost import all_fit, memory_slack
from inferq.theory.demands.demand import Demand
from inferq.theory.demands.hits import PrefixHits, nothing_shared, prefix_hits
from inferq.theory.demands.lengths import Lengths, Work
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
        inequality: with its numbers.
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
    inequality: str
    formula = Renamed("inequality")
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


_COME_AND_GO = Hypothesis(
    name="replicas that stay", met=None, why="they come and go, and no theorem speaks of that"
)


@dataclass(frozen=True)
class Replicas:
    """Replicas of one engine behind a router, and what is asked of them."""

    demand: Demand
    engine: Engine
    count: int = 1
    router: Router | None = None
    stay: bool = True
    """Whether all of them serve all the time."""

    @property
    def lengths(self) -> Lengths:
        """The lengths of a request of any class."""
        return self.demand.lengths

    @cached_property
    def hits(self) -> PrefixHits | None:
        """What their prefix caches find; None where there are none, or nothing that they could find."""
        return prefix_hits(self.demand, self.engine)

    @cached_property
    def fit(self) -> Hypothesis:
        """Is no request too long for them?"""
        return all_fit(self.engine, self.lengths, self.engine.first_token)

    @cached_property
    def slack(self) -> Hypothesis:
        """Can their caches never run short?"""
        return memory_slack(self.engine, self.lengths)

    def ceiling(self, name: str, capacity_per_s: float, *needs: Hypothesis, **text: str) -> Bound:
        """A rate that no policy passes where requests come by themselves and stay."""
        return ceiling(self.demand, name, capacity_per_s, *needs, **text)

    def guarantee(
        self, name: str, capacity_per_s: float, *needs: Hypothesis, work: Work, **text: str
    ) -> Bound:
        """A rate that is served, given what a request asks for in the unit of the capacity."""
        around = (
            self._spreads(capacity_per_s, work),
            _steady(self.demand, capacity_per_s, work),
            *stays(self.demand)[:1],
            *(() if self.stay else (_COME_AND_GO,)),
        )
        return Bound(
            name=name,
            kind="guarantee",
            capacity_per_s=capacity_per_s,
            rate=self.demand.rate,
            hypotheses=(*needs, *around),
            hit_rate=None,
            **text,
        )

    def with_hits(self, bound: Bound) -> Bound:
        """A bound of theirs, with the hit rate that it assumes where there is a prefix cache."""
        if self.engine.kv.prefix_cache is None or bound.hit_rate is not None:
            return bound
        if bound.kind == "guarantee":
            return replace(bound, hit_rate=0.0)
        need = nothing_shared(self.demand) if self.hits is None else self.hits.hypothesis
        rate = 0.0 if self.hits is None else self.hits.hit_rate
        return replace(bound, hit_rate=rate, hypotheses=(*bound.hypotheses, need))

    def _spreads(self, capacity_per_s: float, work: Work) -> Hypothesis:
        """Does the router keep every replica busy, if any has work?

        The fewest requests, or tokens, do in any order of requests (while all replicas have work the backlog
        falls, and one that has the most gets nothing until the others have as much), and so does a lot. Turns
        divide requests evenly, not what they ask for: if every second one is long, the same replicas get
        them.
        """
        name, kind = "a router that spreads the load", type(self.router).__name__
        if self.count == 1 or self.router is None:
            return Hypothesis(name=name, met=True, why="there is one replica")
        if self.router.spreads == "in turns":
            met, why = self._in_turns(capacity_per_s, work)
            return Hypothesis(name=name, met=met, why=f"{kind} {why}")
        if self.router.spreads == "by chance":
            return Hypothesis(
                name=name, met=True, why=f"{kind} gives each of {self.count} replicas its share"
            )
        if self.router.spreads == "to the fewest":
            return Hypothesis(name=name, met=True, why=f"{kind} is one of li2025 Proposition 1")
        return Hypothesis(name=name, met=None, why=f"no theorem speaks of {kind}")

    def _in_turns(self, capacity_per_s: float, work: Work) -> tuple[bool | None, str]:
        """Does every replica get its share of the work, where they take turns?"""
        demand, each = self.demand, f"gives each of {self.count} replicas its share"
        if self.lengths.is_fixed:
            return True, f"{each} of requests, which are all alike"
        if demand.alike:
            return True, f"{each}: lengths come in random order"
        if demand.order is None or demand.rate is None:
            return None, "may send the long ones of an order that is not random to the same replicas"
        load = demand.rate * demand.peak(work, turns=self.count) / capacity_per_s
        why = f"asks the busiest replica for {number(load)} of its capacity in its busiest part"
        return True if load < 1 else None, why


def ceiling(demand: Demand, name: str, capacity_per_s: float, *needs: Hypothesis, **text: str) -> Bound:
    """A rate that no policy passes where requests come by themselves and stay.

    Args:
        demand: what is asked.
        name: what is limited.
        capacity_per_s: the rate.
        needs: what it assumes beside that.
        text: `resource`, `source` and `inequality` of the bound.
    """
    return Bound(
        name=name,
        kind="ceiling",
        capacity_per_s=capacity_per_s,
        rate=demand.rate,
        hypotheses=(*needs, *stays(demand)),
        hit_rate=None,
        **text,
    )


def stays(demand: Demand) -> tuple[Hypothesis, ...]:
    """Do requests come whatever happens, and wait until they are served? Ceilings need no more than that."""
    loop = "the workload waits for answers" if demand.closed_loop else "requests come by themselves"
    leave = "waiting requests may give up" if demand.gives_up else "no request gives up"
    return (
        Hypothesis(name="open loop", met=not demand.closed_loop, why=loop),
        Hypothesis(name="requests stay", met=not demand.gives_up, why=leave),
    )


def _steady(demand: Demand, capacity_per_s: float, work: Work) -> Hypothesis:
    """Do requests come at one rate in the long run, or below the capacity even where they ask for most?"""
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


def in_random_order(demand: Demand, router: Router | None, replicas: int) -> Hypothesis:
    """Are the requests that a replica gets one after another a sample of all?"""
    name = "lengths in random order"
    if demand.lengths.is_fixed:
        return Hypothesis(name=name, met=True, why="all requests are alike")
    if not demand.alike:
        return Hypothesis(name=name, met=None, why=f"{demand.arrivals}: long ones may come together")
    if replicas > 1 and (router is None or router.looks_at_request is not False):
        return Hypothesis(name=name, met=None, why=f"{type(router).__name__} may sort requests by length")
    return Hypothesis(name=name, met=True, why="the length of a request says nothing about the next one")
