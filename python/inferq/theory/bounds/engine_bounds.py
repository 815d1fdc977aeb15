"""Bounds of one engine, or of identical replicas."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from inferq.scheduler import FasterTransformer, Rad, RadPhased, SlotGreedy, Wait
from inferq.systems.overhead import Overhead
from inferq.theory.bounds.bound import Bound, Kind, Replicas, busiest, in_random_order, open_loop
from inferq.theory.capacities.fluid import FluidEngine
from inferq.theory.capacities.iteration_cost import (
    Iteration,
    adds_time,
    enough_sequences,
    fills_budget,
    is_counted,
    least_iteration_s,
)
from inferq.theory.capacities.kv_capacity import kv_capacity, occupied_by
from inferq.theory.capacities.oldest_requests import Oldest
from inferq.theory.capacities.sequence_capacity import request_level_capacity, sequence_capacity
from inferq.theory.capacities.tile_capacity import tile_capacity
from inferq.theory.capacities.token_capacity import token_capacity
from inferq.theory.capacities.token_prices import cache_may_fill, has_prices, least_prices, saturated_prices
from inferq.theory.demands.demand import each
from inferq.theory.demands.hits import finds_its_own, least_cost, only_helps
from inferq.theory.demands.lengths import Work
from inferq.theory.statement import Hypothesis, number
from inferq.theory.thresholds.wait_thresholds import equal_lengths, wait_thresholds
from inferq.timing import Constant, MemoryLinear, TiledGemm


def engine_bounds(replicas: Replicas) -> Iterator[Bound]:
    """Yield all bounds of identical replicas behind a router.

    Upper bounds add up what all replicas have, so they hold behind any router.

    With a prefix cache, upper bounds assume the most hits that the workload allows, and guarantees none.
    Hits only shorten the rest of a request, so a backlog that falls without hits also falls with them. If a
    theorem is not of this kind, a hypothesis states so.

    Host time is part of every bound. With an overlapped host, an iteration takes at least its kernel time and
    at most the sum of kernel and host time. Upper bounds then count the kernels alone, and guarantees count a
    host that is not overlapped. (Bounds of tables and rooflines use the longer of both.) The extra time of
    batches above the largest graph, the launches of an engine without graphs, and exposed time of an
    overlapped host are left out of upper bounds; guarantees add them to every batch. Bounds of `TiledGemm`
    ignore the host, so its guarantees are not proved.
    """
    engine, host = replicas.engine, replicas.engine.overhead
    if host is not None and adds_time(host) and isinstance(engine.timing, TiledGemm):
        why = f"{host!r} is not part of the theorem"
        idle = Hypothesis(name="no host time", met=None, why=why)
        for bound in _bounds(replicas):
            further = (idle,) if bound.kind == "guarantee" else ()
            yield replace(bound, hypotheses=(*bound.hypotheses, *further))
    elif host is not None and (
        host.beyond_graph_s
        or host.launch_s
        or host.exposed_s
        or (adds_time(host) and host.overlapped and is_counted(engine.timing))
    ):
        least_s = host.base_s + (0 if host.overlapped else host.exposed_s)
        most_s = host.base_s + host.beyond_graph_s + host.launch_s + host.exposed_s
        graphs = replace(
            host, base_s=least_s, largest_graph_tokens=None, beyond_graph_s=0, launch_s=0, exposed_s=0
        )
        sides: tuple[tuple[Kind, Overhead | None], ...] = (
            ("upper_bound", None if host.overlapped and is_counted(engine.timing) else graphs),
            ("guarantee", replace(graphs, overlapped=False, base_s=most_s)),
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
    """Bounds from the token budget and the sequence limit of a batch."""
    demand, engine, fit = replicas.demand, replicas.engine, replicas.fit
    scheduler, budget, max_seqs = (
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
        yield replicas.upper_bound("token budget", limit.capacity_per_s, fit, **text)
        needs = (fills_budget(scheduler, budget), enough_sequences(scheduler, budget), replicas.slack, fit)
        work = _without_found(cost.full_batch_work(budget, engine.first_token), limit.stable_hit_rate)
        guarantee = replicas.guarantee("token budget", limit.stable_below_per_s, *needs, work=work, **text)
        yield _with_hit_rate(replicas, limit.stable_hit_rate, guarantee)
    yield from _oldest(replicas)
    if max_seqs is not None and cost.base_s > 0:
        taken = sequence_capacity(demand, engine, engines=replicas.count)
        text = {"resource": "sequences", "source": taken.source, "inequality": taken.inequality}
        yield replicas.upper_bound("sequence limit", taken.capacity_per_s, fit, **text)
        if taken.stable_below_per_s is not None and budget is not None and max_seqs < budget:
            filled = (fills_budget(scheduler, budget), replicas.slack, fit)
            work = cost.full_batch_work(budget, engine.first_token, (taken.idle_s or 0.0) / max_seqs)
            work = _without_found(work, taken.stable_hit_rate)
            guarantee = replicas.guarantee(
                "sequence limit", taken.stable_below_per_s, *filled, work=work, **text
            )
            yield _with_hit_rate(replicas, taken.stable_hit_rate, guarantee)


def _without_found(work: Work, hit_rate: float | None) -> Work:
    """The work of requests in tokens, without the configured share of each prompt that is found."""
    return (lambda s, o: work(s * (1 - hit_rate), o)) if hit_rate else work


def _with_hit_rate(replicas: Replicas, hit_rate: float | None, bound: Bound) -> Bound:
    """A guarantee that assumes a configured hit rate."""
    if replicas.hits is None or not hit_rate:
        return bound
    why = f"{number(hit_rate)} of the prompt tokens as configured, in every part of the workload and replica"
    assumption = Hypothesis(name="configured hit rate", met=True, why=why)
    return replace(bound, hit_rate=hit_rate, hypotheses=(*bound.hypotheses, assumption))


def _oldest(replicas: Replicas) -> Iterator[Bound]:
    """A guarantee that holds although memory may run short."""
    shared, engine = replicas.hits is not None, replicas.engine
    oldest = Oldest.of(engine, replicas.lengths, engine.first_token, shared=shared)
    if oldest is not None:
        yield replicas.guarantee(
            "oldest requests",
            replicas.count * oldest.capacity_per_s,
            replicas.fit,
            work=oldest.work,
            resource="memory",
            source="first come, first served, youngest preempted",
            inequality=oldest.inequality,
        )


def _priced(replicas: Replicas) -> Iterator[Bound]:
    """Bounds for measured or modeled kernels, from prices that hold for all batches.

    The upper bounds are of tokens alone, then with sequence slots, then with a cache that may be full. The
    last one that lowers the rate binds.
    """
    engine, lengths, hits, count = replicas.engine, replicas.lengths, replicas.hits, replicas.count
    scheduler, first_token = engine.scheduler, engine.first_token
    budget, max_seqs = scheduler.token_limit(), scheduler.sequence_limit()
    source = f"prices at the corners of a {type(engine.timing).__name__}"
    scarce = max_seqs is not None and (budget is None or max_seqs < budget)
    limits = [("token budget", "tokens", False, False)]
    if scarce:
        limits.append(("sequence limit", "sequences", True, False))
    if cache_may_fill(engine, lengths) and hits is None:
        limits.append(("batches that fit the cache", "memory", scarce, True))
    known_s = 0.0
    for name, resource, by_sequences, by_memory in limits:
        prices = least_prices(
            engine, lengths, first_token, by_sequences=by_sequences, by_memory=by_memory, hits=hits
        )
        least_s = 0.0 if prices is None else prices.request_s(lengths, first_token, hits)
        if prices is None or least_s <= known_s * (1 + 1e-6):
            continue
        known_s = least_s
        inequality = prices.inequality("no batch takes less", lengths, first_token, count, hits)
        text = {"resource": resource, "source": source, "inequality": inequality}
        yield replicas.upper_bound(name, count / least_s, replicas.fit, **text)
    yield from _oldest(replicas)
    guarantee = None if budget is None else saturated_prices(engine, lengths, first_token)
    if budget is None or guarantee is None:
        return
    name, resource, *_ = limits[1 if scarce else 0]
    yield replicas.guarantee(
        name,
        count / guarantee.request_s(lengths, first_token),
        *(fills_budget(scheduler, budget), replicas.slack, replicas.fit),
        work=guarantee.work(first_token),
        resource=resource,
        source=source,
        inequality=guarantee.inequality("these prices cover every full batch", lengths, first_token, count),
    )


def _whole_batches(replicas: Replicas) -> Iterator[Bound]:
    """Batches that run until their last request ends."""
    cost, hits = Iteration.of(replicas.engine), replicas.hits
    mixed = in_random_order(replicas.demand, replicas.router, replicas.count)
    limit = request_level_capacity(replicas.demand, replicas.engine, engines=replicas.count)
    text = {"resource": "batches", "source": limit.source, "inequality": limit.inequality}
    gains = cost.gains_with_tokens
    why = (
        "a token takes less time in a larger batch" if gains else "smaller batches may serve more for a while"
    )
    fastest = Hypothesis(name="full batches are fastest", met=gains or None, why=why)
    if hits is None:
        yield replicas.upper_bound(
            "whole batches", limit.capacity_per_s, *(replicas.fit, fastest, mixed), **text
        )
    cheaper = cost.per_chunk_context_s <= 2 * cost.per_prefill_square_s
    why = "a prompt with a cached prefix " + (
        "takes no longer" if cheaper else "attends to the prefix at a higher price than without the cache"
    )
    needs = (replicas.fit, mixed, *only_helps(hits, True if cheaper else None, why))
    yield replicas.guarantee("whole batches", limit.capacity_per_s, *needs, work=each, **text)


def _without_budget(replicas: Replicas, cost: Iteration) -> Iterator[Bound]:
    """Without a token budget: the price of each token and of its context."""
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
        yield replicas.upper_bound(
            "price of a token",
            replicas.count / request_s,
            replicas.fit,
            resource="tokens",
            source="the timing model",
            inequality=f"with batches of any size, {number(tokens)} tokens at {number(each_s)} s and "
            f"contexts of {number(least_s)} s add up to {number(request_s)} s per request",
        )


def _memory(replicas: Replicas) -> Iterator[Bound]:
    """Bounds from the tokens in the cache times the iterations that they stay there."""
    demand, engine, hits, lengths = replicas.demand, replicas.engine, replicas.hits, replicas.lengths
    held, slot_s = engine.kv.whole_tokens, least_iteration_s(engine)
    if held is None or slot_s <= 0:
        return
    greedy = engine.scheduler if isinstance(engine.scheduler, SlotGreedy) else None
    chunk = greedy.chunk if greedy is not None else engine.scheduler.token_limit() or 2**31
    if hits is not None and hits.alone is not None:  # blocks that other requests can share do not count
        alone = hits.alone.mean(lambda s, decodes: occupied_by(s, decodes, chunk, whole_chunks=False))
        if alone > 0:
            yield replicas.upper_bound(
                "KV cache",
                replicas.count * held / (slot_s * alone),
                resource="memory",
                source="nie2026 Theorem 4.1, unshared blocks",
                inequality=f"M / (b̄·E[g]) = {number(held)} / ({number(slot_s)}·{number(alone)}) per replica; "
                "g counts blocks that no other request can share; iterations take at least "
                f"b̄ = {number(slot_s)} s",
            )
    if not lengths.is_bounded:
        return
    limit = kv_capacity(
        replace(
            demand,
            rate=None,
            classes=tuple(replace(request_class, rate=None) for request_class in demand.classes),
        ),
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
        f" = {number(mu)} per replica; iterations take at least b̄ = {number(slot_s)} s",
    }
    if hits is None:
        yield replicas.upper_bound("KV cache", replicas.count * mu, **text)
    below = limit.stable_below_per_s
    # All slots have one length if the host takes equally long for every batch.
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
    """Bounds from the cost of matrix products in tiles."""
    engine, lengths, hits, fit = replicas.engine, replicas.lengths, replicas.hits, replicas.fit
    limit = tile_capacity(replicas.demand, replace(engine, overhead=None), engines=replicas.count)
    text = {"resource": "tiles", "source": limit.source}
    most_per_s = limit.most_per_s
    inequality = f"every scheduler needs at least {number(limit.least_s)} s per request"
    repeats = hits is not None or finds_its_own(engine, lengths)
    if repeats:  # every computed token takes at least its share of full tiles
        prompt = lengths.prompt_mean if hits is None else hits.tokens
        each_s = timing.linear_s_per_tile / timing.columns + timing.other_s_per_token
        request_s = each_s * (prompt + lengths.decode_mean(engine.first_token))
        most_per_s = replicas.count / request_s if request_s > 0 else math.inf
        inequality = f"a token takes its share of a full tile: at least {number(request_s)} s per request"
    yield replicas.upper_bound("tiles", most_per_s, fit, inequality=inequality, **text)
    if not isinstance(engine.scheduler, (Rad, RadPhased)):
        return
    inequality = (
        f"λ·T^R < r: T^R = {number(limit.request_s)} s per request, r = {replicas.count}, at most "
        f"{number(limit.capacity_per_s)} per second"
    )
    fewest = tuple(hypothesis for hypothesis in limit.hypotheses if hypothesis.name == _FEWEST)
    if not repeats:
        yield replicas.upper_bound(
            "whole tiles", limit.capacity_per_s, fit, *fewest, inequality=inequality, **text
        )
    if limit.assured_per_s is not None:
        inequality = (
            f"{number(limit.requests_per_cycle)} requests per cycle, {number(limit.cycle_end_s)} s lost at "
            f"its end: {number(limit.assured_per_s)} requests per second are served"
        )
        needs = (
            *(
                hypothesis
                for hypothesis in limit.hypotheses
                if hypothesis.name in ("memory slack", "lengths are bounded")
            ),
            fit,
            *only_helps(hits, None, "the rest of a prompt may waste more of its tiles"),
        )
        yield replicas.guarantee(
            "whole cycles", limit.assured_per_s, *needs, work=limit.work_s, inequality=inequality, **text
        )


def _thresholds(replicas: Replicas, scheduler: Wait) -> Iterator[Bound]:
    """WAIT with given thresholds: the rate at which as many requests arrive per iteration as leave."""
    demand, engine, given = replicas.demand, replicas.engine, scheduler.thresholds
    if demand.rate is None:
        return
    limit = wait_thresholds(demand, engine, thresholds=given if isinstance(given, int) else dict(given))
    if limit.iteration_s is None:
        return
    # The share of its threshold that arrives per iteration, for each class and in its own busiest part.
    brought = {waiting.name: waiting.arrivals / waiting.threshold for waiting in limit.classes}
    fullest = max(share * demand.peak(each, name=name) for name, share in brought.items())
    max_seqs = "no limit" if scheduler.max_seqs is None else number(scheduler.max_seqs)
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
        Hypothesis(name="sequence slots for the thresholds", met=enough, why=max_seqs),
    )
    yield Bound(
        name="thresholds",
        kind="guarantee",
        capacity_per_s=demand.rate / max(brought.values()),
        rate=demand.rate,
        hypotheses=(*needs, busiest(demand, fullest), *open_loop(demand)[:1]),
        resource="thresholds",
        source="ao2025 (9), Theorem 1",
        inequality=f"an iteration of {number(limit.iteration_s)} s brings fewer requests of every class than "
        "its threshold",
    )
