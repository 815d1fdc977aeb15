"""Which limits bear on a mixed fleet, a hand-off, a gate or a network of agents?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from inferq.errors import ConfigError
from inferq.systems.pools import pools_of
from inferq.systems.routers import Random, RoundRobin, Router
from inferq.theory.bounds.bound import Bound, in_random_order, stays
from inferq.theory.bounds.engine_bounds import assuming, engine_bounds
from inferq.theory.capacities.iteration_cost import (
    COUNTED,
    Iteration,
    budget_of,
    has_closed_form,
    least_iteration_s,
    seats_of,
)
from inferq.theory.capacities.network_capacity import network_capacity
from inferq.theory.capacities.token_prices import PRICED, cache_may_fill, least_prices
from inferq.theory.demands.demand import Demand
from inferq.theory.demands.hits import found, least_cost
from inferq.theory.statement import Hypothesis, number

if TYPE_CHECKING:
    from inferq.systems.disaggregated import Disaggregated
    from inferq.systems.engine import Engine
    from inferq.systems.gate_and_route import GateAndRoute
    from inferq.systems.network import Network
    from inferq.systems.pools import Pool
    from inferq.workload.workload import Workload


def mixed_fleet_bounds(demand: Demand, pool: Pool) -> Iterator[Bound]:
    """Replicas that differ: what each kind can carry alone, and how the router divides the load.

    A replica behind a router that looks at nothing gets what it would get among others of its kind: the fleet
    is stable if fleets of each kind alone are, with as many replicas.
    """
    replicas, router = sum(pool.counts), pool.router
    ceilings, sure, told = [], [], []
    for engine, count, path in zip(pool.engines, pool.counts, pool.paths, strict=True):
        ceiling = min(
            (
                one.capacity_per_s
                for one in engine_bounds(demand, engine)
                if one.kind == "ceiling" and one.applies
            ),
            default=math.inf,
        )
        alike = [one for one in engine_bounds(demand, engine, replicas, router) if one.kind == "guarantee"]
        ceilings.append((ceiling, count))
        sure.append(max(alike, key=lambda one: (one.applies, one.capacity_per_s), default=None))
        most = number(ceiling) if math.isfinite(ceiling) else "any number of"
        told.append(f"{count} × {path} carry {most} per second each")
    even = isinstance(router, (RoundRobin, Random))
    why = f"{type(router).__name__} sends each the same share" if even else "it looks at more than that"
    blind = Hypothesis(name="every replica gets the same share", met=even or None, why=why)
    mixes = _same_mix(demand, router)
    made = {"resource": "replicas", "source": "the limits of each replica", "formula": "; ".join(told)}
    cached = [engine for engine in pool.engines if engine.kv.prefix_cache is not None]
    hits = [one for engine in cached if (one := found(demand, engine)) is not None]
    found_most = max((one.hit_rate for one in hits), default=0.0) if cached else None
    finds = tuple(one.hypothesis for one in hits)
    together = math.fsum(ceiling * count for ceiling, count in ceilings)
    if math.isfinite(together):
        yield Bound(
            name="all replicas together",
            kind="ceiling",
            capacity_per_s=together,
            rate=demand.rate,
            hypotheses=(mixes, *stays(demand), *finds),
            hit_rate=found_most,
            **made,
        )
    weakest = min(ceiling for ceiling, _ in ceilings)
    if math.isfinite(weakest):
        yield Bound(
            name="the weakest replica",
            kind="ceiling",
            capacity_per_s=replicas * weakest,
            rate=demand.rate,
            hypotheses=(blind, mixes, *stays(demand), *finds),
            hit_rate=found_most,
            **made,
        )
    known = [one for one in sure if one is not None]
    if len(known) == len(sure):
        needs = {need: None for one in known for need in one.hypotheses}
        yield Bound(
            name="the weakest replica",
            kind="guarantee",
            capacity_per_s=min(one.capacity_per_s for one in known),
            rate=demand.rate,
            hypotheses=(blind, *needs),
            hit_rate=min((one.hit_rate for one in known if one.hit_rate is not None), default=None),
            **made,
        )


def _same_mix(demand: Demand, router: Router | None) -> Hypothesis:
    """Do all replicas get short and long requests alike?"""
    name = "every replica gets the same mix"
    if isinstance(router, Random):
        return Hypothesis(name=name, met=True, why="Random draws for each request")
    return replace(in_random_order(demand, router, 2), name=name)


def hand_off_bounds(demand: Demand, system: Disaggregated) -> Iterator[Bound]:
    """Prompts on one side, decodes on the other, transfers between; no theorem covers the three together."""
    lengths = demand.lengths
    (prefill, prefills), (decode, decodes) = system.prefill, system.decode
    hits = found(demand, prefill)
    for bound in _side(demand, "prefill side", prefill, prefills, prompts=True):
        yield assuming(bound, demand, prefill, hits)
    yield from _side(demand, "decode side", decode, decodes, prompts=False)
    link = system.link
    if link.concurrent is not None:
        each_s = link.latency_s + link.bytes_per_token * lengths.prompt_mean / link.bytes_per_s
        if each_s > 0:
            yield Bound(
                name="link",
                resource="link",
                kind="ceiling",
                capacity_per_s=link.concurrent / each_s,
                rate=demand.rate,
                source="transfers at once",
                formula=f"{link.concurrent} transfers at once, each {number(each_s)} s on average",
                hypotheses=(*_several(demand), *stays(demand)),
            )


def _several(demand: Demand) -> tuple[Hypothesis, ...]:
    """Requests of one output token may never be handed over."""
    one = demand.lengths.mean(lambda s, o: 1.0 * (o == 1) + 0 * s)
    why = "all have two output tokens or more" if one == 0 else f"{number(one)} of all have one output token"
    return (Hypothesis(name="every request is handed over", met=True if one == 0 else None, why=why),)


def _side(demand: Demand, name: str, engine: Engine, replicas: int, *, prompts: bool) -> Iterator[Bound]:
    """What one side of a hand-off cannot pass: tokens of its batches, seats, and memory."""
    if isinstance(engine.timing, PRICED):
        yield from _priced_side(demand, name, engine, replicas, prompts=prompts)
        return
    if not isinstance(engine.timing, COUNTED):
        return
    hits = found(demand, engine)
    if not has_closed_form(engine):  # the longer of two times is at least that of the kernels
        engine = replace(engine, overhead=None)
    cost, lengths, first_token = Iteration.of(engine), demand.lengths, engine.first_token
    budget, seats = budget_of(engine.scheduler), seats_of(engine.scheduler)
    size = budget or 2**31
    if prompts:
        tokens, contexts_s = lengths.prompt_mean, cost.prompt_contexts_s(lengths, budget)[0]
        if hits is not None:
            tokens, contexts_s = hits.tokens, hits.contexts_s(cost, lengths, budget)
        most = math.inf if budget is None else float(budget)
    else:
        tokens = lengths.decode_mean(first_token)
        contexts_s = least_cost(cost, engine, lengths).decode_contexts_s(lengths, first_token)
        most = min(float(size), math.inf if seats is None else float(seats))
    best = cost.best_tokens(most)
    each_s = cost.per_token_s if math.isinf(best) else cost.seconds(best) / best if best else 0.0
    request_s = tokens * each_s + contexts_s
    needs = (*(() if prompts else _several(demand)), *stays(demand))
    if request_s > 0:
        yield Bound(
            name=f"{name}: tokens",
            resource="prefills" if prompts else "decodes",
            kind="ceiling",
            capacity_per_s=replicas / request_s,
            rate=demand.rate,
            source="li2025 (2.7), of this side",
            formula=f"{number(tokens)} tokens a request, at best {number(each_s)} s each, and contexts for "
            f"{number(contexts_s)} s; {replicas} replicas",
            hypotheses=needs,
        )
    yield from _memory_of_side(demand, name, engine, replicas, prompts=prompts)


def _priced_side(
    demand: Demand, name: str, engine: Engine, replicas: int, *, prompts: bool
) -> Iterator[Bound]:
    """The same of tables and rooflines: prices that no batch of this side undercuts."""
    lengths, first_token = demand.lengths, engine.first_token
    half: Literal["prompts", "decodes"] = "prompts" if prompts else "decodes"
    hits = found(demand, engine)
    memory = cache_may_fill(engine, lengths) and hits is None
    prices = least_prices(engine, lengths, first_token, seats=True, memory=memory, only=half, hits=hits)
    if prices is not None:
        price_s = prices.request_s(lengths, first_token, hits)
        yield Bound(
            name=f"{name}: tokens",
            resource="prefills" if prompts else "decodes",
            kind="ceiling",
            capacity_per_s=replicas / price_s,
            rate=demand.rate,
            source=f"prices at the corners of a {type(engine.timing).__name__}",
            formula=prices.formula("no batch takes less than", lengths, first_token, replicas, hits),
            hypotheses=(*(() if prompts else _several(demand)), *stays(demand)),
        )
    yield from _memory_of_side(demand, name, engine, replicas, prompts=prompts)


def _memory_of_side(
    demand: Demand, name: str, engine: Engine, replicas: int, *, prompts: bool
) -> Iterator[Bound]:
    """Tokens in the cache of a side times iterations."""
    lengths, less = demand.lengths, 1.0 if engine.first_token == "prefill" else 0.0
    hits = found(demand, engine)
    if hits is not None:  # what others may hold too is nobody's
        if hits.alone is None:
            return
        lengths, less = hits.alone, 0.0
    needs = (*(() if prompts else _several(demand)), *stays(demand))
    if prompts:
        held = lengths.mean(lambda s, o: 1.0 * s + 0 * o)  # a chunk holds what is computed, at least once
    else:
        held = lengths.mean(lambda s, o: (o - less) * s + (o - less) * (o - less + 1) / 2)
    slot_s = least_iteration_s(engine)
    if engine.kv.tokens is not None and slot_s > 0 and held > 0:
        whole = engine.kv.tokens // engine.kv.block * engine.kv.block
        yield Bound(
            name=f"{name}: KV cache",
            resource="memory",
            kind="ceiling",
            capacity_per_s=replicas * whole / (slot_s * held),
            rate=demand.rate,
            source="nie2026 Theorem 4.1, of this side",
            formula=f"{replicas} · {number(whole)} tokens / ({number(slot_s)} s · {number(held)} tokens "
            "times iterations of a request)",
            hypotheses=needs,
        )


def gate_bounds(demand: Demand, system: GateAndRoute) -> Iterator[Bound]:
    """Prefills one at a time on a replica, decodes in the other slots: lin2026 without those who give up."""
    if system.service != "tokens":
        yield from _gate_bounds(demand, system, demand.lengths.prompt_mean)
        return
    (engine,) = pools_of(system)[0].engines
    hits = found(demand, engine)
    computed = demand.lengths.prompt_mean if hits is None else hits.tokens
    for bound in _gate_bounds(demand, system, computed):
        yield assuming(bound, demand, engine, hits)


def _gate_bounds(demand: Demand, system: GateAndRoute, prompt: float) -> Iterator[Bound]:
    """The same where so many tokens of a mean prompt are computed."""
    lengths, n, b = demand.lengths, system.replicas, system.slots
    mixed_s = system.timing.alpha + system.timing.beta * system.chunk
    solo_s = system.timing.solo
    prefill_s = prompt / system.chunk * mixed_s
    leaves = _leaves(demand, system)
    if prefill_s > 0:
        yield Bound(
            name="prefills",
            resource="prefills",
            kind="ceiling",
            capacity_per_s=n / prefill_s,
            rate=demand.rate,
            source="lin2026 (40)",
            formula=f"Σ λ·P·τ/C ≤ n: {number(prompt)} tokens in chunks of {number(system.chunk)}, "
            f"{number(mixed_s)} s each, {n} replicas",
            hypotheses=leaves,
        )
    # x prefills a replica leave (B − 1)·x decodes at 1/τ and B·(1 − x) at γ; per request x = λ·prefill_s.
    beside_s = 1 - (b - 1) * solo_s / (b * mixed_s)
    if beside_s < 0:  # decodes are then faster beside prefills, and those that hits save do not help
        prefill_s = lengths.prompt_mean / system.chunk * mixed_s
    decode_s = lengths.output_mean * solo_s / b + prefill_s * beside_s
    if decode_s > 0:
        yield Bound(
            name="slots",
            resource="decodes",
            kind="ceiling",
            capacity_per_s=n / decode_s,
            rate=demand.rate,
            source="lin2026 (40)",
            formula=f"Σ λ·D ≤ n·((B − 1)·x/τ + B·(1 − x)·γ): {number(lengths.output_mean)} tokens a request, "
            f"τ = {number(mixed_s)} s, 1/γ = {number(solo_s)} s, B = {b}, x = λ·{number(prefill_s)}/n",
            hypotheses=leaves,
        )


def _leaves(demand: Demand, system: GateAndRoute) -> tuple[Hypothesis, ...]:
    """Does nobody give up, whose service the plan would not owe?"""
    patient = not any(abandonment_rates(system))
    why = "no abandonment" if patient else "those who wait give up, so that no queue grows without end"
    return (Hypothesis(name="nobody abandons", met=patient, why=why), *stays(demand))


def abandonment_rates(system: GateAndRoute) -> list[float]:
    """How fast those who wait give up: one rate for all classes, or that of each."""
    rates = system.abandonment
    return list(rates.values()) if isinstance(rates, Mapping) else [rates or 0.0]


def network_bounds(
    workload: Workload | Mapping[str, float], network: Network
) -> tuple[list[Bound], tuple[Hypothesis, ...]]:
    """The load of every engine of a network; none, and the reason, where an engine is not covered."""
    try:
        limit = network_capacity(workload, network)
    except ConfigError as error:
        if error.path.startswith("workload"):
            raise
        return [], (Hypothesis(name="engines whose load is known", met=False, why=str(error)),)
    found = []
    for one in limit.engines:
        found.append(
            Bound(
                name=f"engines.{one.name}",
                resource="tokens",
                kind="ceiling",
                capacity_per_s=limit.rate * one.ceiling_tokens_per_s / one.least_tokens_per_s,
                rate=limit.rate,
                source=limit.source,
                formula=f"{number(one.least_tokens_per_s)} of {number(one.ceiling_tokens_per_s)} tokens per "
                "second",
                hit_rate=1.0 if one.least_tokens_per_s < one.tokens_per_s else None,
                hypotheses=(),
            )
        )
    return found, limit.hypotheses
