"""Dependence of a capacity on the length of the runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inferq.display.text import number
from inferq.experiments.capacity_search.probe import Probe, Prober
from inferq.results.result import Result
from inferq.theory.runs.observed import observed
from inferq.workload.distributions import TimeVarying
from inferq.workload.generated import Mix, Synthetic
from inferq.workload.workload import Workload

_OBSERVED_RUNS = 3
"""Number of runs that are checked for a drift."""
_MARGIN = 0.02
"""Tolerated decrease of the capacity with twice the requests, unless its precision is finer."""


@dataclass(frozen=True, slots=True)
class RunLength:
    """Whether a capacity holds only because the runs end."""

    limited: bool | None
    """None if unknown."""
    reason: str
    probe: Probe | None = None
    """The probe with twice the requests."""


def longer(workload: Workload) -> Workload | None:
    """Return the workload with twice the requests, or None if there are no more requests.

    Example:
        >>> import inferq as iq
        >>> from inferq.experiments.capacity_search.run_length import longer
        >>> arrivals = iq.Workload.synthetic(requests=3, arrivals=iq.dist.Poisson(1.0))
        >>> longer(arrivals.at_rate(5.0))
        Workload.synthetic(requests=6, arrivals=Poisson(rate=1.0)).at_rate(rate=5.0)
        >>> longer(arrivals.draw(1)) is None
        True
    """
    source, steps = workload._source, workload._steps
    if not all(step.is_by_row or step.transform == "at_rate" for step in steps):
        return None
    if isinstance(source, Synthetic):
        surge = isinstance(source.arrivals, TimeVarying) and source.arrivals.period_s is None
        return None if surge else Workload._of(replace(source, requests=2 * source.requests), steps)
    if not isinstance(source, Mix):
        return None
    parts = tuple((name, longer(part)) for name, part in source.parts)
    longer_parts = tuple((name, part) for name, part in parts if part is not None)
    if len(longer_parts) < len(parts):
        return None
    if source.requests is None:
        return Workload._of(Mix(longer_parts, None), steps)
    # a mix with a fixed total draws its parts as far as needed
    endless = all(part._is_extendable for _, part in source.parts)
    return Workload._of(Mix(source.parts, 2 * source.requests), steps) if endless else None


def run_length(prober: Prober, rate: float, precision: float) -> RunLength:
    """Determine whether a capacity is limited by the length of the runs.

    It is limited if twice the requests violate the SLO with confidence even at a rate that is lower by 2 %,
    or by the precision if that is finer. If that is undecided, or there are no more requests,
    `inferq.theory.observed` tests whether the number of requests in the system grows during runs at the rate.

    Args:
        prober: runs probes.
        rate: the capacity.
        precision: precision of the capacity.
    """
    lower = rate / (1 + min(precision, _MARGIN))
    twice = longer(prober.at_rate(lower))
    probe, reason = None, "the workload has no further requests"
    if twice is not None:
        probe = replace(prober, at_rate=lambda rate: twice).probe(lower)
        at_rate = f"at {number(probe.rate, 4)} per second"
        if probe.verdict == "violated":
            return RunLength(True, f"twice the requests violate the SLO even {at_rate}", probe)
        if probe.verdict == "met":
            return RunLength(False, f"twice the requests meet the SLO {at_rate}", probe)
        reason = f"twice the requests are undecided {at_rate}"
    seeds = prober.seeds[: 1 if prober.exact else min(_OBSERVED_RUNS, prober.looks[0])]
    verdicts = prober.runs(prober.at_rate(rate), seeds, _drift)
    if "unstable" in verdicts:
        return RunLength(
            True, f"{reason}, and the number of requests in the system grows until the end of the run", probe
        )
    if "unknown" in verdicts:
        return RunLength(None, f"{reason}, and a run is too short to show whether the queue grows", probe)
    return RunLength(
        False, f"the number of requests in the system does not grow during the run ({reason})", probe
    )


def _drift(result: Result) -> str:
    return observed(result).verdict
