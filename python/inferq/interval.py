"""Confidence intervals (Student's t)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inferq import _core
from inferq.checks import between, finite
from inferq.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with a confidence interval.

    Example:
        >>> import inferq as iq
        >>> print(iq.confidence_interval([1.0, 2.0, 3.0]))
        2 ± 2.48
    """

    mean: float

    half_width: float
    """Infinite for a single sample."""

    confidence: float
    samples: int

    @classmethod
    def of_estimate(
        cls, mean: float, standard_error: float, samples: int, confidence: float = 0.95
    ) -> Interval:
        """Interval of an estimate by its standard error, with `samples` − 1 degrees of freedom."""
        return cls(mean, quantile(confidence, samples - 1) * standard_error, confidence, samples)

    @property
    def low(self) -> float:
        """Lower bound of the interval."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper bound of the interval."""
        return self.mean + self.half_width

    def over(self, divisor: float) -> Interval:
        """The interval divided by a positive number."""
        return Interval(self.mean / divisor, self.half_width / divisor, self.confidence, self.samples)

    def excludes(self, value: float) -> bool:
        """Whether a value is outside the interval."""
        return abs(self.mean - value) > self.half_width

    def __str__(self) -> str:
        """The mean and the half width, with three digits of the half width."""
        return f"{self.mean:.4g} ± {self.half_width:.3g}"


def confidence_interval(samples: Sequence[float], confidence: float = 0.95) -> Interval:
    """Confidence interval of the mean of independent samples.

    Exact for normal samples of any number; approximate for means over many requests.

    Args:
        samples: at least one, finite.
        confidence: probability that the interval contains the mean, between 0 and 1.

    Raises:
        ConfigError: there is no sample, a sample is not finite, or the confidence is outside (0, 1).

    Source: Student (1908); Law, Simulation Modeling and Analysis, on replications.
    """
    confidence = between("confidence", confidence, 0, 1)
    count = len(samples)
    if count == 0:
        raise ConfigError("samples", "must not be empty")
    values = [finite("samples", float(value)) for value in samples]
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean, math.inf, confidence, 1)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return Interval(mean, quantile(confidence, count - 1) * spread / math.sqrt(count), confidence, count)


def quantile(confidence: float, freedom: float) -> float:
    """The value that |t| with `freedom` degrees of freedom does not exceed with this confidence."""
    return _core.student_quantile((1 + confidence) / 2, freedom)
