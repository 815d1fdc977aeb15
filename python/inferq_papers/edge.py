"""Largest stable rate of a system, by bisection over runs of the same requests at different rates."""

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
    """The largest stable rate per second; returned by `edge`."""

    rate: float
    """The middle of the last bracket."""
    low: float
    """The largest rate observed as stable (not unknown); else the lower end of the search."""
    high: float
    """The smallest rate above it observed as unstable; else the upper end of the search."""
    step: float
    """Half the length of the last bracket, the resolution of the bisection."""
    probes: tuple[tuple[float, Observed], ...]
    """Each simulated rate with its observed stability, in order."""


def unit(workload: Workload, seed: int = 0) -> Workload:
    """The same requests at exactly one arrival per second over the observed part of the run.

    `observed` leaves out a quarter of the span. The rate of the rest differs from that of the arrival process
    by a share of about 1/√n for n arrivals, which would shift the edge. This function removes the difference.

    Args:
        workload: a workload with arrivals.
        seed: seed of the draw.

    Raises:
        ConfigError: all requests arrive at the same time.

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
        raise ConfigError("workload", "all requests arrive at the same time, so there is no rate")
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
    """Find the largest stable rate between `low` and `high` by bisection.

    `run(rate)` should use the same requests at every rate (`unit(…).speed(rate)`). Then all rates share the
    same random numbers, and the result changes from stable to unstable once.

    Probes observed as stable or unstable count as such. *Unknown* means that the interval of the drift
    contains the tolerance ε·λ. Such probes count by the drift alone, above or below ε·λ. So an edge is always
    found; `Edge.low` and `Edge.high` report the decided rates around it.

    **Error for a true edge μ.** Above μ a server is always busy and completes requests at its own rate for
    any arrivals. Their rate in the window is known (`unit`), so the drift is λ − μ except for variation of
    the service itself. The result is μ/(1 − ε), 0.5 % above μ, plus at most one step. Below μ the number in
    the system at the end of the window exceeds x with a probability of about exp(−2(1 − ρ)x) (Poisson
    arrivals, equal requests of one server, heavy traffic); x is ε·n for n arrivals in the window. With n =
    30,000 a load of 0.98 counts as unstable three times in 1,000, with n = 100,000 once in 10⁸. If lengths
    vary, n must be larger by their squared coefficient of variation.

    Args:
        run: simulates at a rate in requests per second.
        low: a stable rate, positive.
        high: an unstable rate.
        steps: number of bisections, positive.
        tolerance: ε, as for `observed`.
        confidence: as for `observed`.
        tell: receives one line per probe.

    Raises:
        ConfigError: the ends are not ascending rates, the edge is not between them, or a run is too short.

    Example:
        >>> import inferq as iq
        >>> from inferq_papers.edge import edge, unit
        >>> kv = iq.KvCache.unlimited()
        >>> engine = iq.Engine(timing=iq.Constant(0.25), scheduler=iq.Sarathi(max_seqs=1), kv=kv)
        >>> workload = unit(iq.Workload.synthetic(
        ...     requests=4000, arrivals=iq.dist.Poisson(1.0), prompt=iq.dist.Fixed(8), output=iq.dist.Fixed(1)
        ... ))
        >>> limit = edge(lambda rate: iq.simulate(workload.speed(rate), engine), 2.0, 8.0, steps=8)
        >>> abs(limit.rate / 4 - 1) < 0.03
        True
    """
    if not (0 < low < high < math.inf):
        raise ConfigError("low, high", f"must satisfy 0 < low < high, got {low!r} and {high!r}")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ConfigError("steps", f"must be a positive integer, got {steps!r}")
    probes: list[tuple[float, Observed]] = []

    def grows(rate: float) -> bool:
        state = observed(run(rate), tolerance=tolerance, confidence=confidence)
        if state.growth is None:
            raise ConfigError("run", f"too short at {rate:g} per second: {state.reasons[0]}")
        probes.append((rate, state))
        if tell is not None:
            tell(f"{rate:.4g} per s: {state.verdict}, {100 * state.growth:.2f} % of the arrivals stay")
        return state.growth > tolerance if state.verdict == "unknown" else state.verdict == "unstable"

    lowest, highest = float(low), float(high)
    if grows(lowest):
        raise ConfigError("low", f"the system is not stable at {lowest:g} per second")
    if not grows(highest):
        raise ConfigError("high", f"the system is stable at {highest:g} per second")
    below, above = lowest, highest
    for _ in range(steps):
        middle = (below + above) / 2
        below, above = (below, middle) if grows(middle) else (middle, above)
    stable = [rate for rate, state in probes if state.verdict == "stable" and rate <= below]
    unstable = [rate for rate, state in probes if state.verdict == "unstable" and rate >= above]
    return Edge(
        rate=(below + above) / 2,
        low=max(stable, default=lowest),
        high=min(unstable, default=highest),
        step=(above - below) / 2,
        probes=tuple(probes),
    )
