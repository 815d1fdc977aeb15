"""The value of one SLO objective over the seeds of an experiment, and its verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from inferq.display.text import amount
from inferq.interval import confidence_interval
from inferq.results.slo import Objective

Verdict = Literal["met", "violated", "undecided"]


@dataclass(frozen=True, slots=True)
class ObjectiveValue:
    """The value of an objective and its verdict."""

    objective: Objective
    value: float
    """Mean over the seeds."""
    low: float | None
    high: float | None
    """Confidence bounds of the true mean. None if the runs are not random."""
    verdict: Verdict

    @property
    def share(self) -> float:
        """The value divided by its limit."""
        return share_of(self.objective, self.value)

    def __str__(self) -> str:
        """The value, its interval and the limit."""
        unit = self.objective.metric.unit
        value, low, high, limit = (
            amount(number, unit) for number in (self.value, self.low, self.high, self.objective.limit)
        )
        between = "" if self.low is None else f" ({low} to {high})"
        return f"{self.objective} is {value}{between}, limit {limit}"


def share_of(objective: Objective, value: float) -> float:
    """A value divided by the limit of its objective."""
    if objective.limit > 0:
        return value / objective.limit
    return math.inf if value > 0 else 0.0


def overall(values: Iterable[ObjectiveValue]) -> Verdict:
    """Return `"violated"` if one objective is, else `"undecided"` if one is, else `"met"`."""
    verdicts = {value.verdict for value in values}
    return "violated" if "violated" in verdicts else "undecided" if "undecided" in verdicts else "met"


def evaluate(
    objective: Objective, values: tuple[float, ...], *, exact: bool, chance: float, among: int
) -> ObjectiveValue:
    """Compare the mean of an objective over some seeds with its limit.

    Args:
        objective: the objective.
        values: one value per seed.
        exact: whether every seed gives the same run.
        chance: probability of a wrong verdict at either end of the interval.
        among: number of objectives. One violated objective violates the SLO, so the lower bound divides
            `chance` by this number (Bonferroni).
    """
    value, limit = math.fsum(values) / len(values), objective.limit
    if exact or math.isinf(value):
        return ObjectiveValue(objective, value, None, None, "met" if value <= limit else "violated")
    high = value + confidence_interval(values, 1 - 2 * chance).half_width
    low = value - confidence_interval(values, 1 - 2 * chance / among).half_width
    verdict: Verdict = "met" if high <= limit else "violated" if low > limit else "undecided"
    if limit == 0 and value > 0:  # the mean of a non-negative value is 0 only if the value is always 0
        verdict = "violated"
    return ObjectiveValue(objective, value, max(low, 0.0), high, verdict)
