"""Bounds of mixed fleets, disaggregated pairs, gate-and-route clusters and networks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from inferq.errors import ConfigError
from inferq.systems.disaggregated import Disaggregated
from inferq.systems.gate_and_route import GateAndRoute
from inferq.systems.network import Network
from inferq.systems.pools import Pool, pools_of
from inferq.theory.bounds.bound import Bound, Replicas, in_random_order, upper_bound
from inferq.theory.bounds.engine_bounds import engine_bounds
from inferq.theory.capacities.iteration_cost import Iteration, has_closed_form, is_counted, least_iteration_s
from inferq.theory.capacities.network_capacity import network_capacity
from inferq.theory.capacities.token_prices import cache_may_fill, has_prices, least_prices
from inferq.theory.demands.demand import Demand
from inferq.theory.demands.hits import least_cost
from inferq.theory.demands.lengths import with_prompt
from inferq.theory.statement import Hypothesis, number
from inferq.workload.workload import Workload


def mixed_fleet_bounds(demand: Demand, pool: Pool) -> Iterator[Bound]:
    """Yield bounds of different replicas: the capacity of each kind, and how the router divides the load.

    A replica behind a router that ignores the replicas' state gets the same requests as in a fleet of its
    own kind. So the mixed fleet is stable if fleets of the same size are stable for each kind.
    """
    count, router = sum(pool.counts), pool.router
    capacities, guarantees, words = [], [], []
    for engine, number_of, path in zip(pool.engines, pool.counts, pool.paths, strict=True):
        alone = engine_bounds(Replicas(demand, engine))
        capacity = min(
            (bound.capacity_per_s for bound in alone if bound.kind == "upper_bound" and bound.applies),
            default=math.inf,
        )
        alike = engine_bounds(Replicas(demand, engine, count, router, pool.is_static))
        guarantees.append(
            max(
                (bound for bound in alike if bound.kind == "guarantee"),
                key=lambda bound: (bound.applies, bound.capacity_per_s),
                default=None,
            )
        )
        capacities.append((capacity, number_of))
        most = number(capacity) if math.isfinite(capacity) else "any number of"
        words.append(f"{number_of} × {path} can serve {most} per second each")
    even = pool.is_static and router is not None and router.balancing in ("round robin", "random")
    why = f"{type(router).__name__} sends each the same share" if even else "the router considers more"
    blind = Hypothesis(name="every replica gets the same share", met=even or None, why=why)
    drawn = router is not None and router.balancing == "random"
    mixes = Hypothesis(name=_SAME_MIX, met=True, why=f"{type(router).__name__} routes at random")
    if not drawn:
        mixes = replace(in_random_order(demand, router, 2), name=_SAME_MIX)
    text = {"resource": "replicas", "source": "the limits of each replica", "inequality": "; ".join(words)}
    cached = [engine for engine in pool.engines if engine.kv.prefix_cache is not None]
    hits = [found for engine in cached if (found := Replicas(demand, engine).hits) is not None]
    found_most = max((found.hit_rate for found in hits), default=0.0) if cached else None
    weakest = min(capacity for capacity, _ in capacities)
    for name, capacity, needs in (
        ("all replicas together", math.fsum(rate * each for rate, each in capacities), (mixes,)),
        ("the weakest replica", count * weakest, (blind, mixes)),
    ):
        if math.isfinite(capacity):
            bound = upper_bound(demand, name, capacity, *needs, **text)
            assumed = (*bound.hypotheses, *(found.hypothesis for found in hits))
            yield replace(bound, hit_rate=found_most, hypotheses=assumed)
    known = [bound for bound in guarantees if bound is not None]
    if len(known) == len(guarantees):
        yield Bound(
            name="the weakest replica",
            kind="guarantee",
            capacity_per_s=min(bound.capacity_per_s for bound in known),
            rate=demand.rate,
            hypotheses=(
                blind,
                *dict.fromkeys(hypothesis for bound in known for hypothesis in bound.hypotheses),
            ),
            hit_rate=min((bound.hit_rate for bound in known if bound.hit_rate is not None), default=None),
            **text,
        )


_SAME_MIX = "every replica gets the same mix"


def hand_off_bounds(demand: Demand, system: Disaggregated) -> Iterator[Bound]:
    """Yield upper bounds of the prefill side, the decode side and the link; no theorem covers all three."""
    prefill = Replicas(demand, *system.prefill)
    for bound in _side("prefill side", prefill, prompts=True):
        yield prefill.with_hits(bound)
    yield from _side("decode side", Replicas(demand, *system.decode), prompts=False)
    link = system.link
    assert link.bytes_per_token is not None  # known for every fleet
    if isinstance(link.concurrent, int):
        each_s = link.latency_s + link.bytes_per_token * demand.lengths.prompt_mean / link.bytes_per_s
        if each_s > 0:
            yield upper_bound(
                demand,
                "link",
                link.concurrent / each_s,
                *_several(demand),
                resource="link",
                source="concurrent transfers",
                inequality=f"{link.concurrent} concurrent transfers of {number(each_s)} s on average",
            )


def _several(demand: Demand) -> tuple[Hypothesis, ...]:
    """Requests with one output token may need no hand-off."""
    single = demand.lengths.mean(lambda s, o: 1.0 * (o == 1) + 0 * s)
    why = "all have at least two output tokens" if single == 0 else f"{number(single)} have one output token"
    return (Hypothesis(name="every request is handed over", met=True if single == 0 else None, why=why),)


def _side(name: str, side: Replicas, *, prompts: bool) -> Iterator[Bound]:
    """Upper bounds of one side: tokens of its batches with its sequence limit, and memory."""
    needs = () if prompts else _several(side.demand)
    if has_prices(side.engine.timing):
        given = _price_of_side(side, prompts=prompts)
    elif is_counted(side.engine.timing):
        given = _tokens_of_side(side, prompts=prompts)
    else:
        return
    if given is not None:
        request_s, source, inequality = given
        resource = "prefills" if prompts else "decodes"
        text = {"resource": resource, "source": source, "inequality": inequality}
        yield side.upper_bound(f"{name}: tokens", side.count / request_s, *needs, **text)
    yield from _memory_of_side(name, side, needs, prompts=prompts)


def _tokens_of_side(side: Replicas, *, prompts: bool) -> tuple[float, str, str] | None:
    """Seconds of a request on one side, the source and the inequality; None if it takes no time."""
    engine, lengths, hits = side.engine, side.lengths, side.hits
    if not has_closed_form(engine):  # the longer of two times is at least the kernel time
        engine = replace(engine, overhead=None)
    cost, budget, max_seqs = (
        Iteration.of(engine),
        engine.scheduler.token_limit(),
        engine.scheduler.sequence_limit(),
    )
    if prompts:
        tokens, contexts_s = lengths.prompt_mean, cost.prompt_contexts_s(lengths, budget)[0]
        if hits is not None:
            tokens, contexts_s = hits.tokens, hits.contexts_s(cost, lengths, budget)
        most = math.inf if budget is None else float(budget)
    else:
        tokens = lengths.decode_mean(engine.first_token)
        contexts_s = least_cost(cost, engine, lengths).decode_contexts_s(lengths, engine.first_token)
        most = min(float(budget or 2**31), math.inf if max_seqs is None else float(max_seqs))
    best = cost.best_tokens(most)
    each_s = cost.per_token_s if math.isinf(best) else cost.seconds(best) / best if best else 0.0
    request_s = tokens * each_s + contexts_s
    inequality = (
        f"{number(tokens)} tokens per request, at best {number(each_s)} s each, and contexts of "
        f"{number(contexts_s)} s; {side.count} replicas"
    )
    return (request_s, "li2025 (2.7), this side", inequality) if request_s > 0 else None


def _price_of_side(side: Replicas, *, prompts: bool) -> tuple[float, str, str] | None:
    """The same for tables and rooflines, from prices that no batch of this side undercuts."""
    engine, lengths, hits = side.engine, side.lengths, side.hits
    prices = least_prices(
        engine,
        lengths,
        engine.first_token,
        by_sequences=True,
        by_memory=cache_may_fill(engine, lengths) and hits is None,
        only="prompts" if prompts else "decodes",
        hits=hits,
    )
    if prices is None:
        return None
    inequality = prices.inequality("no batch takes less", lengths, engine.first_token, side.count, hits)
    source = f"prices at the corners of a {type(engine.timing).__name__}"
    return prices.request_s(lengths, engine.first_token, hits), source, inequality


def _memory_of_side(
    name: str, side: Replicas, needs: tuple[Hypothesis, ...], *, prompts: bool
) -> Iterator[Bound]:
    """Upper bound of one side from the tokens in its cache times iterations."""
    engine, lengths, less = side.engine, side.lengths, with_prompt(side.engine.first_token)
    if side.hits is not None:  # blocks that other requests can share do not count
        if side.hits.alone is None:
            return
        lengths, less = side.hits.alone, 0
    if prompts:
        held = lengths.mean(lambda s, o: 1.0 * s + 0 * o)  # a chunk holds the computed tokens at least once
    else:
        held = lengths.mean(lambda s, o: (o - less) * s + (o - less) * (o - less + 1) / 2)
    whole, slot_s = engine.kv.whole_tokens, least_iteration_s(engine)
    if whole is not None and slot_s > 0 and held > 0:
        yield side.upper_bound(
            f"{name}: KV cache",
            side.count * whole / (slot_s * held),
            *needs,
            resource="memory",
            source="nie2026 Theorem 4.1, this side",
            inequality=f"{side.count} · {number(whole)} tokens / ({number(slot_s)} s · {number(held)} tokens "
            "times iterations per request)",
        )


def gate_bounds(demand: Demand, system: GateAndRoute) -> Iterator[Bound]:
    """Yield bounds of lin2026: one prefill at a time per replica, decodes in the other slots."""
    if system.service != "tokens":
        yield from _gate_bounds(demand, system, demand.lengths.prompt_mean)
        return
    (engine,) = pools_of(system)[0].engines
    replicas = Replicas(demand, engine)
    computed = demand.lengths.prompt_mean if replicas.hits is None else replicas.hits.tokens
    for bound in _gate_bounds(demand, system, computed):
        yield replicas.with_hits(bound)


def _gate_bounds(demand: Demand, system: GateAndRoute, prompt: float) -> Iterator[Bound]:
    """The same, given the computed tokens of a mean prompt."""
    lengths, n, b = demand.lengths, system.replicas, system.slots
    mixed_s = system.timing.alpha + system.timing.beta * system.chunk
    solo_s = system.timing.solo
    prefill_s = prompt / system.chunk * mixed_s
    patient = not any(abandonment_rates(system))
    why = "no abandonment" if patient else "waiting requests abandon, so no queue grows without bound"
    remains = Hypothesis(name="no abandonment", met=patient, why=why)
    if prefill_s > 0:
        yield upper_bound(
            demand,
            "prefills",
            n / prefill_s,
            remains,
            resource="prefills",
            source="lin2026 (40)",
            inequality=f"Σ λ·P·τ/C ≤ n: {number(prompt)} tokens in chunks of {number(system.chunk)}, "
            f"{number(mixed_s)} s each, {n} replicas",
        )
    # x prefills per replica leave (B − 1)·x decodes at 1/τ and B·(1 − x) at γ; per request x = λ·prefill_s.
    mixed_extra_s = 1 - (b - 1) * solo_s / (b * mixed_s)
    if mixed_extra_s < 0:  # decodes are faster next to prefills, and prefills saved by hits do not help
        prefill_s = lengths.prompt_mean / system.chunk * mixed_s
    decode_s = lengths.output_mean * solo_s / b + prefill_s * mixed_extra_s
    if decode_s > 0:
        yield upper_bound(
            demand,
            "slots",
            n / decode_s,
            remains,
            resource="decodes",
            source="lin2026 (40)",
            inequality=f"Σ λ·D ≤ n·((B − 1)·x/τ + B·(1 − x)·γ): {number(lengths.output_mean)} tokens per "
            f"request, τ = {number(mixed_s)} s, 1/γ = {number(solo_s)} s, B = {b}, "
            f"x = λ·{number(prefill_s)}/n",
        )


def abandonment_rates(system: GateAndRoute) -> list[float]:
    """Abandonment rates of waiting requests: one for all classes, or one per class."""
    rates = system.abandonment
    return list(rates.values()) if isinstance(rates, Mapping) else [rates or 0.0]


def network_bounds(
    workload: Workload | Mapping[str, float], network: Network
) -> tuple[list[Bound], tuple[Hypothesis, ...]]:
    """The load of every engine of a network; no bounds and the reason if an engine is not covered."""
    try:
        limit = network_capacity(workload, network)
    except ConfigError as error:
        if error.path.startswith("workload"):
            raise
        return [], (Hypothesis(name="engines with known load", met=False, why=str(error)),)
    bounds = [
        Bound(
            name=f"engines.{engine.name}",
            resource="tokens",
            kind="upper_bound",
            capacity_per_s=limit.rate * engine.most_tokens_per_s / engine.least_tokens_per_s,
            rate=limit.rate,
            source=limit.source,
            inequality=f"{number(engine.least_tokens_per_s)} of {number(engine.most_tokens_per_s)} tokens "
            "per second",
            hit_rate=1.0 if engine.least_tokens_per_s < engine.tokens_per_s else None,
        )
        for engine in limit.engines
    ]
    return bounds, limit.hypotheses
