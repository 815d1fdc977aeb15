"""`inferq.sweep`: runs of a scenario over a grid of settings."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from inferq._lazy import pl
from inferq.errors import ConfigError, SweepInterrupted, SweepStopped
from inferq.experiments.arguments import seeds_of
from inferq.experiments.sweeps.axes import Axis, PointKey, axes_of, keys, points
from inferq.experiments.sweeps.checkpoint import Checkpoint
from inferq.experiments.sweeps.executors import Broken, Item, chosen, opened, run_all
from inferq.experiments.sweeps.fingerprint import fingerprint
from inferq.experiments.sweeps.point import Outcome, PointRun, Source, failure, first_seed, source_of
from inferq.files import locked
from inferq.inputs import path_of
from inferq.progress import Progress, watched
from inferq.results.summary import objectives


def sweep(
    scenario: Callable[..., Any] | str | os.PathLike[str],
    /,
    *,
    seeds: Iterable[int] | int | None = None,
    slo: Mapping[str, float | None] | None = None,
    executor: Any = None,
    resume: str | os.PathLike[str] | None = None,
    key: str | None = None,
    progress: bool | Progress | None = None,
    **grid: Iterable[Any],
) -> pl.DataFrame:
    """Run a scenario at every point of a grid with every seed; one row per run.

    The frame is identical for all executors and orders of execution. A point that raises becomes a row with
    its error, and the sweep continues.

    Args:
        scenario: a function with the names of the grid as keyword arguments that returns `(workload,
            system)`, `(workload, system, options)` with options of `simulate`, or a `Scenario`; or the path
            of a TOML file whose fields the grid sets. The function is called once per run, concurrently from
            threads.
        seeds: seeds of every point. Default: the seed of the file, or 0. The same seed draws the same
            requests at every point with the same distributions.
        slo: objectives in seconds for `request_goodput`, as for `Result.summary`.
        executor: a `concurrent.futures.Executor`, a `dask.distributed.Client`, or the module `ray`; see
            `docs/guides/parameter-sweeps.md`. It stays open. Default: threads of this process, one per core.
            A run uses one thread unless its options set `threads`.
        resume: a Parquet file that stores finished points, written atomically about once a second, at the
            end, and on Ctrl-C. Finished points are not rerun; failed points are. A file of another scenario
            or of other values is refused. The file is locked during a sweep.
        key: identifies the version of the function in the file to resume from; change it when the function
            changes. Default: the source file of the function, which must be at the top level of a module.
        progress: True shows a bar on a terminal after 0.5 s. A callable is called with (points done, points
            in total).
        grid: a list of values per name. Points are their product in the given order; the last name varies
            fastest, seeds even faster. Values are numbers, texts, None, or objects with a stable `repr` such
            as `iq.Sarathi(token_budget=512)`. Recorded workloads, and values with the same `repr`, have a
            short digest appended.

    Returns:
        A polars frame: a column per name of the grid (objects by their `repr`), `seed`, `status` (done,
        failed), `error` (type and text; null if done), the columns of `Result.summary` (null if failed), and
        `findings` (joined by semicolons; null if there are none).

    Raises:
        ConfigError: an argument, a name or a value is invalid, the function cannot be sent to another process
            or needs a `key`, or the file to resume from belongs to another sweep.
        ResultError: the file to resume from is damaged; it names the column and the row.
        OSError: the file to resume from cannot be read or written.
        SweepInterrupted: Ctrl-C, a KeyboardInterrupt; its `frame` has the finished points.
        SweepStopped: the executor or the file failed; its `frame` has the finished points.

    Example:
        >>> import inferq as iq
        >>> def chat(rate, budget):
        ...     lengths = {"prompt": iq.dist.Fixed(100), "output": iq.dist.Geometric(20)}
        ...     workload = iq.Workload.synthetic(requests=200, arrivals=iq.dist.Poisson(rate), **lengths)
        ...     scheduler = iq.Sarathi(token_budget=budget)
        ...     return workload, iq.Engine(
        ...         timing=iq.Constant(0.05), scheduler=scheduler, kv=iq.KvCache.unlimited()
        ...     )
        >>> frame = iq.sweep(chat, rate=[2, 4], budget=[256, 0], seeds=[1, 2])
        >>> frame.select("rate", "budget", "seed", "status", "completed").rows()[1:3]
        [(2, 256, 2, 'done', 200), (2, 0, 1, 'failed', None)]
        >>> frame["error"][2]
        'ConfigError: token_budget: must be from 1 to 2^40, got 0'
    """
    source = source_of(scenario)
    axes = axes_of(grid, source)
    drawn = seeds_of([first_seed(source)] if seeds is None else seeds)
    objectives(slo)
    pool = chosen(executor)
    if isinstance(pool, ProcessPoolExecutor):
        _check_picklable(source, axes)
    path = _file(resume)
    checkpoint = Checkpoint(axes, path)
    if path is not None:
        checkpoint.fingerprint = fingerprint(source, slo, key)
        checkpoint.digests = tuple(axis.digests(source) for axis in axes)
    order = list(keys(axes, drawn))
    items = (
        Item(place, PointRun(source, point, seed, slo))
        for place, (point, seed) in enumerate(points(axes, drawn))
        if order[place] not in checkpoint.outcomes
    )
    lock = nullcontext() if path is None else locked("resume", path, path.with_name(f".{path.name}.lock"))
    with lock, watched(progress, "points") as watch:
        checkpoint.read(order)
        checkpoint.write(order)
        _run(checkpoint, order, items, pool, watch)
    return checkpoint.frame(order)


def _run(
    checkpoint: Checkpoint,
    order: list[PointKey],
    items: Iterator[Item],
    executor: Executor | None,
    watch: Progress | None,
) -> None:
    """Run the remaining points; finished points are kept if an exception stops the sweep."""
    reported = -1

    def record(place: int, outcome: Outcome) -> None:
        checkpoint.outcomes[order[place]] = outcome

    def between() -> None:
        nonlocal reported
        if watch is not None and reported != len(checkpoint.outcomes):
            reported = len(checkpoint.outcomes)
            watch(reported, len(order))
        try:
            checkpoint.write(order, now=False)
        except OSError as error:
            raise Broken(_unwritten(checkpoint, error)) from None

    # Clean up after the executor is closed: the user may press Ctrl-C again while waiting for that.
    try:
        between()
        with opened(executor) as (pool, runner):
            run_all(items, runner, pool, record, between)
        try:
            checkpoint.write(order)
        except OSError as error:
            raise Broken(_unwritten(checkpoint, error)) from None
    except BaseException as error:
        done = (
            f"{len(checkpoint.outcomes):,} of {len(order):,} points are done, see `frame` of this exception"
        )
        try:
            checkpoint.write(order)
            done += "" if checkpoint.path is None else f" and in {checkpoint.path}"
        except OSError as unwritten:
            if not isinstance(error, Broken):
                done += f"; {_unwritten(checkpoint, unwritten)}"
        if isinstance(error, KeyboardInterrupt):
            raise SweepInterrupted(done, checkpoint.frame(order)) from None
        if isinstance(error, Broken):
            raise SweepStopped(f"sweep: {error}; {done}", checkpoint.frame(order)) from None
        raise


def _unwritten(checkpoint: Checkpoint, error: OSError) -> str:
    return f"{checkpoint.path} cannot be written ({error.strerror or error}); its last version is unchanged"


def _file(resume: object) -> Path | None:
    """The path of the file to resume from."""
    if resume is None:
        return None
    path = path_of("resume", resume, ".parquet file")
    if path.suffix != ".parquet":
        raise ConfigError("resume", f"must be the name of a .parquet file, got {resume!r}")
    return path


def _check_picklable(source: Source, axes: tuple[Axis, ...]) -> None:
    """Check that the scenario and the values can be sent to another process."""
    for name, value in (("scenario", source), *((axis.name, axis.values) for axis in axes)):
        try:
            pickle.dumps(value)
        except Exception as error:  # classes of the user may raise anything
            raise ConfigError(
                name,
                f"cannot be sent to another process ({failure(error)}); define it at the top level "
                "of a module, or run the sweep without executor",
            ) from None
