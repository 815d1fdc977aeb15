"""Comparison of theory, fluid balance and simulation for one scenario."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from inferq._lazy import np, pl
from inferq.checks import finite, shown, whole
from inferq.description import Table
from inferq.errors import ConfigError
from inferq.interval import confidence_interval
from inferq.results.result import Result
from inferq.simulation.simulate import simulate
from inferq.systems.cluster import Cluster
from inferq.systems.engine import Engine
from inferq.systems.network import Network
from inferq.systems.pools import pools_of
from inferq.systems.system import System
from inferq.theory.bounds.stability import Stability, stability
from inferq.theory.capacities.fluid import Settled, settled_capacity
from inferq.theory.capacities.iteration_cost import features_outside_theory, has_closed_form
from inferq.theory.demands.demand import Demand, RequestClass, WorkloadLike
from inferq.theory.runs.observed import Observed, hit_rate, observed
from inferq.theory.statement import Statement, number
from inferq.workload.distributions import Fixed, LengthDistribution, Poisson
from inferq.workload.workload import Workload

CONFIDENCE = 0.99


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement(Statement):
    """Theory, fluid balance and simulation of one scenario; returned by `agree`."""

    source: ClassVar[str] = "theory, fluid balance and simulation"

    theory: Stability
    """The proved result."""
    observed: tuple[Observed, ...]
    """Observed stability of each run."""
    results: tuple[Result, ...]
    """One run per seed."""
    rows: tuple[Mapping[str, Any], ...]
    """The rows of `frame`."""

    @property
    def frame(self) -> pl.DataFrame:
        """One row per quantity; unknown values are null.

        `quantity`, `unit`, `theory`, `fluid`, `simulation` (mean over the seeds), `low`, `high` (its 99 %
        interval; null for one run), `gap` (simulation divided by theory, else by the fluid, minus 1).
        """
        text = dict.fromkeys(("quantity", "unit"), pl.String)
        numbers = dict.fromkeys(("theory", "fluid", "simulation", "low", "high", "gap"), pl.Float64)
        return pl.DataFrame([dict(row) for row in self.rows], schema={**text, **numbers})

    @property
    def agrees(self) -> bool | None:
        """Whether no run contradicts the verdict of the theory; None if either is unknown."""
        seen = {run.verdict for run in self.observed} - {"unknown"}
        if self.theory.verdict == "unknown" or not seen:
            return None
        return seen == {self.theory.verdict}

    def explain(self) -> str:
        """The verdicts of theory and simulation, and one line per quantity."""
        seen = ", ".join(run.verdict for run in self.observed)
        lines = [f"theory: {self.theory.verdict}: {self.theory.why}", f"simulation: {seen}"]
        for row in self.rows:
            parts = [
                f"{side} {number(row[side])}"
                for side in ("theory", "fluid", "simulation")
                if row[side] is not None
            ]
            within = "" if row["low"] is None else f" ({number(row['low'])} to {number(row['high'])})"
            gap = "" if row["gap"] is None else f", gap {100 * row['gap']:+.2f} %"
            lines.append(f"  {row['quantity']} ({row['unit']}): {', '.join(parts)}{within}{gap}")
        return "\n".join(lines)


def agree(
    workload: WorkloadLike,
    cluster: System,
    *,
    requests: int | None = None,
    seeds: Sequence[int] = (1, 2, 3, 4, 5),
    warmup: float = 0.25,
) -> Agreement:
    """Compare theory, fluid balance and simulation of one scenario.

    - *Theory* is what `stability` proves: a stable system serves its arrival rate, an unstable system at most
      its binding upper bound.
    - *Fluid* is the balance of means (as in `fluid`, for any engine whose iterations are linear in tokens and
      contexts): length and contents of an iteration if a replica were always busy with its share of requests
      and nothing were random. At a light load an engine is sometimes idle, and its iterations are shorter and
      hold less.
    - With a prefix cache the fluid is left out, because it has no hits. The row `hit rate` then compares the
      measured hit rate with the most that the upper bounds assume.
    - *Simulation* runs once per seed and measures between the warm-up and the last arrival. A recorded
      workload is the same for every seed and runs once.

    Args:
        workload: a workload; or classes with rates, simulated with Poisson arrivals.
        cluster: an engine, a cluster, a disaggregated pair, a gate-and-route cluster or a network.
        requests: requests per run for classes. Default: 20,000. Not supported for a workload.
        seeds: distinct seeds of the runs.
        warmup: share of the span of arrivals that is not measured, at least 0 and below 1.

    Raises:
        ConfigError: an argument is invalid; otherwise as for `stability` and `simulate`.
        SimulationError: a run cannot continue.

    Example:
        >>> import inferq as iq
        >>> timing = iq.PiecewiseLinear(base=0.0455, per_token=0.0003, knee=64)
        >>> scheduler = iq.Sarathi(token_budget=512, max_seqs=512)
        >>> kv = iq.KvCache.unlimited()
        >>> engine = iq.Engine(timing=timing, scheduler=scheduler, kv=kv, first_token="decode")
        >>> chat = iq.theory.RequestClass(rate=9, prompt=129, output=112)
        >>> found = iq.theory.agree(chat, engine, seeds=[1, 2])
        >>> found.theory.verdict, found.agrees
        ('stable', True)
        >>> gaps = dict(found.frame.select("quantity", "gap").rows())
        >>> abs(gaps["iteration"]) < 0.05
        True
    """
    if not 0 <= finite("warmup", warmup) < 1:
        raise ConfigError("warmup", f"must be a share of at least 0 and below 1, got {warmup!r}")
    seeds = _seeds(seeds)
    theory = stability(workload, cluster)
    drawn = _workload(workload, requests)
    if not drawn.is_synthetic and not isinstance(cluster, Network):
        seeds = seeds[:1]
    engine, replicas = None, 1
    if isinstance(cluster, (Engine, Cluster)):
        pool = pools_of(cluster)[0]
        engine = pool.engines[0] if len(set(pool.engines)) == 1 else None
        replicas = sum(pool.counts)
    linear = engine is not None and has_closed_form(engine)
    results, measures = [], []
    for seed in seeds:
        result = simulate(drawn, cluster, seed=seed, iterations=linear)
        results.append(result)
        measures.append(_measured(result, warmup, replicas if linear else None))
    demand = None if isinstance(cluster, Network) else Demand.of(workload, needs_rate=False)
    plain = linear and not results[0].has_prefix_cache
    balance = _fluid(demand, engine if plain else None, replicas)
    rows = _rows(theory, demand, balance, measures)
    return Agreement(
        theory=theory,
        observed=tuple(_observed(result, warmup) for result in results),
        results=tuple(results),
        rows=tuple(rows),
    )


def _seeds(seeds: object) -> list[int]:
    """Distinct seeds, at least one."""
    if isinstance(seeds, (str, bytes, Mapping)) or not isinstance(seeds, Iterable):
        raise ConfigError("seeds", f"must be integers such as [1, 2, 3], got {shown(seeds)}")
    distinct: list[int] = []
    for place, seed in enumerate(seeds):
        number = whole(f"seeds[{place}]", seed, 0, 2**64 - 1)
        if number in distinct:
            raise ConfigError(f"seeds[{place}]", f"must be unique, got {number} twice")
        distinct.append(number)
    if not distinct:
        raise ConfigError("seeds", "must contain at least one seed")
    return distinct


def _workload(workload: Any, requests: int | None) -> Workload:
    """The workload of the simulation."""
    if isinstance(workload, Workload):
        if requests is not None:
            raise ConfigError("requests", "is for classes with rates; a workload has its own number")
        return workload
    count = 20_000 if requests is None else whole("requests", requests, 2, 2**32 - 1)
    classes = [workload] if isinstance(workload, RequestClass) else list(workload)
    parts = {}
    for request_class in classes:
        lengths: dict[str, Any] = {"lengths": request_class.lengths}
        if request_class.lengths is None:
            lengths = {
                "prompt": _distribution(request_class.prompt),
                "output": _distribution(request_class.output),
            }
        parts[request_class.name] = Workload.synthetic(
            requests=count, arrivals=Poisson(request_class.rate), **lengths
        )
    return Workload.mix(parts, requests=count)


def _distribution(length: Any) -> Any:
    return length if isinstance(length, LengthDistribution) else Fixed(int(length))


def _observed(result: Result, warmup: float) -> Observed:
    arrival_s = result.requests["arrival_s"]
    start = 0.0 if arrival_s.is_empty() else float(arrival_s[0])
    end = start if arrival_s.is_empty() else float(arrival_s[-1])
    return observed(result, warmup=f"{start + warmup * (end - start):.9f}s")


def _measured(result: Result, warmup: float, replicas: int | None) -> dict[str, float]:
    """Measures of one run between the warm-up and its last arrival."""
    requests = result.requests
    arrival_s = requests["arrival_s"].to_numpy()
    if len(arrival_s) < 2 or arrival_s[-1] <= arrival_s[0]:
        raise ConfigError("workload", "all requests arrive at the same time, so there is no rate")
    start = arrival_s[0] + warmup * (arrival_s[-1] - arrival_s[0])
    end = arrival_s[-1]
    span_s = end - start
    finish_s = requests["finish_s"].to_numpy()
    done = (finish_s > start) & (finish_s <= end)
    left_s = requests["left_s"].fill_null(math.inf).to_numpy()
    entered_s = requests["admitted_s"].fill_null(math.inf).to_numpy()

    def within(low: Any, high: Any) -> float:
        overlap_s = np.minimum(high, end) - np.maximum(low, start)
        return float(np.maximum(overlap_s, 0.0).sum() / span_s)

    measures = {
        "arrivals": float(((arrival_s > start) & (arrival_s <= end)).sum() / span_s),
        "throughput": float(done.sum() / span_s),
        "output tokens": float(requests["output_tokens"].to_numpy()[done].sum() / span_s),
        "in the system": within(arrival_s, left_s),
    }
    hits = hit_rate(result, start, end)
    if hits is not None:
        measures["hit rate"] = hits
    number_present = [(arrival_s <= at).sum() - (left_s <= at).sum() for at in (start, end)]
    measures["growth"] = float((number_present[1] - number_present[0]) / span_s)
    if replicas is not None:
        measures["running"] = within(entered_s, left_s) / replicas
        measures.update(_iterations(result, start, end, replicas))
    return measures


def _iterations(result: Result, start: float, end: float, replicas: int) -> dict[str, float]:
    """Means over the iterations that start within the window; a stretch belongs to its start."""
    table = result.iterations
    begins, count = table["start_s"].to_numpy(), table["count"].to_numpy().astype(np.float64)
    first_s, growth_s = table["first_s"].to_numpy(), table["growth_s"].to_numpy()
    lasts_s = count * first_s + growth_s * count * (count - 1) / 2
    inside = (begins >= start) & (begins < end)
    total, busy_s = count[inside].sum(), lasts_s[inside].sum()
    if total == 0:
        return {}
    decodes = table["decodes"].to_numpy()
    tokens = (table["prefill_tokens"].to_numpy() + decodes) * count
    held = table["kv_used_tokens"].to_numpy() + decodes * (count - 1) / 2
    return {
        "iteration": float(busy_s / total),
        "batch": float(tokens[inside].sum() / total),
        "cache": float((held * lasts_s)[inside].sum() / busy_s),
        "busy": float(busy_s / ((end - start) * replicas)),
    }


@dataclass(frozen=True, slots=True)
class _Fluid:
    capacity_per_s: float | None
    """None if the rate has no limit."""
    settled: Settled | None


def _fluid(demand: Demand | None, engine: Engine | None, replicas: int) -> _Fluid | None:
    """The balance of one replica of several that share the load."""
    if demand is None or engine is None or demand.rate is None or features_outside_theory(engine):
        return None
    capacity, share = settled_capacity(engine, demand.lengths, engine.first_token), demand.rate / replicas
    if capacity is not None:
        share = min(share, capacity)
    settled = Settled.at(share, engine, demand.lengths, engine.first_token)
    return _Fluid(None if capacity is None else replicas * capacity, settled)


def _rows(
    theory: Stability, demand: Demand | None, fluid: _Fluid | None, measures: Sequence[dict[str, float]]
) -> list[Mapping[str, Any]]:
    rate, upper_bound = theory.rate, theory.capacity_per_s
    throughput = growth = None
    if rate is not None and theory.verdict == "stable":
        throughput, growth = rate, 0.0
    elif rate is not None and theory.verdict == "unstable" and upper_bound is not None:
        throughput, growth = upper_bound, rate - upper_bound
    flows = None
    if fluid is not None and rate is not None:
        flows = rate if fluid.capacity_per_s is None else min(rate, fluid.capacity_per_s)
    tokens = None if demand is None else demand.lengths.output_mean
    at = None if fluid is None else fluid.settled

    def times(per_s: float | None, each: float | None) -> float | None:
        return None if per_s is None or each is None else per_s * each

    quantities: list[tuple[str, str, str, float | None, float | None]] = [
        ("arrivals", "per second", "arrivals", rate, None),
        ("capacity", "per second", "", upper_bound, None if fluid is None else fluid.capacity_per_s),
        ("throughput", "per second", "throughput", throughput, flows),
        ("output tokens", "tokens/s", "output tokens", times(throughput, tokens), times(flows, tokens)),
        (
            "growth of the backlog",
            "per second",
            "growth",
            growth,
            None if flows is None or rate is None else rate - flows,
        ),
        ("in the system", "requests", "in the system", None, None),
    ]
    if at is not None:
        quantities += [
            ("iteration", "s", "iteration", None, at.iteration_s),
            ("tokens in a batch", "tokens", "batch", None, at.batch_tokens),
            ("running on a replica", "requests", "running", None, at.running),
            ("KV cache in use on a replica", "tokens", "cache", None, at.kv_tokens),
            ("time that a replica is busy", "share", "busy", None, 1.0),
        ]
    if any("hit rate" in measure for measure in measures):
        at_most = [
            measure.hit_rate
            for measure in theory.bounds
            if measure.kind == "upper_bound" and measure.hit_rate is not None
        ]
        quantities.append(("hit rate", "share", "hit rate", max(at_most, default=None), None))
    rows: list[Mapping[str, Any]] = []
    for quantity, unit, key, by_theory, by_fluid in quantities:
        samples = [measure[key] for measure in measures if key in measure]
        interval = confidence_interval(samples, CONFIDENCE) if samples else None
        mean = None if interval is None else interval.mean
        several = interval is not None and len(samples) > 1
        reference = by_theory if by_theory is not None else by_fluid
        gap = None if mean is None or not reference else mean / reference - 1
        row = {
            "quantity": quantity,
            "unit": unit,
            "theory": by_theory,
            "fluid": by_fluid,
            "simulation": mean,
            "low": interval.low if interval is not None and several else None,
            "high": interval.high if interval is not None and several else None,
            "gap": gap,
        }
        rows.append(Table(row, as_given=True))
    return rows
