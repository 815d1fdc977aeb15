"""The contrast of two systems in one metric, pair by pair: is it chance?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inferq import _core
from inferq._lazy import NDArray, np
from inferq.experiments.comparison.blocks import joined
from inferq.interval import Interval, quantile, student

ContrastVerdict = Literal["better", "worse", "not distinguishable", "same"]

ROUNDING = 1e-12
"""A difference below this share of the numbers themselves is one of their last bits, not of the systems."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A metric of a system, and independent numbers whose spread tells how well it is known."""

    mean: float

    values: NDArray[np.float64]
    """One for each seed; or for each block of a trace its pseudo-value."""

    in_blocks: bool
    """Whether neighbors may be alike, and are joined where they are."""

    def interval(self, confidence: float) -> Interval:
        """Of the mean."""
        return _interval(self.mean, self._settled()[0], confidence)

    def _settled(self) -> tuple[NDArray[np.float64], bool]:
        return joined(self.values) if self.in_blocks else (self.values, False)


@dataclass(frozen=True, slots=True)
class Contrast:
    """What a system has more than the baseline, and whether that is chance."""

    difference: Interval
    """From the paired numbers."""

    unpaired: float
    """The half width if the two had not served the same requests (Welch)."""

    p_value: float | None
    """The chance to see so large a difference where there is none; None for one pair."""

    verdict: ContrastVerdict | None
    """None for one pair."""

    is_alike: bool
    """Whether neighboring blocks are alike however long they are made."""

    @property
    def narrowed_by(self) -> float | None:
        """By which factor pairing narrows the interval; None where there is none to narrow."""
        half = self.difference.half_width
        return self.unpaired / half if 0 < half < math.inf else None


def contrast(base: Sample, other: Sample, confidence: float, better: Literal["lower", "higher"]) -> Contrast:
    """`other` less `base`, pair by pair.

    Args:
        base: of the baseline.
        other: as many numbers, of the same seeds or blocks in the same order.
        confidence: of the interval, between 0 and 1.
        better: which way the metric is better.

    Example:
        Both vary from seed to seed, together:

        >>> import numpy as np
        >>> from inferq.experiments.comparison.contrast import Sample, contrast
        >>> one, two = np.array([1.0, 5.0, 3.0]), np.array([1.2, 5.3, 3.1])
        >>> found = contrast(Sample(3.0, one, False), Sample(3.2, two, False), 0.95, "lower")
        >>> print(found.difference, found.verdict, f"{found.narrowed_by:.0f}")
        0.2 ± 0.248 not distinguishable 18
    """
    pairs = Sample(other.mean - base.mean, other.values - base.values, base.in_blocks)
    values, is_alike = pairs._settled()
    difference = _interval(pairs.mean, values, confidence)
    scale = max(abs(base.mean), abs(other.mean))
    if bool((abs(pairs.values) <= ROUNDING * scale).all()) and abs(pairs.mean) <= ROUNDING * scale:
        half = 0.0 if values.size > 1 else math.inf
        unpaired = _welch(base, other, confidence) if values.size > 1 else math.inf
        same = Interval(difference.mean, half, confidence, values.size)
        return Contrast(same, unpaired, 1.0 if values.size > 1 else None, "same", is_alike=False)
    if values.size == 1:
        return Contrast(difference, math.inf, None, None, is_alike)
    if not difference.excludes(0.0):
        verdict: ContrastVerdict = "not distinguishable"
    else:
        verdict = "better" if (difference.mean < 0) == (better == "lower") else "worse"
    p_value = _p_value(difference, confidence)
    return Contrast(difference, _welch(base, other, confidence), p_value, verdict, is_alike)


def holm(p_values: Sequence[float], confidence: float) -> list[bool]:
    """Which of several differences are real when they are judged together.

    The chance that one of them or more is only chance is at most 1 − confidence, however they depend on each
    other.

    Source: Holm (1979).

    Example:
        >>> from inferq.experiments.comparison.contrast import holm
        >>> holm([0.04, 0.001, 0.03], 0.95)
        [False, True, False]
    """
    real = [False] * len(p_values)
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    for passed, place in enumerate(order):
        if p_values[place] > (1 - confidence) / (len(p_values) - passed):
            break
        real[place] = True
    return real


def _interval(mean: float, values: NDArray[np.float64], confidence: float) -> Interval:
    half = student(values.tolist(), confidence).half_width
    return Interval(mean, half, confidence, values.size)


def _p_value(difference: Interval, confidence: float) -> float:
    """Of Student's t, from the interval."""
    if difference.half_width == 0:
        return 0.0
    freedom = difference.samples - 1
    errors = abs(difference.mean) / difference.half_width * quantile(confidence, freedom)
    return 2 * _core.student_cdf(-errors, freedom)


def _welch(base: Sample, other: Sample, confidence: float) -> float:
    """Half of Welch's interval for the difference of two samples that know nothing of each other."""
    parts = []
    for sample in (base, other):
        values = sample._settled()[0]
        parts.append((float(values.var(ddof=1)) / values.size, values.size - 1))
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return 0.0
    freedom = variance**2 / sum(part**2 / free for part, free in parts)
    return quantile(confidence, freedom) * math.sqrt(variance)
