"""Would longer runs say the same?"""

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
"""So many runs are looked at for a drift."""
_MARGIN = 0.02
"""An answer that is lower by this share, or by its precision, with twice the requests is the same answer."""


@dataclass(frozen=True, slots=True)
class RunLength:
    """Whether an answer holds only because the runs end."""

    limited: bool | None
    """None where it cannot be told."""
    reason: str
    probe: Probe | None = None
    """The one with twice the requests."""


def longer(workload: Workload) -> Workload | None:
    """The same workload with twice the requests; None where there are no more to be had.

    Example:
        >>> import inferq as iq
        >>> from inferq.experiments.capacity_search.run_length import longer
        >>> arrivals = iq.Workload.synthetic(requests=3, arrivals=iq.Poisson(1.0))
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
    # a mix that says how many it takes draws its parts as far as that needs
    endless = all(part._goes_on for _, part in source.parts)
    return Workload._of(Mix(source.parts, 2 * source.requests), steps) if endless else None


def judged(prober: Prober, rate: float, precision: float) -> RunLength:
    """Whether an answer is limited by the length of the runs, by runs of twice the requests and by drift.

    Limited: with twice the requests even a rate that is lower by 2 %, or by the precision of the answer where
    that is less, breaks the SLO for sure. Where that does not decide, or there are no more requests,
    `inferq.theory.observed` looks whether the number in the system grows in runs at the rate itself: it does
    in one of them, or in none, or it cannot tell.

    Args:
        prober: with what is the same at every rate.
        rate: the answer.
        precision: of the answer.
    """
    lower = rate / (1 + min(precision, _MARGIN))
    twice = longer(prober.at_rate(lower))
    probe, reason = None, "the workload has no more requests than these"
    if twice is not None:
        probe = replace(prober, at_rate=lambda rate: twice).probe(lower)
        if probe.verdict == "broken":
            return RunLength(
                True, f"twice the requests break it even at {number(probe.rate, 4)} per second", probe
            )
        if probe.verdict == "kept":
            return RunLength(
                False, f"twice the requests keep it at {number(probe.rate, 4)} per second", probe
            )
        reason = f"twice the requests are undecided at {number(probe.rate, 4)} per second"
    seeds = prober.seeds[: 1 if prober.exact else min(_OBSERVED_RUNS, prober.looks[0])]
    verdicts = prober.runs(prober.at_rate(rate), seeds, _drift)
    if "unstable" in verdicts:
        return RunLength(True, f"{reason}, and the number in the system grows to the end of the run", probe)
    if "unknown" in verdicts:
        return RunLength(None, f"{reason}, and a run is too short to show whether a queue grows", probe)
    return RunLength(False, f"the number in the system does not grow during the run ({reason})", probe)


def _drift(result: Result) -> str:
    return observed(result).verdict
