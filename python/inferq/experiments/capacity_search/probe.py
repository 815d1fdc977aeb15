"""A probe: several seeds at one rate, an interval for each objective, a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

from inferq.display.text import amount, counted, number
from inferq.experiments.replication import Run, replications
from inferq.interval import student
from inferq.results.finding import Finding
from inferq.results.result import Result
from inferq.results.slo import Objective, measured
from inferq.systems.system import System
from inferq.workload.workload import Workload

ProbeVerdict = Literal["kept", "broken", "undecided"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ObjectiveValue:
    """An objective at one rate."""

    objective: Objective
    value: float
    """The mean over the seeds."""
    low: float | None
    high: float | None
    """Between which the true mean lies; None where the runs have no chance in them."""
    verdict: ProbeVerdict

    @property
    def share(self) -> float:
        """What share of the limit the value is."""
        if self.objective.limit > 0:
            return self.value / self.objective.limit
        return math.inf if self.value > 0 else 0.0

    def __str__(self) -> str:
        """The value, its interval and the limit."""
        unit = self.objective.metric.unit
        value, low, high, limit = (
            amount(one, unit) for one in (self.value, self.low, self.high, self.objective.limit)
        )
        between = "" if self.low is None else f" ({low} to {high})"
        return f"{self.objective} is {value}{between}, limit {limit}"


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found at one rate."""

    rate: float
    """Requests (of a network: jobs) per second."""
    seeds: int
    judged: tuple[ObjectiveValue, ...]
    findings: tuple[Finding, ...] = ()
    """`Result.findings` of the first run."""

    @property
    def verdict(self) -> ProbeVerdict:
        """Kept when every objective is, broken when one is."""
        verdicts = {one.verdict for one in self.judged}
        return "broken" if "broken" in verdicts else "undecided" if "undecided" in verdicts else "kept"

    @property
    def worst(self) -> ObjectiveValue:
        """The objective that decides: with the verdict of the probe, and the largest share of its limit."""
        candidates = [one for one in self.judged if one.verdict == self.verdict]
        return max(candidates, key=lambda one: one.share)

    @property
    def share(self) -> float:
        """The largest share that a value has of its limit."""
        return max(one.share for one in self.judged)

    def __str__(self) -> str:
        """Rate, verdict, and the objective that decides."""
        seeds = "one run" if self.seeds == 1 else counted(self.seeds, "seed")
        return f"{number(self.rate, 4)} per second: {self.verdict} ({seeds}); {self.worst}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Prober:
    """All that is the same at every rate."""

    at_rate: Callable[[float], Workload]
    system: System
    objectives: tuple[Objective, ...]
    seeds: tuple[int, ...]
    looks: tuple[int, ...]
    """After how many seeds a verdict is tried; the last of them is the end."""
    confidence: float
    exact: bool
    """Whether every seed gives the same run."""
    threads: int | None
    run: Mapping[str, Any]
    """Arguments of `simulate`."""
    watch: Callable[[int, int], object] | None = None
    """Told how many runs are done, and of how many that are known."""
    done: list[int] = field(default_factory=list)
    """An entry for each run that is done."""

    def probe(self, rate: float) -> Probe:
        """Run seed after seed until the SLO is kept or broken for sure, or the seeds are used up.

        The chance of a wrong verdict is shared out among the looks, so that looking again does not add to
        it. A probe is kept only when every objective is (no correction for their number is needed), and
        broken when any is (so each has its part of the chance).
        """
        workload = self.at_rate(rate)
        runs: list[tuple[tuple[float, ...], list[Finding]]] = []
        probe = Probe(rate, 0, ())
        for look in self.looks:
            runs += self.runs(workload, self.seeds[len(runs) : look], partial(self._seen, rate))
            of_each = zip(self.objectives, zip(*(values for values, _ in runs), strict=True), strict=True)
            judged = tuple(
                judge(
                    *one,
                    exact=self.exact,
                    chance=(1 - self.confidence) / len(self.looks),
                    among=len(self.objectives),
                )
                for one in of_each
            )
            probe = Probe(rate, len(runs), judged, tuple(runs[0][1]))
            if probe.verdict != "undecided":
                break
        return probe

    def runs(self, workload: Workload, seeds: Sequence[int], look: Callable[[Result], T]) -> list[T]:
        """What is seen in the run of each seed, in their order, on the threads that there are."""
        before, watch = len(self.done), self.watch
        seen = replications(
            workload,
            {"system": self.system},
            [Run("system", seed) for seed in seeds],
            lambda run, result: look(result),
            threads=self.threads,
            progress=None if watch is None else lambda done, total: watch(before + done, before + total),
            **self.run,
        )
        self.done.extend(seeds)
        return seen

    def _seen(self, rate: float, result: Result) -> tuple[tuple[float, ...], list[Finding]]:
        return measured(self.objectives, rate, result), result.findings


def judge(
    objective: Objective, values: tuple[float, ...], *, exact: bool, chance: float, among: int
) -> ObjectiveValue:
    """What the values of some seeds say of an objective.

    Args:
        objective: its limit is held against the mean.
        values: one of each seed.
        exact: whether every seed gives the same run.
        chance: of a wrong verdict, at either end of the interval.
        among: how many objectives there are; one of them that is broken is enough, so that each has its part
            of that chance.
    """
    value, limit = math.fsum(values) / len(values), objective.limit
    if exact or math.isinf(value):
        return ObjectiveValue(objective, value, None, None, "kept" if value <= limit else "broken")
    high = value + student(values, 1 - 2 * chance).half_width
    low = value - student(values, 1 - 2 * chance / among).half_width
    verdict: ProbeVerdict = "kept" if high <= limit else "broken" if low > limit else "undecided"
    if limit == 0 and value > 0:  # what is never negative has a mean of 0 only when it never happens
        verdict = "broken"
    return ObjectiveValue(objective, value, max(low, 0.0), high, verdict)
