"""An amount of a metric: how much worse it may become, or how well it shall be known."""

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
    """An amount of a metric: a share of its value in the baseline, or in its unit."""

    metric: Metric

    amount: float
    """A share where it is relative, else in the metric's unit."""

    is_relative: bool

    @classmethod
    def of(cls, name: object, text: object, field: str) -> Margin:
        """The amount that a text such as `3%`, `0.01s`, `5 ms` or `0.2 requests/s` spells.

        A percentage is of the baseline's value. `failed_share` has no unit: `0.001` is one in a thousand; nor
        has money, whose currency the prices say.

        Args:
            name: of the metric.
            text: the amount.
            field: what an error names, the metric behind it.

        Raises:
            ConfigError: an unknown metric, or a text that says no amount in its unit.

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
            raise ConfigError(f"{field}.{metric.name}", f"must be a text such as {spelled}, is {text!r}")
        amount = finite(f"{field}.{metric.name}", float(match[1])) / units[match[2]]
        return cls(metric, amount, match[2] == "%")

    def at(self, baseline: float) -> float:
        """The amount in the unit of the metric, where the baseline has this value."""
        return self.amount * abs(baseline) if self.is_relative else self.amount

    def __str__(self) -> str:
        """As it may be written."""
        if self.is_relative:
            return percent(self.amount, 4)
        if self.metric.unit == "s" and self.amount < 1:
            return f"{number(self.amount * 1000, 4)} ms"
        return f"{number(self.amount, 4)} {self.metric.unit}".removesuffix(" share").rstrip()
