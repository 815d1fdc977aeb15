"""A bound of theory, and the hypotheses that many bounds share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from inferq.systems.engine import Engine
from inferq.systems.routers import Router
from inferq.theory.capacities.iteration_cost import all_fit, memory_slack
from inferq.theory.demands.demand import Demand
from inferq.theory.demands.hits import PrefixHits, nothing_shared, prefix_hits
from inferq.theory.demands.lengths import Lengths, Work
from inferq.theory.statement import Hypothesis, number

Kind = Literal["upper_bound", "guarantee"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """A limit that theory puts on the rate of a scenario.

    Args:
        name: what is limited, with its place if there are several.
        resource: `"tokens"`, `"sequences"`, `"memory"`, `"tiles"`, `"batches"`, `"thresholds"`,
            `"prefills"`, `"decodes"`, `"link"` or `"replicas"`.
        kind: `"upper_bound"`: no policy of this kind is stable above the capacity. `"guarantee"`: this policy
            is stable below it.
        capacity_per_s: requests (for a network: jobs) per second of all replicas.
        rate: λ, arrivals per second; None if unknown.
        source: the theorem.
        inequality: the inequality with its numbers.
        hypotheses: assumptions of the theorem, each checked for this scenario.
        hit_rate: the assumed share of prompt tokens found in prefix caches: the most for an upper bound, the
            least for a guarantee; None without a prefix cache.
    """

    name: str
    resource: str
    kind: Kind
    capacity_per_s: float
    rate: float | None
    source: str
    inequality: str
    hypotheses: tuple[Hypothesis, ...] = ()
    hit_rate: float | None = None

    @property
    def load(self) -> float | None:
        """λ / capacity; None without a rate."""
        return None if self.rate is None else self.rate / self.capacity_per_s

    @property
    def applies(self) -> bool:
        """Whether every hypothesis is met."""
        return all(hypothesis.met for hypothesis in self.hypotheses)

    @property
    def implies(self) -> Literal["stable", "unstable", "nothing"]:
        """The conclusion from this bound alone."""
        if self.load is None or not self.applies:
            return "nothing"
        if self.kind == "upper_bound":
            return "unstable" if self.load > 1 else "nothing"
        return "stable" if self.load < 1 else "nothing"


_CHANGING_REPLICAS = Hypothesis(
    name="constant replicas", met=None, why="replicas change over time, which no theorem covers"
)


@dataclass(frozen=True)
class Replicas:
    """Identical replicas behind a router, with their demand."""

    demand: Demand
    engine: Engine
    count: int = 1
    router: Router | None = None
    stay: bool = True
    """Whether all replicas serve all the time."""

    @property
    def lengths(self) -> Lengths:
        """Lengths of a request of any class."""
        return self.demand.lengths

    @cached_property
    def hits(self) -> PrefixHits | None:
        """Hits of the prefix caches; None without a cache or without shared prompts."""
        return prefix_hits(self.demand, self.engine)

    @cached_property
    def fit(self) -> Hypothesis:
        """Whether every replica can hold every request."""
        return all_fit(self.engine, self.lengths, self.engine.first_token)

    @cached_property
    def slack(self) -> Hypothesis:
        """Whether no KV cache can ever run short."""
        return memory_slack(self.engine, self.lengths)

    def upper_bound(self, name: str, capacity_per_s: float, *needs: Hypothesis, **text: str) -> Bound:
        """A rate that no policy can exceed in an open loop without abandonment."""
        return upper_bound(self.demand, name, capacity_per_s, *needs, **text)

    def guarantee(
        self, name: str, capacity_per_s: float, *needs: Hypothesis, work: Work, **text: str
    ) -> Bound:
        """A rate that is certainly served, given the work of a request in the unit of the capacity."""
        common = (
            self._spreads(capacity_per_s, work),
            _steady(self.demand, capacity_per_s, work),
            *open_loop(self.demand)[:1],
            *(() if self.stay else (_CHANGING_REPLICAS,)),
        )
        return Bound(
            name=name,
            kind="guarantee",
            capacity_per_s=capacity_per_s,
            rate=self.demand.rate,
            hypotheses=(*needs, *common),
            hit_rate=None,
            **text,
        )

    def with_hits(self, bound: Bound) -> Bound:
        """The bound with the hit rate that it assumes, if there is a prefix cache."""
        if self.engine.kv.prefix_cache is None or bound.hit_rate is not None:
            return bound
        if bound.kind == "guarantee":
            return replace(bound, hit_rate=0.0)
        need = nothing_shared(self.demand) if self.hits is None else self.hits.hypothesis
        rate = 0.0 if self.hits is None else self.hits.hit_rate
        return replace(bound, hit_rate=rate, hypotheses=(*bound.hypotheses, need))

    def _spreads(self, capacity_per_s: float, work: Work) -> Hypothesis:
        """Whether the router keeps every replica busy while any has work.

        Routing to the fewest requests or tokens does so in any order of requests: while all replicas have
        work the backlog falls, and the replica with the most gets nothing until the others have as much.
        Random routing does too. Taking turns divides requests evenly, but not their work: if every second
        request is long, the same replicas get the long ones.
        """
        name, kind = "a router that spreads the load", type(self.router).__name__
        if self.count == 1 or self.router is None:
            return Hypothesis(name=name, met=True, why="there is one replica")
        if self.router.balancing == "round robin":
            met, why = self._in_turns(capacity_per_s, work)
            return Hypothesis(name=name, met=met, why=f"{kind} {why}")
        if self.router.balancing == "random":
            return Hypothesis(
                name=name, met=True, why=f"{kind} gives each of {self.count} replicas its share"
            )
        if self.router.balancing == "shortest queue":
            return Hypothesis(name=name, met=True, why=f"{kind} is one of li2025 Proposition 1")
        return Hypothesis(name=name, met=None, why=f"no theorem covers {kind}")

    def _in_turns(self, capacity_per_s: float, work: Work) -> tuple[bool | None, str]:
        """Whether every replica gets its share of the work if replicas take turns."""
        demand, each = self.demand, f"gives each of {self.count} replicas its share"
        if self.lengths.is_fixed:
            return True, f"{each} of requests, which are identical"
        if demand.alike:
            return True, f"{each}: lengths are in random order"
        if demand.order is None or demand.rate is None:
            return None, "may send all long requests to the same replicas: their order is not random"
        load = demand.rate * demand.peak(work, turns=self.count) / capacity_per_s
        why = f"loads the busiest replica to {number(load)} of its capacity in its busiest part"
        return True if load < 1 else None, why


def upper_bound(demand: Demand, name: str, capacity_per_s: float, *needs: Hypothesis, **text: str) -> Bound:
    """A rate that no policy can exceed in an open loop without abandonment.

    Args:
        demand: the workload.
        name: what is limited.
        capacity_per_s: the rate.
        needs: further assumptions.
        text: `resource`, `source` and `inequality` of the bound.
    """
    return Bound(
        name=name,
        kind="upper_bound",
        capacity_per_s=capacity_per_s,
        rate=demand.rate,
        hypotheses=(*needs, *open_loop(demand)),
        hit_rate=None,
        **text,
    )


def open_loop(demand: Demand) -> tuple[Hypothesis, ...]:
    """Hypotheses of every upper bound: an open loop, and requests that wait until they are served."""
    loop = "arrivals wait for responses" if demand.closed_loop else "arrivals do not wait for responses"
    leave = "waiting requests may abandon" if demand.gives_up else "no request abandons"
    return (
        Hypothesis(name="open loop", met=not demand.closed_loop, why=loop),
        Hypothesis(name="no abandonment", met=not demand.gives_up, why=leave),
    )


def _steady(demand: Demand, capacity_per_s: float, work: Work) -> Hypothesis:
    """Whether arrivals have one rate in the long run, or stay below the capacity in their busiest part."""
    if demand.rate is None:
        return Hypothesis(name=_STEADY, met=None, why=demand.arrivals)
    return busiest(demand, demand.rate * demand.peak(work) / capacity_per_s)


def busiest(demand: Demand, load: float) -> Hypothesis:
    """The same, given the load of the busiest part of the arrivals."""
    if demand.order is None and demand.busiest == 1:
        return Hypothesis(name=_STEADY, met=True, why=demand.arrivals)
    why = f"{demand.arrivals}; the busiest part has load {number(load)}"
    return Hypothesis(name=_STEADY, met=True if load < 1 else None, why=why)


_STEADY = "arrivals at a steady rate"


def in_random_order(demand: Demand, router: Router | None, replicas: int) -> Hypothesis:
    """Whether the consecutive requests of a replica are a random sample of all."""
    name = "lengths in random order"
    if demand.lengths.is_fixed:
        return Hypothesis(name=name, met=True, why="all requests are identical")
    if not demand.alike:
        return Hypothesis(name=name, met=None, why=f"{demand.arrivals}: long requests may be clustered")
    if replicas > 1 and (router is None or router.depends_on_request is not False):
        return Hypothesis(name=name, met=None, why=f"{type(router).__name__} may sort requests by length")
    return Hypothesis(name=name, met=True, why="the length of a request is independent of the next one")
