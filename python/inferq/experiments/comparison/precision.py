"""How well shall a number be known before an experiment stops?"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from inferq.checks import positive
from inferq.errors import ConfigError
from inferq.results.metric import Metric

LEAST_SEEDS = 10
"""Before that many repetitions nothing is stopped: of few the spread is too often found too small by chance,
and an experiment would stop just then."""

_TEXT = re.compile(r"\s*([A-Za-z]\w*)\s*(?:±|\+/-|\+-)\s*([0-9.]+(?:[eE][-+]?\d+)?)\s*(\S*)\s*")
_SCALES = {"s": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}}


@dataclass(frozen=True, slots=True)
class Precision:
    """A metric, and the half width that its interval shall come down to.

    Example:
        >>> from inferq.experiments.comparison.precision import Precision
        >>> print(Precision.of("ttft_p99 ± 2%"), "|", Precision.of("tbt_p99 +- 5 ms"))
        ttft_p99 ± 2 % | tbt_p99 ± 0.005 s
    """

    metric: Metric
    amount: float
    """A share of the baseline's mean, or in the unit of the metric."""
    is_relative: bool

    @classmethod
    def of(cls, text: object, field: str = "until") -> Precision:
        """What a text such as `"ttft_p99 ± 2%"`, `"ttft_p99 +- 0.01s"` asks.

        Args:
            text: a metric, one of `±`, `+-` and `+/-`, a number, and `%` or the unit of the metric (for
                seconds also `ms` and `us`).
            field: the argument that an error names.

        Raises:
            ConfigError: it is none of these, or the number is not above 0.
        """
        found = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ConfigError(field, f"must be such as 'ttft_p99 ± 2%' or 'ttft_p99 ± 0.01s', is {text!r}")
        metric = Metric.of(found[1], field)
        try:
            amount = positive(field, float(found[2]))
        except ValueError as error:  # that of `positive` is one too
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(field, f"{found[2]!r} in {text!r} is no number") from None
        if found[3] == "%":
            return cls(metric, amount / 100, is_relative=True)
        scales = {metric.unit: 1.0, **_SCALES.get(metric.unit, {})}
        if found[3] not in scales:
            units = " or ".join(["%", *scales])
            raise ConfigError(field, f"{metric.name} is in {units}, not in {found[3]!r}")
        return cls(metric, amount * scales[found[3]], is_relative=False)

    @classmethod
    def several(cls, texts: object, field: str = "until") -> tuple[Precision, ...]:
        """What one text or several ask; none for None.

        Raises:
            ConfigError: as of `of`; none in a list, or a metric twice.
        """
        if texts is None:
            return ()
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            return (cls.of(texts, field),)
        found = tuple(cls.of(text, field) for text in texts)
        if not found:
            raise ConfigError(field, "none is named")
        if len({one.metric for one in found}) < len(found):
            raise ConfigError(field, "a metric is there twice")
        return found

    def target(self, baseline_mean: float) -> float:
        """The half width that is enough, in the unit of the metric."""
        return self.amount * abs(baseline_mean) if self.is_relative else self.amount

    def __str__(self) -> str:
        """As it was asked, in the unit of the metric."""
        amount = f"{100 * self.amount:g} %" if self.is_relative else f"{self.amount:g} {self.metric.unit}"
        return f"{self.metric.name} ± {amount}"


def next_count(count: int, most: int, excess: float) -> int:
    """How many repetitions to have at the next look, where the widest interval is `excess` times too wide.

    A half width falls with the root of the number of repetitions. Not more than twice as many at once, since
    the spread is known only roughly; few looks are better than many, since each is a chance to stop too soon.

    Example:
        >>> from inferq.experiments.comparison.precision import next_count
        >>> next_count(10, 100, 1.2), next_count(10, 100, 5.0), next_count(80, 100, 1.5)
        (15, 20, 100)
    """
    wanted = 2 * count if excess >= 2 else math.ceil(count * excess**2)
    return min(most, max(count + 1, min(wanted, 2 * count)))
