"""Verdicts about metrics compared with a baseline.

The baseline and the new run use the same seeds, so the same requests: differences are paired. Let b be the
values of the baseline, d the losses (difference, positive if worse) and r a relative tolerance. The excess is
e = d − r·b; with an absolute tolerance a it is d − a. A metric regressed beyond its tolerance if the lower
bound of Student's interval of the mean excess is above 0. That is the exact test of E[d] against r·E[b],
which does not treat the mean of the baseline as known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from inferq.display.text import counted
from inferq.experiments.margin import Margin
from inferq.interval import Interval, confidence_interval, quantile
from inferq.results.metric import Metric

GateVerdict = Literal["identical", "better", "within", "undecided", "worse", "new"]

_MOST_SEEDS_NAMED = 1000


@dataclass(frozen=True, slots=True)
class Change:
    """A change from the baseline, with its interval."""

    mean: float
    low: float
    """The true mean is below it with probability at most 1 − confidence, if runs are random."""

    high: float
    is_relative: bool
    """Whether it is a share of the baseline, else in the unit of the metric."""


@dataclass(frozen=True, slots=True)
class MetricVerdict:
    """One metric of a scenario, compared with the baseline."""

    tolerance: Margin
    verdict: GateVerdict
    """
    `identical`: bit-identical for every seed. `worse`: by more than the tolerance, with the confidence.
    `better`: by more than the tolerance, with the confidence. `within`: not worse than the tolerance, with
    the confidence. `undecided`: not significant with these seeds. `new`: not in the baseline.
    """

    baseline: float | None = None
    """Mean over the seeds. None if no run has a value."""

    now: float | None = None
    change: Change | None = None
    note: str = ""

    @property
    def metric(self) -> Metric:
        """The metric."""
        return self.tolerance.metric

    @property
    def margin(self) -> float | None:
        """The change as a share of the baseline. None if there is none, or if the baseline is 0."""
        if self.change is None or self.change.is_relative:
            return None if self.change is None else self.change.mean
        return self.change.mean / abs(self.baseline) if self.baseline else None

    def with_note(self, note: str) -> MetricVerdict:
        """The same verdict with a further note."""
        return replace(self, note="; ".join(filter(None, (self.note, note))))


def compare_metric(
    tolerance: Margin,
    before: Sequence[float | None],
    now: Sequence[float | None],
    confidence: float,
) -> MetricVerdict:
    """Compare the values of a metric with the baseline, for the same seeds.

    For a single seed the difference is exact and holds for these requests only.

    Source: Law, Simulation Modeling and Analysis, on paired comparison; Fieller (1954) for the ends of a
        ratio of means.

    Example:
        >>> from inferq.experiments.gates.metric_verdict import compare_metric
        >>> from inferq.experiments.margin import Margin
        >>> goodput = Margin.of("request_goodput", "1%", "tolerance")
        >>> compare_metric(goodput, [8.0, 7.9, 8.1], [7.76, 7.67, 7.85], 0.95).verdict
        'worse'
    """
    means = (_mean(before), _mean(now))
    if list(before) == list(now):
        return MetricVerdict(tolerance, "identical", *means)
    lost = sum(b is not None and n is None for b, n in zip(before, now, strict=True))
    if lost:
        return MetricVerdict(
            tolerance, "worse", *means, note=f"no value any more for {counted(lost, 'seed')}"
        )
    pairs = [(b, n) for b, n in zip(before, now, strict=True) if b is not None and n is not None]
    added = sum(b is None and n is not None for b, n in zip(before, now, strict=True))
    note = f"without {counted(added, 'seed')} that lack a baseline value" if added else ""
    if len(pairs) < min(2, len(before)):
        return MetricVerdict(tolerance, "undecided", *means, note=note)
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
        verdict, note = "undecided", "; ".join(filter(None, (_needed_seeds(excess), note)))
    return MetricVerdict(tolerance, verdict, *means, _change(tolerance, bases, differences, confidence), note)


def without_baseline(tolerance: Margin, now: Sequence[float | None]) -> MetricVerdict:
    """The verdict of a metric without a baseline."""
    return MetricVerdict(tolerance, "new", None, _mean(now))


def _interval(values: Sequence[float], confidence: float) -> Interval:
    """An interval with this confidence of each bound. For a single value the width is 0."""
    if len(values) == 1:
        return Interval(values[0], 0.0, confidence, 1)
    return confidence_interval(values, 2 * confidence - 1)


def _change(
    tolerance: Margin, bases: Sequence[float], differences: Sequence[float], confidence: float
) -> Change:
    """The change as a share of the baseline, or absolute if that is undefined."""
    relative = _relative(bases, differences, confidence)
    if tolerance.is_relative and relative is not None:
        return relative
    interval = _interval(differences, confidence)
    return Change(interval.mean, interval.low, interval.high, False)


def _relative(bases: Sequence[float], differences: Sequence[float], confidence: float) -> Change | None:
    """The ratio of the two means with Fieller's interval. None if the baseline's mean may be 0.

    The shares r for which the mean of d − r·b can be 0 lie between the roots of
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


def _needed_seeds(excess: Interval) -> str:
    """The approximate number of seeds for a decision."""
    if excess.mean == 0:
        return "exactly at the tolerance"
    needed = math.ceil(excess.samples * (excess.half_width / excess.mean) ** 2)
    if needed <= _MOST_SEEDS_NAMED:
        return f"about {needed:,} seeds are needed"
    return "too close to the tolerance"


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return math.fsum(numbers) / len(numbers) if numbers else None
