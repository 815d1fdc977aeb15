"""What does a scenario ask of the gate: how much worse may which metric become, and how sure must one be?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from inferq.checks import finite, not_negative, whole
from inferq.errors import ConfigError
from inferq.results.metric import Metric
from inferq.workload.columns import nearest

SEEDS = 10
CONFIDENCE = 0.95
TOLERANCES = {"request_goodput": "1%", "ttft_p99": "5%", "tbt_p99": "5%"}
"""What is looked at where a scenario does not say."""

_MOST_SEEDS = 10_000
_OBJECTIVES = ("ttft_s", "tbt_s")
"""Those that `Result.summary` takes."""

_AMOUNT = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*(.*)")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much worse a metric may become."""

    metric: Metric

    amount: float
    """A share of the baseline where it is relative, else in the metric's unit."""

    is_relative: bool

    @classmethod
    def of(cls, name: object, text: object, field: str = "tolerance") -> Tolerance:
        """The tolerance that a text such as `3%`, `0.01s`, `5 ms` or `0.2 requests/s` spells.

        A percentage is of the baseline's value. `failed_share` has no unit: `0.001` is one in a thousand.

        Raises:
            ConfigError: an unknown metric, or a text that says no amount in its unit.

        Example:
            >>> from inferq.experiments.gates.tolerance import Tolerance
            >>> Tolerance.of("ttft_p99", "5 ms").amount
            0.005
        """
        metric = Metric.of(name, field)
        path = f"{field}.{metric.name}"
        units = {"%": 100, "" if metric.unit == "share" else metric.unit: 1}
        if metric.unit == "s":
            units["ms"] = 1000
        found = _AMOUNT.fullmatch(text.strip()) if isinstance(text, str) else None
        if found is None or found[2] not in units:
            spelled = " or ".join(f"'3 {unit}'".replace(" '", "'") for unit in units)
            raise ConfigError(path, f"must be a text such as {spelled}, is {text!r}")
        amount, is_relative = finite(path, float(found[1])) / units[found[2]], found[2] == "%"
        if is_relative and metric.better == "higher" and amount >= 1:
            raise ConfigError(path, f"must be below 100 %, which nothing can lose, is {text!r}")
        return cls(metric, amount, is_relative)

    def __str__(self) -> str:
        """As a person writes it."""
        if self.is_relative:
            return f"{self.amount * 100:.4g} %"
        if self.metric.unit == "s" and self.amount < 1:
            return f"{self.amount * 1000:.4g} ms"
        return f"{self.amount:.4g} {self.metric.unit}".removesuffix(" share")


@dataclass(frozen=True, slots=True)
class Terms:
    """What a scenario asks of the gate."""

    tolerances: tuple[Tolerance, ...]
    seeds: int
    """How many, counted from the seed of the run."""

    confidence: float
    """With which each end of an interval holds."""

    slo: Mapping[str, float] | None
    """Objectives for the goodput; None takes the workload's columns."""

    @classmethod
    def of(
        cls,
        *,
        tolerance: object = None,
        seeds: object = SEEDS,
        confidence: object = CONFIDENCE,
        slo: object = None,
        field: str = "",
    ) -> Terms:
        """The terms that these values spell.

        Args:
            tolerance: by the name of a metric how much worse it may become, see `Tolerance.of`; None takes
                1 % of `request_goodput`, and 5 % of `ttft_p99` and of `tbt_p99`.
            seeds: how many runs, at least 1, and at least 2 for what is drawn.
            confidence: with which each end of an interval holds, above 0.5 and below 1.
            slo: objectives for the goodput, `{"ttft_s": …, "tbt_s": …}`; None takes those of the workload.
            field: what an error puts before the name of a value, `gate.` for a table of a scenario.

        Raises:
            ConfigError: a value outside its range, or an unknown name.

        Example:
            >>> from inferq.experiments.gates.tolerance import Terms
            >>> [str(one) for one in Terms.of(tolerance={"ttft_p99": "3%", "tbt_max": "0.01s"}).tolerances]
            ['3 %', '10 ms']
        """
        sure = finite(f"{field}confidence", confidence)
        if not 0.5 < sure < 1:
            raise ConfigError(f"{field}confidence", f"must be above 0.5 and below 1, is {confidence!r}")
        asked = _table(f"{field}tolerance", TOLERANCES if tolerance is None else tolerance)
        if not asked:
            raise ConfigError(f"{field}tolerance", "names no metric")
        tolerances = tuple(Tolerance.of(name, text, f"{field}tolerance") for name, text in asked.items())
        names = [one.metric.name for one in tolerances]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"{field}tolerance.{name}", "is there twice, under two names")
        return cls(
            tolerances,
            whole(f"{field}seeds", seeds, 1, _MOST_SEEDS),
            sure,
            None if slo is None else _objectives(f"{field}slo", slo),
        )

    @classmethod
    def of_table(cls, table: object) -> Terms:
        """The terms that the table `[gate]` of a scenario spells.

        Raises:
            ConfigError: an unknown or wrong field, named by its path.
        """
        fields = _table("gate", table)
        known = ("tolerance", "seeds", "confidence", "slo")
        for name in fields:
            if name not in known:
                raise ConfigError(f"gate.{name}", f"unknown{nearest(name, known)}")
        return cls.of(**fields, field="gate.")


def _objectives(field: str, slo: object) -> dict[str, float]:
    limits = {}
    for name, limit in sorted(_table(field, slo).items()):
        if name not in _OBJECTIVES:
            raise ConfigError(f"{field}.{name}", f"unknown objective{nearest(str(name), _OBJECTIVES)}")
        limits[name] = not_negative(f"{field}.{name}", limit)
    return limits


def _table(field: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ConfigError(field, f"must be a table of values by name, is {value!r}")
    return value
