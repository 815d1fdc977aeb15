"""Executors: where the points of a sweep run, and what becomes of those whose worker dies."""

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
"""So many tasks are handed at once to an executor that does not say how many workers it has."""


class Item(NamedTuple):
    """A task, what its runner takes, and its place in the order of all."""

    place: int
    task: Any


Recorder = Callable[[int, Outcome], None]


class Broken(Exception):
    """The executor takes no more work."""


def chosen(executor: Any) -> Executor | None:
    """The executor that the argument `executor` of `sweep` means: one, a Dask client or the module `ray`.

    Raises:
        ConfigError: it is no executor, or one of forked processes.
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
            f"None, is {executor!r}",
        )
    context = getattr(executor, "_mp_context", None)
    if context is not None and context.get_start_method() == "fork":
        raise ConfigError(
            "executor",
            "its processes are forked, and polars can hang in a forked process; give "
            "ProcessPoolExecutor(…, mp_context=multiprocessing.get_context('spawn'))",
        )
    return executor


@contextmanager
def opened(executor: Executor | None) -> Iterator[tuple[Executor, Runner]]:
    """Where tasks run, and what runs one; None is a pool of threads, which ends with the block.

    Runs that threads of this process are at are stopped when the block ends; an executor that was given is
    left open.
    """
    stop = threading.Event()
    try:
        if executor is None:
            # the core runs without the interpreter's lock, so threads of one process are enough
            pool = ThreadPoolExecutor(cores(), thread_name_prefix="inferq-sweep")
            try:
                yield pool, Runner(stop)
            finally:
                stop.set()
                pool.shutdown(cancel_futures=True)
        else:
            # not a subclass, which may be one of interpreters that share nothing
            yield executor, Runner(stop if type(executor) is ThreadPoolExecutor else None)
    finally:
        stop.set()


class _ClusterExecutor(Executor):
    """A way to a cluster that others have started: calls in flight, and what leaving them means."""

    def __init__(self) -> None:
        self._open: set[Future[Any]] = set()

    def _opened(self, cancel: Callable[[], object]) -> Future[Any]:
        """A future for one more call; `cancel` withdraws it from the cluster."""
        future: Future[Any] = Future()

        def ended(future: Future[Any]) -> None:
            self._open.discard(future)
            if future.cancelled():
                cancel()

        self._open.add(future)
        future.add_done_callback(ended)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the cluster as it is, without the calls that have not ended if `cancel_futures`."""
        if cancel_futures:
            for future in list(self._open):
                future.cancel()


def _settle(future: Future[Any], result: Callable[[], Any]) -> None:
    """Give a future what the call has come to, unless it was cancelled."""
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(result())
        except Exception as error:
            future.set_exception(error)


class DaskExecutor(_ClusterExecutor):
    """Tasks on a Dask cluster; `sweep(…, executor=client)` makes one.

    A task whose worker dies is run again by Dask. Its own executor, `client.get_executor()`, takes a result
    that was lost with its worker for an error of the task; this one waits until it is computed again.

    Example:
        >>> from inferq.experiments.sweeps.executors import DaskExecutor
        >>> DaskExecutor(client)  # doctest: +SKIP
    """

    def __init__(self, client: Any) -> None:
        """A way to the cluster of a `dask.distributed.Client`."""
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

    A task whose worker dies is run again by Ray, three times unless told otherwise.

    Example:
        >>> from inferq.experiments.sweeps.executors import RayExecutor
        >>> RayExecutor(num_cpus=2)  # doctest: +SKIP
    """

    def __init__(self, **options: Any) -> None:
        """A way to the cluster that `ray.init` has connected to, or to a new one on this machine.

        Args:
            options: of `ray.remote`, such as `num_cpus`, `memory` or `max_retries`.

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
        reference.future().add_done_callback(lambda there: _settle(future, there.result))
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
    """Run every task, and record each outcome as soon as it is there.

    A process pool is broken for good when one of its workers dies. The tasks that it then had in hand are run
    one by one in a new pool of the same kind; one that kills its worker there too is recorded as failed.

    Args:
        items: taken as workers come free, never all at once.
        runner: what runs a task.
        executor: where.
        record: gets the place and the outcome of a task.
        between: called after each outcome and at least every fifth of a second.

    Raises:
        Broken: the executor takes no more work.
        BaseException: of `record` and `between`, and Ctrl-C; outcomes that were there are recorded first.
    """
    finished = 0

    def noted(place: int, outcome: Outcome) -> None:
        nonlocal finished
        finished += 1
        record(place, outcome)

    pool = executor
    try:
        while lost := _through(items, runner, pool, noted, between):
            if not isinstance(executor, ProcessPoolExecutor):
                raise Broken("its workers died")
            warnings.warn(
                f"sweep: a worker process died; the points that it may have had are run again, {len(lost)} "
                "of them, and the rest in a new pool",
                RuntimeWarning,
                stacklevel=4,
            )
            pool = _renewed(executor, pool)
            guilty = []
            for item in lost:
                if _through(iter([item]), runner, pool, noted, between):
                    guilty.append(item)
                    pool = _renewed(executor, pool)
            if not finished:
                raise Broken(
                    "its processes die before any point is done; the function of a notebook, or of a script "
                    'without `if __name__ == "__main__":`, cannot be found by another process: put it into '
                    "a module, or run the sweep without executor"
                )
            for item in guilty:
                noted(item.place, Outcome(error="BrokenProcessPool: the worker process died twice"))
    finally:
        if pool is not executor:
            pool.shutdown(wait=False, cancel_futures=True)


def _renewed(executor: ProcessPoolExecutor, broken: Executor) -> ProcessPoolExecutor:
    """A new pool like `executor`, instead of one that is broken."""
    if broken is not executor:
        broken.shutdown(wait=False)
    return ProcessPoolExecutor(
        getattr(executor, "_max_workers", None),
        mp_context=getattr(executor, "_mp_context", None),
        initializer=getattr(executor, "_initializer", None),
        initargs=getattr(executor, "_initargs", ()),
    )


def _through(
    items: Iterator[Item],
    runner: Callable[[Any], Outcome],
    executor: Executor,
    record: Recorder,
    between: Callable[[], None],
) -> list[Item]:
    """Run tasks until there are none, or until a process pool breaks: then those that it had in hand."""
    most = 2 * getattr(executor, "_max_workers", _MOST_UNKNOWN // 2)
    ended: SimpleQueue[Future[Outcome]] = SimpleQueue()
    pending: dict[Future[Outcome], Item] = {}
    lost: list[Item] = []

    def settle(future: Future[Outcome]) -> None:
        item = pending.pop(future)
        if future.cancelled():
            raise Broken("it cancelled what it was given")
        error = future.exception()
        if error is None:
            record(item.place, future.result())
        elif isinstance(error, BrokenProcessPool):
            lost.append(item)
        elif isinstance(error, BrokenExecutor):
            raise Broken(failure(error))
        elif isinstance(error, Exception):  # of the way to the worker and back: the task raises none
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
