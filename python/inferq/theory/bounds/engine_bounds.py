"""Limits of one engine, or of several alike, that bear on a demand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from inferq.scheduler import FasterTransformer, Rad, RadPhased, SlotGreedy, Wait
from inferq.systems.overhead import Overhead
from inferq.theory.bounds.bound import Bound, Kind, Replicas, busiest, in_random_order, stays
from inferq.theory.capacities.fluid import FluidEngine
from inferq.theory.capacities.iteration_cost import (
    Iteration,
    adds_time,
    enough_seats,
    fills_budget,
    is_counted,
    least_iteration_s,
)
from inferq.theory.capacities.kv_capacity import kv_capacity, occupied_by
from inferq.theory.capacities.oldest_requests import Oldest
from inferq.theory.capacities.seats_capacity import request_level_capacity, seats_capacity
from inferq.theory.capacities.tile_capacity import tile_capacity
from inferq.theory.capacities.token_capacity import token_capacity
from inferq.theory.capacities.token_prices import cache_may_fill, has_prices, least_prices, sure_prices
from inferq.theory.demands.demand import each
from inferq.theory.demands.hits import finds_its_own, least_cost, only_helps
from inferq.theory.demands.lengths import Work
from inferq.theory.statement import Hypothesis, number
from inferq.theory.thresholds.wait_thresholds import equal_lengths, wait_thresholds
from inferq.timing import Constant, MemoryLinear, TiledGemm


def engine_bounds(replicas: Replicas) -> Iterator[Bound]:
    """All limits that apply to replicas of one engine behind a router.

    Ceilings count what all replicas have together, so they hold behind any router.

    With a prefix cache ceilings take the most that the workload allows to be found, and guarantees nothing:
    hits only shorten what is left of a request, so that a backlog that falls without them falls with them.
    Where a theorem is not of this kind, a hypothesis says so.

    What the host adds is in every bound. Where it is overlapped, an iteration is at least what its kernels
    take and at most that and the host's time together: ceilings are then those of the kernels alone, and
    guarantees those of a host that is not overlapped. (Tables and rooflines are bounded with the longer of
    both.) What a batch above the largest graph adds is left out of ceilings, and is in guarantees as if every
    batch were one. `TiledGemm` knows no host: its ceilings leave it out, and its guarantees are not proved.
    """
    engine, host = replicas.engine, replicas.engine.overhead
    if host is not None and adds_time(host) and isinstance(engine.timing, TiledGemm):
        why = f"{host!r} is beside what the theorem counts"
        idle = Hypothesis(name="no time for the host", met=None, why=why)
        for bound in _bounds(replicas):
            beside = (idle,) if bound.kind == "guarantee" else ()
            yield replace(bound, hypotheses=(*bound.hypotheses, *beside))
    elif host is not None and (
        host.beyond_graph_s or (adds_time(host) and host.overlapped and is_counted(engine.timing))
    ):
        graphs = replace(host, largest_graph_tokens=None, beyond_graph_s=0)
        sides: tuple[tuple[Kind, Overhead | None], ...] = (
            ("ceiling", None if host.overlapped and is_counted(engine.timing) else graphs),
            ("guarantee", replace(graphs, overlapped=False, base_s=host.base_s + host.beyond_graph_s)),
        )
        for kind, counted in sides:
            for bound in _bounds(replace(replicas, engine=replace(engine, overhead=counted))):
                if bound.kind == kind:
                    yield bound
    else:
        yield from _bounds(replicas)


def _bounds(replicas: Replicas) -> Iterator[Bound]:
    for bound in _of_policy(replicas):
        yield replicas.with_hits(bound)


def _of_policy(replicas: Replicas) -> Iterator[Bound]:
    engine = replicas.engine
    timing, scheduler, counted = engine.timing, engine.scheduler, is_counted(engine.timing)
    if replicas.fit.met:
        yield from _memory(replicas)
    if isinstance(timing, TiledGemm):
        yield from _tiles(replicas, timing)
    elif counted:
        yield from _tokens(replicas)
    elif has_prices(timing):
        yield from _priced(replicas)
    if isinstance(scheduler, FasterTransformer) and replicas.fit.met and counted:
        yield from _whole_batches(replicas)
    plain = engine.overhead is None or not engine.overhead.per_sequence_s
    if isinstance(scheduler, Wait) and isinstance(timing, MemoryLinear) and replicas.count == 1 and plain:
        yield from _thresholds(replicas, scheduler)


def _tokens(replicas: Replicas) -> Iterator[Bound]:
    """What a batch can hold: its budget of tokens, and its seats."""
    demand, engine, fit = replicas.demand, replicas.engine, replicas.fit
    scheduler, budget, seats = (
        engine.scheduler,
        engine.scheduler.token_limit(),
        engine.scheduler.sequence_limit(),
    )
    cost = Iteration.of(engine)
    if budget is None:
        yield from _without_budget(replicas, cost)
    elif cost.seconds(cost.best_tokens(budget)) > 0:
        limit = token_capacity(demand, engine, engines=replicas.count)
        text = {"resource": "tokens", "source": limit.source, "inequality": limit.inequality}
        yield replicas.ceiling("tokens of full batches", limit.capacity_per_s, fit, **text)
        needs = (fills_budget(scheduler, budget), enough_seats(scheduler, budget), replicas.slack, fit)
        work = _but_found(cost.full_batch_work(budget, engine.first_token), limit.sure_hit_rate)
        sure = replicas.guarantee("tokens of full batches", limit.sure_per_s, *needs, work=work, **text)
        yield _at(replicas, limit.sure_hit_rate, sure)
    yield from _oldest(replicas)
    if seats is not None and cost.base_s > 0:
        taken = seats_capacity(demand, engine, engines=replicas.count)
        text = {"resource": "seats", "source": taken.source, "inequality": taken.inequality}
        yield replicas.ceiling("requests at once", taken.capacity_per_s, fit, **text)
        if taken.sure_per_s is not None and budget is not None and seats < budget:
            filled = (fills_budget(scheduler, budget), replicas.slack, fit)
            work = cost.full_batch_work(budget, engine.first_token, (taken.idle_s or 0.0) / seats)
            work = _but_found(work, taken.sure_hit_rate)
            sure = replicas.guarantee("requests at once", taken.sure_per_s, *filled, work=work, **text)
            yield _at(replicas, taken.sure_hit_rate, sure)


def _but_found(work: Work, hit_rate: float | None) -> Work:
    """The work of requests in tokens, less the share of each prompt that is stated to be found."""
    return (lambda s, o: work(s * (1 - hit_rate), o)) if hit_rate else work


def _at(replicas: Replicas, hit_rate: float | None, bound: Bound) -> Bound:
    """A guarantee that counts on a stated hit rate, and says so."""
    if replicas.hits is None or not hit_rate:
        return bound
    why = (
        f"{number(hit_rate)} of the prompt tokens, as stated: of every part of the workload on every replica"
    )
    stated = Hypothesis(name="hits of the stated rate", met=True, why=why)
    return replace(bound, hit_rate=hit_rate, hypotheses=(*bound.hypotheses, stated))


def _oldest(replicas: Replicas) -> Iterator[Bound]:
    """What is sure although memory may run short."""
    shared, engine = replicas.hits is not None, replicas.engine
    oldest = Oldest.of(engine, replicas.lengths, engine.first_token, shared=shared)
    if oldest is not None:
        yield replicas.guarantee(
            "the oldest requests",
            replicas.count * oldest.capacity_per_s,
            replicas.fit,
            work=oldest.work,
            resource="memory",
            source="first come, first served, the youngest preempted",
            inequality=oldest.inequality,
        )


def _priced(replicas: Replicas) -> Iterator[Bound]:
    """Measured or modeled kernels: what requests cost at prices that hold for all batches.

    The ceiling is that of tokens alone, then with seats, then with a cache that may be full: what binds is
    the last that lowers it.
    """
    engine, lengths, hits, count = replicas.engine, replicas.lengths, replicas.hits, replicas.count
    scheduler, first_token = engine.scheduler, engine.first_token
    budget, seats = scheduler.token_limit(), scheduler.sequence_limit()
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
        inequality = prices.inequality("no batch takes less than", lengths, first_token, count, hits)
        text = {"resource": resource, "source": source, "inequality": inequality}
        yield replicas.ceiling(name, count / least_s, replicas.fit, **text)
    yield from _oldest(replicas)
    sure = None if budget is None else sure_prices(engine, lengths, first_token)
    if budget is None or sure is None:
        return
    name, resource, *_ = limits[1 if scarce else 0]
    yield replicas.guarantee(
        name,
        count / sure.request_s(lengths, first_token),
        *(fills_budget(scheduler, budget), replicas.slack, replicas.fit),
        work=sure.work(first_token),
        resource=resource,
        source=source,
        inequality=sure.inequality("every saturated batch is paid by", lengths, first_token, count),
    )


def _whole_batches(replicas: Replicas) -> Iterator[Bound]:
    """Batches that run until their last request ends."""
    cost, hits = Iteration.of(replicas.engine), replicas.hits
    mixed = in_random_order(replicas.demand, replicas.router, replicas.count)
    limit = request_level_capacity(replicas.demand, replicas.engine, engines=replicas.count)
    text = {"resource": "batches", "source": limit.source, "inequality": limit.inequality}
    gains = cost.gains_with_tokens
    why = "a token costs less in a larger batch" if gains else "smaller batches may serve more, for a while"
    fastest = Hypothesis(name="full batches are the fastest", met=gains or None, why=why)
    if hits is None:
        yield replicas.ceiling("whole batches", limit.capacity_per_s, *(replicas.fit, fastest, mixed), **text)
    cheaper = cost.per_chunk_context_s <= 2 * cost.per_prefill_square_s
    why = "a prompt whose beginning is found " + (
        "costs no more" if cheaper else "attends to it at a price that it did not have alone"
    )
    needs = (replicas.fit, mixed, *only_helps(hits, True if cheaper else None, why))
    yield replicas.guarantee("whole batches", limit.capacity_per_s, *needs, work=each, **text)


def _without_budget(replicas: Replicas, cost: Iteration) -> Iterator[Bound]:
    """A batch may hold any number of tokens: what is left is the price of each, and of its context."""
    engine, lengths, hits = replicas.engine, replicas.lengths, replicas.hits
    each_s = cost.per_token_s if cost.gains_with_tokens else cost.base_s / cost.knee
    decodes, prompt = lengths.decode_mean(engine.first_token), lengths.prompt_mean
    contexts_s = cost.prompt_contexts_s(lengths, None)[0]
    if hits is not None:
        prompt, contexts_s = hits.tokens, hits.contexts_s(cost, lengths, None)
    tokens = prompt + decodes
    least_s = contexts_s + least_cost(cost, engine, lengths).decode_contexts_s(lengths, engine.first_token)
    request_s = tokens * each_s + least_s
    if request_s > 0:
        yield replicas.ceiling(
            "price of a token",
            replicas.count / request_s,
            replicas.fit,
            resource="tokens",
            source="the timing model",
            inequality=f"however large a batch: {number(tokens)} tokens at {number(each_s)} s and contexts "
            f"for {number(least_s)} s are {number(request_s)} s a request",
        )


def _memory(replicas: Replicas) -> Iterator[Bound]:
    """Tokens in the cache times iterations: what stays long with much occupies most."""
    demand, engine, hits, lengths = replicas.demand, replicas.engine, replicas.hits, replicas.lengths
    held, slot_s = engine.kv.whole_tokens, least_iteration_s(engine)
    if held is None or slot_s <= 0:
        return
    greedy = engine.scheduler if isinstance(engine.scheduler, SlotGreedy) else None
    chunk = greedy.chunk if greedy is not None else engine.scheduler.token_limit() or 2**31
    if hits is not None and hits.alone is not None:  # blocks that other requests may hold too do not count
        alone = hits.alone.mean(lambda s, decodes: occupied_by(s, decodes, chunk, whole_chunks=False))
        if alone > 0:
            yield replicas.ceiling(
                "KV cache",
                replicas.count * held / (slot_s * alone),
                resource="memory",
                source="nie2026 Theorem 4.1, of unshared blocks",
                inequality=f"M / (b̄·E[g]) = {number(held)} / ({number(slot_s)}·{number(alone)}) a replica, g "
                "of what a request holds in blocks that no other may share, with iterations of at least "
                f"b̄ = {number(slot_s)} s",
            )
    if not lengths.is_bounded:
        return
    limit = kv_capacity(
        replace(demand, rate=None, classes=tuple(replace(one, rate=None) for one in demand.classes)),
        kv_tokens=held,
        slot_s=slot_s,
        chunk=chunk,
        first_token=engine.first_token,
    )
    mu = limit.mu if greedy is None else limit.mu_whole_chunks
    text = {
        "resource": "memory",
        "source": limit.source,
        "inequality": f"μ = M / (b̄·E[g]) = {number(held)} / ({number(slot_s)}·{number(held / (mu * slot_s))})"
        f" = {number(mu)} a replica, with iterations of at least b̄ = {number(slot_s)} s",
    }
    if hits is None:
        yield replicas.ceiling("KV cache", replicas.count * mu, **text)
    below = limit.stable_below_per_s
    # Slots are all alike where the host takes as long for every batch.
    slots = isinstance(engine.timing, Constant) and not (engine.overhead and engine.overhead.per_sequence_s)
    if greedy is not None and slots and below is not None and below > 0:
        block = engine.kv.block
        needs = (
            Hypothesis(name="every request whose next step fits is served", met=True, why="SlotGreedy"),
            Hypothesis(name="memory by tokens", met=block == 1, why=f"blocks of {number(block)} tokens"),
        )
        yield replicas.guarantee("KV cache", replicas.count * below, *needs, work=limit.work, **text)


_FEWEST = "full decodes take the fewest tiles"


def _tiles(replicas: Replicas, timing: TiledGemm) -> Iterator[Bound]:
    """What matrix products in tiles cost."""
    engine, lengths, hits, fit = replicas.engine, replicas.lengths, replicas.hits, replicas.fit
    limit = tile_capacity(replicas.demand, replace(engine, overhead=None), engines=replicas.count)
    text = {"resource": "tiles", "source": limit.source}
    most_per_s = limit.most_per_s
    inequality = f"no scheduler needs less than {number(limit.least_s)} s a request"
    repeats = hits is not None or finds_its_own(engine, lengths)
    if repeats:  # of each token that is computed at least its share of full tiles
        prompt = lengths.prompt_mean if hits is None else hits.tokens
        each_s = timing.linear_s_per_tile / timing.columns + timing.other_s_per_token
        request_s = each_s * (prompt + lengths.decode_mean(engine.first_token))
        most_per_s = replicas.count / request_s if request_s > 0 else math.inf
        inequality = f"a token takes its share of a full tile: {number(request_s)} s a request at least"
    yield replicas.ceiling("tiles", most_per_s, fit, inequality=inequality, **text)
    if not isinstance(engine.scheduler, (Rad, RadPhased)):
        return
    inequality = (
        f"λ·T^R < r: T^R = {number(limit.request_s)} s a request, r = {replicas.count}, at most "
        f"{number(limit.capacity_per_s)} per second"
    )
    fewest = tuple(one for one in limit.hypotheses if one.name == _FEWEST)
    if not repeats:
        yield replicas.ceiling(
            "whole tiles", limit.capacity_per_s, fit, *fewest, inequality=inequality, **text
        )
    if limit.assured_per_s is not None:
        inequality = (
            f"with {number(limit.requests_per_cycle)} requests a cycle, whose end wastes "
            f"{number(limit.cycle_end_s)} s, {number(limit.assured_per_s)} per second are served"
        )
        needs = (
            *(one for one in limit.hypotheses if one.name in ("memory slack", "lengths are bounded")),
            fit,
            *only_helps(hits, None, "a rest of a prompt may waste more of its tiles"),
        )
        yield replicas.guarantee(
            "whole cycles", limit.assured_per_s, *needs, work=limit.work_s, inequality=inequality, **text
        )


def _thresholds(replicas: Replicas, scheduler: Wait) -> Iterator[Bound]:
    """WAIT with given thresholds: the rate at which an iteration brings as many as it takes."""
    demand, engine, given = replicas.demand, replicas.engine, scheduler.thresholds
    if demand.rate is None:
        return
    limit = wait_thresholds(demand, engine, thresholds=given if isinstance(given, int) else dict(given))
    if limit.iteration_s is None:
        return
    # The share of its threshold that an iteration brings of each class, and in its own busiest part.
    brought = {one.name: one.arrivals / one.threshold for one in limit.classes}
    fullest = max(share * demand.peak(each, name=name) for name, share in brought.items())
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
        *FluidEngine.of(engine, None, None).hypotheses(demand),
        equal_lengths(demand),
        Hypothesis(name="memory for the thresholds", met=held, why=memory),
        Hypothesis(name="seats for the thresholds", met=enough, why=seats),
    )
    yield Bound(
        name="thresholds",
        kind="guarantee",
        capacity_per_s=demand.rate / max(brought.values()),
        rate=demand.rate,
        hypotheses=(*needs, busiest(demand, fullest), *stays(demand)[:1]),
        resource="thresholds",
        source="ao2025 (9), Theorem 1",
        inequality=f"an iteration of {number(limit.iteration_s)} s brings fewer requests of every class than "
        "its threshold",
    )
