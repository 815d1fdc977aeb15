"""How far may a mean be from the truth? Student's interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inferq._lazy import special
from inferq.checks import finite
from inferq.errors import ConfigError
from inferq.experiments.arguments import between


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and what it may be off by.

    Example:
        >>> from inferq.interval import student
        >>> print(student([1.0, 2.0, 3.0]))
        2 ± 2.48
    """

    mean: float

    half_width: float
    """Infinite for one sample, which says nothing about chance."""

    confidence: float
    samples: int

    @property
    def low(self) -> float:
        """The lower end."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """The upper end."""
        return self.mean + self.half_width

    def over(self, divisor: float) -> Interval:
        """The same as a share of a number above 0."""
        return Interval(self.mean / divisor, self.half_width / divisor, self.confidence, self.samples)

    def excludes(self, value: float) -> bool:
        """Whether a value lies outside."""
        return abs(self.mean - value) > self.half_width

    def __str__(self) -> str:
        """The mean and the half width, three digits of the latter."""
        return f"{self.mean:.4g} ± {self.half_width:.3g}"


def student(samples: Sequence[float], confidence: float = 0.95) -> Interval:
    """The interval of the mean of independent samples: Student's t.

    Exact for normal samples of any number, close for means over many requests.

    Args:
        samples: at least one, finite.
        confidence: with which the interval holds the mean, between 0 and 1.

    Raises:
        ConfigError: no sample, one that is not finite, or a confidence outside (0, 1).

    Source: Student (1908); Law, Simulation Modeling and Analysis, on replications.
    """
    confidence = between("confidence", confidence, 0, 1)
    count = len(samples)
    if count == 0:
        raise ConfigError("samples", "there are none")
    values = [finite("samples", float(value)) for value in samples]
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean, math.inf, confidence, 1)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return Interval(mean, quantile(confidence, count - 1) * spread / math.sqrt(count), confidence, count)


def quantile(confidence: float, freedom: float) -> float:
    """What |t| with so many degrees of freedom stays below with this confidence."""
    return float(special.stdtrit(freedom, (1 + confidence) / 2))
