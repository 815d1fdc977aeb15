"""Is a scenario stable, which limit binds, and which theorem says so?"""

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
from inferq.theory.bounds.bound import Replicas, stays
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
    has_closed_form,
    never_served,
    token_by_token,
)
from inferq.theory.demands.demand import Demand, WorkloadLike
from inferq.theory.demands.hits import with_hit_rate
from inferq.theory.demands.lengths import Work
from inferq.theory.statement import Hypothesis, Statement, number
from inferq.workload.workload import Workload

Verdict = Literal["stable", "unstable", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stability(Statement):
    """Whether theory says that a scenario is stable; made by `stability`."""

    source: ClassVar[str] = "li2025, nie2026, bari2025, ao2025, lin2026"

    verdict: Verdict
    """What is proved: `"stable"`, `"unstable"`, or `"unknown"` where no theorem reaches."""
    rate: float | None
    """λ, requests (of a network: jobs) per second; None where nothing says it."""
    binding: Bound | None
    """The ceiling with the least capacity among those that apply, or might; None where there is none."""
    deciding: Bound | None
    """The bound that decides the verdict; None where none does."""
    bounds: tuple[Bound, ...]
    """All that were found, ceilings first, each by its capacity."""
    hypotheses: tuple[Hypothesis, ...]
    """What holds for the scenario as a whole."""
    never_served: float = 0.0
    """The share of the requests that are too long ever to be served: a run rejects them."""
    hit_rate: float | None = None
    """The share of prompt tokens that prefix caches are stated to find: the verdict is one at this hit rate.
    None where none is stated; what each bound assumes it says itself."""

    @property
    def capacity_per_s(self) -> float | None:
        """No policy of this kind is stable above this rate; None where no ceiling is known."""
        return None if self.binding is None else self.binding.capacity_per_s

    @property
    def sure_per_s(self) -> float | None:
        """The largest rate that is known to be stable; None where no theorem applies."""
        sure = [one.capacity_per_s for one in self.bounds if one.kind == "guarantee" and one.applies]
        return max(sure, default=None)

    @property
    def load(self) -> float | None:
        """λ over the capacity of the binding limit."""
        return None if self.binding is None else self.binding.load

    @property
    def margin(self) -> float | None:
        """The share of the binding limit that is left, 1 − load: below 0 where it is exceeded."""
        return None if self.load is None else 1 - self.load

    def frame(self) -> pl.DataFrame:
        """One row for each bound: `limit, resource, kind, capacity_per_s, load, applies, says, source`.

        With a prefix cache also `hit_rate`, the share of prompt tokens that the bound takes it to find: a
        ceiling at most so much, a guarantee at least.
        """
        schema: dict[str, Any] = dict.fromkeys(("limit", "resource", "kind"), pl.String)
        schema |= dict.fromkeys(("capacity_per_s", "load"), pl.Float64)
        schema |= {"applies": pl.Boolean, "says": pl.String, "source": pl.String}
        fields = ("name", *list(schema)[1:])
        rows = [tuple(getattr(one, name) for name in fields) for one in self.bounds]
        bounds = pl.DataFrame(rows, schema=schema, orient="row")
        rates = [one.hit_rate for one in self.bounds]
        if all(rate is None for rate in rates):
            return bounds
        return bounds.with_columns(pl.Series("hit_rate", rates, dtype=pl.Float64))

    def explain(self) -> str:
        """The verdict, why, and every bound with its inequality, its hypotheses and what follows from it."""
        lines = [f"{self.verdict}: {self.why}"]
        if self.binding is not None:
            load = "" if self.load is None else f", load {number(self.load)}"
            lines.append(
                f"binding limit: {self.binding.name} ({self.binding.resource}), at most "
                f"{number(self.capacity_per_s)} per second{load}"
                + ("" if self.margin is None else f", margin {number(self.margin)}")
            )
        lines.append(
            "nothing says how many come"
            if self.rate is None
            else f"asked for: {number(self.rate)} per second"
        )
        if self.sure_per_s is not None:
            lines.append(f"known to be stable below {number(self.sure_per_s)} per second")
        if self.never_served and self.verdict != "unknown":
            lines.append(self._rejected())
        lines += self._hits()
        lines += [f"  - {one}" for one in self.hypotheses]
        shown: set[str] = set()
        kinds = {"ceiling": "no policy passes", "guarantee": "this one is stable below"}
        for one in self.bounds:
            load = "" if one.load is None else f" (load {number(one.load)})"
            lines.append(
                f"{one.name}, {one.source}: {kinds[one.kind]} {number(one.capacity_per_s)} per second{load}"
                f"{_finds(one)}"
            )
            if one.inequality not in shown:  # a ceiling and a guarantee often share it
                lines.append(f"    {one.inequality}")
                shown.add(one.inequality)
            lines += [f"    - {need}" for need in one.hypotheses if need not in self.hypotheses]
        return "\n".join(lines)

    def _hits(self) -> list[str]:
        """Which hit rate of prefix caches is assumed for which bounds."""
        rates = {
            kind: sorted(
                {one.hit_rate for one in self.bounds if one.kind == kind and one.hit_rate is not None}
            )
            for kind in ("ceiling", "guarantee")
        }
        if self.hit_rate is not None:
            lines = [
                f"at a hit rate of {number(self.hit_rate)}, as stated; more in a run may break a ceiling"
            ]
        elif rates["ceiling"] or rates["guarantee"]:
            lines = []
        else:
            return []
        told = {kind: " and ".join(map(number, found)) for kind, found in rates.items()}
        if rates["ceiling"]:
            lines.append(
                f"prefix cache: ceilings take {told['ceiling']} of the prompt tokens to be found at most"
            )
        if rates["guarantee"]:
            lines.append(f"prefix cache: guarantees count on {told['guarantee']} of them at least")
        return lines

    def _rejected(self) -> str:
        return (
            f"a share of {number(self.never_served)} of all requests can never be served: a run rejects "
            "them, and no theorem speaks of the others alone"
        )

    @property
    def why(self) -> str:
        """The reason for the verdict."""
        if self.deciding is not None:
            beyond = "exceeds" if self.verdict == "unstable" else "is below"
            capacity = number(self.deciding.capacity_per_s)
            return f"λ = {number(self.rate)} {beyond} {capacity} per second, {self.deciding.name}"
        lacking = [one for one in self.hypotheses if one.met is False]
        if self.verdict == "stable":
            return lacking[0].why if lacking else "no queue can grow"
        if self.never_served:
            return self._rejected()
        if not self.bounds:
            return "; ".join(["no theorem covers this system", *(one.why for one in lacking)])
        if self.rate is None:
            return "nothing says how many requests come"
        hopeful = [
            one for one in self.bounds if one.kind == "guarantee" and one.load is not None and one.load < 1
        ]
        over = [one for one in self.bounds if one.kind == "ceiling" and one.load is not None and one.load > 1]
        for said, found in (("unstable", over), ("stable", hopeful)):
            if found:
                nearest = min(found, key=lambda one: sum(not need.met for need in one.hypotheses))
                missing = "; ".join(str(need) for need in nearest.hypotheses if not need.met)
                return f"{said} by {nearest.name}, but for {missing}"
        return "below all that is known to be too much, and no theorem says that it is little enough"


def _finds(bound: Bound) -> str:
    """The hit rate that a bound assumes, in words; nothing without a prefix cache."""
    if bound.hit_rate is None:
        return ""
    side = "at most" if bound.kind == "ceiling" else "at least"
    return f" at a hit rate of {number(bound.hit_rate)} {side}"


def stability(
    workload: WorkloadLike | Mapping[str, float],
    cluster: System,
    *,
    rate: float | None = None,
    hit_rate: float | None = None,
) -> Stability:
    """Can a system serve what is asked, as far as theory knows?

    Every bound that bears on the scenario is worked out, with the hypotheses of its theorem judged. A
    *ceiling* holds for every policy with these batches, seats and memory: above it the verdict is
    `"unstable"`. A *guarantee* is a theorem about this policy: below it, with all its hypotheses met, the
    verdict is `"stable"`. Between them, and where a hypothesis is not met or not known, it is `"unknown"`.
    Stable is a statement about the long run under arrivals that go on like this; a run can be overloaded for
    a while all the same.

    | limit | ceiling | guarantee |
    |---|---|---|
    | tokens of full batches | every policy with a budget | policies that fill it (li2025 Theorem 1) |
    | requests at once | every policy with `max_seqs` | policies that leave none unused |
    | batches that fit the cache | `TimingTable`, `Roofline` | |
    | the oldest requests | | `Sarathi`, `VllmV1`, first come, first served, in a cache that may run short |
    | KV cache | M / (shortest iteration · E[g]) (nie2026 Theorem 4.1) | `SlotGreedy`, `Constant` (4.2) |
    | tiles | `TiledGemm` | `Rad`, `RadPhased` (bari2025 Theorems 1 and 2) |
    | whole batches | `FasterTransformer` | `FasterTransformer` |
    | thresholds | | `Wait` (ao2025 Theorem 1) |

    With a `TimingTable` or a `Roofline` tokens and seats are bounded by prices, worked out from the corners
    of all batches that can be. What the host adds (`Engine.overhead`) is in every bound but those of
    `TiledGemm`.

    Several replicas count together, and a router spreads them as li2025 Proposition 1 has it. For
    `Disaggregated` each side and the link is a ceiling; for `GateAndRoute` prefills and slots are (where
    every waiting request gives up no queue can grow); for a `Network` every engine is, and no more is known,
    because engines that prefer the wrong stage can starve each other (Rybko and Stolyar). Recorded arrivals
    count as steady while even the tenth of the trace that asks for the most stays below the capacity, in the
    unit that the limit counts: tokens, seats, memory, or arrivals of a class. `RoundRobin` gives every
    replica as many requests, but not as much work, where long and short ones come in an order of their own;
    so of a recorded trace the busiest replica is judged as it takes turns, and of streams that are not
    Poisson (`Workload.mix`) nothing is known.

    How much a prefix cache finds is a property of a run: of the cache's size, the routing, the load. So
    ceilings take the most that the prompts of the workload allow, in any order and on however many replicas,
    that of an endless cache; in such ceilings memory counts only what no other request may hold too.
    Guarantees take nothing to be found: a hit only shortens what is left of a request, so that these theorems
    hold with hits too; where that is not shown, a hypothesis says so. Each bound says its `hit_rate`. With a
    stated `hit_rate` the verdict is one at this hit rate: ceilings take it instead of the most, and where the
    time of an iteration depends on its tokens alone guarantees count on it.

    Where requests decode by drafts (`Speculation`) a row emits several tokens: what counts rows or contexts
    is not known to hold, and says how many tokens a row emits; a ceiling by tokens alone holds.

    Args:
        workload: a workload, a class, or several; for a network jobs: a workload with arrivals, or jobs per
            second by workflow.
        cluster: an engine, a cluster, a pair with hand-off, a gate-and-route cluster or a network.
        rate: requests per second in all, instead of what the workload says (not for a network).
        hit_rate: share of all prompt tokens that prefix caches find, for a verdict at this hit rate (not for
            a network, whose engines have rates of their own).

    Returns:
        The verdict, the binding limit, the load and the margin, every bound, and `explain()`.

    Raises:
        ConfigError: something that is no system, a rate that is not above 0, lengths that are missing, a
            cache or policy that can serve none of the requests; a hit rate that is no share, above what the
            prompts of the workload share, or where there is no prefix cache.
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
        >>> pair.verdict, pair.binding.resource, round(pair.load, 3), round(pair.sure_per_s, 1)
        ('stable', 'tokens', 0.847, 23.6)
    """
    if isinstance(cluster, Network):
        if rate is not None:
            raise ConfigError("rate", "a network's jobs have rates by workflow; give them as the workload")
        if hit_rate is not None:
            raise ConfigError(
                "hit_rate", "the engines of a network have rates of their own; none can be stated"
            )
        bounds, shared = network_bounds(_jobs(workload), cluster)
        bounds = _with_drafts(list(bounds), cluster)
        return _judged(bounds, bounds[0].rate if bounds else None, shared)
    if isinstance(workload, Mapping):
        raise ConfigError("workload", "rates by workflow are for a Network; give a workload or classes")
    demand = Demand.of(workload, rate=rate, needs_rate=False)
    if hit_rate is not None and isinstance(cluster, (Engine, Cluster, Disaggregated, GateAndRoute)):
        demand = with_hit_rate(demand, hit_rate, *_engines(cluster))
    if isinstance(cluster, (Engine, Cluster)):
        pool = pools_of(cluster)[0]
        rejected = _never_served(demand, pool)
        if len(set(pool.engines)) == 1:
            alike = Replicas(demand, pool.engines[0], sum(pool.counts), pool.router, pool.stays)
            bounds = list(engine_bounds(alike))
        else:
            bounds = list(mixed_fleet_bounds(demand, pool))
        judged = _judged(_with_drafts(bounds, cluster), demand.rate, stays(demand))
        return replace(judged, never_served=rejected, hit_rate=demand.hit_rate)
    if isinstance(cluster, Disaggregated):
        _hand_over(demand, cluster)
        bounds = _with_drafts(list(hand_off_bounds(demand, cluster)), cluster)
        judged = _judged(bounds, demand.rate, stays(demand))
        return replace(judged, hit_rate=demand.hit_rate)
    if isinstance(cluster, GateAndRoute):
        if cluster.service == "tokens":
            _never_served(demand, pools_of(cluster)[0])
        shared = (*stays(demand), *_given_up(cluster))
        bounds = _with_drafts(list(gate_bounds(demand, cluster)), cluster)
        judged = _judged(bounds, demand.rate, shared)
        return replace(judged, hit_rate=demand.hit_rate)
    raise ConfigError(
        "cluster", f"must be an Engine, Cluster, Disaggregated, GateAndRoute or Network, is {cluster!r}"
    )


def _with_drafts(bounds: list[Bound], cluster: System) -> list[Bound]:
    """Bounds of a system, where requests decode by drafts: what counts rows or contexts is then not known.

    A token is computed before it comes out, so what counts tokens alone remains a ceiling.
    """
    engines = [engine for pool in pools_of(cluster) for engine in pool.engines]
    drafts = token_by_token(*engines)
    if not drafts:
        return bounds
    by_tokens = all(has_closed_form(engine) and Iteration.of(engine).by_tokens for engine in engines)

    def judged(one: Bound) -> Bound:
        if one.kind == "ceiling" and one.resource == "tokens" and by_tokens:
            return one
        return replace(one, hypotheses=(*one.hypotheses, *drafts))

    return [judged(one) for one in bounds]


def _engines(cluster: Engine | Cluster | Disaggregated | GateAndRoute) -> list[Engine]:
    """The engines whose prefix caches may find anything of a prompt."""
    if isinstance(cluster, GateAndRoute) and cluster.service != "tokens":
        return []
    pools = pools_of(cluster)
    return [
        one for pool in (pools[:1] if isinstance(cluster, Disaggregated) else pools) for one in pool.engines
    ]


def _never_served(demand: Demand, pool: Pool) -> float:
    """The share of requests that some replica can never serve; refused where none can serve any."""
    rejections = [never_served(engine, demand.lengths, engine.first_token) for engine in pool.engines]
    if all(one is not None and one.share == 1 for one in rejections):
        path, one = pool.paths[0] or "engine", rejections[0]
        assert one is not None
        raise ConfigError(f"{path}.{one.field}", f"nothing that is asked can ever be served: {one.why}")
    return max(0.0 if one is None else one.share for one in rejections)


def _hand_over(demand: Demand, cluster: Disaggregated) -> None:
    """Refuse a pair of which one side has no room for any request."""
    for side, weight in (("prefill", 0), ("decode", 1)):
        engine = getattr(cluster, side)[0]
        tokens = engine.kv.tokens
        # With the first token from the prefill the last one is never held.
        if tokens is not None and not demand.lengths.mean(_holds(tokens, weight)):
            raise ConfigError(
                f"{side}.kv.tokens", f"{number(tokens)} hold none of the requests that are asked"
            )


def _holds(tokens: int, output_weight: int) -> Work:
    """1 for requests that a cache can hold, 0 for others."""
    return lambda s, o: 1.0 * (s + output_weight * (o - 1) <= tokens)


_EMPTIES = "a queue that can grow"


def _given_up(cluster: GateAndRoute) -> tuple[Hypothesis, ...]:
    """Where every class gives up at some rate, what waits is at most its arrivals over that rate."""
    if all(abandonment_rates(cluster)):
        why = "every waiting request gives up in the end, so that no queue grows without end"
        return (Hypothesis(name=_EMPTIES, met=False, why=why),)
    return ()


def _judged(bounds: list[Bound], rate: float | None, shared: tuple[Hypothesis, ...]) -> Stability:
    """The verdict that follows from bounds."""
    bounds = [one for one in bounds if math.isfinite(one.capacity_per_s) and one.capacity_per_s > 0]
    bounds.sort(key=lambda one: (one.kind, one.capacity_per_s))
    ceilings = [one for one in bounds if one.kind == "ceiling"]
    # A ceiling of which something is not known may not be one: the others come first.
    binding = min(
        ceilings,
        key=lambda one: (any(need.met is None for need in one.hypotheses), one.capacity_per_s),
        default=None,
    )
    over = next((one for one in ceilings if one.says == "unstable"), None)
    below = next((one for one in bounds if one.says == "stable"), None)
    verdict: Verdict = "unknown"
    if any(one.name == _EMPTIES for one in shared):
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
    """Jobs per second by workflow, or the workload of jobs that says it when it is drawn."""
    if isinstance(workload, (Mapping, Workload)):
        return workload
    raise ConfigError(
        "workload", "a network serves jobs: give a Workload with arrivals, or jobs per second by workflow"
    )
