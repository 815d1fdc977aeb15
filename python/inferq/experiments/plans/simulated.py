"""A planned fleet whose replicas change: one dies at the worst moment, or a schedule is followed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from inferq._lazy import np
from inferq.display.text import amount, counted, number, percent
from inferq.experiments.capacity_search.probe import ObjectiveValue, judge
from inferq.experiments.replication import at_once
from inferq.progress import Progress
from inferq.results.result import Result
from inferq.results.slo import Objective, measured
from inferq.simulation.simulate import simulate
from inferq.systems.cluster import Cluster
from inferq.systems.failures import Failures
from inferq.workload.workload import Workload

if TYPE_CHECKING:
    from inferq.experiments.plans.fleet_plan import FleetPlan

_SECONDS_OF_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Death:
    """What becomes of a planned fleet when one replica dies while it has the most to do, for good."""

    replicas: int
    """Before it dies."""
    at_s: float
    """When, of the first seed: the instant at which the most requests are there."""
    replica: int
    """Which, of the first seed: the one that has the most of them."""
    sent_again: float
    """Requests, in the mean over the seeds; each as often as its replica died."""
    judged: tuple[ObjectiveValue, ...]
    """The objectives over all requests of these runs."""

    @property
    def verdict(self) -> str:
        """Whether the SLO is kept all the same: kept, broken, or undecided by chance."""
        verdicts = {one.verdict for one in self.judged}
        return "broken" if "broken" in verdicts else "undecided" if "undecided" in verdicts else "kept"

    def __str__(self) -> str:
        """In a sentence."""
        worst = max(self.judged, key=lambda one: one.share)
        whether = {"kept": "the SLO is kept", "broken": "the SLO is broken"}
        return (
            f"one of {counted(self.replicas, 'replica')} dies when it has the most to do, at "
            f"{amount(self.at_s, 's')} (requests sent again: {number(self.sent_again)}): "
            f"{whether.get(self.verdict, 'chance does not tell whether the SLO is kept')}; {worst}"
        )


@dataclass(frozen=True, slots=True)
class Followed:
    """What simulation says of a schedule that is followed: replicas come and go, and drain."""

    replica_hours: float
    """Paid for, of the fleet that follows it."""
    fixed_hours: float
    """Of the fleet for the peak, over the same requests."""
    judged: tuple[ObjectiveValue, ...]
    """The objectives over all requests, with the fleet that follows it."""

    @property
    def saved(self) -> float:
        """The share of the fixed fleet's replica-hours that it saves; below 0 where it takes more."""
        return 1 - self.replica_hours / self.fixed_hours

    @property
    def is_kept(self) -> bool:
        """Whether the SLO is kept over all requests."""
        return all(one.verdict == "kept" for one in self.judged)

    def __str__(self) -> str:
        """In a sentence."""
        worst, less = max(self.judged, key=lambda one: one.share), "more" if self.saved < 0 else "less"
        return (
            f"simulated with replicas that come and go: {number(self.replica_hours)} replica-hours against "
            f"{number(self.fixed_hours)}, {percent(abs(self.saved))} {less}; the SLO is "
            f"{'kept' if self.is_kept else 'broken'}: {worst}"
        )


def death_of(plan: FleetPlan) -> Death | None:
    """One replica of the planned fleet dies at the peak of each run; see `FleetPlan.death`."""
    fleet, prober = plan.fleet, plan.prober
    if not isinstance(fleet, Cluster) or fleet.replicas is None:
        return None
    tasks = [partial(_dying, plan, fleet, seed) for seed in prober.seeds]
    runs = at_once(tasks, prober.threads)
    judged = tuple(
        judge(
            objective,
            tuple(values[place] for _, _, values in runs),
            exact=plan.exact,
            chance=1 - plan.confidence,
            among=len(prober.objectives),
        )
        for place, objective in enumerate(prober.objectives)
    )
    (at_s, replica), *_ = (when for when, _, _ in runs)
    sent_again = sum(again for _, again, _ in runs) / len(runs)
    return Death(fleet.replicas, at_s, replica, sent_again, judged)


def _dying(
    plan: FleetPlan, fleet: Cluster, seed: int, watch: Progress | None
) -> tuple[tuple[float, int], int, tuple[float, ...]]:
    """The death of a seed, how many requests were sent again, and the values of the objectives."""
    workload, options = plan.prober._whole(seed), plan.prober.options
    common: Mapping[str, Any] = {"seed": seed, "threads": 1, "progress": watch, **options}
    when = worst_moment(simulate(workload, fleet, **common))
    result = simulate(workload, replace(fleet, failures=Failures(at=[when])), **common)
    again = int(result.requests["retries"].sum())
    return when, again, measured(plan.prober.objectives, 0.0, result)


def worst_moment(result: Result) -> tuple[float, int]:
    """The first instant at which the most requests are in a fleet, and the replica that has the most then."""
    columns = result._tables.requests
    arrival_s, left_s = columns["arrival_s"], np.nan_to_num(columns["left_s"], nan=np.inf)
    there = np.arange(1, arrival_s.size + 1) - np.searchsorted(np.sort(left_s), arrival_s, side="right")
    at_s = float(arrival_s[np.argmax(there)])
    here = (arrival_s <= at_s) & (left_s > at_s)
    return at_s, int(np.bincount(columns["replica"][here]).argmax())


def followed(
    fleet: Cluster,
    fixed: Cluster,
    workload: Workload,
    objectives: Sequence[Objective],
    seed: int,
    options: Mapping[str, Any],
) -> Followed:
    """A fleet that follows a schedule beside the one for the peak, over the same requests."""
    moving, still = (simulate(workload, one, seed=seed, **options) for one in (fleet, fixed))
    assert fixed.replicas is not None
    values = measured(tuple(objectives), 0.0, moving)
    judged = tuple(
        judge(objective, (value,), exact=True, chance=0.5, among=1)
        for objective, value in zip(objectives, values, strict=True)
    )
    fixed_hours = fixed.replicas * still.totals["end_s"] / _SECONDS_OF_HOUR
    return Followed(moving.replica_s / _SECONDS_OF_HOUR, fixed_hours, judged)
