"""Margins: tolerances and precisions of a metric, absolute or relative."""

from __future__ import annotations

import re
from dataclasses import dataclass

from inferq.checks import finite
from inferq.display.text import number, percent
from inferq.errors import ConfigError
from inferq.results.metric import Metric

_AMOUNT = re.compile(r"\s*([0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+)\s*(.*?)\s*")
_OF_A_SECOND = {"ms": 1e3, "us": 1e6, "µs": 1e6}


@dataclass(frozen=True, slots=True)
class Margin:
    """An amount of a metric, in its unit or relative to its baseline value."""

    metric: Metric

    amount: float
    """A share if relative, else in the unit of the metric."""

    is_relative: bool

    @classmethod
    def of(cls, name: object, text: object, field: str) -> Margin:
        """Parse a text such as `3%`, `0.01s`, `5 ms` or `0.2 requests/s`.

        A percentage is relative to the baseline value. `failed_share` (`0.001` is one in a thousand) and
        money, whose currency the prices define, have no unit.

        Args:
            name: name of the metric.
            text: the amount.
            field: field that errors name, followed by the metric.

        Raises:
            ConfigError: the metric is unknown, or the text is not an amount in its unit.

        Example:
            >>> from inferq.experiments.margin import Margin
            >>> Margin.of("ttft_p99", "5 ms", "tolerance").amount
            0.005
        """
        metric = Metric.of(name, field)
        is_plain = metric.unit == "share" or metric.needs_prices
        plain, small = {"": 1.0} if is_plain else {}, _OF_A_SECOND if metric.unit == "s" else {}
        units = {"%": 100.0, **plain, metric.unit: 1.0, **small}
        match = _AMOUNT.fullmatch(text) if isinstance(text, str) else None
        if match is None or match[2] not in units:
            spelled = " or ".join(f"'3 {unit}'".replace(" '", "'") for unit in list(units)[:3])
            raise ConfigError(f"{field}.{metric.name}", f"must be a text such as {spelled}, got {text!r}")
        amount = finite(f"{field}.{metric.name}", float(match[1])) / units[match[2]]
        return cls(metric, amount, match[2] == "%")

    def at(self, baseline: float) -> float:
        """The amount in the unit of the metric, for this baseline value."""
        return self.amount * abs(baseline) if self.is_relative else self.amount

    def __str__(self) -> str:
        """A text that `of` can parse."""
        if self.is_relative:
            return percent(self.amount, 4)
        if self.metric.unit == "s" and self.amount < 1:
            return f"{number(self.amount * 1000, 4)} ms"
        return f"{number(self.amount, 4)} {self.metric.unit}".removesuffix(" share").rstrip()
