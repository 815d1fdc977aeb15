"""Paired contrasts of two systems in one metric, and their significance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inferq import _core
from inferq._lazy import NDArray, np
from inferq.experiments.comparison.blocks import joined
from inferq.interval import Interval, confidence_interval, quantile

ContrastVerdict = Literal["better", "worse", "not distinguishable", "same"]

ROUNDING = 1e-12
"""Relative difference below which numbers are equal except for rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A metric of a system, and independent samples."""

    mean: float

    values: NDArray[np.float64]
    """One value per seed, or one pseudo-value per block of a trace."""

    in_blocks: bool
    """Whether neighbors may be correlated, and are then joined."""

    def interval(self, confidence: float) -> Interval:
        """The confidence interval of the mean."""
        return _interval(self.mean, self._settled()[0], confidence)

    def _settled(self) -> tuple[NDArray[np.float64], bool]:
        return joined(self.values) if self.in_blocks else (self.values, False)


@dataclass(frozen=True, slots=True)
class Contrast:
    """The difference of a system to the baseline, and its significance."""

    difference: Interval
    """Difference of the paired samples."""

    unpaired: float
    """Half width without pairing (Welch)."""

    p_value: float | None
    """Probability of a difference of this size if there is none. None for one pair."""

    verdict: ContrastVerdict | None
    """None for one pair."""

    is_correlated: bool
    """Whether neighboring blocks are correlated even at the largest block length."""

    @property
    def narrowed_by(self) -> float | None:
        """Factor by which pairing narrows the interval, or None."""
        half = self.difference.half_width
        return self.unpaired / half if 0 < half < math.inf else None


def contrast(base: Sample, other: Sample, confidence: float, better: Literal["lower", "higher"]) -> Contrast:
    """The paired difference `other - base`.

    Args:
        base: samples of the baseline.
        other: samples with the same seeds or blocks, in the same order.
        confidence: confidence level, between 0 and 1.
        better: whether lower or higher values are better.

    Example:
        Both vary with the seed in the same way:

        >>> import numpy as np
        >>> from inferq.experiments.comparison.contrast import Sample, contrast
        >>> a, b = np.array([1.0, 5.0, 3.0]), np.array([1.2, 5.3, 3.1])
        >>> paired = contrast(Sample(3.0, a, False), Sample(3.2, b, False), 0.95, "lower")
        >>> print(paired.difference, paired.verdict, f"{paired.narrowed_by:.0f}")
        0.2 ± 0.248 not distinguishable 18
    """
    pairs = Sample(other.mean - base.mean, other.values - base.values, base.in_blocks)
    values, is_correlated = pairs._settled()
    difference = _interval(pairs.mean, values, confidence)
    scale = max(abs(base.mean), abs(other.mean))
    if bool((abs(pairs.values) <= ROUNDING * scale).all()) and abs(pairs.mean) <= ROUNDING * scale:
        half = 0.0 if values.size > 1 else math.inf
        unpaired = _welch(base, other, confidence) if values.size > 1 else math.inf
        same = Interval(difference.mean, half, confidence, values.size)
        return Contrast(same, unpaired, 1.0 if values.size > 1 else None, "same", is_correlated=False)
    if values.size == 1:
        return Contrast(difference, math.inf, None, None, is_correlated)
    if not difference.excludes(0.0):
        verdict: ContrastVerdict = "not distinguishable"
    else:
        verdict = "better" if (difference.mean < 0) == (better == "lower") else "worse"
    p_value = _p_value(difference, confidence)
    return Contrast(difference, _welch(base, other, confidence), p_value, verdict, is_correlated)


def holm(p_values: Sequence[float], confidence: float) -> list[bool]:
    """Which of several differences are significant after correction for their number.

    The probability of one or more false positives is at most 1 − confidence, for any dependence.

    Source: Holm (1979).

    Example:
        >>> from inferq.experiments.comparison.contrast import holm
        >>> holm([0.04, 0.001, 0.03], 0.95)
        [False, True, False]
    """
    significant = [False] * len(p_values)
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    for passed, place in enumerate(order):
        if p_values[place] > (1 - confidence) / (len(p_values) - passed):
            break
        significant[place] = True
    return significant


def _interval(mean: float, values: NDArray[np.float64], confidence: float) -> Interval:
    half = confidence_interval(values.tolist(), confidence).half_width
    return Interval(mean, half, confidence, values.size)


def _p_value(difference: Interval, confidence: float) -> float:
    """The p-value of Student's t, from the interval."""
    if difference.half_width == 0:
        return 0.0
    freedom = difference.samples - 1
    errors = abs(difference.mean) / difference.half_width * quantile(confidence, freedom)
    return 2 * _core.student_cdf(-errors, freedom)


def _welch(base: Sample, other: Sample, confidence: float) -> float:
    """Half of Welch's interval for the difference of two independent samples."""
    parts = []
    for sample in (base, other):
        values = sample._settled()[0]
        parts.append((float(values.var(ddof=1)) / values.size, values.size - 1))
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return 0.0
    freedom = variance**2 / sum(part**2 / free for part, free in parts)
    return quantile(confidence, freedom) * math.sqrt(variance)
