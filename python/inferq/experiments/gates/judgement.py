"""The judgement on a metric: has it become worse than it may?

The same seeds, and so the same requests, stand behind the values of the baseline and those of now: what is
judged is the difference of each pair. With the baseline's values b, the losses d (difference, positive where
worse) and a tolerance of the share r of the baseline, the excess is e = d − r·b; with an absolute tolerance a
it is d − a. The metric is worse than it may be when the lower end of Student's interval of the mean excess is
above 0, which is exactly the test of E[d] against r·E[b], without taking the baseline's mean for known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inferq.display.text import counted
from inferq.experiments.margin import Margin
from inferq.interval import Interval, quantile, confidence_interval
from inferq.results.metric import Metric

GateVerdict = Literal["identical", "better", "within", "undecided", "worse", "new"]

_SEEDS_WORTH_NAMING = 1000


@dataclass(frozen=True, slots=True)
class Change:
    """From the baseline to now: an amount, and its ends."""

    mean: float
    low: float
    """Below it the true mean lies with a chance of at most 1 − confidence, if it is one of chance."""

    high: float
    is_relative: bool
    """A share of the baseline, else in the metric's unit."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One metric of one scenario, held against the baseline."""

    tolerance: Margin
    verdict: GateVerdict
    """
    `identical`: every seed gives the same bits. `worse`: by more than the tolerance, with the confidence
    asked for. `better`: by more than the tolerance, with the same confidence. `within`: no worse than the
    tolerance, with that confidence. `undecided`: these seeds do not tell. `new`: no baseline.
    """

    baseline: float | None = None
    """The mean over the seeds; None where no run has a value."""

    now: float | None = None
    change: Change | None = None
    note: str = ""

    @property
    def metric(self) -> Metric:
        """What was judged."""
        return self.tolerance.metric


def judge(
    tolerance: Margin,
    before: Sequence[float | None],
    now: Sequence[float | None],
    confidence: float,
) -> Judgement:
    """The judgement on a metric, from its values with the same seeds before and now.

    One value of each is one run, taken as it is: its difference is exact, and says nothing about others.

    Source: Law, Simulation Modeling and Analysis, on paired comparison; Fieller (1954) for the ends of a
        ratio of means.

    Example:
        >>> from inferq.experiments.gates.judgement import judge
        >>> from inferq.experiments.margin import Margin
        >>> goodput = Margin.of("request_goodput", "1%", "tolerance")
        >>> judge(goodput, [8.0, 7.9, 8.1], [7.76, 7.67, 7.85], 0.95).verdict
        'worse'
    """
    means = (_mean(before), _mean(now))
    if list(before) == list(now):
        return Judgement(tolerance, "identical", *means)
    gone = sum(b is not None and n is None for b, n in zip(before, now, strict=True))
    if gone:
        return Judgement(
            tolerance, "worse", *means, note=f"no request tells it any more under {counted(gone, 'seed')}"
        )
    pairs = [(b, n) for b, n in zip(before, now, strict=True) if b is not None and n is not None]
    fresh = sum(b is None and n is not None for b, n in zip(before, now, strict=True))
    note = f"without {counted(fresh, 'seed')} under which the baseline has no value" if fresh else ""
    if len(pairs) < min(2, len(before)):
        return Judgement(tolerance, "undecided", *means, note=note)
    sign = 1 if tolerance.metric.better == "lower" else -1
    bases, differences = [b for b, _ in pairs], [n - b for b, n in pairs]
    allowed = [tolerance.amount * b if tolerance.is_relative else tolerance.amount for b in bases]
    excess = _interval([sign * d - a for d, a in zip(differences, allowed, strict=True)], confidence)
    surplus = _interval([-sign * d - a for d, a in zip(differences, allowed, strict=True)], confidence)
    verdict: GateVerdict
    if excess.low > 0:
        verdict = "worse"
    elif surplus.low > 0:
        verdict = "better"
    elif excess.high <= 0:
        verdict = "within"
    else:
        verdict, note = "undecided", "; ".join(filter(None, (_more(excess), note)))
    return Judgement(tolerance, verdict, *means, _change(tolerance, bases, differences, confidence), note)


def fresh(tolerance: Margin, now: Sequence[float | None]) -> Judgement:
    """What is known of a metric that has no baseline."""
    return Judgement(tolerance, "new", None, _mean(now))


def _interval(values: Sequence[float], confidence: float) -> Interval:
    """Each end with this confidence; that of one value, which is one run and no sample, has no width."""
    if len(values) == 1:
        return Interval(values[0], 0.0, confidence, 1)
    return confidence_interval(values, 2 * confidence - 1)


def _change(
    tolerance: Margin, bases: Sequence[float], differences: Sequence[float], confidence: float
) -> Change:
    """The change as a share of the baseline, or as an amount where it cannot be told as one."""
    relative = _relative(bases, differences, confidence)
    if tolerance.is_relative and relative is not None:
        return relative
    interval = _interval(differences, confidence)
    return Change(interval.mean, interval.low, interval.high, False)


def _relative(bases: Sequence[float], differences: Sequence[float], confidence: float) -> Change | None:
    """The ratio of the two means with Fieller's ends; None where the baseline's mean may be 0.

    The shares r for which the mean of d − r·b may be 0 lie between the roots of
    (b̄² − g_bb) r² − 2 (d̄b̄ − g_db) r + (d̄² − g_dd), where g is the covariance of the means times t².
    """
    count = len(bases)
    base, difference = math.fsum(bases) / count, math.fsum(differences) / count
    scale = quantile(2 * confidence - 1, count - 1) ** 2 / (count * (count - 1)) if count > 1 else 0.0
    bb, db, dd = (
        scale * math.fsum((x - left) * (y - right) for x, y in zip(xs, ys, strict=True))
        for xs, left, ys, right in (
            (bases, base, bases, base),
            (differences, difference, bases, base),
            (differences, difference, differences, difference),
        )
    )
    square, half, rest = base * base - bb, difference * base - db, difference * difference - dd
    if square <= 0:
        return None
    width = math.sqrt(max(half * half - square * rest, 0.0))
    return Change(difference / base, (half - width) / square, (half + width) / square, True)


def _more(excess: Interval) -> str:
    """How many seeds may tell."""
    if excess.mean == 0:
        return "as much worse as it may be"
    needed = math.ceil(excess.samples * (excess.half_width / excess.mean) ** 2)
    return f"about {needed:,} seeds would tell" if needed <= _SEEDS_WORTH_NAMING else "too near to tell"


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return math.fsum(numbers) / len(numbers) if numbers else None
