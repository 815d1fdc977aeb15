"""Was this run stable? A statistical verdict from the drift of what is in the system."""

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
"""Parts of the window, over each of which the number in the system is averaged."""
INCREMENTS = 20
"""Parts of the window, over each of which the change of that number is taken; fewer where one would be
shorter than what is served takes."""
RETURNS = 0.88
"""Durbin-Watson ratio of `BATCHES` averages about their line that a random walk passes once in 100 times.

Found from 20,000 random walks; about 2 where averages are independent, 0.3 in the middle of random walks."""
LEAST_ARRIVALS = 200
"""Below that no window is judged: five arrivals to a batch."""
LEAST_LENGTHS = 5
"""A window is judged when it is so many times as long as what is served takes without waiting."""
WARM_SHARE = 0.25
"""The share of the arrivals' span that is left out where nothing else is said."""

_SECONDS = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed(Statement):
    """What a run shows about its stability; made by `observed`.

    Numbers are None where the run was too short to have them. An "s" stands for seconds of simulated time.
    """

    source: ClassVar[str] = "statistics of one run"

    verdict: Literal["stable", "unstable", "unknown"]
    counted: str
    """What the system is counted in: `"requests"`; `"jobs"` of a network; `"sessions"` in a closed loop."""
    arrived: int
    """How many arrived in the window, but for the rejected."""
    rate_per_s: float | None
    """How many arrived per second of the window."""
    drift_per_s: float | None
    """By how many the number in the system grew, per second."""
    low_per_s: float | None
    high_per_s: float | None
    """The interval of the drift."""
    confidence: float
    tolerance: float
    """The share of the arrivals that may stay in the system and count as none."""
    start_s: float
    end_s: float
    """The window: after the warm-up, until the last arrival."""
    service_s: float | None
    """What one takes without waiting for its admission, on average over the first ones."""
    present_start: int
    present_end: int
    """How many were in the system at both ends of the window."""
    reasons: tuple[str, ...]
    """Why this verdict, and what to know before trusting it."""
    hit_rate: float | None = None
    """The share of the prompt tokens of requests that arrived in the window and were admitted which a prefix
    cache found; None where there is none."""

    @property
    def growth(self) -> float | None:
        """The share of the arrivals that stays in the system: drift over rate."""
        if self.drift_per_s is None or not self.rate_per_s:
            return None
        return self.drift_per_s / self.rate_per_s

    def explain(self) -> str:
        """The drift with its interval beside the tolerance, and the reasons."""
        lines = [
            f"observed: {self.verdict}",
            f"  window: {number(self.start_s)} s to {number(self.end_s)} s, "
            f"{number(self.arrived)} {self.counted} arrived"
            + ("" if self.rate_per_s is None else f" ({number(self.rate_per_s)} per s)"),
            f"  in the system: {number(self.present_start)} at its start, {number(self.present_end)} at its "
            "end; "
            + ("none was served" if not self.service_s else f"serving one takes {number(self.service_s)} s"),
        ]
        if self.drift_per_s is not None and self.rate_per_s is not None:
            lines += [
                f"  drift of {self.counted} in the system: {number(self.drift_per_s)} per s, "
                f"{100 * self.confidence:g} % interval "
                f"{number(self.low_per_s)} to {number(self.high_per_s)} per s",
                f"  tolerated: {number(self.tolerance * self.rate_per_s)} per s, "
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
    """Whether the number in the system grew during a run: stable, unstable, or unknown.

    A system is unstable when the number N(t) of requests in it (arrived, not yet left) grows without end, in
    a long run by a share of the arrivals. The window goes from the end of the warm-up to the last arrival;
    what drains afterwards says nothing. With the drift d, its interval and the tolerance ε·λ:

    - *unstable*: the interval lies above 0, and d > ε·λ;
    - *stable*: the interval lies below ε·λ and does not lie above 0;
    - *unknown*: all else, and every run that is too short: fewer than 200 arrivals in the window, or a window
      shorter than 5 times what the first requests took without their wait for admission.

    The interval. N is correlated over long times, and differently in the two cases, so a test comes first:
    N is averaged over 40 batches of equal length, and the Durbin-Watson ratio of these averages about their
    straight line tells whether N returns to that line (a ratio above 0.88, which one random walk in 100
    reaches). *If it does*, the drift is the slope of the line, with Student's t (38 degrees of freedom),
    widened by √((1 + r)/(1 − r)) for the correlation r = 1 − ratio/2 of neighbors that is left. *If not*, N
    is taken for a random walk, whose increments are independent: the drift is (N(end) − N(start)) / length,
    its interval Student's t over the increments of 20 batches, or of fewer that are each as long as the first
    requests took, 5 at least. Where a stable queue comes this far, because it is close to its limit, its
    increments have negative correlation, so that the interval is too wide and the verdict rather unknown than
    wrong. No interval is narrower than one request more or less over the window.

    How often it decides was measured on one server with equal services and Poisson arrivals (M/D/1), 400
    seeds for each cell: shares of stable / unstable in percent, the rest unknown.

    | requests | 0.8 | 0.9 | 0.95 | 0.98 | 1.02 | 1.05 | 1.1 |
    |---:|---:|---:|---:|---:|---:|---:|---:|
    | 2,000 | 93 / 0 | 40 / 0 | 8 / 0 | 2 / 0 | 0 / 4 | 0 / 17 | 0 / 76 |
    | 5,000 | 100 / 0 | 86 / 0 | 36 / 0 | 6 / 1 | 0 / 6 | 0 / 53 | 0 / 98 |
    | 20,000 | 100 / 0 | 99 / 0 | 82 / 0 | 25 / 0 | 0 / 34 | 0 / 100 | 0 / 100 |
    | 100,000 | 100 / 0 | 100 / 0 | 100 / 0 | 82 / 0 | 0 / 100 | 0 / 100 | 0 / 100 |

    How often it is wrong: of these 11,200 runs one above the load of 1 was called stable and seven below it
    unstable, none of them with 20,000 requests or more. With exponential services (M/M/1) it was 1 and 13;
    the worst cells have 4 of 400. A system of many requests at once needs more of them: an engine with 105
    in service on each of two replicas was decided at a load of 0.84 in 78 of 100 runs of 20,000 requests.

    With an overloaded server and Poisson arrivals the interval is about ±3/√n of n arrivals in the window;
    nearer to a load of 1 than that the verdict is unknown.

    What is counted: requests; jobs of a `Network`; and where turns wait for answers, sessions, from their
    first arrival to the end of their last turn (a request that no other waits for is a session of one).
    Rejected ones are left out. Abandoned ones have left, so that a fleet whose users lose patience is stable
    at any load: a reason says how many did.

    Args:
        result: of any run.
        warmup: where the window begins: after so many arrivals of rows (an int) or so many seconds (`"30s"`),
            as in `inferq.simulate`. None takes the later of the run's own warm-up and a quarter of the span
            of the arrivals. It never begins sooner after the first arrival than three times what a request
            takes: every run starts empty, and filling is no drift.
        confidence: of the two-sided interval, between 0 and 1.
        tolerance: ε, the share of the arrivals that may stay in the system, 0 or above and below 1. A drift
            below it cannot be told from none, at any length of the run.

    Raises:
        ConfigError: an argument outside its range, or no `Result`.

    Example:
        >>> import inferq as iq
        >>> kv = iq.KvCache.unlimited()
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(max_seqs=1), kv=kv)
        >>> asked = iq.Workload.synthetic(
        ...     requests=2000, arrivals=iq.dist.Deterministic(1.1), prompt=iq.dist.Fixed(10), output=iq.dist.Fixed(1)
        ... )
        >>> run = iq.theory.observed(iq.simulate(asked, engine))
        >>> run.verdict, round(run.drift_per_s, 3)
        ('unstable', 0.1)
        >>> iq.theory.observed(iq.simulate(asked.at_rate(0.9), engine)).verdict
        'stable'
    """
    if not isinstance(result, Result):
        raise ConfigError(
            "result", f"must be a Result, as inferq.simulate returns, is {type(result).__name__}"
        )
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
    verdict, why = _judged(drift, low, high, margin)
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
    """The share of prompt tokens that was found, of those that came in a window and were admitted.

    None where there is no prefix cache, or no request was admitted.
    """
    if not result.has_prefix_cache:
        return None
    came = pl.col("arrival_s").is_between(start_s, end_s) & pl.col("admitted_s").is_not_null()
    rows = result.requests.lazy().filter(came)
    cached, prompts = (
        rows.select(pl.col("cached_tokens", "prompt_tokens").cast(pl.Int64).sum()).collect().row(0)
    )
    return cached / prompts if prompts else None


def _judged(
    drift: float, low: float, high: float, margin: float
) -> tuple[Literal["stable", "unstable", "unknown"], str]:
    """The verdict, and why."""
    if low > 0 and drift > margin:
        return "unstable", "the whole interval of the drift is above 0, and the drift above what is tolerated"
    if low > 0:
        return "unknown", "there is a drift, but none above what is tolerated"
    if high < margin:
        return "stable", "the whole interval of the drift is below what is tolerated"
    return "unknown", "the interval of the drift is too wide to tell; a longer run makes it narrower"


def _too_short(present: Present, arrived: int, length_s: float) -> str | None:
    """Why the window cannot be judged; None where it can."""
    served_s = present.service_s
    if not present.arrival_s.size:
        return f"nothing to judge: none of the {present.counted} was taken in"
    if served_s is not None and present.arrival_s.size > 1 and length_s < LEAST_LENGTHS * served_s:
        return (
            f"too short: the window is {number(length_s)} s of the "
            f"{number(present.last_s - present.first_s)} s in which {present.counted} arrived, and serving "
            f"one takes {number(served_s)} s; {LEAST_LENGTHS} times that is the least"
        )
    if arrived < LEAST_ARRIVALS:
        return (
            f"too short: {arrived:,} {present.counted} arrived in the window, {LEAST_ARRIVALS} are the least"
        )
    return None


def _drift(present: Present, start_s: float, end_s: float, confidence: float) -> tuple[float, float, str]:
    """The drift, half the length of its interval, and how it was found."""
    edges_s = np.linspace(start_s, end_s, BATCHES + 1)
    levels = np.diff(present.integral(edges_s)) / np.diff(edges_s)
    at_s = (edges_s[1:] + edges_s[:-1]) / 2
    centered_s = at_s - at_s.mean()
    slope = float(centered_s @ levels / (centered_s @ centered_s))
    rest = levels - levels.mean() - slope * centered_s
    squares = float(rest @ rest)
    upper = (1 + confidence) / 2
    # what rounding leaves of numbers that lie on a line has no ratio
    if squares <= 1e-18 * float(levels @ levels):
        return slope, 0.0, "the number in the system follows a straight line"
    ratio = float(np.diff(rest) @ np.diff(rest)) / squares
    told = f"(Durbin-Watson ratio {ratio:.2f})"
    if ratio > RETURNS:
        kept = max(0.0, 1 - ratio / 2)
        error = math.sqrt(squares / (BATCHES - 2) / float(centered_s @ centered_s))
        widened = math.sqrt((1 + kept) / (1 - kept))
        half = _core.student_quantile(upper, BATCHES - 2) * error * widened
        return slope, half, f"the number in the system keeps to a straight line {told}: its slope"
    lengths = (end_s - start_s) / present.service_s if present.service_s else math.inf
    steps = int(min(INCREMENTS, lengths))
    walked = np.diff(present.many(np.linspace(start_s, end_s, steps + 1)))
    step_s = (end_s - start_s) / steps
    half = _core.student_quantile(upper, steps - 1) * float(walked.std(ddof=1)) / math.sqrt(steps) / step_s
    how = f"the number in the system wanders {told}: its increments over {steps} batches"
    return float(walked.mean()) / step_s, half, how


def _waves(present: Present, start_s: float, end_s: float) -> list[str]:
    """Whether arrivals came far less evenly than those of a Poisson process."""
    counts: NDArray[Any] = np.diff(present.arrived_by(np.linspace(start_s, end_s, INCREMENTS + 1)))
    dispersion = float(counts.var(ddof=1) / counts.mean())
    if dispersion <= 5:
        return []
    return [
        f"arrivals come in waves (their counts vary {dispersion:.1f} times as much as those of a Poisson "
        "process): the verdict is on these arrivals, not on a process at their mean rate"
    ]


def _start_s(present: Present, warmup: int | str | None) -> float:
    """Where the window begins at the earliest, in seconds."""
    if warmup is None:
        return max(present.measured_from_s, present.first_s + WARM_SHARE * (present.last_s - present.first_s))
    if isinstance(warmup, str):
        text = _SECONDS.fullmatch(warmup.strip())
        if text:
            return float(text[1])
    elif _is_count(warmup):
        return present.after(int(warmup))
    raise ConfigError("warmup", f"must be requests such as 1000 or seconds such as '30s', is {warmup!r}")


def _is_count(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Integral) and int(value) >= 0


def _between(name: str, value: object, *, above: bool) -> None:
    number_given = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number_given or not 0 <= float(value) < 1 or (above and value == 0):  # type: ignore[arg-type]
        least = "above 0" if above else "0 or above"
        raise ConfigError(name, f"must be a number {least} and below 1, is {value!r}")
