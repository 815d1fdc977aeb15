"""Which limits of one engine, or of several alike, bear on a demand?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from inferq.engine import Engine, Overhead
from inferq.router import LeastRequests, LeastTokens, PowerOfTwo, Random, RoundRobin, Router
from inferq.scheduler import FasterTransformer, Rad, RadPhased, SlotGreedy, Wait
from inferq.theory.batches import PRICED
from inferq.theory.demand import Demand
from inferq.theory.equilibrium import Hardware
from inferq.theory.iteration import (
    COUNTED,
    Iteration,
    adds_time,
    all_fit,
    budget_of,
    enough_seats,
    fills_budget,
    memory_slack,
    seats_of,
)
from inferq.theory.memory import kv_capacity
from inferq.theory.oldest import Oldest
from inferq.theory.order import Work, each
from inferq.theory.prices import cache_may_fill, least_prices, sure_prices
from inferq.theory.seats import request_level_capacity, seats_capacity
from inferq.theory.shortest import least_iteration_s
from inferq.theory.statement import Hypothesis, number
from inferq.theory.thresholds import equal_lengths, wait_thresholds
from inferq.theory.tiles import tile_capacity
from inferq.theory.tokens import token_capacity
from inferq.timing import (
    Constant,
    MemoryLinear,
    TiledGemm,
)

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
    """

    name: str
    resource: str
    kind: Kind
    capacity_per_s: float
    rate: float | None
    source: str
    formula: str
    hypotheses: tuple[Hypothesis, ...] = ()

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
    if demand.law.is_fixed:
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
    if demand.law.is_fixed:
        return Hypothesis(name=name, met=True, why="all requests are alike")
    if not demand.alike:
        return Hypothesis(name=name, met=None, why=f"{demand.arrivals}: long ones may come together")
    if replicas > 1 and not isinstance(router, _LENGTH_BLIND):
        return Hypothesis(name=name, met=None, why=f"{type(router).__name__} may sort requests by length")
    return Hypothesis(name=name, met=True, why="the length of a request says nothing about the next one")


def engine_bounds(
    demand: Demand, engine: Engine, replicas: int = 1, router: Router | None = None
) -> Iterator[Bound]:
    """All limits that apply to replicas of one engine behind a router.

    Ceilings count what all replicas have together, so they hold behind any router.

    What the host adds is in every bound. Where it is overlapped, an iteration is at least what its kernels
    take and at most that and the host's time together: ceilings are then those of the kernels alone, and
    guarantees those of a host that is not overlapped. (Tables and rooflines are bounded with the longer of
    both.) `TiledGemm` knows no host: its ceilings leave it out, and its guarantees are not proved.
    """
    host, timing = engine.overhead, engine.timing
    if host is None or not adds_time(host):
        yield from _bounds(demand, engine, replicas, router)
    elif isinstance(timing, TiledGemm):
        why = f"{host!r} is beside what the theorem counts"
        idle = Hypothesis(name="no time for the host", met=None, why=why)
        for bound in _bounds(demand, engine, replicas, router):
            beside = (idle,) if bound.kind == "guarantee" else ()
            yield replace(bound, hypotheses=(*bound.hypotheses, *beside))
    elif host.overlapped and isinstance(timing, COUNTED):
        sides: tuple[tuple[Kind, Overhead | None], ...] = (
            ("ceiling", None),
            ("guarantee", replace(host, overlapped=False)),
        )
        for kind, counted in sides:
            for bound in _bounds(demand, replace(engine, overhead=counted), replicas, router):
                if bound.kind == kind:
                    yield bound
    else:
        yield from _bounds(demand, engine, replicas, router)


def _bounds(demand: Demand, engine: Engine, replicas: int, router: Router | None) -> Iterator[Bound]:
    law, timing, scheduler = demand.law, engine.timing, engine.scheduler
    fit = all_fit(engine, law, engine.first_token)
    if fit.met:
        yield from _memory(demand, engine, replicas, router)
    if isinstance(timing, TiledGemm):
        yield from _tiles(demand, engine, replicas, router, fit)
    elif isinstance(timing, COUNTED):
        yield from _tokens(demand, engine, replicas, router, fit)
    elif isinstance(timing, PRICED):
        yield from _priced(demand, engine, replicas, router, fit)
    if isinstance(scheduler, FasterTransformer) and fit.met and isinstance(timing, COUNTED):
        batches = request_level_capacity(demand, engine, engines=replicas)
        formula = batches.explain().splitlines()[1].strip()
        made = {"resource": "batches", "source": batches.source, "formula": formula}
        gains = Iteration.of(engine).gains_with_tokens
        why = (
            "a token costs less in a larger batch" if gains else "smaller batches may serve more, for a while"
        )
        fastest = Hypothesis(name="full batches are the fastest", met=gains or None, why=why)
        mixed = in_random_order(demand, router, replicas)
        yield _ceiling(demand, "whole batches", batches.capacity_per_s, (fit, fastest, mixed), **made)
        fleet = (demand, router, replicas)
        yield _guarantee(fleet, "whole batches", batches.capacity_per_s, (fit, mixed), each, **made)
    plain = engine.overhead is None or not engine.overhead.per_sequence_s
    if isinstance(scheduler, Wait) and isinstance(timing, MemoryLinear) and replicas == 1 and plain:
        yield from _thresholds(demand, engine, scheduler)


def _ceiling(
    demand: Demand, name: str, capacity_per_s: float, needs: tuple[Hypothesis, ...], **told: str
) -> Bound:
    return Bound(
        name=name,
        kind="ceiling",
        capacity_per_s=capacity_per_s,
        rate=demand.rate,
        hypotheses=(*needs, *stays(demand)),
        **told,
    )


_Fleet: TypeAlias = tuple[Demand, Router | None, int]
"""What is asked of how many replicas behind which router."""


def _guarantee(
    fleet: _Fleet, name: str, capacity_per_s: float, needs: tuple[Hypothesis, ...], work: Work, **told: str
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
        **told,
    )


def _tokens(
    demand: Demand, engine: Engine, replicas: int, router: Router | None, fit: Hypothesis
) -> Iterator[Bound]:
    """What a batch can hold: its budget of tokens, and its seats."""
    scheduler, law = engine.scheduler, demand.law
    budget, seats = budget_of(scheduler), seats_of(scheduler)
    cost = Iteration.of(engine)
    slack, fleet = memory_slack(engine, law), (demand, router, replicas)
    if budget is None:
        yield from _without_budget(demand, engine, replicas, cost, fit)
    elif cost.seconds(cost.best_tokens(budget)) > 0:
        limit = token_capacity(demand, engine, engines=replicas)
        made = {
            "resource": "tokens",
            "source": limit.source,
            "formula": _inequality(limit.explain()),
        }
        yield _ceiling(demand, "tokens of full batches", limit.capacity_per_s, (fit,), **made)
        needs = (fills_budget(scheduler, budget), enough_seats(scheduler, budget), slack, fit)
        work = cost.full_batch_work(budget, engine.first_token)
        yield _guarantee(fleet, "tokens of full batches", limit.sure_per_s, needs, work, **made)
    yield from _oldest(fleet, engine, fit)
    if seats is not None and cost.base_s > 0:
        taken = seats_capacity(demand, engine, engines=replicas)
        lines = [line.strip() for line in taken.explain().splitlines()]
        made = {"resource": "seats", "source": taken.source, "formula": "; ".join(lines[1:3])}
        yield _ceiling(demand, "requests at once", taken.capacity_per_s, (fit,), **made)
        if taken.sure_per_s is not None and budget is not None and seats < budget:
            filled = (fills_budget(scheduler, budget), slack, fit)
            work = cost.full_batch_work(budget, engine.first_token, (taken.idle_s or 0.0) / seats)
            yield _guarantee(fleet, "requests at once", taken.sure_per_s, filled, work, **made)


def _oldest(fleet: _Fleet, engine: Engine, fit: Hypothesis) -> Iterator[Bound]:
    """What is sure although memory may run short."""
    demand, _, replicas = fleet
    oldest = Oldest.of(engine, demand.law, engine.first_token)
    if oldest is not None:
        yield _guarantee(
            fleet,
            "the oldest requests",
            replicas * oldest.capacity_per_s,
            (fit,),
            oldest.work,
            resource="memory",
            source="first come, first served, the youngest preempted",
            formula=oldest.formula,
        )


def _priced(
    demand: Demand, engine: Engine, replicas: int, router: Router | None, fit: Hypothesis
) -> Iterator[Bound]:
    """Measured or modelled kernels: what requests cost at prices that hold for all batches.

    The ceiling is that of tokens alone, then with seats, then with a cache that may be full: what binds is
    the last that lowers it.
    """
    law, scheduler, first_token = demand.law, engine.scheduler, engine.first_token
    budget, seats, fleet = budget_of(scheduler), seats_of(scheduler), (demand, router, replicas)
    source = f"prices at the corners of a {type(engine.timing).__name__}"
    scarce = seats is not None and (budget is None or seats < budget)
    limits = [("tokens of full batches", "tokens", False, False)]
    if scarce:
        limits.append(("requests at once", "seats", True, False))
    if cache_may_fill(engine, law):
        limits.append(("batches that fit the cache", "memory", scarce, True))
    known_s = 0.0
    for name, resource, by_seats, by_memory in limits:
        prices = least_prices(engine, law, first_token, seats=by_seats, memory=by_memory)
        least_s = 0.0 if prices is None else prices.request_s(law, first_token)
        if prices is None or least_s <= known_s * (1 + 1e-6):
            continue
        known_s = least_s
        formula = prices.formula("no batch takes less than", law, first_token, replicas)
        made = {"resource": resource, "source": source, "formula": formula}
        yield _ceiling(demand, name, replicas / least_s, (fit,), **made)
    slack = memory_slack(engine, law)
    yield from _oldest(fleet, engine, fit)
    if budget is None:
        return
    sure = sure_prices(engine, law, first_token)
    if sure is None:
        return
    name, resource, *_ = limits[1 if scarce else 0]
    yield _guarantee(
        fleet,
        name,
        replicas / sure.request_s(law, first_token),
        (fills_budget(scheduler, budget), slack, fit),
        sure.work(first_token),
        resource=resource,
        source=source,
        formula=sure.formula("every saturated batch is paid by", law, first_token, replicas),
    )


def _inequality(explanation: str) -> str:
    """The line of numbers of an explanation, and what follows from it."""
    lines = [line.strip() for line in explanation.splitlines()]
    ends = next((place for place, line in enumerate(lines) if line.startswith("verdict")), len(lines))
    return "; ".join(lines[1:ends])


def _without_budget(
    demand: Demand, engine: Engine, replicas: int, cost: Iteration, fit: Hypothesis
) -> Iterator[Bound]:
    """A batch may hold any number of tokens: what is left is the price of each, and of its context."""
    law = demand.law
    each_s = cost.per_token_s if cost.gains_with_tokens else cost.base_s / cost.knee
    tokens = law.prompt_mean + law.decode_mean(engine.first_token)
    least_s = cost.prompt_contexts_s(law, None)[0] + cost.decode_contexts_s(law, engine.first_token)
    request_s = tokens * each_s + least_s
    if request_s > 0:
        yield _ceiling(
            demand,
            "price of a token",
            replicas / request_s,
            (fit,),
            resource="tokens",
            source="the timing model",
            formula=f"however large a batch: {number(tokens)} tokens at {number(each_s)} s and contexts for "
            f"{number(least_s)} s are {number(request_s)} s a request",
        )


def _memory(demand: Demand, engine: Engine, replicas: int, router: Router | None) -> Iterator[Bound]:
    """Tokens in the cache times iterations: who stays long with much occupies most."""
    kv, scheduler = engine.kv, engine.scheduler
    slot_s = least_iteration_s(engine)
    if kv.tokens is None or slot_s <= 0 or not demand.law.is_bounded:
        return
    held = kv.tokens // kv.block * kv.block
    greedy = scheduler if isinstance(scheduler, SlotGreedy) else None
    chunk = greedy.chunk if greedy is not None else budget_of(scheduler) or 2**31
    limit = kv_capacity(
        replace(demand, rate=None, classes=tuple(replace(one, rate=None) for one in demand.classes)),
        kv_tokens=held,
        slot_s=slot_s,
        chunk=chunk,
        first_token=engine.first_token,
    )
    mu = limit.mu if greedy is None else limit.mu_whole_chunks
    each = mu * slot_s
    made = {
        "resource": "memory",
        "source": limit.source,
        "formula": f"μ = M / (b̄·E[g]) = {number(held)} / ({number(slot_s)}·{number(held / each)}) = "
        f"{number(mu)} a replica, with iterations of at least b̄ = {number(slot_s)} s",
    }
    yield _ceiling(demand, "KV cache", replicas * mu, (), **made)
    below = limit.stable_below_per_s
    # Slots are all alike where the host takes as long for every batch.
    slots = isinstance(engine.timing, Constant) and not (engine.overhead and engine.overhead.per_sequence_s)
    if greedy is not None and slots and below is not None and below > 0:
        exact = kv.block == 1
        needs = (
            Hypothesis(name="whoever's next step fits is served", met=True, why="SlotGreedy"),
            Hypothesis(name="memory by tokens", met=exact, why=f"blocks of {number(kv.block)} tokens"),
        )
        fleet = (demand, router, replicas)
        yield _guarantee(fleet, "KV cache", replicas * below, needs, limit.work, **made)


_FEWEST = "full decodes take the fewest tiles"


def _tiles(
    demand: Demand, engine: Engine, replicas: int, router: Router | None, fit: Hypothesis
) -> Iterator[Bound]:
    """What matrix products in tiles cost."""
    limit = tile_capacity(demand, replace(engine, overhead=None), engines=replicas)
    least = f"no scheduler needs less than {number(limit.least_s)} s a request"
    made = {"resource": "tiles", "source": limit.source}
    yield _ceiling(demand, "tiles", limit.most_per_s, (fit,), formula=least, **made)
    if not isinstance(engine.scheduler, (Rad, RadPhased)):
        return
    formula = (
        f"λ·T^R < r: T^R = {number(limit.request_s)} s a request, r = {replicas}, at most "
        f"{number(limit.capacity_per_s)} per second"
    )
    fewest = tuple(one for one in limit.hypotheses if one.name == _FEWEST)
    yield _ceiling(demand, "whole tiles", limit.capacity_per_s, (fit, *fewest), formula=formula, **made)
    if limit.assured_per_s is not None:
        formula = (
            f"with {number(limit.requests_per_cycle)} requests a cycle, whose end wastes "
            f"{number(limit.cycle_end_s)} s, {number(limit.assured_per_s)} per second are served"
        )
        needs = (
            *(one for one in limit.hypotheses if one.name in ("memory slack", "lengths are bounded")),
            fit,
        )
        yield _guarantee(
            (demand, router, replicas),
            "whole cycles",
            limit.assured_per_s,
            needs,
            limit.work_s,
            formula=formula,
            **made,
        )


def _thresholds(demand: Demand, engine: Engine, scheduler: Wait) -> Iterator[Bound]:
    """WAIT with given thresholds: the rate at which an iteration brings as many as it takes."""
    if demand.rate is None:
        return
    given = scheduler.thresholds
    limit = wait_thresholds(demand, engine, thresholds=given if isinstance(given, int) else dict(given))
    if limit.iteration_s is None:
        return
    # The share of its threshold that an iteration brings of each class, and in its own busiest part.
    brought = {one.name: one.arrivals / one.threshold for one in limit.classes}
    fullest = max(share * demand.peak(each, name=name) for name, share in brought.items())
    capacity = demand.rate / max(brought.values())
    seats = "no limit" if scheduler.max_seqs is None else number(scheduler.max_seqs)
    enough = scheduler.max_seqs is None or (
        limit.batch_limit is not None and limit.batch_limit <= scheduler.max_seqs
    )
    held = limit.kv_tokens is None or (
        limit.kv_tokens_needed is not None and limit.kv_tokens_needed <= limit.kv_tokens
    )
    memory = "the cache has no limit"
    if limit.kv_tokens is not None:
        memory = f"M^π = {number(limit.kv_tokens_needed)} of {number(limit.kv_tokens)} tokens"
    needs = (
        *Hardware.of(engine, None, None).hypotheses(demand),
        equal_lengths(demand),
        Hypothesis(name="memory for the thresholds", met=held, why=memory),
        Hypothesis(name="seats for the thresholds", met=enough, why=seats),
    )
    yield Bound(
        name="thresholds",
        kind="guarantee",
        capacity_per_s=capacity,
        rate=demand.rate,
        hypotheses=(*needs, busiest(demand, fullest), *stays(demand)[:1]),
        resource="thresholds",
        source="ao2025 (9), Theorem 1",
        formula=f"an iteration of {number(limit.iteration_s)} s brings fewer requests of every class than "
        "its threshold",
    )
