"""`inferq.capacity`: search for the largest rate at which a system meets an SLO."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from inferq.checks import between, whole, within
from inferq.description import member
from inferq.display.text import number
from inferq.errors import ConfigError, TraceError
from inferq.experiments.arguments import check_log, check_options, looks_of, recorded
from inferq.experiments.capacity_search.capacity_plan import CapacityPlan, upper_bound_of
from inferq.experiments.capacity_search.probe import Prober
from inferq.experiments.capacity_search.run_length import RunLength, run_length
from inferq.experiments.capacity_search.search import Search
from inferq.experiments.model_error import ModelErrors
from inferq.progress import Progress, watched
from inferq.results.slo import Slo
from inferq.systems.gate_and_route import GateAndRoute
from inferq.systems.network import Network
from inferq.systems.pools import pools_of
from inferq.systems.system import SYSTEMS, System
from inferq.theory.bounds.stability import Stability, stability
from inferq.workload.columns import MOST_SECONDS, Table
from inferq.workload.transforms import mean_rate
from inferq.workload.workload import Workload, is_closed_loop

_RATES = (1e-9, 1e12)
"""Supported requests per second: from one in 30 years to a thousand in a nanosecond."""


def capacity(
    workload: Workload | Table | Callable[[float], Workload],
    system: System,
    slo: Slo,
    *,
    low: float | None = None,
    high: float | None = None,
    precision: float = 0.02,
    seeds: Iterable[int] | int = range(5),
    most_seeds: int | None = None,
    confidence: float = 0.95,
    threads: int | None = None,
    log: Callable[[str], object] | None = None,
    progress: bool | Progress | None = None,
    **run: Any,
) -> CapacityPlan:
    """Find the largest rate at which a system meets an SLO.

    For conversations the rate is that of their starts, times the requests of a conversation. Think times do
    not change.

    All rates use the same requests, sent faster or slower (`Workload.at_rate`: gaps are scaled, lengths and
    order are unchanged, and the mean rate of every draw is exact), and the same seeds. A *probe* is one rate.
    It computes a confidence interval over the seeds for every objective (Student's t). The probe is *met* if
    all upper bounds are within their limits, *violated* if a lower bound is beyond its limit, else
    *undecided*. An undecided probe doubles the number of seeds, up to `most_seeds`. The search halves the
    ratio of the bracket until it is narrower than `precision`. If undecided probes remain, they lie inside
    the bracket.

    Confidence: the limit is compared with the mean of a metric over runs of this length. If that metric is
    almost normal from run to run, as the mean or median of many requests is, a rate that violates the SLO is
    called met with a probability of at most 1 − confidence, including all looks at more seeds. High
    percentiles of short runs near saturation are skewed to the right; five seeds may miss the long tail, and
    the probability is larger (8 % were observed for `ttft_p90` over 400 requests at a confidence of 95 %).
    Use longer runs, more seeds, or a higher confidence for these. The confidence of one probe is that of the
    whole search if the upper bounds grow with the rate, because all probes share their seeds. The same holds
    for `high`.

    If theory provides an upper bound (`inferq.theory.stability`), the search starts there and decreases the
    rate. No rate above it is sustainable, so an SLO that is met at the bound is met only because the runs
    end; the search stops and reports that. Without an upper bound it starts at the rate of the workload. The
    search ends when requests rarely overlap, or when all arrive at the same time.

    Args:
        workload: a `Workload` with arrivals, anything that `Workload` accepts, or a function of the rate that
            returns a workload, for workloads that cannot be scaled: `lambda rate: iq.Workload.sessions(
            arrivals=iq.dist.Poisson(rate), …)`. A function requires `low` and `high`.
        system: the system, as for `inferq.simulate`.
        slo: the objectives.
        low: first and lowest rate, from 1e-9 to 1e12. The last request must arrive within 9e9 seconds. If the
            SLO is not met there, the search ends.
        high: largest rate, above `low`, up to 1e12. It may exceed the theoretical upper bound.
        precision: largest high / low − 1 of the bracket, above 0.0001 and below 1.
        seeds: seeds of every probe, two or more for a synthetic workload. A fixed workload on a system
            without randomness runs once.
        most_seeds: maximum seeds of a probe; further seeds are the next integers. Default: four times the
            number of `seeds`.
        confidence: confidence level, above 0.5 and below 1.
        threads: concurrent runs, 1 or above. Default: all cores. It does not change the result.
        log: called with a sentence after each probe.
        progress: called with (finished runs, known runs) after each run. True shows a progress bar.
        **run: further arguments of `inferq.simulate`. `warmup` and `cooldown` in requests mean the same at
            every rate.

    Returns:
        The plan: `rate` and `high` (the bracket), `probes` (everything that was run), `limited_by_length`,
        `theory`, `explain()` and `plot()`. If no rate meets the SLO, `rate` is 0 and `reason` explains it. If
        every rate meets it, `high` is None and there is a `reason`.

    Raises:
        ConfigError: an argument is out of range, the workload lacks a class of the SLO or is a closed loop
            of users without a rate; and as for `inferq.simulate`.
        TraceError: the workload has no arrivals or lengths.
        SimulationError: a run fails.
        KeyboardInterrupt: Ctrl-C stops all runs immediately.

    Source: bisection with common random numbers; Law, Simulation Modeling and Analysis.

    Example:
        A server with a service time of one second (M/D/1) has a mean waiting time of ρ/(2(1 − ρ)) seconds,
        which is half a second at ρ = 1/2:

        >>> import inferq as iq
        >>> server = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(max_seqs=1),
        ...                    kv=iq.KvCache.unlimited())
        >>> arrivals = iq.Workload.synthetic(
        ...     requests=4000, arrivals=iq.dist.Poisson(1.0), prompt=iq.dist.Fixed(8), output=iq.dist.Fixed(1)
        ... )
        >>> plan = iq.capacity(arrivals, server, iq.Slo(queue_mean=0.5), warmup=200, precision=0.05)
        >>> plan.low < 0.5 < plan.high, plan.high < 0.56, plan.limited_by_length
        (True, True, False)
    """
    member("system", system, SYSTEMS)
    member("slo", slo, (Slo,))
    numbers, looks = looks_of(seeds, most_seeds)
    low, high = _ends(low, high)
    if "seed" in run:
        raise ConfigError("seed", "is not an argument of capacity; use seeds")
    check_options(run)
    check_log(log)
    at_rate: Callable[[float], Workload]
    if callable(workload):
        if low is None or high is None:
            raise ConfigError("low, high: both are required if the workload is a function of the rate")
        at_rate, theory = workload, None
        source = _returned(at_rate(low))
        with _at("low", low):
            arrivals = _Arrivals.of(source, system, numbers[0])
    else:
        source = workload if isinstance(workload, Workload) else Workload(workload)
        at_rate = source.at_rate
        arrivals = _Arrivals.of(source, system, numbers[0], scaled=True)
        theory = stability(source, system)
        for name, rate in (("low", low), ("high", high)):
            if rate is not None and rate < arrivals.floor:
                raise ConfigError(
                    name,
                    f"must be {arrivals.floor:.3g} per second or above, so that the last of "
                    f"{arrivals.requests:,} requests arrives within {MOST_SECONDS:g} seconds; got {rate!r}",
                )
    exact = not arrivals.drawn
    if not exact and looks[0] < 2:
        raise ConfigError("seeds", "must be two or more for a random workload: one has no interval")
    with watched(progress, "runs") as watch:
        prober = Prober(
            at_rate=at_rate,
            system=system,
            objectives=slo.objectives,
            seeds=numbers[:1] if exact else numbers,
            looks=(1,) if exact else looks,
            confidence=between("confidence", confidence, 0.5, 1),
            exact=exact,
            threads=None if threads is None else whole("threads", threads, 1, 2**16 - 1),
            run=run,
            watch=watch,
        )
        search = Search(prober, between("precision", precision, 1e-4, 1), log)
        bound = None if theory is None else upper_bound_of(theory)
        top = bound if high is None and bound is not None and (low or 0.0) < bound else high
        if top is None:
            search.upwards(low, arrivals.rate, arrivals.floor)
        else:
            search.between(low, top, arrivals.floor, bound)
        return CapacityPlan(
            slo=slo,
            rate=search.low,
            high=search.high,
            reason=_reason(search, low, top, bound, arrivals),
            confidence=prober.confidence,
            exact=exact,
            requests=arrivals.requests,
            probed=tuple(search.probed),
            length=_length(prober, search, top, theory),
            theory=theory,
            most_seeds=prober.looks[-1],
            errors=ModelErrors.of(system),
            scenario=recorded(source, prober.seeds, run, system=system.to_json()),
        )


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """Properties of a workload that the search needs before the first run."""

    requests: int
    rate: float
    floor: float
    """The smallest rate at which the last request arrives within the maximum time of a run."""
    drawn: bool
    """Whether another seed gives another run."""

    @classmethod
    def of(cls, workload: Workload, system: System, seed: int, *, scaled: bool = False) -> _Arrivals:
        """Properties of a workload, drawn with a seed. `scaled`: its arrivals will be scaled."""
        network = isinstance(system, Network)
        frame = workload.ready(seed, *([("arrival_s",)] if network else []))
        if scaled and is_closed_loop(workload):
            raise ConfigError(
                "workload",
                "is a closed loop of users that wait for answers, so its rate follows the service; use "
                "recorded or drawn arrivals (--rate), or limit the users with max_in_flight",
            )
        last_s, rate = float(frame["arrival_s"][-1]), mean_rate(frame)
        if rate is None:
            raise ConfigError("workload", "has no rate: all requests arrive at the same time")
        drawn = workload.is_synthetic or isinstance(system, (Network, GateAndRoute))
        routers = (pool.router for pool in pools_of(system) if pool.router is not None)
        drawn = drawn or any(router.is_random is not False for router in routers)
        return cls(frame.height, rate, 2 * rate * last_s / MOST_SECONDS, drawn)


def _reason(
    search: Search, low: float | None, top: float | None, bound: float | None, arrivals: _Arrivals
) -> str | None:
    """The reason why the bracket is open at one end. None if it is closed."""
    last = max(search.probed, key=lambda probe: probe.rate)
    if search.low == 0:
        first = min(search.probed, key=lambda probe: probe.rate)
        if low is not None:
            return f"the search was limited to rates from {low:g} per second: at {first}"
        best = min(search.probed, key=lambda probe: probe.share)
        if best.share < first.share:
            return f"lower rates are not better, and this rate comes closest: at {best}"
        if first.rate > arrivals.floor:
            return f"no rate that was tried meets the SLO with confidence; the lowest is {first}"
        verdict = "the SLO cannot be met" if first.verdict == "violated" else "no rate surely meets the SLO"
        return f"{verdict}, even if requests rarely overlap: at {first}"
    if search.high is not None:
        return None
    if top is None:
        return (
            f"the SLO is {last.verdict} at any rate: at {number(last.rate, 4)} per second all "
            f"{arrivals.requests:,} requests of a run arrive at the same time"
        )
    if top == bound:
        return f"the SLO is {last.verdict} at the theoretical upper bound; no higher rate is sustainable"
    return f"the SLO is {last.verdict} at {top:g} per second, the largest rate of the search"


def _length(prober: Prober, search: Search, top: float | None, theory: Stability | None) -> RunLength:
    """Whether longer runs would give the same capacity."""
    rate = search.low
    if rate == 0:
        return RunLength(None, "no rate meets the SLO")
    bound = None if theory is None else upper_bound_of(theory)
    if theory is None:
        verdict = stability(prober.at_rate(rate), prober.system)
        bound = verdict.capacity_per_s if verdict.verdict == "unstable" else None
    if bound is not None and (theory is None or rate >= bound):
        return RunLength(True, f"no rate above {number(bound, 4)} per second is sustainable")
    if top is None and search.high is None:
        return RunLength(True, "more simultaneous requests would take longer")
    return run_length(prober, rate, search.precision)


def _returned(workload: object) -> Workload:
    """Check that the function of the rate returned a workload."""
    if isinstance(workload, Workload):
        return workload
    raise ConfigError("workload", f"the function of the rate must return a Workload, got {workload!r}")


def _ends(low: float | None, high: float | None) -> tuple[float | None, float | None]:
    """The checked ends of the search."""
    low = None if low is None else within("low", low, *_RATES)
    high = None if high is None else within("high", high, *_RATES)
    if low is not None and high is not None and low >= high:
        raise ConfigError(f"low must be below high, got {low!r} and {high!r}")
    return low, high


@contextmanager
def _at(name: str, rate: float) -> Iterator[None]:
    """Add the rate to errors of a function of the rate."""
    try:
        yield
    except (ConfigError, TraceError) as error:
        raise ConfigError(name, f"the requests at {rate:g} per second cannot be simulated: {error}") from None
