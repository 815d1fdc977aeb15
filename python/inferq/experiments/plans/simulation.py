"""Simulated changes of a planned fleet: a replica failure at peak load, and a replica schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from inferq._lazy import np
from inferq.display.text import amount, counted, number, percent
from inferq.experiments.objective_value import ObjectiveValue, evaluate, overall
from inferq.experiments.plans.prober import Prober
from inferq.experiments.replication import run_tasks
from inferq.progress import Progress
from inferq.results.result import Result
from inferq.results.slo import Objective, measured
from inferq.simulation.simulate import simulate
from inferq.systems.cluster import Cluster
from inferq.systems.failures import Failures
from inferq.systems.system import System
from inferq.workload.workload import Workload

_SECONDS_OF_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class ReplicaFailure:
    """Effect of the permanent failure of one replica at peak load on a planned fleet."""

    replicas: int
    """Replicas before the failure."""
    at_s: float
    """Time of the failure with the first seed: when the most requests are in the fleet."""
    replica: int
    """The failed replica with the first seed: the one with the most requests at that time."""
    retried: float
    """Requests sent again, mean over the seeds; a request counts once per failure of its replica."""
    values: tuple[ObjectiveValue, ...]
    """The objectives over all requests of these runs."""

    @property
    def verdict(self) -> str:
        """Whether the SLO is met despite the failure: `"met"`, `"violated"` or `"undecided"`."""
        return overall(self.values)

    def __str__(self) -> str:
        """One sentence."""
        worst = max(self.values, key=lambda value: value.share)
        verdict = {"met": "the SLO is met", "violated": "the SLO is violated"}
        return (
            f"failure of one of {counted(self.replicas, 'replica')} at peak load, at "
            f"{amount(self.at_s, 's')} ({number(self.retried)} requests sent again): "
            f"{verdict.get(self.verdict, 'the result is not significant')}; {worst}"
        )


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """Simulation of a fleet that follows a schedule, with startup and draining of replicas."""

    replica_hours: float
    """Paid replica-hours of the fleet that follows the schedule."""
    fixed_hours: float
    """Replica-hours of the fixed fleet for the peak, over the same requests."""
    values: tuple[ObjectiveValue, ...]
    """The objectives over all requests, with the fleet that follows the schedule."""

    @property
    def saved(self) -> float:
        """Saved share of the replica-hours of the fixed fleet; negative if the schedule uses more."""
        return 1 - self.replica_hours / self.fixed_hours

    @property
    def meets_slo(self) -> bool:
        """Whether the SLO is met over all requests."""
        return overall(self.values) == "met"

    def __str__(self) -> str:
        """One sentence."""
        worst = max(self.values, key=lambda value: value.share)
        return (
            f"simulated with autoscaling: {number(self.replica_hours)} replica-hours against "
            f"{number(self.fixed_hours)}, {percent(abs(self.saved))} {'more' if self.saved < 0 else 'less'}; "
            f"the SLO is {'met' if self.meets_slo else 'violated'}: {worst}"
        )


def replica_failure(
    fleet: System | None, prober: Prober, *, exact: bool, confidence: float
) -> ReplicaFailure | None:
    """Simulate a failure at the peak of each run; see `FleetPlan.replica_failure`."""
    if not isinstance(fleet, Cluster) or fleet.replicas is None:
        return None
    tasks = [partial(_failing, prober, fleet, seed) for seed in prober.seeds]
    runs = run_tasks(tasks, prober.threads)
    objective_values = tuple(
        evaluate(
            objective,
            tuple(values[place] for _, _, values in runs),
            exact=exact,
            chance=1 - confidence,
            among=len(prober.objectives),
        )
        for place, objective in enumerate(prober.objectives)
    )
    (at_s, replica), *_ = (peak for peak, _, _ in runs)
    retried = sum(retries for _, retries, _ in runs) / len(runs)
    return ReplicaFailure(fleet.replicas, at_s, replica, retried, objective_values)


def _failing(
    prober: Prober, fleet: Cluster, seed: int, watch: Progress | None
) -> tuple[tuple[float, int], int, tuple[float, ...]]:
    """The time and replica of the failure, the number of retries, and the values of the objectives."""
    workload = prober.workload_of(seed)
    common: Mapping[str, Any] = {"seed": seed, "threads": 1, "progress": watch, **prober.options}
    peak = busiest_moment(simulate(workload, fleet, **common))
    result = simulate(workload, replace(fleet, failures=Failures(at=[peak])), **common)
    retries = int(result.requests["retries"].sum())
    return peak, retries, measured(prober.objectives, 0.0, result)


def busiest_moment(result: Result) -> tuple[float, int]:
    """The first time with the most requests in the fleet, and the replica with the most of them."""
    columns = result._tables.requests
    arrival_s, left_s = columns["arrival_s"], np.nan_to_num(columns["left_s"], nan=np.inf)
    in_fleet = np.arange(1, arrival_s.size + 1) - np.searchsorted(np.sort(left_s), arrival_s, side="right")
    at_s = float(arrival_s[np.argmax(in_fleet)])
    present = (arrival_s <= at_s) & (left_s > at_s)
    return at_s, int(np.bincount(columns["replica"][present]).argmax())


def run_schedule(
    fleet: Cluster,
    fixed: Cluster,
    workload: Workload,
    objectives: Sequence[Objective],
    seed: int,
    options: Mapping[str, Any],
) -> ScheduleRun:
    """Simulate a fleet that follows a schedule, and the fixed fleet for the peak, on the same requests."""
    scaled, constant = (simulate(workload, system, seed=seed, **options) for system in (fleet, fixed))
    assert fixed.replicas is not None
    values = measured(tuple(objectives), 0.0, scaled)
    objective_values = tuple(
        evaluate(objective, (value,), exact=True, chance=0.5, among=1)
        for objective, value in zip(objectives, values, strict=True)
    )
    fixed_hours = fixed.replicas * constant.totals["end_s"] / _SECONDS_OF_HOUR
    return ScheduleRun(scaled.replica_s / _SECONDS_OF_HOUR, fixed_hours, objective_values)
