"""Probes: runs with several seeds at one rate, and the verdict about each objective."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from inferq.display.text import counted, number
from inferq.experiments.objective_value import ObjectiveValue, Verdict, evaluate, overall
from inferq.experiments.replication import Run, replications
from inferq.results.finding import Finding
from inferq.results.result import Result
from inferq.results.slo import Objective, measured, with_itl_limits
from inferq.systems.system import System
from inferq.workload.workload import Workload

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Probe:
    """The result at one rate."""

    rate: float
    """Requests per second; jobs per second of a network."""
    seeds: int
    values: tuple[ObjectiveValue, ...]
    findings: tuple[Finding, ...] = ()
    """`Result.findings` of the run with the first seed."""

    @property
    def verdict(self) -> Verdict:
        """`"met"` if every objective is met, `"violated"` if one is violated, else `"undecided"`."""
        return overall(self.values)

    @property
    def worst(self) -> ObjectiveValue:
        """The decisive objective: the largest relative to its limit among those with the probe's verdict."""
        candidates = [value for value in self.values if value.verdict == self.verdict]
        return max(candidates, key=lambda value: value.share)

    @property
    def share(self) -> float:
        """The largest value divided by its limit."""
        return max(value.share for value in self.values)

    def __str__(self) -> str:
        """Rate, verdict, and the decisive objective."""
        seeds = "one run" if self.seeds == 1 else counted(self.seeds, "seed")
        return f"{number(self.rate, 4)} per second: {self.verdict} ({seeds}); {self.worst}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Prober:
    """Runs probes; its fields are the same at every rate."""

    at_rate: Callable[[float], Workload]
    system: System
    objectives: tuple[Objective, ...]
    seeds: tuple[int, ...]
    looks: tuple[int, ...]
    """Numbers of seeds after which a verdict is tried, ascending."""
    confidence: float
    exact: bool
    """Whether every seed gives the same run."""
    threads: int | None
    run: Mapping[str, Any]
    """Arguments of `simulate`."""
    watch: Callable[[int, int], object] | None = None
    """Called with the number of finished runs and of known runs."""
    done: list[int] = field(default_factory=list)
    """An entry for each finished run."""

    def probe(self, rate: float) -> Probe:
        """Run more seeds until the SLO is met or violated with confidence, or all seeds are used.

        The probability of a wrong verdict is divided among the looks, so that repeated looks do not add to
        it. A probe is met only if every objective is, which needs no correction for their number. It is
        violated if one objective is, so each objective has its part of the probability.
        """
        workload = self.at_rate(rate)
        runs: list[tuple[tuple[float, ...], list[Finding]]] = []
        probe = Probe(rate, 0, ())
        for look in self.looks:
            runs += self.runs(workload, self.seeds[len(runs) : look], partial(self._measured, rate))
            of_each = zip(self.objectives, zip(*(values for values, _ in runs), strict=True), strict=True)
            values = tuple(
                evaluate(
                    objective,
                    seed_values,
                    exact=self.exact,
                    chance=(1 - self.confidence) / len(self.looks),
                    among=len(self.objectives),
                )
                for objective, seed_values in of_each
            )
            probe = Probe(rate, len(runs), values, tuple(runs[0][1]))
            if probe.verdict != "undecided":
                break
        return probe

    def runs(self, workload: Workload, seeds: Sequence[int], measure: Callable[[Result], T]) -> list[T]:
        """The measurement of the run of each seed, in order."""
        before, watch = len(self.done), self.watch
        measured_runs = replications(
            workload,
            {"system": self.system},
            [Run("system", seed) for seed in seeds],
            lambda run, result: measure(result),
            threads=self.threads,
            progress=None if watch is None else lambda done, total: watch(before + done, before + total),
            **with_itl_limits(self.run, self.objectives),
        )
        self.done.extend(seeds)
        return measured_runs

    def _measured(self, rate: float, result: Result) -> tuple[tuple[float, ...], list[Finding]]:
        return measured(self.objectives, rate, result), result.findings
