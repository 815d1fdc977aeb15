"""The stability of a scenario: the verdict, the binding limit and the theorem behind each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from inferq._lazy import pl
from inferq.errors import ConfigError
from inferq.systems.cluster import Cluster
from inferq.systems.disaggregated import Disaggregated
from inferq.systems.engine import Engine
from inferq.systems.gate_and_route import GateAndRoute
from inferq.systems.network import Network
from inferq.systems.pools import Pool, pools_of
from inferq.systems.system import System
from inferq.theory.bounds.bound import Bound as Bound
from inferq.theory.bounds.bound import Replicas, open_loop
from inferq.theory.bounds.engine_bounds import engine_bounds
from inferq.theory.bounds.fleet_bounds import (
    abandonment_rates,
    gate_bounds,
    hand_off_bounds,
    mixed_fleet_bounds,
    network_bounds,
)
from inferq.theory.capacities.iteration_cost import (
    Iteration,
    features_outside_theory,
    has_closed_form,
    never_served,
)
from inferq.theory.demands.demand import Demand, WorkloadLike
from inferq.theory.demands.hits import with_hit_rate
from inferq.theory.demands.lengths import Work
from inferq.theory.statement import Hypothesis, Statement, number
from inferq.workload.workload import Workload

Verdict = Literal["stable", "unstable", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stability(Statement):
    """What theory proves about a scenario; returned by `stability`."""

    source: ClassVar[str] = "li2025, nie2026, bari2025, ao2025, lin2026"

    verdict: Verdict
    """The proved result: `"stable"`, `"unstable"`, or `"unknown"` if no theorem applies."""
    rate: float | None
    """λ, requests (for a network: jobs) per second; None if unknown."""
    binding: Bound | None
    """The lowest upper bound that applies or might apply; None if there is none."""
    deciding: Bound | None
    """The bound that decides the verdict; None if none does."""
    bounds: tuple[Bound, ...]
    """All bounds: upper bounds first, then guarantees, each by capacity."""
    hypotheses: tuple[Hypothesis, ...]
    """Hypotheses of the scenario as a whole."""
    never_served: float = 0.0
    """Share of requests that are too long to be served; a run rejects them."""
    hit_rate: float | None = None
    """The configured share of prompt tokens found in prefix caches; the verdict holds at this hit rate.
    None if not configured; then each bound has its own assumption."""

    @property
    def capacity_per_s(self) -> float | None:
        """No policy of this kind is stable above this rate; None without an upper bound."""
        return None if self.binding is None else self.binding.capacity_per_s

    @property
    def stable_below_per_s(self) -> float | None:
        """The largest rate that is proved stable; None if no theorem applies."""
        capacities = [
            bound.capacity_per_s for bound in self.bounds if bound.kind == "guarantee" and bound.applies
        ]
        return max(capacities, default=None)

    @property
    def load(self) -> float | None:
        """λ divided by the capacity of the binding limit."""
        return None if self.binding is None else self.binding.load

    @property
    def margin(self) -> float | None:
        """The unused share of the binding limit, 1 − load; negative if the limit is exceeded."""
        return None if self.load is None else 1 - self.load

    def frame(self) -> pl.DataFrame:
        """One row per bound: `limit, resource, kind, capacity_per_s, load, applies, implies, source`.

        With a prefix cache also `hit_rate`, the assumed share of prompt tokens found in the cache: the most
        for an upper bound, the least for a guarantee.
        """
        schema: dict[str, Any] = dict.fromkeys(("limit", "resource", "kind"), pl.String)
        schema |= dict.fromkeys(("capacity_per_s", "load"), pl.Float64)
        schema |= {"applies": pl.Boolean, "implies": pl.String, "source": pl.String}
        fields = ("name", *list(schema)[1:])
        rows = [tuple(getattr(bound, name) for name in fields) for bound in self.bounds]
        bounds = pl.DataFrame(rows, schema=schema, orient="row")
        rates = [bound.hit_rate for bound in self.bounds]
        if all(rate is None for rate in rates):
            return bounds
        return bounds.with_columns(pl.Series("hit_rate", rates, dtype=pl.Float64))

    def explain(self) -> str:
        """The verdict with its reason, and every bound with its inequality, hypotheses and conclusion."""
        lines = [f"{self.verdict}: {self.why}"]
        if self.binding is not None:
            load = "" if self.load is None else f", load {number(self.load)}"
            lines.append(
                f"binding limit: {self.binding.name} ({self.binding.resource}), at most "
                f"{number(self.capacity_per_s)} per second{load}"
                + ("" if self.margin is None else f", margin {number(self.margin)}")
            )
        lines.append(
            "arrival rate: unknown" if self.rate is None else f"arrival rate: {number(self.rate)} per second"
        )
        if self.stable_below_per_s is not None:
            lines.append(f"proved stable below {number(self.stable_below_per_s)} per second")
        if self.never_served and self.verdict != "unknown":
            lines.append(self._rejected())
        lines += self._hits()
        lines += [f"  - {hypothesis}" for hypothesis in self.hypotheses]
        shown: set[str] = set()
        kinds = {"upper_bound": "at most", "guarantee": "stable below"}
        for bound in self.bounds:
            load = "" if bound.load is None else f" (load {number(bound.load)})"
            lines.append(
                f"{bound.name}, {bound.source}: {kinds[bound.kind]} {number(bound.capacity_per_s)} per second"
                f"{load}{_finds(bound)}"
            )
            if bound.inequality not in shown:  # an upper bound and a guarantee often share it
                lines.append(f"    {bound.inequality}")
                shown.add(bound.inequality)
            lines += [
                f"    - {hypothesis}" for hypothesis in bound.hypotheses if hypothesis not in self.hypotheses
            ]
        return "\n".join(lines)

    def _hits(self) -> list[str]:
        """The hit rates that bounds assume."""
        rates = {
            kind: sorted(
                {bound.hit_rate for bound in self.bounds if bound.kind == kind and bound.hit_rate is not None}
            )
            for kind in ("upper_bound", "guarantee")
        }
        if self.hit_rate is not None:
            lines = [
                f"hit rate {number(self.hit_rate)} as configured; runs with more hits may exceed upper bounds"
            ]
        elif rates["upper_bound"] or rates["guarantee"]:
            lines = []
        else:
            return []
        words = {kind: " and ".join(map(number, values)) for kind, values in rates.items()}
        if rates["upper_bound"]:
            lines.append(
                f"prefix cache: upper bounds assume at most {words['upper_bound']} of the prompt tokens found"
            )
        if rates["guarantee"]:
            lines.append(f"prefix cache: guarantees assume at least {words['guarantee']} of them found")
        return lines

    def _rejected(self) -> str:
        return (
            f"a share of {number(self.never_served)} of all requests is too long to be served: a run rejects "
            "them, and no theorem covers the rest"
        )

    @property
    def why(self) -> str:
        """The reason for the verdict."""
        if self.deciding is not None:
            beyond = "exceeds" if self.verdict == "unstable" else "is below"
            capacity = number(self.deciding.capacity_per_s)
            return f"λ = {number(self.rate)} {beyond} {capacity} per second, {self.deciding.name}"
        unmet = [hypothesis for hypothesis in self.hypotheses if hypothesis.met is False]
        if self.verdict == "stable":
            return unmet[0].why if unmet else "no queue can grow"
        if self.never_served:
            return self._rejected()
        if not self.bounds:
            return "; ".join(["no theorem covers this system", *(hypothesis.why for hypothesis in unmet)])
        if self.rate is None:
            return "the arrival rate is unknown"
        below = [
            bound
            for bound in self.bounds
            if bound.kind == "guarantee" and bound.load is not None and bound.load < 1
        ]
        over = [
            bound
            for bound in self.bounds
            if bound.kind == "upper_bound" and bound.load is not None and bound.load > 1
        ]
        for verdict, bounds in (("unstable", over), ("stable", below)):
            if bounds:
                nearest = min(
                    bounds, key=lambda bound: sum(not hypothesis.met for hypothesis in bound.hypotheses)
                )
                missing = "; ".join(
                    str(hypothesis) for hypothesis in nearest.hypotheses if not hypothesis.met
                )
                return f"{verdict} by {nearest.name}, except for {missing}"
        return "load is below every known upper bound, but no stability theorem applies"


def _finds(bound: Bound) -> str:
    """The hit rate that a bound assumes, in words; empty without a prefix cache."""
    if bound.hit_rate is None:
        return ""
    side = "at most" if bound.kind == "upper_bound" else "at least"
    return f", at a hit rate of {side} {number(bound.hit_rate)}"


def stability(
    workload: WorkloadLike | Mapping[str, float],
    cluster: System,
    *,
    rate: float | None = None,
    hit_rate: float | None = None,
) -> Stability:
    """Evaluate whether a system can serve a workload in the long run, as far as theory can prove it.

    Compute every bound that applies to the scenario, and check the hypotheses of its theorem.

    - An *upper bound* holds for every policy with these batches, sequence slots and memory. Above it the
      verdict is `"unstable"`.
    - A *stability guarantee* is a theorem about this policy. Below it, with all hypotheses met, the verdict
      is `"stable"`.
    - Otherwise, or if a hypothesis is not met or not known, the verdict is `"unknown"`.

    A verdict is about the long run with arrivals that continue in the same way. A finite run can still be
    overloaded for a while.

    | limit | upper bound | guarantee |
    |---|---|---|
    | token budget | every policy with a budget | policies that fill it (li2025 Theorem 1) |
    | sequence limit | every policy with `max_seqs` | policies that leave no slot unused |
    | batches that fit the cache | `TimingTable`, `Roofline` | |
    | oldest requests | | `Sarathi`, `VllmV1`, first come, first served, if the cache may run short |
    | KV cache | M / (shortest iteration · E[g]) (nie2026 Theorem 4.1) | `SlotGreedy`, `Constant` (4.2) |
    | tiles | `TiledGemm` | `Rad`, `RadPhased` (bari2025 Theorems 1 and 2) |
    | whole batches | `FasterTransformer` | `FasterTransformer` |
    | thresholds | | `Wait` (ao2025 Theorem 1) |

    With a `TimingTable` or a `Roofline`, prices bound tokens and sequence slots. They are computed from the
    corners of all possible batches. Host time (`Engine.overhead`) is part of every bound except those of
    `TiledGemm`.

    Systems of several engines:

    - Replicas add up; the router spreads the load as in li2025 Proposition 1. `RoundRobin` divides requests
      evenly, but not their work if the order of lengths is not random. For a recorded trace the busiest
      replica is therefore evaluated with its own requests. For streams that are not Poisson (`Workload.mix`)
      nothing is known.
    - `Disaggregated`: each side and the link is an upper bound.
    - `GateAndRoute`: prefills and slots are upper bounds. If every waiting request may abandon, no queue can
      grow.
    - `Network`: every engine is an upper bound. No guarantee is known, because engines that prefer the wrong
      stage can starve each other (Rybko and Stolyar).

    Recorded arrivals count as steady while the busiest tenth of the trace stays below the capacity, in the
    unit of the limit: tokens, sequence slots, memory, or arrivals of a class.

    The hit rate of a prefix cache depends on its size, the routing and the load, so it is a property of a
    run:

    - Upper bounds assume the most hits that the prompts allow, in any order and with any number of replicas:
      the hit rate of an infinite cache. Memory then counts only tokens that no other request can share.
    - Guarantees assume no hits. A hit only shortens the rest of a request, so these theorems also hold with
      hits. Where that is not proved, a hypothesis states so.
    - Each bound has its `hit_rate`. With the argument `hit_rate`, upper bounds assume that rate. Guarantees
      assume it if the iteration time depends on tokens alone.

    With speculative decoding (`Speculation`) a row emits several tokens. Bounds that count rows or contexts
    are then not proved, and a hypothesis reports the tokens per row. Upper bounds on tokens alone still hold.
    The same applies to a cache with groups of layers (`KvCache.groups`).

    Args:
        workload: a workload, a class, or several; for a network a workload of jobs with arrivals, or jobs
            per second by workflow.
        cluster: an engine, a cluster, a disaggregated pair, a gate-and-route cluster or a network.
        rate: total requests per second. Default: the rate of the workload. Not supported for a network.
        hit_rate: share of all prompt tokens that prefix caches find. Not supported for a network, whose
            engines have their own rates.

    Returns:
        The verdict, binding limit, load, margin, all bounds, and `explain()`.

    Raises:
        ConfigError: the system is invalid, a rate is not positive, lengths are missing, or no request can
            ever be served; the hit rate is not a share, exceeds what the prompts share, or there is no prefix
            cache.
        TraceError: a workload without lengths.

    Example:
        >>> import inferq as iq
        >>> engine = iq.Engine(
        ...     timing=iq.PiecewiseLinear(base=0.0455, per_token=0.0003, knee=64),
        ...     scheduler=iq.Sarathi(token_budget=512, max_seqs=512),
        ...     kv=iq.KvCache.unlimited(),
        ...     first_token="decode",
        ... )
        >>> chat = iq.theory.RequestClass(rate=20, prompt=129, output=112)
        >>> iq.theory.stability(chat, engine).verdict
        'unstable'
        >>> pair = iq.theory.stability(chat, iq.Cluster(engine, replicas=2))
        >>> pair.verdict, pair.binding.resource, round(pair.load, 3), round(pair.stable_below_per_s, 1)
        ('stable', 'tokens', 0.847, 23.6)
    """
    if isinstance(cluster, Network):
        if rate is not None:
            raise ConfigError("rate", "jobs of a network have rates by workflow; set them in the workload")
        if hit_rate is not None:
            raise ConfigError("hit_rate", "not supported for a network: each engine has its own hit rate")
        bounds, shared = network_bounds(_jobs(workload), cluster)
        bounds = _with_features(list(bounds), cluster)
        return _verdict(bounds, bounds[0].rate if bounds else None, shared)
    if isinstance(workload, Mapping):
        raise ConfigError("workload", "rates by workflow require a Network; use a workload or classes")
    demand = Demand.of(workload, rate=rate, needs_rate=False)
    if hit_rate is not None and isinstance(cluster, (Engine, Cluster, Disaggregated, GateAndRoute)):
        demand = with_hit_rate(demand, hit_rate, *_engines(cluster))
    if isinstance(cluster, (Engine, Cluster)):
        pool = pools_of(cluster)[0]
        rejected = _never_served(demand, pool)
        if len(set(pool.engines)) == 1:
            alike = Replicas(demand, pool.engines[0], sum(pool.counts), pool.router, pool.is_static)
            bounds = list(engine_bounds(alike))
        else:
            bounds = list(mixed_fleet_bounds(demand, pool))
        stability_at = _verdict(_with_features(bounds, cluster), demand.rate, open_loop(demand))
        return replace(stability_at, never_served=rejected, hit_rate=demand.hit_rate)
    if isinstance(cluster, Disaggregated):
        _hand_over(demand, cluster)
        bounds = _with_features(list(hand_off_bounds(demand, cluster)), cluster)
        stability_at = _verdict(bounds, demand.rate, open_loop(demand))
        return replace(stability_at, hit_rate=demand.hit_rate)
    if isinstance(cluster, GateAndRoute):
        if cluster.service == "tokens":
            _never_served(demand, pools_of(cluster)[0])
        shared = (*open_loop(demand), *_given_up(cluster))
        bounds = _with_features(list(gate_bounds(demand, cluster)), cluster)
        stability_at = _verdict(bounds, demand.rate, shared)
        return replace(stability_at, hit_rate=demand.hit_rate)
    raise ConfigError(
        "cluster", f"must be an Engine, Cluster, Disaggregated, GateAndRoute or Network, got {cluster!r}"
    )


def _with_features(bounds: list[Bound], cluster: System) -> list[Bound]:
    """Bounds with speculative decoding or groups of layers: those of rows or contexts are no longer proved.

    Every emitted token is computed, so an upper bound on tokens alone still holds.
    """
    engines = [engine for pool in pools_of(cluster) for engine in pool.engines]
    features = features_outside_theory(*engines)
    if not features:
        return bounds
    by_tokens = all(has_closed_form(engine) and Iteration.of(engine).by_tokens for engine in engines)

    def stability_at(bound: Bound) -> Bound:
        if bound.kind == "upper_bound" and bound.resource == "tokens" and by_tokens:
            return bound
        return replace(bound, hypotheses=(*bound.hypotheses, *features))

    return [stability_at(bound) for bound in bounds]


def _engines(cluster: Engine | Cluster | Disaggregated | GateAndRoute) -> list[Engine]:
    """Engines whose prefix caches can find parts of prompts."""
    if isinstance(cluster, GateAndRoute) and cluster.service != "tokens":
        return []
    pools = pools_of(cluster)
    return [
        engine
        for pool in (pools[:1] if isinstance(cluster, Disaggregated) else pools)
        for engine in pool.engines
    ]


def _never_served(demand: Demand, pool: Pool) -> float:
    """Share of requests that some replica can never serve; an error if none can serve any."""
    rejections = [never_served(engine, demand.lengths, engine.first_token) for engine in pool.engines]
    if all(rejection is not None and rejection.share == 1 for rejection in rejections):
        path, rejection = pool.paths[0] or "engine", rejections[0]
        assert rejection is not None
        raise ConfigError(f"{path}.{rejection.field}", f"no request can ever be served: {rejection.why}")
    return max(0.0 if rejection is None else rejection.share for rejection in rejections)


def _hand_over(demand: Demand, cluster: Disaggregated) -> None:
    """Raise an error if one side has no room for any request."""
    for side, weight in (("prefill", 0), ("decode", 1)):
        engine = getattr(cluster, side)[0]
        tokens = engine.kv.tokens
        # With the first token from the prefill, the last token is never stored.
        if tokens is not None and not demand.lengths.mean(_holds(tokens, weight)):
            raise ConfigError(
                f"{side}.kv.tokens", f"the cache of {number(tokens)} tokens cannot hold any request"
            )


def _holds(tokens: int, output_weight: int) -> Work:
    """1 for requests that fit a cache, 0 for others."""
    return lambda s, o: 1.0 * (s + output_weight * (o - 1) <= tokens)


_EMPTIES = "unbounded queue"


def _given_up(cluster: GateAndRoute) -> tuple[Hypothesis, ...]:
    """If every class abandons at some rate, its queue is bounded by arrivals divided by that rate."""
    if all(abandonment_rates(cluster)):
        why = "every waiting request abandons in the end, so no queue grows without bound"
        return (Hypothesis(name=_EMPTIES, met=False, why=why),)
    return ()


def _verdict(bounds: list[Bound], rate: float | None, shared: tuple[Hypothesis, ...]) -> Stability:
    """The verdict that follows from the bounds."""
    bounds = [bound for bound in bounds if math.isfinite(bound.capacity_per_s) and bound.capacity_per_s > 0]
    bounds.sort(key=lambda bound: (bound.kind == "guarantee", bound.capacity_per_s))
    upper_bounds = [bound for bound in bounds if bound.kind == "upper_bound"]
    # A bound with an unknown hypothesis may not hold, so proved bounds come first.
    binding = min(
        upper_bounds,
        key=lambda bound: (
            any(hypothesis.met is None for hypothesis in bound.hypotheses),
            bound.capacity_per_s,
        ),
        default=None,
    )
    over = next((bound for bound in upper_bounds if bound.implies == "unstable"), None)
    below = next((bound for bound in bounds if bound.implies == "stable"), None)
    verdict: Verdict = "unknown"
    if any(hypothesis.name == _EMPTIES for hypothesis in shared):
        verdict = "stable"
    elif over is not None:
        verdict = "unstable"
    elif below is not None:
        verdict = "stable"
    deciding = over if verdict == "unstable" else below if verdict == "stable" else None
    return Stability(
        verdict=verdict,
        rate=rate,
        binding=binding,
        deciding=deciding,
        bounds=tuple(bounds),
        hypotheses=shared,
    )


def _jobs(workload: Any) -> Any:
    """Jobs per second by workflow, or the workload of jobs."""
    if isinstance(workload, (Mapping, Workload)):
        return workload
    raise ConfigError(
        "workload", "a network requires a Workload with arrivals, or jobs per second by workflow"
    )
