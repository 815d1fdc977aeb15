"""Concurrent runs on threads; the number of threads does not affect any result."""

from __future__ import annotations

import copy
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, TypeVar

from inferq.checks import whole
from inferq.errors import ConfigError
from inferq.progress import Progress
from inferq.results.result import Result
from inferq.simulation.simulate import simulate
from inferq.systems.pools import pools_of
from inferq.systems.system import System
from inferq.workload.workload import Workload

T = TypeVar("T")

Task = Callable[["Progress | None"], T]
"""A long function that regularly calls its argument, as `simulate` calls `progress`."""

_POLL_S = 0.2
"""Longest delay of Ctrl-C on Windows, where waiting for a lock cannot be interrupted."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an experiment."""

    system: str
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `simulate` that override the common ones."""


def replications(
    workload: Workload,
    systems: Mapping[str, System],
    runs: Sequence[Run],
    measure: Callable[[Run, Result], T],
    *,
    threads: int | None = None,
    progress: Callable[[int, int], object] | None = None,
    **options: Any,
) -> list[T]:
    """Return the measurement of each run, in the order of `runs`.

    The workload of a seed is drawn once, so that all systems serve the same requests. A `Result` is dropped
    after its measurement: at most one per thread is in memory. A scheduler or router written in Python is
    copied for each run, so that runs do not share its state.

    Args:
        workload: drawn with the seed of each run.
        systems: systems by name.
        runs: the runs, sorted by seed to keep few drawn workloads in memory.
        measure: called on a thread; its return value should be small.
        threads: concurrent runs. Default: all cores. It does not change the result.
        progress: called with (runs done, runs in total) after each run, in order.
        options: further arguments of `simulate`, for all runs.

    Raises:
        ConfigError, TraceError, SimulationError: as for `simulate`, from the first run that fails in the
            order of `runs`. The other runs are stopped.
        KeyboardInterrupt: Ctrl-C stops all runs immediately.

    Example:
        >>> import inferq as iq
        >>> from inferq.experiments.replication import Run, replications
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
        >>> workload = iq.Workload({"arrival_s": [0.0], "prompt_tokens": [10], "output_tokens": [3]})
        >>> runs = [Run("one", seed) for seed in range(3)]
        >>> replications(workload, {"one": engine}, runs, lambda run, result: result.requests["e2e_s"].item())
        [3.0, 3.0, 3.0]
    """
    uses = Counter(run.seed for run in runs)
    drawn = {seed: _Drawn(workload, seed, count) for seed, count in uses.items()}
    is_sequential = workers(threads, len(runs)) == 1

    def task(run: Run) -> Task[T]:
        def run_once(watch: Progress | None) -> T:
            requests = drawn[run.seed].take()
            result = simulate(
                requests,
                _own(run.system, systems[run.system]),
                seed=run.seed,
                threads=threads if is_sequential else 1,
                progress=watch,
                **{**options, **run.options},
            )
            drawn[run.seed].release()
            return measure(run, result)

        return run_once

    return run_tasks([task(run) for run in runs], threads, progress)


def run_tasks(
    tasks: Sequence[Task[T]],
    threads: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> list[T]:
    """Run tasks on threads and return their values, in order.

    Args:
        tasks: each is called with a callable that it must call regularly and that raises to stop it; or with
            None if tasks run one after the other.
        threads: concurrent tasks. Default: all cores.
        progress: called with (tasks done, tasks in total) after each task, in order.

    Raises:
        Exception: from the first task that fails, in order. The other tasks are stopped.
        KeyboardInterrupt: Ctrl-C stops all tasks.

    Example:
        >>> from inferq.experiments.replication import run_tasks
        >>> run_tasks([lambda watch: 1, lambda watch: 2], threads=2)
        [1, 2]
    """
    done: list[T] = []

    def finish(value: T) -> None:
        done.append(value)
        if progress is not None:
            progress(len(done), len(tasks))

    if (count := workers(threads, len(tasks))) == 1:
        for task in tasks:
            finish(task(None))
        return done
    stopped = threading.Event()

    def watch(finished: int, total: int) -> None:
        if stopped.is_set():
            raise _Stopped

    with ThreadPoolExecutor(count) as pool:
        futures: list[Future[T]] = [pool.submit(task, watch) for task in tasks]
        try:
            for future in futures:
                while not future.done():
                    wait([future], timeout=_POLL_S)
                finish(future.result())
        except BaseException:
            stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return done


def workers(threads: int | None, tasks: int) -> int:
    """Threads that are used for a number of tasks: at most `threads`, or all cores."""
    return min(cores() if threads is None else whole("threads", threads, 1, 2**16 - 1), max(tasks, 1))


def cores() -> int:
    """Cores available to this process."""
    affinity = getattr(os, "sched_getaffinity", None)  # not available on all platforms
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def is_user_defined(system: System) -> bool:
    """Whether a scheduler or a router of a system is written in Python and may have state."""
    return any(
        any(engine.scheduler.is_user_defined() for engine in pool.engines)
        or (pool.router is not None and pool.router.is_user_defined())
        for pool in pools_of(system)
    )


class _Stopped(Exception):
    """Ends a task whose result is not needed."""


class _Drawn:
    """The requests of a seed, drawn for the first run and dropped after the last."""

    def __init__(self, workload: Workload, seed: int, uses: int) -> None:
        self._lock = threading.Lock()
        self._workload, self._seed, self._uses = workload, seed, uses
        self._requests: Workload | None = None

    def take(self) -> Workload:
        with self._lock:
            if self._requests is None:
                self._requests = self._workload.draw(self._seed)
            return self._requests

    def release(self) -> None:
        with self._lock:
            self._uses -= 1
            if self._uses == 0:
                self._requests = None


def _own(name: str, system: System) -> System:
    """The system, or a copy if a part of it is written in Python."""
    if not is_user_defined(system):
        return system
    try:
        return copy.deepcopy(system)
    except (TypeError, copy.Error) as error:
        raise ConfigError(
            f"systems.{name}", f"a part written in Python cannot be copied for each run: {error}"
        ) from error
