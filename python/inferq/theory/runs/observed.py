"""Observed stability of a run, from the drift of the number in the system."""

from __future__ import annotations

import math
import numbers
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from inferq import _core
from inferq._lazy import NDArray, np, pl
from inferq.errors import ConfigError
from inferq.results.result import Result
from inferq.theory.runs.number_in_system import Present, presence
from inferq.theory.statement import Statement, number

BATCHES = 40
"""Parts of the window for averages of the number in the system."""
INCREMENTS = 20
"""Parts of the window for changes of that number; fewer if a part would be shorter than the service time."""
RETURNS = 0.88
"""Durbin-Watson ratio of `BATCHES` averages about their line that a random walk exceeds once in 100 times.

Computed from 20,000 random walks; about 2 for independent averages, 0.3 in the middle of random walks."""
LEAST_ARRIVALS = 200
"""Least arrivals in a window: five per batch."""
LEAST_LENGTHS = 5
"""Least length of a window in service times without waiting."""
WARM_SHARE = 0.25
"""Default share of the arrivals' span that is left out."""

_SECONDS = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed(Statement):
    """The observed stability of a run; returned by `observed`.

    Numbers are None if the run was too short. Times are in seconds of simulated time.
    """

    source: ClassVar[str] = "statistics of one run"

    verdict: Literal["stable", "unstable", "unknown"]
    counted: str
    """Counted unit: `"requests"`; `"jobs"` of a network; `"sessions"` in a closed loop."""
    arrived: int
    """Arrivals in the window without rejected units."""
    rate_per_s: float | None
    """Arrivals per second of the window."""
    drift_per_s: float | None
    """Growth of the number in the system per second."""
    low_per_s: float | None
    high_per_s: float | None
    """The interval of the drift."""
    confidence: float
    tolerance: float
    """The share of arrivals that may stay in the system without counting as drift."""
    start_s: float
    end_s: float
    """The window: from the end of the warm-up to the last arrival."""
    service_s: float | None
    """Mean time of a unit without its wait for admission, over the first arrivals."""
    present_start: int
    present_end: int
    """Number in the system at both ends of the window."""
    reasons: tuple[str, ...]
    """The reason of the verdict, and its caveats."""
    hit_rate: float | None = None
    """The share of prompt tokens found in prefix caches, over requests that arrived in the window and were
    admitted; None without a prefix cache."""

    @property
    def growth(self) -> float | None:
        """The share of arrivals that stays in the system: drift divided by rate."""
        if self.drift_per_s is None or not self.rate_per_s:
            return None
        return self.drift_per_s / self.rate_per_s

    def explain(self) -> str:
        """The drift with its interval and the tolerance, and the reasons."""
        lines = [
            f"observed: {self.verdict}",
            f"  window: {number(self.start_s)} s to {number(self.end_s)} s, "
            f"{number(self.arrived)} {self.counted} arrived"
            + ("" if self.rate_per_s is None else f" ({number(self.rate_per_s)} per s)"),
            f"  in the system: {number(self.present_start)} at the start, {number(self.present_end)} at the "
            "end; "
            + ("none was served" if not self.service_s else f"mean service time {number(self.service_s)} s"),
        ]
        if self.drift_per_s is not None and self.rate_per_s is not None:
            lines += [
                f"  drift of {self.counted} in the system: {number(self.drift_per_s)} per s, "
                f"{100 * self.confidence:g} % interval "
                f"{number(self.low_per_s)} to {number(self.high_per_s)} per s",
                f"  tolerance: {number(self.tolerance * self.rate_per_s)} per s, "
                f"{100 * self.tolerance:g} % of the arrivals",
            ]
        if self.hit_rate is not None:
            lines.append(f"  hit rate of prefix caches: {number(self.hit_rate)} of the prompt tokens")
        return "\n".join([*lines, *(f"  - {reason}" for reason in self.reasons)])


def observed(
    result: Result,
    *,
    warmup: int | str | None = None,
    confidence: float = 0.99,
    tolerance: float = 0.005,
) -> Observed:
    """Evaluate whether the number in the system grew during a run: stable, unstable, or unknown.

    A system is unstable if the number N(t) of requests in it (arrived, not yet left) grows without bound: in
    a long run by a share of the arrivals. The window is from the end of the warm-up to the last arrival; the
    draining afterwards does not count. With the drift d, its interval and the tolerance ε·λ:

    - *unstable*: the interval is above 0, and d > ε·λ;
    - *stable*: the interval is below ε·λ and not above 0;
    - *unknown*: otherwise, and for every run that is too short: fewer than 200 arrivals in the window, or a
      window shorter than 5 times the mean service time of the first requests without waiting.

    **Interval.** N is correlated over long times, and differently in the two cases, so a test comes first. N
    is averaged over 40 batches of equal length. The Durbin-Watson ratio of these averages about their
    straight line shows whether N returns to that line: a ratio above 0.88, which one random walk in 100
    reaches.

    - *If it returns*, the drift is the slope of the line, with Student's t (38 degrees of freedom), widened
      by √((1 + r)/(1 − r)) for the remaining correlation r = 1 − ratio/2 of neighbors.
    - *If not*, N counts as a random walk with independent increments. The drift is (N(end) − N(start)) /
      length. Its interval is Student's t over the increments of 20 batches, or of fewer (at least 5) that are
      each as long as the first requests took. A stable queue close to its limit may also get here. Its
      increments have negative correlation, so the interval is too wide and the verdict is unknown rather than
      wrong.

    No interval is narrower than one request more or less over the window.

    **Power.** Measured on one server with equal service times and Poisson arrivals (M/D/1) at different
    loads, 400 seeds per cell: shares of stable / unstable in percent, the rest unknown.

    | requests | 0.8 | 0.9 | 0.95 | 0.98 | 1.02 | 1.05 | 1.1 |
    |---:|---:|---:|---:|---:|---:|---:|---:|
    | 2,000 | 93 / 0 | 40 / 0 | 8 / 0 | 2 / 0 | 0 / 4 | 0 / 17 | 0 / 76 |
    | 5,000 | 100 / 0 | 86 / 0 | 36 / 0 | 6 / 1 | 0 / 6 | 0 / 53 | 0 / 98 |
    | 20,000 | 100 / 0 | 99 / 0 | 82 / 0 | 25 / 0 | 0 / 34 | 0 / 100 | 0 / 100 |
    | 100,000 | 100 / 0 | 100 / 0 | 100 / 0 | 82 / 0 | 0 / 100 | 0 / 100 | 0 / 100 |

    **Errors.** Of these 11,200 runs, one above a load of 1 was called stable and seven below it unstable,
    none of them with 20,000 requests or more. With exponential service times (M/M/1) it was 1 and 13; the
    worst cells have 4 of 400. Systems with many concurrent requests need longer runs: with 105 running
    requests on each of two replicas, 78 of 100 runs of 20,000 requests were decided at a load of 0.84.

    With an overloaded server and Poisson arrivals the interval is about ±3/√n for n arrivals in the window.
    For loads closer to 1 the verdict is unknown.

    **Units.** Requests; jobs of a `Network`; and in closed loops sessions, from their first arrival to the
    end of their last turn (a request that no other waits for is a session of one). Rejected units are left
    out. Abandoned units have left, so a fleet whose users lose patience is stable at any load; a reason
    reports their number.

    Args:
        result: result of any run.
        warmup: start of the window: a number of arrivals (int) or seconds (`"30s"`), as in `inferq.simulate`.
            Default: the later of the run's own warm-up and a quarter of the span of arrivals. The window
            starts at least three service times after the first arrival: every run starts empty, and filling
            is not drift.
        confidence: confidence of the two-sided interval, between 0 and 1.
        tolerance: ε, the share of arrivals that may stay in the system, at least 0 and below 1. A smaller
            drift counts as none, at any length of the run.

    Raises:
        ConfigError: an argument is out of range, or `result` is not a `Result`.

    Example:
        >>> import inferq as iq
        >>> kv = iq.KvCache.unlimited()
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(max_seqs=1), kv=kv)
        >>> workload = iq.Workload.synthetic(
        ...     requests=2000, arrivals=iq.dist.Deterministic(1.1), prompt=iq.dist.Fixed(10),
        ...     output=iq.dist.Fixed(1),
        ... )
        >>> run = iq.theory.observed(iq.simulate(workload, engine))
        >>> run.verdict, round(run.drift_per_s, 3)
        ('unstable', 0.1)
        >>> iq.theory.observed(iq.simulate(workload.at_rate(0.9), engine)).verdict
        'stable'
    """
    if not isinstance(result, Result):
        raise ConfigError("result", f"must be a Result of inferq.simulate, got {type(result).__name__}")
    _between("confidence", confidence, above=True)
    _between("tolerance", tolerance, above=False)
    present = presence(result)
    start_s, end_s = present.window(_start_s(present, warmup))
    arrived = present.arrivals_in(start_s, end_s)
    common: dict[str, Any] = {
        "counted": present.counted,
        "arrived": arrived,
        "confidence": float(confidence),
        "tolerance": float(tolerance),
        "start_s": start_s,
        "end_s": end_s,
        "service_s": present.service_s,
        "present_start": present.at(start_s),
        "present_end": present.at(end_s),
        "hit_rate": hit_rate(result, start_s, end_s),
    }
    length_s = end_s - start_s
    short = _too_short(present, arrived, length_s)
    if short:
        none: dict[str, Any] = dict.fromkeys(("rate_per_s", "drift_per_s", "low_per_s", "high_per_s"))
        return Observed(verdict="unknown", reasons=(short, *present.caveats), **none, **common)
    drift, half, how = _drift(present, start_s, end_s, float(confidence))
    rate, half = arrived / length_s, max(half, 1 / length_s)
    low, high, margin = drift - half, drift + half, tolerance * rate
    verdict, why = _verdict(drift, low, high, margin)
    waves = _waves(present, start_s, end_s)
    return Observed(
        verdict=verdict,
        rate_per_s=rate,
        drift_per_s=drift,
        low_per_s=low,
        high_per_s=high,
        reasons=(why, how, *waves, *present.caveats),
        **common,
    )


def hit_rate(result: Result, start_s: float, end_s: float) -> float | None:
    """The share of prompt tokens found, over requests that arrived in a window and were admitted.

    None without a prefix cache or admitted requests.
    """
    if not result.has_prefix_cache:
        return None
    admitted = pl.col("arrival_s").is_between(start_s, end_s) & pl.col("admitted_s").is_not_null()
    rows = result.requests.lazy().filter(admitted)
    cached, prompts = (
        rows.select(pl.col("cached_tokens", "prompt_tokens").cast(pl.Int64).sum()).collect().row(0)
    )
    return cached / prompts if prompts else None


def _verdict(
    drift: float, low: float, high: float, margin: float
) -> tuple[Literal["stable", "unstable", "unknown"], str]:
    """The verdict and its reason."""
    if low > 0 and drift > margin:
        return "unstable", "the whole interval of the drift is above 0, and the drift exceeds the tolerance"
    if low > 0:
        return "unknown", "there is a drift, but it does not exceed the tolerance"
    if high < margin:
        return "stable", "the whole interval of the drift is below the tolerance"
    return "unknown", "the interval of the drift is too wide; a longer run makes it narrower"


def _too_short(present: Present, arrived: int, length_s: float) -> str | None:
    """The reason why the window is too short; None if it is not."""
    served_s = present.service_s
    if not present.arrival_s.size:
        return f"no data: none of the {present.counted} was accepted"
    if served_s is not None and present.arrival_s.size > 1 and length_s < LEAST_LENGTHS * served_s:
        return (
            f"too short: the window is {number(length_s)} s of the "
            f"{number(present.last_s - present.first_s)} s in which {present.counted} arrived, and the mean "
            f"service time is {number(served_s)} s; at least {LEAST_LENGTHS} times that is required"
        )
    if arrived < LEAST_ARRIVALS:
        return (
            f"too short: {arrived:,} {present.counted} arrived in the window, at least {LEAST_ARRIVALS} are "
            "required"
        )
    return None


def _drift(present: Present, start_s: float, end_s: float, confidence: float) -> tuple[float, float, str]:
    """The drift, half the width of its interval, and the method."""
    edges_s = np.linspace(start_s, end_s, BATCHES + 1)
    levels = np.diff(present.integral(edges_s)) / np.diff(edges_s)
    at_s = (edges_s[1:] + edges_s[:-1]) / 2
    centered_s = at_s - at_s.mean()
    slope = float(centered_s @ levels / (centered_s @ centered_s))
    rest = levels - levels.mean() - slope * centered_s
    squares = float(rest @ rest)
    upper = (1 + confidence) / 2
    # Rounding errors of numbers on a line have no ratio.
    if squares <= 1e-18 * float(levels @ levels):
        return slope, 0.0, "the number in the system follows a straight line"
    ratio = float(np.diff(rest) @ np.diff(rest)) / squares
    ratio_text = f"(Durbin-Watson ratio {ratio:.2f})"
    if ratio > RETURNS:
        correlation = max(0.0, 1 - ratio / 2)
        error = math.sqrt(squares / (BATCHES - 2) / float(centered_s @ centered_s))
        widened = math.sqrt((1 + correlation) / (1 - correlation))
        half = _core.student_quantile(upper, BATCHES - 2) * error * widened
        return slope, half, f"the number in the system returns to a straight line {ratio_text}: its slope"
    lengths = (end_s - start_s) / present.service_s if present.service_s else math.inf
    steps = int(min(INCREMENTS, lengths))
    walked = np.diff(present.many(np.linspace(start_s, end_s, steps + 1)))
    step_s = (end_s - start_s) / steps
    half = _core.student_quantile(upper, steps - 1) * float(walked.std(ddof=1)) / math.sqrt(steps) / step_s
    how = f"the number in the system wanders {ratio_text}: its increments over {steps} batches"
    return float(walked.mean()) / step_s, half, how


def _waves(present: Present, start_s: float, end_s: float) -> list[str]:
    """A caveat if arrivals are far less even than a Poisson process."""
    counts: NDArray[Any] = np.diff(present.arrived_by(np.linspace(start_s, end_s, INCREMENTS + 1)))
    dispersion = float(counts.var(ddof=1) / counts.mean())
    if dispersion <= 5:
        return []
    return [
        f"arrivals are bursty (their counts vary {dispersion:.1f} times as much as those of a Poisson "
        "process): the verdict is on these arrivals, not on a process at their mean rate"
    ]


def _start_s(present: Present, warmup: int | str | None) -> float:
    """The earliest start of the window, in seconds."""
    if warmup is None:
        return max(present.measured_from_s, present.first_s + WARM_SHARE * (present.last_s - present.first_s))
    if isinstance(warmup, str):
        text = _SECONDS.fullmatch(warmup.strip())
        if text:
            return float(text[1])
    elif _is_count(warmup):
        return present.after(int(warmup))
    raise ConfigError("warmup", f"must be requests such as 1000 or seconds such as '30s', got {warmup!r}")


def _is_count(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Integral) and int(value) >= 0


def _between(name: str, value: object, *, above: bool) -> None:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 <= float(value) < 1 or (above and value == 0):  # type: ignore[arg-type]
        least = "above 0" if above else "of at least 0"
        raise ConfigError(name, f"must be a number {least} and below 1, got {value!r}")
