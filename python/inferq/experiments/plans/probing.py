"""Runs of fleets: each once, on threads or wherever an executor is, kept in a file if there is one."""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from inferq._lazy import np
from inferq.errors import ConfigError, SimulationError
from inferq.experiments.capacity_search.probe import ObjectiveValue, judge
from inferq.experiments.plans.candidate import Candidate
from inferq.experiments.plans.records import Records
from inferq.experiments.replication import at_once, is_user_defined, workers
from inferq.experiments.sweeps.executors import Item, opened, run_all
from inferq.experiments.sweeps.point import Outcome, Stopped
from inferq.progress import Progress
from inferq.results.result import Result
from inferq.results.slo import FAILED, Objective, measured
from inferq.results.tables import STATUSES
from inferq.simulation.simulate import simulate
from inferq.systems.system import System
from inferq.workload.workload import Workload

_COLUMN = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "max_itl_s", "e2e": "e2e_s", "queue": "queue_s"}
_KNOWN_AT = {
    **{"ttft": "first_token_s", "queue": "admitted_s"},
    **dict.fromkeys(("tpot", "itl", "e2e"), "finish_s"),
}
"""For a quantity the instant at which that of a request is known."""


@dataclass(frozen=True, slots=True)
class FleetRun:
    """One run of a fleet: plain values, which travel to where it is run."""

    workload: Workload
    system: System
    seed: int
    objectives: tuple[Objective, ...]
    options: Mapping[str, Any]
    of: int
    """How many requests the whole run has; more than these where they are the first of them."""
    causal: bool
    """Whether what comes later changes nothing of what was before, so that a part may prove a whole."""


@dataclass(frozen=True, slots=True)
class FleetRunner:
    """Runs tasks; one that shares a process with the search can be told to stop."""

    stop: threading.Event | None = None

    def __call__(self, task: FleetRun) -> Outcome:
        """For each objective its value, and 1.0 where it is beyond its limit however the run goes on."""
        progress = None if self.stop is None else self._watch
        return Outcome(run_fleet(task, 1, progress))

    def _watch(self, _done: int, _total: int) -> None:
        if self.stop is not None and self.stop.is_set():
            raise Stopped


def run_fleet(task: FleetRun, threads: int | None, progress: Progress | None) -> tuple[float, ...]:
    """The values of the objectives in a run, each followed by whether it is beyond its limit for sure."""
    system = copy.deepcopy(task.system) if is_user_defined(task.system) else task.system
    result = simulate(
        task.workload, system, seed=task.seed, threads=threads, progress=progress, **task.options
    )
    is_part = task.workload.frame.height < task.of
    try:
        values = measured(task.objectives, 0.0, result)
    except ConfigError:
        if not is_part:
            raise
        values = (math.nan,) * len(task.objectives)  # a class that is not among the first
    sure = [is_part and task.causal and surely_broken(one, result, task.of) for one in task.objectives]
    return tuple(float(one) for pair in zip(values, sure, strict=True) for one in pair)


def surely_broken(objective: Objective, result: Result, of: int) -> bool:
    """Whether the first requests of a run prove that the whole of it breaks an objective.

    Until the last of them arrives, all is as in the whole run: the future does not change the past (law L11).
    Of `of` requests at most ⌊q·(of − 1)⌋ may lie at or below a limit if the percentile q is beyond it; so as
    many above it as are left are proof, whatever comes. Of means it is the sum, of largest values one.

    Args:
        objective: a limit.
        result: of the first requests.
        of: how many requests the whole run has.
    """
    if objective.class_name is not None:
        return False
    columns = result._tables.requests
    last_s = columns["arrival_s"].max()
    counted = columns["measured"]
    if objective.metric == FAILED:
        left = (columns["left_s"] <= last_s) & counted
        failed = left & (columns["status"] != STATUSES.index("finished"))
        return bool(failed.sum() > objective.limit * of)
    quantity, statistic = objective.metric.quantity, objective.metric.statistic
    if quantity not in _COLUMN or (quantity == "itl" and statistic != "max"):
        return False  # percentiles of gaps are of tokens, and how many come is not known
    values = columns[_COLUMN[quantity]]
    known = counted & (columns[_KNOWN_AT[quantity]] <= last_s)
    above = known & (values > objective.limit)
    may_leave = {"patience_s", "cancel_s"} & set(result._tables.workload.columns)
    if quantity in ("ttft", "queue", "e2e") and not may_leave:
        waits = counted & ~(columns[_KNOWN_AT[quantity]] <= last_s) & (columns["status"] == 0)
        above |= waits & (last_s - columns["arrival_s"] > objective.limit)
    if statistic == "mean":
        return bool(np.nansum(values[known]) > objective.limit * of)
    if statistic == "max":
        return bool(above.any())
    q = int(statistic.removeprefix("p")) / 100
    return bool(above.sum() >= of - math.floor(q * (of - 1)))


@dataclass(frozen=True, slots=True)
class Trial:
    """A fleet on so many requests, as far as it was run."""

    candidate: Candidate
    units: int
    requests: int
    """The first so many of each run."""
    whole: bool
    """Whether that is all of them."""
    seeds: int
    judged: tuple[ObjectiveValue, ...]
    shares: tuple[float, ...]
    """Of each seed the largest share that a value has of its limit."""
    sure: bool
    """Whether a part of the run proves that the whole breaks the SLO."""

    @property
    def share(self) -> float:
        """The largest share that a mean value has of its limit."""
        return max((one.share for one in self.judged), default=math.nan)

    @property
    def looks_kept(self) -> bool:
        """Whether every value is within its limit so far."""
        return not self.sure and all(not one.value > one.objective.limit for one in self.judged)

    @property
    def worst(self) -> ObjectiveValue:
        """The objective that is nearest to its limit, or furthest beyond it."""
        return max(self.judged, key=lambda one: one.share)

    @property
    def verdict(self) -> str:
        """Of the whole run: kept, broken, undecided; of a part: broken where that is proved, else open."""
        if self.sure:
            return "broken"
        verdicts = {one.verdict for one in self.judged}
        if not self.whole:
            return "broken" if "broken" in verdicts else "open"
        return "broken" if "broken" in verdicts else "undecided" if "undecided" in verdicts else "kept"


@dataclass(slots=True, eq=False)
class Prober:
    """Makes the trials of a search; what was run once is not run again."""

    workload: Workload
    objectives: tuple[Objective, ...]
    seeds: tuple[int, ...]
    looks: tuple[int, ...]
    confidence: float
    exact: bool
    """Whether every seed gives the same run."""
    steady: bool
    """Whether a queue that begins empty only grows towards what it is in the long run."""
    causal: bool
    options: Mapping[str, Any]
    threads: int | None
    executor: Executor | None
    records: Records
    deadline: float = math.inf
    simulated: int = 0
    runs: int = 0
    took_s: float = 0.0
    """All runs together, in wall time."""
    trials: dict[tuple[int, int, int], Trial] = field(default_factory=dict)
    _described: dict[int, bool] = field(default_factory=dict)
    _keys: dict[tuple[int, int], str] = field(default_factory=dict)
    _drawn: dict[int, Workload] = field(default_factory=dict)
    _heads: dict[tuple[int, int], Workload] = field(default_factory=dict)

    @property
    def requests(self) -> int:
        """Of one whole run, with the first seed."""
        return self._whole(self.seeds[0]).frame.height

    @property
    def rungs(self) -> tuple[int, ...]:
        """The lengths of runs, each four times the one before, the last the whole."""
        lengths = [self.requests]
        while self.causal and lengths[0] // 4 >= 250:
            lengths.insert(0, -(-lengths[0] // 4))
        return tuple(lengths)

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.deadline

    def ask(self, wanted: Sequence[tuple[Candidate, int, int]]) -> list[Trial]:
        """The trials of some candidates with so many units on so many requests, in their order.

        All take the first seeds; those that are whole and undecided take more, twice as many at a look.
        """
        new = [one for one in dict.fromkeys((c.place, n, h) for c, n, h in wanted) if one not in self.trials]
        of_place = {candidate.place: candidate for candidate, _, _ in wanted}
        open_ = list(new)
        for look in self.looks:
            self._run([(of_place[place], n, h, seed) for place, n, h in open_ for seed in self.seeds[:look]])
            for place, n, h in open_:
                self.trials[place, n, h] = self._trial(of_place[place], n, h, look)
            open_ = [
                one for one in open_ if self.trials[one].whole and self.trials[one].verdict == "undecided"
            ]
            if not open_ or self.late:
                break
        return [self.trials[candidate.place, n, h] for candidate, n, h in wanted]

    def _key(self, candidate: Candidate, units: int) -> str:
        """What a fleet is recorded under: all that it is, or its place where no description says that."""
        place = candidate.place
        if (place, units) not in self._keys:
            if place not in self._described:
                self._described[place] = self.records.is_kept and candidate.is_described
            known = self._described[place]
            self._keys[place, units] = candidate.key(units) if known else f"{place} × {units}"
        return self._keys[place, units]

    def _whole(self, seed: int) -> Workload:
        if seed not in self._drawn:
            self._drawn[seed] = self.workload.draw(seed)
        return self._drawn[seed]

    def _first(self, seed: int, requests: int) -> Workload:
        whole = self._whole(seed)
        if requests >= whole.frame.height:
            return whole
        if (seed, requests) not in self._heads:
            self._heads[seed, requests] = Workload(whole.frame.head(requests))
        return self._heads[seed, requests]

    def _trial(self, candidate: Candidate, units: int, requests: int, seeds: int) -> Trial:
        key = self._key(candidate, units)
        rows = [self.records[key, requests, seed] for seed in self.seeds[:seeds]]
        whole = requests == self.requests
        judged_ = []
        for place, objective in enumerate(self.objectives):
            values = tuple(row[2 * place] for row in rows)
            if not whole and (self.exact or not self.steady or any(map(math.isnan, values))):
                mean = math.fsum(values) / len(values)
                judged_.append(ObjectiveValue(objective, mean, None, None, "undecided"))
                continue
            judged_.append(
                judge(
                    objective,
                    values,
                    exact=self.exact,
                    chance=(1 - self.confidence) / len(self.looks),
                    among=len(self.objectives),
                )
            )
        sure = all(any(row[1::2]) for row in rows)
        shares = tuple(
            max(_share(one, row[2 * place]) for place, one in enumerate(self.objectives)) for row in rows
        )
        return Trial(candidate, units, requests, whole, seeds, tuple(judged_), shares, sure)

    def _run(self, wanted: Sequence[tuple[Candidate, int, int, int]]) -> None:
        """Run what is not there yet, in one go."""
        missing = [
            (candidate, units, requests, seed, key)
            for candidate, units, requests, seed in wanted
            if ((key := self._key(candidate, units)), requests, seed) not in self.records
        ]
        tasks = [
            FleetRun(
                self._first(seed, requests),
                candidate.system(units),
                seed,
                self.objectives,
                self.options,
                self._whole(seed).frame.height,
                self.causal,
            )
            for candidate, units, requests, seed, _ in missing
        ]
        begun = time.monotonic()
        done = self._done(tasks)
        self.took_s += time.monotonic() - begun
        for (_, _, requests, seed, key), task, values in zip(missing, tasks, done, strict=True):
            self.records[key, requests, seed] = values
            self.simulated += task.workload.frame.height
            self.runs += 1
        self.records.write()

    def _done(self, tasks: Sequence[FleetRun]) -> list[tuple[float, ...]]:
        """The values of each task, wherever it is run."""
        if self.executor is None:
            alone = workers(self.threads, len(tasks)) == 1
            return at_once(
                [partial(_local, task, self.threads if alone else 1) for task in tasks], self.threads
            )
        outcomes: dict[int, Outcome] = {}
        items: Iterator[Item] = (Item(place, task) for place, task in enumerate(tasks))
        with opened(self.executor) as (pool, runner):
            run_all(items, FleetRunner(runner.stop), pool, outcomes.__setitem__, lambda: None)
        failed = next((one.error for _, one in sorted(outcomes.items()) if one.error), None)
        if failed is not None:
            raise SimulationError(f"a run failed where it was sent: {failed}")
        return [tuple(map(_number, outcomes[place].summary or ())) for place in range(len(tasks))]


def _local(task: FleetRun, threads: int | None, watch: Progress | None) -> tuple[float, ...]:
    return run_fleet(task, threads, watch)


def _number(value: float | int | None) -> float:
    return math.nan if value is None else float(value)


def _share(objective: Objective, value: float) -> float:
    if objective.limit > 0:
        return value / objective.limit
    return math.inf if value > 0 else 0.0
