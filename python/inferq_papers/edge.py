"""Up to which rate is a system stable? A bisection over runs of the same requests, ever faster or slower."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from inferq import ConfigError, Result, Workload
from inferq.theory import Observed, observed

WARM_SHARE = 0.25
"""Share of the span of arrivals that `observed` leaves out by default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """Where a system ceases to be stable, per second; made by `edge`."""

    rate: float
    """The middle of the last bracket."""
    low: float
    """The largest rate that was observed as stable (not unknown); the lower end of the search if none was."""
    high: float
    """The smallest rate above it that was observed as unstable; the upper end of the search if none was."""
    step: float
    """Half the length of the last bracket: what the bisection leaves open."""
    probes: tuple[tuple[float, Observed], ...]
    """Each rate that was run, in order, and what was observed."""


def unit(workload: Workload, seed: int = 0) -> Workload:
    """The same requests with one arrival a second, exactly, over the part of the run that is observed.

    `observed` leaves a quarter of the span out. The rate of the rest differs from that of the arrival process
    by a share of about 1/√n for n arrivals, and the edge with it; after this it does not.

    Args:
        workload: with arrivals; drawn here.
        seed: it is drawn from.

    Raises:
        ConfigError: all requests arrive at once.

    Example:
        >>> import inferq as iq
        >>> from inferq_papers.edge import unit
        >>> workload = iq.Workload.synthetic(
        ...     requests=1000, arrivals=iq.dist.Poisson(7.0), prompt=iq.dist.Fixed(8), output=iq.dist.Fixed(4)
        ... )
        >>> arrival_s = unit(workload).frame["arrival_s"]
        >>> start_s = arrival_s[0] + (arrival_s[-1] - arrival_s[0]) / 4
        >>> round((arrival_s > start_s).sum() / (arrival_s[-1] - start_s), 9)
        1.0
    """
    drawn = workload.draw(seed)
    arrival_s = drawn.frame["arrival_s"]
    first_s, last_s = float(arrival_s[0]), float(arrival_s[-1])
    start_s = first_s + WARM_SHARE * (last_s - first_s)
    if last_s <= start_s:
        raise ConfigError("workload", "all requests arrive at once, which is no rate")
    return drawn.speed((last_s - start_s) / float((arrival_s > start_s).sum()))


def edge(
    run: Callable[[float], Result],
    low: float,
    high: float,
    *,
    steps: int = 10,
    tolerance: float = 0.005,
    confidence: float = 0.99,
    tell: Callable[[str], None] | None = None,
) -> Edge:
    """The largest stable rate between `low` and `high`, by bisection.

    `run(rate)` should send the very same requests at every rate (`unit(…).speed(rate)`): then all rates are
    judged by the same chance, and the answer has one step from stable to unstable instead of many.

    A probe that `observed` calls stable or unstable is taken at its word. *Unknown* means here that the
    interval of the drift reaches both sides of what is tolerated: such a probe goes by the drift alone, above
    or below ε·λ for the tolerance ε. The edge is therefore always found, and `Edge.low` and `Edge.high` tell
    between which rates it lies by what was decided.

    How wrong can it be, where the truth is μ? Above μ a server is always busy and lets requests go at its own
    rate, whatever the arrivals do; their rate in the window is known (`unit`), so the drift is λ − μ but for
    what the service itself varies, and the rate that is found is μ/(1 − ε), above μ by 0.5 %, and a step more
    at most. Below μ the number in the system at the end of the window is above x with a probability of about
    exp(−2(1 − ρ)x) (Poisson arrivals, equal requests of one server, heavy traffic); x is ε·n for n arrivals
    in the window. With n = 30,000 a load of 0.98 is taken for unstable three times in 1,000, with n = 100,000
    once in 10⁸. Requests that differ widely in length need n larger by their squared coefficient of
    variation.

    Args:
        run: a simulation at so many requests per second.
        low: a rate that is stable, above 0.
        high: a rate that is not.
        steps: how often the bracket is halved, 1 or more.
        tolerance: ε, as of `observed`.
        confidence: as of `observed`.
        tell: gets a line for each probe.

    Raises:
        ConfigError: the ends are no rates in order, the edge is not between them, or a run is too short to be
            judged.

    Example:
        >>> import inferq as iq
        >>> from inferq_papers.edge import edge, unit
        >>> kv = iq.KvCache.unlimited()
        >>> one = iq.Engine(timing=iq.Constant(0.25), scheduler=iq.Sarathi(max_seqs=1), kv=kv)
        >>> asked = unit(iq.Workload.synthetic(
        ...     requests=4000, arrivals=iq.dist.Poisson(1.0), prompt=iq.dist.Fixed(8), output=iq.dist.Fixed(1)
        ... ))
        >>> found = edge(lambda rate: iq.simulate(asked.speed(rate), one), 2.0, 8.0, steps=8)
        >>> abs(found.rate / 4 - 1) < 0.03
        True
    """
    if not (0 < low < high < math.inf):
        raise ConfigError("low, high", f"must be rates per second, 0 < low < high, are {low!r} and {high!r}")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ConfigError("steps", f"must be a whole number, 1 or above, is {steps!r}")
    probes: list[tuple[float, Observed]] = []

    def grows(rate: float) -> bool:
        seen = observed(run(rate), tolerance=tolerance, confidence=confidence)
        if seen.growth is None:
            raise ConfigError("run", f"at {rate:g} per second it is {seen.reasons[0]}")
        probes.append((rate, seen))
        if tell is not None:
            tell(f"{rate:.4g} per s: {seen.verdict}, {100 * seen.growth:.2f} % of the arrivals stay")
        return seen.growth > tolerance if seen.verdict == "unknown" else seen.verdict == "unstable"

    lowest, highest = float(low), float(high)
    if grows(lowest):
        raise ConfigError("low", f"the system is not stable at {lowest:g} per second")
    if not grows(highest):
        raise ConfigError("high", f"the system is stable at {highest:g} per second")
    below, above = lowest, highest
    for _ in range(steps):
        middle = (below + above) / 2
        below, above = (below, middle) if grows(middle) else (middle, above)
    held = [rate for rate, seen in probes if seen.verdict == "stable" and rate <= below]
    drowned = [rate for rate, seen in probes if seen.verdict == "unstable" and rate >= above]
    return Edge(
        rate=(below + above) / 2,
        low=max(held, default=lowest),
        high=min(drowned, default=highest),
        step=(above - below) / 2,
        probes=tuple(probes),
    )
