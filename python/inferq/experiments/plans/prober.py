"""Runs of fleets, on threads or an executor. Each run happens once; a file can store its values."""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from inferq._lazy import np
from inferq.errors import ConfigError, SimulationError
from inferq.experiments.objective_value import ObjectiveValue, evaluate, overall, share_of
from inferq.experiments.plans.candidate import Candidate
from inferq.experiments.plans.records import Records
from inferq.experiments.replication import is_user_defined, run_tasks, workers
from inferq.experiments.sweeps.executors import Item, opened, run_all
from inferq.experiments.sweeps.point import Outcome, Stopped
from inferq.progress import Progress
from inferq.results.result import Result
from inferq.results.slo import FAILED, Objective, measured
from inferq.results.tables import STATUSES
from inferq.simulation.simulate import simulate
from inferq.systems.system import System
from inferq.workload.columns import MOST_SECONDS
from inferq.workload.workload import Workload

_ROUNDING, _TABLES = 1 + 1e-6, 1.05
"""Smallest value relative to its limit that `Prober.idle` counts as a violation."""
_APART_S = 1e4
"""Seconds between requests that meet idle replicas."""
_COLUMN = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "max_itl_s", "e2e": "e2e_s", "queue": "queue_s"}
_KNOWN_AT = {
    **{"ttft": "first_token_s", "queue": "admitted_s"},
    **dict.fromkeys(("tpot", "itl", "e2e"), "finish_s"),
}
"""Column with the instant at which a quantity of a request is known."""


@dataclass(frozen=True, slots=True)
class FleetRun:
    """One run of a fleet, as values that can be pickled."""

    workload: Workload
    system: System
    seed: int
    objectives: tuple[Objective, ...]
    options: Mapping[str, Any]
    of: int
    """Requests of the whole run. A partial run has fewer."""
    causal: bool
    """Whether later requests cannot affect earlier ones, so that a partial run can prove a violation."""


@dataclass(frozen=True, slots=True)
class FleetRunner:
    """Runs tasks. A runner in the process of the search stops when `stop` is set."""

    stop: threading.Event | None = None

    def __call__(self, task: FleetRun) -> Outcome:
        """The numbers of `run_fleet`."""
        progress = None if self.stop is None else self._watch
        return Outcome(run_fleet(task, 1, progress))

    def _watch(self, _done: int, _total: int) -> None:
        if self.stop is not None and self.stop.is_set():
            raise Stopped


def run_fleet(task: FleetRun, threads: int | None, progress: Progress | None) -> tuple[float, ...]:
    """The value of each objective in a run, followed by 1.0 if a violation is proved, else 0.0.

    The last number is 1.0 if the run is overloaded.
    """
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
        values = (math.nan,) * len(task.objectives)  # a class without requests in this part
    proved = [
        is_part and task.causal and is_surely_violated(objective, result, task.of)
        for objective in task.objectives
    ]
    overloaded = any(finding.kind == "overload" for finding in result._tables.findings)
    return (
        *(float(number) for pair in zip(values, proved, strict=True) for number in pair),
        float(overloaded),
    )


def is_surely_violated(objective: Objective, result: Result, of: int) -> bool:
    """Whether a partial run proves that the whole run violates an objective.

    Until the last request of the part arrives, both runs are equal: the future does not change the past
    (invariant L11). If percentile q of `of` requests is above its limit, at most ⌊q·(of − 1)⌋ requests are at
    or below the limit. So `of − ⌊q·(of − 1)⌋` requests above the limit are proof. The proof for a mean is the
    sum, for a maximum a single request.

    Args:
        objective: the objective.
        result: the run of the first requests.
        of: requests of the whole run.
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
        return False  # percentiles of ITL count tokens, whose number is not known yet
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
    """A fleet on a number of requests."""

    candidate: Candidate
    units: int
    requests: int
    """Number of requests, from the start of the workload."""
    whole: bool
    """Whether these are all requests."""
    seeds: int
    values: tuple[ObjectiveValue, ...]
    shares: tuple[float, ...]
    """For each seed the largest value divided by its limit."""
    is_proof: bool
    """Whether a partial run proves that the whole run violates the SLO."""
    overloaded: float = 0.0
    """Share of the seeds whose run is overloaded, for a plan about a rate; else 0."""

    @property
    def share(self) -> float:
        """The largest mean value divided by its limit."""
        return max((value.share for value in self.values), default=math.nan)

    @property
    def looks_met(self) -> bool:
        """Whether every value is within its limit so far."""
        if self.is_proof or (self.whole and self.overloaded):
            return False
        return all(not value.value > value.objective.limit for value in self.values)

    @property
    def worst(self) -> ObjectiveValue:
        """The objective with the largest value relative to its limit."""
        return max(self.values, key=lambda value: value.share)

    @property
    def evidence(self) -> str:
        """What was observed: the worst objective, or that the queue grew."""
        if self.whole and self.overloaded and overall(self.values) != "violated":
            return f"the queue grows throughout the run (overload), although {self.worst}"
        return str(self.worst)

    @property
    def verdict(self) -> str:
        """`"met"`, `"violated"` or `"undecided"` for a whole run; `"violated"` or `"open"` for a part."""
        if self.is_proof:
            return "violated"
        verdict = overall(self.values)
        if self.whole and verdict != "violated" and self.overloaded:
            return "violated" if self.overloaded == 1 else "undecided"
        return verdict if self.whole or verdict == "violated" else "open"


@dataclass(slots=True, eq=False)
class Prober:
    """Makes the trials of a search. No run is repeated."""

    workload: Workload
    objectives: tuple[Objective, ...]
    seeds: tuple[int, ...]
    looks: tuple[int, ...]
    confidence: float
    exact: bool
    """Whether every seed gives the same run."""
    steady: bool
    """Whether a queue that starts empty grows monotonically towards its stationary length."""
    causal: bool
    about_rate: bool
    """Whether a fleet with an overloaded run does not meet the SLO."""
    options: Mapping[str, Any]
    threads: int | None
    executor: Executor | None
    records: Records
    deadline: float = math.inf
    simulated: int = 0
    runs: int = 0
    trials: dict[tuple[int, int, int], Trial] = field(default_factory=dict)
    _serializable: dict[int, bool] = field(default_factory=dict)
    _keys: dict[tuple[int, int], str] = field(default_factory=dict)
    _drawn: dict[int, Workload] = field(default_factory=dict)
    _heads: dict[tuple[int, int], Workload] = field(default_factory=dict)
    label: str = ""
    """Prefix of the keys of runs, to separate workloads in one file."""

    @property
    def requests(self) -> int:
        """Requests of a whole run with the first seed."""
        return self.workload_of(self.seeds[0]).frame.height

    @property
    def rungs(self) -> tuple[int, ...]:
        """Lengths of runs in requests, each four times the one before; the last is the whole workload."""
        lengths = [self.requests]
        while self.causal and lengths[0] // 4 >= 250:
            lengths.insert(0, -(-lengths[0] // 4))
        return tuple(lengths)

    @property
    def late(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() > self.deadline

    def run(self, wanted: Sequence[tuple[Candidate, int, int]]) -> list[Trial]:
        """The trials of candidates, each with a number of units and of requests, in the given order.

        All use the first seeds. Whole trials that are undecided use more seeds, up to twice as many per look.
        """
        candidates = {candidate.place: candidate for candidate, _, _ in wanted}
        keys = dict.fromkeys((candidate.place, units, requests) for candidate, units, requests in wanted)
        pending = [key for key in keys if key not in self.trials]
        for look in self.looks:
            self._simulate(
                [
                    (candidates[place], units, requests, seed)
                    for place, units, requests in pending
                    for seed in self.seeds[:look]
                ]
            )
            for place, units, requests in pending:
                trial = self._trial(candidates[place], units, requests, look)
                self.trials[place, units, requests] = trial
            pending = [
                key for key in pending if self.trials[key].whole and self.trials[key].verdict == "undecided"
            ]
            if not pending or self.late:
                break
        return [self.trials[candidate.place, units, requests] for candidate, units, requests in wanted]

    def _key(self, candidate: Candidate, units: int) -> str:
        """The key of a fleet in the records: of its JSON, or its place if JSON does not describe it."""
        place = candidate.place
        if (place, units) not in self._keys:
            if place not in self._serializable:
                self._serializable[place] = self.records.has_file and candidate.is_serializable
            by_json = self._serializable[place]
            key = candidate.key(max(units, 1)) if by_json else f"{place} × {max(units, 1)}"
            self._keys[place, units] = f"{self.label}{'' if units else 'idle '}{key}"
        return self._keys[place, units]

    def workload_of(self, seed: int) -> Workload:
        """The requests of a seed."""
        if seed not in self._drawn:
            self._drawn[seed] = self.workload.draw(seed)
        return self._drawn[seed]

    def idle(self, candidates: Sequence[Candidate]) -> list[Trial | None]:
        """For each candidate the latencies of single requests on idle replicas, if they violate the SLO.

        The requests run one after the other on one unit. So no latency is shorter with any number of
        replicas, if iterations of more tokens are not shorter and the policy does not wait for more requests.
        For prompts with shared content the KV cache is unlimited, so that it holds every earlier prompt.
        Iteration times of measured tables are not strictly increasing: there, a value must be 5 % above its
        limit. None if the SLO is met, or if the hypotheses are not known to hold.
        """
        lengths = dict.fromkeys((self.rungs[0], self.requests))
        trials: dict[int, Trial | None] = {candidate.place: None for candidate in candidates}
        active = [candidate for candidate in candidates if serves_at_once(candidate)]
        for requests in lengths:
            seeds = self.seeds[: self.looks[0]]
            self._simulate([(candidate, 0, requests, seed) for candidate in active for seed in seeds])
            trials |= {
                candidate.place: self._trial(candidate, 0, requests, len(seeds)) for candidate in active
            }
            active = [
                candidate
                for candidate in active
                if (trial := trials[candidate.place]) is not None
                and min(trial.shares) > (_ROUNDING if candidate.has_monotone_timing else _TABLES)
            ]
        violated = {candidate.place for candidate in active}
        return [trials[candidate.place] if candidate.place in violated else None for candidate in candidates]

    def _idle(self, seed: int, requests: int) -> Workload:
        """The first requests, so far apart that each meets an idle replica."""
        frame = self._first(seed, requests).frame.drop("think_s", strict=False)
        gap_s = min(_APART_S, MOST_SECONDS / 2 / frame.height)
        return Workload(frame.with_columns(arrival_s=np.arange(frame.height) * gap_s))

    def _first(self, seed: int, requests: int) -> Workload:
        whole = self.workload_of(seed)
        if requests >= whole.frame.height:
            return whole
        if (seed, requests) not in self._heads:
            self._heads[seed, requests] = Workload(whole.frame.head(requests))
        return self._heads[seed, requests]

    def _trial(self, candidate: Candidate, units: int, requests: int, seeds: int) -> Trial:
        key = self._key(candidate, units)
        rows = [self.records[key, requests, seed] for seed in self.seeds[:seeds]]
        whole = requests == self.requests
        values_of = []
        for place, objective in enumerate(self.objectives):
            values = tuple(row[2 * place] for row in rows)
            if not whole and (self.exact or not self.steady or any(map(math.isnan, values))):
                mean = math.fsum(values) / len(values)
                values_of.append(ObjectiveValue(objective, mean, None, None, "undecided"))
                continue
            values_of.append(
                evaluate(
                    objective,
                    values,
                    exact=self.exact,
                    chance=(1 - self.confidence) / len(self.looks),
                    among=len(self.objectives),
                )
            )
        is_proof = all(any(row[1:-1:2]) for row in rows)
        overloaded = math.fsum(row[-1] for row in rows) / len(rows) if self.about_rate else 0.0
        shares = tuple(
            max(share_of(objective, row[2 * place]) for place, objective in enumerate(self.objectives))
            for row in rows
        )
        return Trial(candidate, units, requests, whole, seeds, tuple(values_of), shares, is_proof, overloaded)

    def _simulate(self, wanted: Sequence[tuple[Candidate, int, int, int]]) -> None:
        """Run what is not recorded yet."""
        missing = [
            (candidate, units, requests, seed, key)
            for candidate, units, requests, seed in wanted
            if ((key := self._key(candidate, units)), requests, seed) not in self.records
        ]
        tasks = [
            FleetRun(
                self._first(seed, requests) if units else self._idle(seed, requests),
                candidate.system(units) if units else idle_system(candidate, self.workload_of(seed)),
                seed,
                self.objectives,
                self.options,
                self.workload_of(seed).frame.height,
                self.causal,
            )
            for candidate, units, requests, seed, _ in missing
        ]
        for (_, _, requests, seed, key), task, values in zip(
            missing, tasks, self._values(tasks), strict=True
        ):
            self.records[key, requests, seed] = values
            self.simulated += task.workload.frame.height
            self.runs += 1
        self.records.write()

    def _values(self, tasks: Sequence[FleetRun]) -> list[tuple[float, ...]]:
        """The values of each task, run on threads or by the executor."""
        if self.executor is None:
            threads = self.threads if workers(self.threads, len(tasks)) == 1 else 1
            return run_tasks([partial(run_fleet, task, threads) for task in tasks], self.threads)
        outcomes: dict[int, Outcome] = {}
        items: Iterator[Item] = (Item(place, task) for place, task in enumerate(tasks))
        with opened(self.executor) as (pool, runner):
            run_all(items, FleetRunner(runner.stop), pool, outcomes.__setitem__, lambda: None)
        error = next((outcome.error for _, outcome in sorted(outcomes.items()) if outcome.error), None)
        if error is not None:
            raise SimulationError(f"a run failed in the executor: {error}")
        return [tuple(map(_number, outcomes[place].summary or ())) for place in range(len(tasks))]


def serves_at_once(candidate: Candidate) -> bool:
    """Whether the scheduler is known to start a request on an idle replica without waiting for others."""
    scheduler = candidate.engine.scheduler
    if scheduler.is_user_defined() or scheduler.waits_for_full_batches():
        return False
    is_known = scheduler.serves_oldest() or scheduler.is_asynchronous()
    return is_known or scheduler.fills_budget().holds is True


def idle_system(candidate: Candidate, workload: Workload) -> System:
    """One unit of a candidate. Its KV cache is unlimited if prompts share content, so nothing is evicted."""
    if not {"prefix_hashes", "prefix_parts", "continues", "session_id"} & set(workload.frame.columns):
        return candidate.system(1)
    engine = candidate.engine
    return candidate.system(1, replace(engine, kv=replace(engine.kv, tokens=None)))


def _number(value: float | int | None) -> float:
    return math.nan if value is None else float(value)
