"""How many requests per second can be served within an SLO?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from inferq.checks import whole, within
from inferq.description import member
from inferq.display.text import number
from inferq.errors import ConfigError, TraceError
from inferq.experiments.arguments import between, check_options, looks_of, recorded
from inferq.experiments.capacity_search.capacity_plan import CapacityPlan, ceiling_of
from inferq.experiments.capacity_search.probe import Prober
from inferq.experiments.capacity_search.run_length import RunLength, judged
from inferq.experiments.capacity_search.search import Search
from inferq.progress import Progress, watched
from inferq.results.slo import Slo
from inferq.systems.gate_and_route import GateAndRoute
from inferq.systems.network import Network
from inferq.systems.pools import pools_of
from inferq.systems.system import SYSTEMS, System
from inferq.theory.bounds.stability import Stability, stability
from inferq.workload.columns import MOST_SECONDS, Table
from inferq.workload.workload import Workload

_RATES = (1e-9, 1e12)
"""Requests per second that may be asked about: from one in 30 years to a thousand in a nanosecond."""


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
    tell: Callable[[str], object] | None = None,
    progress: bool | Progress | None = None,
    **run: Any,
) -> CapacityPlan:
    """The largest rate at which a system keeps an SLO.

    The same requests are sent ever faster or slower (`Workload.at_rate`: gaps shrink, lengths and order stay,
    and the mean rate of every draw is the one that is asked for), with the same seeds at every rate. At each
    rate that is tried, a *probe*, every objective of the SLO gets an interval over the seeds (Student's t).
    The probe is *kept* when the upper ends of all are within their limits, *broken* when a lower end is
    beyond, and else *undecided*: then the number of seeds is doubled, up to `most_seeds`. The search halves
    the ratio of the bracket until it is narrower than `precision`, from below up to the first rate that is
    not kept, and from above down to the last that is not broken; where chance leaves a gap between these two,
    the probes in it are undecided.

    How sure is the answer? The limit is held against the mean of a metric over runs of this length. Where
    that metric is nearly normal from run to run, as the mean or median of many requests is, a probe at a
    rate where the truth is beyond a limit is called kept with a chance of at most 1 − confidence, all its
    looks at more seeds included. High percentiles of short runs near saturation are not: they are skewed to
    the right, five seeds may miss the long tail, and the chance of a wrong *kept* is larger (of `ttft_p90`
    over 400 requests 8 % were seen at a confidence of 95 %). There give longer runs and more seeds, or a
    higher confidence. What holds for one probe holds for the search as a whole as far as the upper ends grow
    with the rate, because all probes share their seeds: a probe beyond the true capacity can then be called
    kept only if one right at it is. The same goes for `high`.

    Where theory knows a ceiling (`inferq.theory.stability`) the search begins there and goes down. Above it
    no rate lasts, so an SLO that is kept at the ceiling is kept because the runs end: the search stops and
    says so. Without a ceiling it begins at the rate that the workload has. It ends in either direction: where
    requests hardly meet any more, and where they all come at once.

    Args:
        workload: a `Workload` with arrivals, or what `Workload` takes, or a function of the rate that returns
            one, for what does not scale as a whole: `lambda rate: iq.Workload.sessions(arrivals=
            iq.Poisson(rate), …)`. A function needs `low` and `high`, and the rate is what it makes of it.
        system: what serves it, as of `inferq.simulate`.
        slo: what must be kept.
        low: a rate to begin with, from 1e-9 to 1e12, and not so low that the last request comes after
            9e9 seconds; where it does not keep the SLO the search ends.
        high: the largest rate that is tried, above `low`, as far as 1e12; it may be above the ceiling of
            theory.
        precision: of the bracket, high / low − 1, above 0.0001 and below 1.
        seeds: of every probe, two or more of a synthetic workload. A fixed workload through a system that
            draws nothing is run once.
        most_seeds: the most seeds of a probe, four times as many as `seeds` unless told; those after `seeds`
            are the next whole numbers.
        confidence: above 0.5 and below 1.
        threads: how many runs go on at once, 1 or above; None takes every core. It changes no bit of the
            result.
        tell: gets a sentence after each probe.
        progress: told (runs done, runs that are known to come) after each run; True shows a bar on a terminal
            or in a notebook.
        **run: the other arguments of `inferq.simulate`. A `warmup` and a `cooldown` in requests mean the same
            at every rate.

    Returns:
        `rate` and `high` (the bracket), `probes` (a frame of everything that was run), `limited_by_length`,
        `theory`, `explain()` and `plot()`. An SLO that cannot be kept at any rate has the `rate` 0 and the
        `reason` in words; one that is kept at every rate has a `high` of None and a `reason`.

    Raises:
        ConfigError: an argument outside its range; a class that the workload does not have; a closed loop
            (`think_s`), whose rate is not set; and as of `inferq.simulate`.
        TraceError: a workload without arrivals or lengths.
        SimulationError: a run that cannot go on.
        KeyboardInterrupt: Ctrl-C stops all runs at once.

    Source: bisection with common random numbers; Law, Simulation Modeling and Analysis, on both.

    Example:
        One server that takes a second a request (M/D/1) lets them wait ρ/(2(1 − ρ)) seconds, so that a mean
        wait of half a second is reached at ρ = 1/2:

        >>> import inferq as iq
        >>> server = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(max_seqs=1),
        ...                    kv=iq.KvCache.unlimited())
        >>> arrivals = iq.Workload.synthetic(
        ...     requests=4000, arrivals=iq.Poisson(1.0), prompt=iq.Fixed(8), output=iq.Fixed(1)
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
        raise ConfigError("seed", "not for capacity, which takes seeds")
    check_options(run)
    if tell is not None and not callable(tell):
        raise ConfigError("tell", f"must be a callable that gets a sentence, or None, is {tell!r}")
    at_rate: Callable[[float], Workload]
    if callable(workload):
        if low is None or high is None:
            raise ConfigError("low, high: a function of the rate does not say where to look; give both")
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
                    f"{arrivals.requests:,} requests arrives within {MOST_SECONDS:g} seconds; is {rate!r}",
                )
    exact = not arrivals.drawn
    if not exact and looks[0] < 2:
        raise ConfigError("seeds", "one run of what is drawn has no interval; give two or more")
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
        search = Search(prober, between("precision", precision, 1e-4, 1), tell)
        ceiling = None if theory is None else ceiling_of(theory)
        top = ceiling if high is None and ceiling is not None and (low or 0.0) < ceiling else high
        if top is None:
            search.upwards(low, arrivals.rate, arrivals.floor)
        else:
            search.between(low, top, arrivals.floor, ceiling)
        return CapacityPlan(
            slo=slo,
            rate=search.low,
            high=search.high,
            reason=_reason(search, low, top, ceiling, arrivals),
            confidence=prober.confidence,
            exact=exact,
            requests=arrivals.requests,
            probed=tuple(search.probed),
            length=_length(prober, search, top, theory),
            theory=theory,
            most_seeds=prober.looks[-1],
            scenario=recorded(source, prober.seeds, run, system=system.to_json()),
        )


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """What has to be known of a workload before its first run."""

    requests: int
    rate: float
    floor: float
    """The smallest rate at which the last request still arrives within the time that a run may have."""
    drawn: bool
    """Whether another seed gives another run."""

    @classmethod
    def of(cls, workload: Workload, system: System, seed: int, *, scaled: bool = False) -> _Arrivals:
        """Of a workload that is drawn here; `scaled` says that its arrivals are to be moved."""
        network = isinstance(system, Network)
        frame = workload.ready(seed, *([("arrival_s",)] if network else []))
        if scaled and "think_s" in frame.columns and frame["think_s"].is_not_null().any():
            raise ConfigError(
                "think_s",
                "turns wait for answers, so that their rate cannot be set: use .open_loop(), or give "
                "a function of the rate: lambda rate: iq.Workload.sessions(arrivals=iq.Poisson(rate), …)",
            )
        first_s, last_s = float(frame["arrival_s"][0]), float(frame["arrival_s"][-1])
        if last_s <= first_s:
            raise ConfigError("workload", "all requests arrive at one instant, which is no rate")
        rate = (frame.height - 1) / (last_s - first_s)
        drawn = workload.is_synthetic or isinstance(system, (Network, GateAndRoute))
        routers = (pool.router for pool in pools_of(system) if pool.router is not None)
        drawn = drawn or any(router.draws is not False for router in routers)
        return cls(frame.height, rate, 2 * rate * last_s / MOST_SECONDS, drawn)


def _reason(
    search: Search, low: float | None, top: float | None, ceiling: float | None, arrivals: _Arrivals
) -> str | None:
    """Why one end of the bracket was not found, in words; None where both were."""
    last = max(search.probed, key=lambda one: one.rate)
    if search.low == 0:
        first = min(search.probed, key=lambda one: one.rate)
        if low is not None:
            return f"the search was not to go below {low:g} per second: at {first}"
        best = min(search.probed, key=lambda one: one.share)
        if best.share < first.share:
            return f"fewer requests are not served better, and no more than this was found: at {best}"
        if first.rate > arrivals.floor:
            return f"no rate that was tried keeps it for sure; the lowest is {first}"
        verdict = "cannot be kept" if first.verdict == "broken" else "is not kept for sure"
        return f"it {verdict} at any rate: even where requests hardly meet, at {first}"
    if search.high is not None:
        return None
    if top is None:
        return (
            f"it is {last.verdict} however fast they come: at {number(last.rate, 4)} per second all "
            f"{arrivals.requests:,} requests of a run come as one"
        )
    if top == ceiling:
        return (
            f"it is {last.verdict} at the ceiling of theory, above which no rate lasts: the search ends there"
        )
    return f"it is {last.verdict} at {top:g} per second, where the search was to end"


def _length(prober: Prober, search: Search, top: float | None, theory: Stability | None) -> RunLength:
    """Whether longer runs would say the same."""
    rate = search.low
    if rate == 0:
        return RunLength(None, "there is no rate to be judged")
    ceiling = None if theory is None else ceiling_of(theory)
    if theory is None:
        verdict = stability(prober.at_rate(rate), prober.system)
        ceiling = verdict.capacity_per_s if verdict.verdict == "unstable" else None
    if ceiling is not None and (theory is None or rate >= ceiling):
        return RunLength(True, f"no rate above {number(ceiling, 4)} per second lasts in the long run")
    if top is None and search.high is None:
        return RunLength(True, "more requests at once would take longer")
    return judged(prober, rate, search.precision)


def _returned(workload: object) -> Workload:
    """What a function of the rate returned, refused unless it is a workload."""
    if isinstance(workload, Workload):
        return workload
    raise ConfigError("workload", f"the function of the rate must return a Workload, returned {workload!r}")


def _ends(low: float | None, high: float | None) -> tuple[float | None, float | None]:
    """The ends of the search as rates in order."""
    low = None if low is None else within("low", low, *_RATES)
    high = None if high is None else within("high", high, *_RATES)
    if low is not None and high is not None and low >= high:
        raise ConfigError(f"low, high: must be rates in order, are {low!r} and {high!r}")
    return low, high


@contextmanager
def _at(name: str, rate: float) -> Iterator[None]:
    """Say at which rate a function of the rate makes no workload."""
    try:
        yield
    except (ConfigError, TraceError) as error:
        raise ConfigError(name, f"at {rate:g} per second the requests cannot be run: {error}") from None
