"""Many runs side by side on threads, of which nothing reaches a result."""

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
"""Something that takes a while and calls what it is given now and then, as `simulate` calls `progress`."""

_POLL_S = 0.2
"""How long Ctrl-C may go unnoticed where a wait on a lock cannot be interrupted (Windows)."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an experiment: which system, which seed, and what it has that the others have not."""

    system: str
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `simulate` that take the place of the common ones."""


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
    """What `measure` makes of each run, in the order of `runs`.

    The workload of a seed is drawn once and given to every system, so that all serve the same requests. A
    `Result` is dropped as soon as `measure` has taken its numbers from it: at most one a thread is held. A
    scheduler or router written in Python is copied for each run, so that none finds what another has left in
    it.

    Args:
        workload: drawn from the seed of each run.
        systems: by the name that a run says.
        runs: those of one seed next to each other, so that few drawn workloads are held at once.
        measure: called on one of the threads; what it returns should be small.
        threads: how many runs may go on at once; None takes every core. It changes no bit of what comes out.
        progress: told (runs done, runs in all) after each run, in their order.
        options: further arguments of `simulate`, the same for all.

    Raises:
        ConfigError, TraceError, SimulationError: as of `simulate`: that of the first run, in the order of
            `runs`, that raises one. The others are stopped.
        KeyboardInterrupt: Ctrl-C stops all runs at once.

    Example:
        >>> import inferq as iq
        >>> from inferq.experiments.replication import Run, replications
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
        >>> asked = iq.Workload({"arrival_s": [0.0], "prompt_tokens": [10], "output_tokens": [3]})
        >>> runs = [Run("one", seed) for seed in range(3)]
        >>> replications(asked, {"one": engine}, runs, lambda run, result: result.requests["e2e_s"].item())
        [3.0, 3.0, 3.0]
    """
    uses = Counter(run.seed for run in runs)
    drawn = {seed: _Drawn(workload, seed, count) for seed, count in uses.items()}
    alone = workers(threads, len(runs)) == 1

    def task(run: Run) -> Task[T]:
        def go(watch: Progress | None) -> T:
            requests = drawn[run.seed].take()
            result = simulate(
                requests,
                _own(run.system, systems[run.system]),
                seed=run.seed,
                threads=threads if alone else 1,
                progress=watch,
                **{**options, **run.options},
            )
            drawn[run.seed].leave()
            return measure(run, result)

        return go

    return at_once([task(run) for run in runs], threads, progress)


def at_once(
    tasks: Sequence[Task[T]],
    threads: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> list[T]:
    """What each task returns, in their order, done on some threads.

    Args:
        tasks: each is called with a callable that it must call now and then, and which stops it by raising;
            or with None where it runs alone.
        threads: how many may go on at once; None takes every core.
        progress: told (tasks done, tasks in all) after each task, in their order.

    Raises:
        Exception: the first, in the order of tasks, that one raises; the others are stopped.
        KeyboardInterrupt: Ctrl-C stops all of them.

    Example:
        >>> from inferq.experiments.replication import at_once
        >>> at_once([lambda watch: 1, lambda watch: 2], threads=2)
        [1, 2]
    """
    done: list[T] = []

    def told(value: T) -> None:
        done.append(value)
        if progress is not None:
            progress(len(done), len(tasks))

    if (count := workers(threads, len(tasks))) == 1:
        for task in tasks:
            told(task(None))
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
                told(future.result())
        except BaseException:
            stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return done


def workers(threads: int | None, tasks: int) -> int:
    """How many threads so many tasks use: at most `threads`, or the cores that this process may use."""
    return min(cores() if threads is None else whole("threads", threads, 1, 2**16 - 1), max(tasks, 1))


def cores() -> int:
    """How many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every platform
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def is_user_defined(system: System) -> bool:
    """Whether a scheduler or a router of a system is written in Python, and may remember what it has seen."""
    return any(
        any(engine.scheduler.is_user_defined() for engine in pool.engines)
        or (pool.router is not None and pool.router.is_user_defined())
        for pool in pools_of(system)
    )


class _Stopped(Exception):
    """Ends a task whose result is not awaited any more."""


class _Drawn:
    """The requests of a seed: drawn when first asked for, dropped after the last run."""

    def __init__(self, workload: Workload, seed: int, uses: int) -> None:
        self._lock = threading.Lock()
        self._workload, self._seed, self._uses = workload, seed, uses
        self._held: Workload | None = None

    def take(self) -> Workload:
        with self._lock:
            if self._held is None:
                self._held = self._workload.draw(self._seed)
            return self._held

    def leave(self) -> None:
        with self._lock:
            self._uses -= 1
            if self._uses == 0:
                self._held = None


def _own(name: str, system: System) -> System:
    """The system, or a copy where a part of it is written in Python."""
    if not is_user_defined(system):
        return system
    try:
        return copy.deepcopy(system)
    except (TypeError, copy.Error) as error:
        raise ConfigError(
            f"systems.{name}", f"a part written in Python cannot be copied for each run: {error}"
        ) from error
