"""Which limits of one engine, or of several alike, bear on a demand?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from inferq.scheduler import FasterTransformer, Rad, RadPhased, SlotGreedy, Wait
from inferq.systems.engine import Engine, Overhead
from inferq.systems.routers import Router
from inferq.theory.bounds.bound import Bound, Fleet, Kind, busiest, ceiling, guarantee, in_random_order, stays
from inferq.theory.capacities.fluid import Hardware
from inferq.theory.capacities.iteration_cost import (
    COUNTED,
    Iteration,
    adds_time,
    all_fit,
    budget_of,
    enough_seats,
    fills_budget,
    least_iteration_s,
    memory_slack,
    seats_of,
)
from inferq.theory.capacities.kv_capacity import kv_capacity, occupied_by
from inferq.theory.capacities.oldest_requests import Oldest
from inferq.theory.capacities.seats_capacity import request_level_capacity, seats_capacity
from inferq.theory.capacities.tile_capacity import tile_capacity
from inferq.theory.capacities.token_capacity import token_capacity
from inferq.theory.capacities.token_prices import PRICED, cache_may_fill, least_prices, sure_prices
from inferq.theory.demands.demand import Demand, each
from inferq.theory.demands.hits import Found, finds_its_own, found, least_cost, nothing_shared, only_helps
from inferq.theory.demands.lengths import Work
from inferq.theory.statement import Hypothesis, number
from inferq.theory.thresholds.wait_thresholds import equal_lengths, wait_thresholds
from inferq.timing import (
    Constant,
    MemoryLinear,
    TiledGemm,
)


def engine_bounds(
    demand: Demand, engine: Engine, replicas: int = 1, router: Router | None = None
) -> Iterator[Bound]:
    """All limits that apply to replicas of one engine behind a router.

    Ceilings count what all replicas have together, so they hold behind any router.

    With a prefix cache ceilings take the most that the workload allows to be found, and guarantees nothing:
    hits only shorten what is left of a request, so that a backlog that falls without them falls with them.
    Where a theorem is not of this kind, a hypothesis says so.

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
    hits = found(demand, engine)
    for bound in _of_policy(demand, engine, replicas, router, hits):
        yield assuming(bound, demand, engine, hits)


def assuming(bound: Bound, demand: Demand, engine: Engine, hits: Found | None) -> Bound:
    """A bound of an engine, with the hit rate that it assumes where there is a prefix cache."""
    if engine.kv.prefix_cache is None or bound.hit_rate is not None:
        return bound
    if bound.kind == "guarantee":
        return replace(bound, hit_rate=0.0)
    need = nothing_shared(demand) if hits is None else hits.hypothesis
    rate = 0.0 if hits is None else hits.hit_rate
    return replace(bound, hit_rate=rate, hypotheses=(*bound.hypotheses, need))


def _of_policy(
    demand: Demand, engine: Engine, replicas: int, router: Router | None, hits: Found | None
) -> Iterator[Bound]:
    lengths, timing, scheduler = demand.lengths, engine.timing, engine.scheduler
    fit = all_fit(engine, lengths, engine.first_token)
    if fit.met and hits is not None:
        yield from _memory_alone(demand, engine, replicas, hits)
    if fit.met:
        yield from _memory(demand, engine, replicas, router)
    if isinstance(timing, TiledGemm):
        yield from _tiles(demand, engine, replicas, router, fit, hits)
    elif isinstance(timing, COUNTED):
        yield from _tokens(demand, engine, replicas, router, fit, hits)
    elif isinstance(timing, PRICED):
        yield from _priced(demand, engine, replicas, router, fit, hits)
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
        if hits is None:
            yield ceiling(demand, "whole batches", batches.capacity_per_s, (fit, fastest, mixed), **made)
        fleet = (demand, router, replicas)
        shorter = Iteration.of(engine)
        cheaper = shorter.per_chunk_context_s <= 2 * shorter.per_prefill_square_s
        why = "a prompt whose beginning is found " + (
            "costs no more" if cheaper else "attends to it at a price that it did not have alone"
        )
        needs = (fit, mixed, *only_helps(hits, True if cheaper else None, why))
        yield guarantee(fleet, "whole batches", batches.capacity_per_s, needs, each, **made)
    plain = engine.overhead is None or not engine.overhead.per_sequence_s
    if isinstance(scheduler, Wait) and isinstance(timing, MemoryLinear) and replicas == 1 and plain:
        yield from _thresholds(demand, engine, scheduler)


def _tokens(
    demand: Demand,
    engine: Engine,
    replicas: int,
    router: Router | None,
    fit: Hypothesis,
    hits: Found | None,
) -> Iterator[Bound]:
    """What a batch can hold: its budget of tokens, and its seats."""
    scheduler, lengths = engine.scheduler, demand.lengths
    budget, seats = budget_of(scheduler), seats_of(scheduler)
    cost = Iteration.of(engine)
    slack, fleet = memory_slack(engine, lengths), (demand, router, replicas)
    if budget is None:
        yield from _without_budget(demand, engine, replicas, cost, fit, hits)
    elif cost.seconds(cost.best_tokens(budget)) > 0:
        limit = token_capacity(demand, engine, engines=replicas)
        made = {
            "resource": "tokens",
            "source": limit.source,
            "formula": _inequality(limit.explain()),
        }
        yield ceiling(demand, "tokens of full batches", limit.capacity_per_s, (fit,), **made)
        needs = (fills_budget(scheduler, budget), enough_seats(scheduler, budget), slack, fit)
        sure, counted_on = limit.sure_per_s, limit.sure_hit_rate
        work = _but_found(cost.full_batch_work(budget, engine.first_token), counted_on)
        yield _at(hits, counted_on, guarantee(fleet, "tokens of full batches", sure, needs, work, **made))
    yield from _oldest(fleet, engine, fit, hits)
    if seats is not None and cost.base_s > 0:
        taken = seats_capacity(demand, engine, engines=replicas)
        lines = [line.strip() for line in taken.explain().splitlines()]
        made = {"resource": "seats", "source": taken.source, "formula": "; ".join(lines[1:3])}
        yield ceiling(demand, "requests at once", taken.capacity_per_s, (fit,), **made)
        if taken.sure_per_s is not None and budget is not None and seats < budget:
            filled = (fills_budget(scheduler, budget), slack, fit)
            sure, counted_on = taken.sure_per_s, taken.sure_hit_rate
            work = cost.full_batch_work(budget, engine.first_token, (taken.idle_s or 0.0) / seats)
            work = _but_found(work, counted_on)
            yield _at(hits, counted_on, guarantee(fleet, "requests at once", sure, filled, work, **made))


def _but_found(work: Work, hit_rate: float | None) -> Work:
    """The work of requests in tokens, less the share of each prompt that is stated to be found."""
    return (lambda s, o: work(s * (1 - hit_rate), o)) if hit_rate else work


def _at(hits: Found | None, hit_rate: float | None, bound: Bound) -> Bound:
    """A guarantee that counts on a hit rate which somebody states, and says so."""
    if hits is None or not hit_rate:
        return bound
    why = (
        f"{number(hit_rate)} of the prompt tokens, as stated: of every part of the workload on every replica"
    )
    stated = Hypothesis(name="hits of the stated rate", met=True, why=why)
    return replace(bound, hit_rate=hit_rate, hypotheses=(*bound.hypotheses, stated))


def _oldest(fleet: Fleet, engine: Engine, fit: Hypothesis, hits: Found | None) -> Iterator[Bound]:
    """What is sure although memory may run short."""
    demand, _, replicas = fleet
    oldest = Oldest.of(engine, demand.lengths, engine.first_token, shared=hits is not None)
    if oldest is not None:
        yield guarantee(
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
    demand: Demand,
    engine: Engine,
    replicas: int,
    router: Router | None,
    fit: Hypothesis,
    hits: Found | None,
) -> Iterator[Bound]:
    """Measured or modelled kernels: what requests cost at prices that hold for all batches.

    The ceiling is that of tokens alone, then with seats, then with a cache that may be full: what binds is
    the last that lowers it.
    """
    lengths, scheduler, first_token = demand.lengths, engine.scheduler, engine.first_token
    budget, seats, fleet = budget_of(scheduler), seats_of(scheduler), (demand, router, replicas)
    source = f"prices at the corners of a {type(engine.timing).__name__}"
    scarce = seats is not None and (budget is None or seats < budget)
    limits = [("tokens of full batches", "tokens", False, False)]
    if scarce:
        limits.append(("requests at once", "seats", True, False))
    if cache_may_fill(engine, lengths) and hits is None:
        limits.append(("batches that fit the cache", "memory", scarce, True))
    known_s = 0.0
    for name, resource, by_seats, by_memory in limits:
        prices = least_prices(engine, lengths, first_token, seats=by_seats, memory=by_memory, hits=hits)
        least_s = 0.0 if prices is None else prices.request_s(lengths, first_token, hits)
        if prices is None or least_s <= known_s * (1 + 1e-6):
            continue
        known_s = least_s
        formula = prices.formula("no batch takes less than", lengths, first_token, replicas, hits)
        made = {"resource": resource, "source": source, "formula": formula}
        yield ceiling(demand, name, replicas / least_s, (fit,), **made)
    slack = memory_slack(engine, lengths)
    yield from _oldest(fleet, engine, fit, hits)
    if budget is None:
        return
    sure = sure_prices(engine, lengths, first_token)
    if sure is None:
        return
    name, resource, *_ = limits[1 if scarce else 0]
    yield guarantee(
        fleet,
        name,
        replicas / sure.request_s(lengths, first_token),
        (fills_budget(scheduler, budget), slack, fit),
        sure.work(first_token),
        resource=resource,
        source=source,
        formula=sure.formula("every saturated batch is paid by", lengths, first_token, replicas),
    )


def _inequality(explanation: str) -> str:
    """The line of numbers of an explanation, and what follows from it."""
    lines = [line.strip() for line in explanation.splitlines()]
    ends = next((place for place, line in enumerate(lines) if line.startswith("verdict")), len(lines))
    return "; ".join(lines[1:ends])


def _without_budget(
    demand: Demand,
    engine: Engine,
    replicas: int,
    cost: Iteration,
    fit: Hypothesis,
    hits: Found | None,
) -> Iterator[Bound]:
    """A batch may hold any number of tokens: what is left is the price of each, and of its context."""
    lengths = demand.lengths
    each_s = cost.per_token_s if cost.gains_with_tokens else cost.base_s / cost.knee
    decodes, prompt = lengths.decode_mean(engine.first_token), lengths.prompt_mean
    contexts_s = cost.prompt_contexts_s(lengths, None)[0]
    if hits is not None:
        prompt, contexts_s = hits.tokens, hits.contexts_s(cost, lengths, None)
    tokens = prompt + decodes
    least_s = contexts_s + least_cost(cost, engine, lengths).decode_contexts_s(lengths, engine.first_token)
    request_s = tokens * each_s + least_s
    if request_s > 0:
        yield ceiling(
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
    if kv.tokens is None or slot_s <= 0 or not demand.lengths.is_bounded:
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
    if found(demand, engine) is None:
        yield ceiling(demand, "KV cache", replicas * mu, (), **made)
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
        yield guarantee(fleet, "KV cache", replicas * below, needs, limit.work, **made)


def _memory_alone(demand: Demand, engine: Engine, replicas: int, hits: Found) -> Iterator[Bound]:
    """The same of what each request alone holds: blocks that others may hold too are nobody's."""
    kv, slot_s, lengths = engine.kv, least_iteration_s(engine), hits.alone
    if kv.tokens is None or lengths is None or slot_s <= 0:
        return
    held = kv.tokens // kv.block * kv.block
    budget = getattr(engine.scheduler, "chunk", None) or budget_of(engine.scheduler) or 2**31
    each = lengths.mean(lambda s, decodes: occupied_by(s, decodes, budget, whole_chunks=False))
    if each > 0:
        formula = (
            f"M / (b̄·E[g]) = {number(held)} / ({number(slot_s)}·{number(each)}) a replica, g of what a "
            "request holds in blocks that no other may share, with iterations of at least "
            f"b̄ = {number(slot_s)} s"
        )
        made = {"resource": "memory", "source": "nie2026 Theorem 4.1, of unshared blocks", "formula": formula}
        yield ceiling(demand, "KV cache", replicas * held / (slot_s * each), (), **made)


_FEWEST = "full decodes take the fewest tiles"


def _tiles(
    demand: Demand,
    engine: Engine,
    replicas: int,
    router: Router | None,
    fit: Hypothesis,
    hits: Found | None,
) -> Iterator[Bound]:
    """What matrix products in tiles cost."""
    limit = tile_capacity(demand, replace(engine, overhead=None), engines=replicas)
    least = f"no scheduler needs less than {number(limit.least_s)} s a request"
    made = {"resource": "tiles", "source": limit.source}
    most_per_s = limit.most_per_s
    if hits is not None or finds_its_own(engine, demand.lengths):
        request_s = _least_of_tiles_s(demand, engine, hits)
        most_per_s = replicas / request_s if request_s > 0 else math.inf
        least = f"a token takes its share of a full tile: {number(request_s)} s a request at least"
    yield ceiling(demand, "tiles", most_per_s, (fit,), formula=least, **made)
    if not isinstance(engine.scheduler, (Rad, RadPhased)):
        return
    formula = (
        f"λ·T^R < r: T^R = {number(limit.request_s)} s a request, r = {replicas}, at most "
        f"{number(limit.capacity_per_s)} per second"
    )
    fewest = tuple(one for one in limit.hypotheses if one.name == _FEWEST)
    if hits is None and not finds_its_own(engine, demand.lengths):
        yield ceiling(demand, "whole tiles", limit.capacity_per_s, (fit, *fewest), formula=formula, **made)
    if limit.assured_per_s is not None:
        formula = (
            f"with {number(limit.requests_per_cycle)} requests a cycle, whose end wastes "
            f"{number(limit.cycle_end_s)} s, {number(limit.assured_per_s)} per second are served"
        )
        needs = (
            *(one for one in limit.hypotheses if one.name in ("memory slack", "lengths are bounded")),
            fit,
            *only_helps(hits, None, "a rest of a prompt may waste more of its tiles"),
        )
        yield guarantee(
            (demand, router, replicas),
            "whole cycles",
            limit.assured_per_s,
            needs,
            limit.work_s,
            formula=formula,
            **made,
        )


def _least_of_tiles_s(demand: Demand, engine: Engine, hits: Found | None) -> float:
    """Seconds of the tokens that a request computes at least, each its share of full tiles."""
    lengths, timing = demand.lengths, engine.timing
    assert isinstance(timing, TiledGemm)
    prompt = lengths.prompt_mean if hits is None else hits.tokens
    each_s = timing.linear_s_per_tile / timing.columns + timing.other_s_per_token
    return each_s * (prompt + lengths.decode_mean(engine.first_token))


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
