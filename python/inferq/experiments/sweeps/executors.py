"""Executors of sweeps, and the handling of workers that die."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from importlib import import_module
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any, NamedTuple

from inferq.errors import ConfigError
from inferq.experiments.replication import cores
from inferq.experiments.sweeps.point import Outcome, Runner, failure

_POLL_S = 0.2
_MOST_UNKNOWN = 1024
"""Tasks in flight if the executor does not report its number of workers."""


class Item(NamedTuple):
    """A task for a runner, and its place in the order."""

    place: int
    task: Any


Recorder = Callable[[int, Outcome], None]


class Broken(Exception):
    """The executor accepts no more tasks."""


def chosen(executor: Any) -> Executor | None:
    """The executor for the argument `executor` of `sweep`.

    Raises:
        ConfigError: it is not an executor, or its processes are forked.
    """
    if executor is None:
        return None
    if isinstance(executor, ModuleType) and executor.__name__ == "ray":
        return RayExecutor()
    distributed = sys.modules.get("distributed")
    if distributed is not None and isinstance(executor, distributed.Client):
        return DaskExecutor(executor)
    if not isinstance(executor, Executor):
        raise ConfigError(
            "executor",
            "must be a concurrent.futures.Executor, a dask.distributed.Client, the module ray or "
            f"None, got {executor!r}",
        )
    context = getattr(executor, "_mp_context", None)
    if context is not None and context.get_start_method() == "fork":
        raise ConfigError(
            "executor",
            "uses forked processes, in which polars can hang; use "
            "ProcessPoolExecutor(…, mp_context=multiprocessing.get_context('spawn'))",
        )
    return executor


@contextmanager
def opened(executor: Executor | None) -> Iterator[tuple[Executor, Runner]]:
    """Yield the executor and the runner of tasks. None is a thread pool, closed at the end of the block.

    Runs on threads of this process stop at the end of the block. A given executor stays open.
    """
    stop = threading.Event()
    try:
        if executor is None:
            # The core runs without the GIL, so threads of one process are sufficient.
            pool = ThreadPoolExecutor(cores(), thread_name_prefix="inferq-sweep")
            try:
                yield pool, Runner(stop)
            finally:
                stop.set()
                pool.shutdown(cancel_futures=True)
        else:
            # Subclasses may use interpreters that share nothing.
            yield executor, Runner(stop if type(executor) is ThreadPoolExecutor else None)
    finally:
        stop.set()


class _ClusterExecutor(Executor):
    """Calls in flight on a cluster that was started elsewhere."""

    def __init__(self) -> None:
        self._open: set[Future[Any]] = set()

    def _opened(self, cancel: Callable[[], object]) -> Future[Any]:
        """A future for a new call; `cancel` cancels it on the cluster."""
        future: Future[Any] = Future()

        def ended(future: Future[Any]) -> None:
            self._open.discard(future)
            if future.cancelled():
                cancel()

        self._open.add(future)
        future.add_done_callback(ended)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the cluster running. `cancel_futures` cancels unfinished calls."""
        if cancel_futures:
            for future in list(self._open):
                future.cancel()


def _settle(future: Future[Any], result: Callable[[], Any]) -> None:
    """Set the result or the exception of a future, unless it was cancelled."""
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(result())
        except Exception as error:
            future.set_exception(error)


class DaskExecutor(_ClusterExecutor):
    """Tasks on a Dask cluster, as made by `sweep(…, executor=client)`.

    Dask reruns a task whose worker dies. Dask's own `client.get_executor()` reports a result lost with its
    worker as an error of the task; this executor waits until the result is recomputed.

    Example:
        >>> from inferq.experiments.sweeps.executors import DaskExecutor
        >>> DaskExecutor(client)  # doctest: +SKIP
    """

    def __init__(self, client: Any) -> None:
        """Use the cluster of a `dask.distributed.Client`."""
        super().__init__()
        self._client = client

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a call on the cluster.

        Raises:
            RuntimeError: the client is closed.
        """
        task = self._client.submit(fn, *args, **kwargs, pure=False)
        future = self._opened(task.cancel)

        def ended(task: Any) -> None:
            if task.cancelled():
                future.cancel()
            _settle(future, task.result)

        task.add_done_callback(ended)
        return future


class RayExecutor(_ClusterExecutor):
    """Tasks on a Ray cluster; `sweep(…, executor=ray)` makes one without options.

    Ray reruns a task whose worker dies. Default: three times.

    Example:
        >>> from inferq.experiments.sweeps.executors import RayExecutor
        >>> RayExecutor(num_cpus=2)  # doctest: +SKIP
    """

    def __init__(self, **options: Any) -> None:
        """Use the cluster of `ray.init`, or a new one on this machine.

        Args:
            options: options of `ray.remote`, such as `num_cpus`, `memory` or `max_retries`.

        Raises:
            ConfigError: Ray is not installed.
        """
        super().__init__()
        try:
            self._ray: Any = import_module("ray")
        except ImportError:
            raise ConfigError("executor", "Ray is not installed: pip install 'inferq[ray]'") from None
        self._remote = self._ray.remote(**options)(_call) if options else self._ray.remote(_call)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a call on the cluster."""
        reference = self._remote.remote(fn, args, kwargs)
        future = self._opened(lambda: self._ray.cancel(reference))
        reference.future().add_done_callback(lambda done: _settle(future, done.result))
        return future


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)


def run_all(
    items: Iterator[Item],
    runner: Callable[[Any], Outcome],
    executor: Executor,
    record: Recorder,
    between: Callable[[], None],
) -> None:
    """Run all tasks and record each outcome when it is available.

    A process pool breaks permanently when one of its workers dies. Its unfinished tasks are rerun one by one
    in a new pool. A task that kills its worker again is recorded as failed.

    Args:
        items: read when workers become free.
        runner: runs a task.
        executor: where tasks run.
        record: called with the place and the outcome of a task.
        between: called after each outcome, and at least every 0.2 s.

    Raises:
        Broken: the executor accepts no more tasks.
        BaseException: from `record`, `between` or Ctrl-C, after available outcomes are recorded.
    """
    finished = 0

    def count(place: int, outcome: Outcome) -> None:
        nonlocal finished
        finished += 1
        record(place, outcome)

    pool = executor
    try:
        while lost := _run_until_broken(items, runner, pool, count, between):
            if not isinstance(executor, ProcessPoolExecutor):
                raise Broken("its workers died")
            warnings.warn(
                f"sweep: a worker process died; {len(lost)} points are rerun, the rest runs in a new pool",
                RuntimeWarning,
                stacklevel=4,
            )
            pool = _renewed(executor, pool)
            guilty = []
            for item in lost:
                if _run_until_broken(iter([item]), runner, pool, count, between):
                    guilty.append(item)
                    pool = _renewed(executor, pool)
            if not finished:
                raise Broken(
                    "its processes die before any point is done. Other processes cannot import a function of "
                    'a notebook, or of a script without `if __name__ == "__main__":`. Move it to a module, '
                    "or run the sweep without executor"
                )
            for item in guilty:
                count(item.place, Outcome(error="BrokenProcessPool: the worker process died twice"))
    finally:
        if pool is not executor:
            pool.shutdown(wait=False, cancel_futures=True)


def _renewed(executor: ProcessPoolExecutor, broken: Executor) -> ProcessPoolExecutor:
    """A new pool with the settings of `executor`."""
    if broken is not executor:
        broken.shutdown(wait=False)
    return ProcessPoolExecutor(
        getattr(executor, "_max_workers", None),
        mp_context=getattr(executor, "_mp_context", None),
        initializer=getattr(executor, "_initializer", None),
        initargs=getattr(executor, "_initargs", ()),
    )


def _run_until_broken(
    items: Iterator[Item],
    runner: Callable[[Any], Outcome],
    executor: Executor,
    record: Recorder,
    between: Callable[[], None],
) -> list[Item]:
    """Run all tasks; if a process pool breaks, return its unfinished tasks."""
    most = 2 * getattr(executor, "_max_workers", _MOST_UNKNOWN // 2)
    ended: SimpleQueue[Future[Outcome]] = SimpleQueue()
    pending: dict[Future[Outcome], Item] = {}
    lost: list[Item] = []

    def settle(future: Future[Outcome]) -> None:
        item = pending.pop(future)
        if future.cancelled():
            raise Broken("it cancelled tasks")
        error = future.exception()
        if error is None:
            record(item.place, future.result())
        elif isinstance(error, BrokenProcessPool):
            lost.append(item)
        elif isinstance(error, BrokenExecutor):
            raise Broken(failure(error))
        elif isinstance(error, Exception):  # from the transport; tasks record their own errors
            record(item.place, Outcome(error=failure(error)))
        else:
            raise error

    try:
        while True:
            while len(pending) < most and not lost and (item := next(items, None)) is not None:
                try:
                    future = executor.submit(runner, item.task)
                except BrokenProcessPool:
                    lost.append(item)
                    break
                except RuntimeError as error:
                    raise Broken(str(error)) from None
                pending[future] = item
                future.add_done_callback(ended.put)
            if not pending:
                return sorted(lost, key=lambda item: item.place)
            with suppress(Empty):
                settle(ended.get(timeout=_POLL_S))
            between()
    except BaseException:
        for future, item in pending.items():
            if not future.cancel() and future.done() and future.exception() is None:
                record(item.place, future.result())
        raise
