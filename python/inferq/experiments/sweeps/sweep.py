"""What happens over a grid of settings?"""

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
    progress: bool | Progress | None = None,
    **grid: Iterable[Any],
) -> pl.DataFrame:
    """Run a scenario at every point of a grid, with every seed; one row for each run.

    The frame is the same, byte for byte, whatever runs the points and in whatever order they end. A point
    that raises is a row with its error, and the rest goes on.

    Args:
        scenario: a function that takes the names of the grid as keywords and returns `(workload, system)`,
            `(workload, system, options)` with options of `simulate`, or a `Scenario`; or the path of a TOML
            file, whose fields the names of the grid set. It is called once for each run, and by threads at
            the same time.
        seeds: of each point, each the `seed` of a run; None takes that of the file, or 0. The same seed draws
            the same requests at every point that draws them from the same distributions.
        slo: objectives in seconds for `request_goodput`, as `Result.summary` takes them.
        executor: where the runs go. None: threads of this process, as many as it has cores. Or a
            `concurrent.futures.Executor`, a `dask.distributed.Client`, or the module `ray`; see
            `docs/guides/parameter-sweeps.md`. It is left open. A run has one thread unless its options say otherwise.
        resume: a Parquet file that keeps the points that are done, written about once a second, at the end
            and on Ctrl-C, always whole. Points that are done in it are not run again; those that failed are.
            A file for another scenario or other values is refused; `docs/guides/parameter-sweeps.md` says what is compared.
            While a sweep goes on it holds the file alone: another one is told which process does.
        progress: True shows a bar on a terminal once the sweep has lasted half a second; a callable gets
            (points done, points in all) now and then.
        grid: a list of values for each name; the points are their product in the given order, the last name
            fastest, the seeds faster still. Values are numbers, texts, None, or anything with a lasting
            `repr`, such as `iq.Sarathi(token_budget=512)`; workloads that are not synthetic, and values that
            differ and share a `repr`, have a short digest behind it.

    Returns:
        A polars frame: a column for each name of the grid (a value that is no number, truth or text by its
        `repr`), `seed`, `status` (done, failed), `error` (type and text; null where done), the columns of
        `Result.summary` (null where failed), and `findings` (joined by semicolons; null where there are
        none).

    Raises:
        ConfigError: a name or a value of the grid that cannot be one, an argument that is wrong, a function
            that another process cannot get, or a file to resume from that is of another sweep.
        ResultError: a file to resume from that is damaged; it names the column and the row.
        OSError: the file to resume from cannot be read or written.
        SweepInterrupted: Ctrl-C, a KeyboardInterrupt; its `frame` holds the points that were done.
        SweepStopped: the executor or the file gave up; its `frame` holds the points that were done.

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
    where = chosen(executor)
    if isinstance(where, ProcessPoolExecutor):
        _check_travels(source, axes)
    path = _file(resume)
    checkpoint = Checkpoint(axes, path)
    if path is not None:
        checkpoint.fingerprint = fingerprint(source, slo)
        checkpoint.digests = tuple(axis.digests(source) for axis in axes)
    order = list(keys(axes, drawn))
    items = (
        Item(place, PointRun(source, point, seed, slo))
        for place, (point, seed) in enumerate(points(axes, drawn))
        if order[place] not in checkpoint.outcomes
    )
    alone = nullcontext() if path is None else locked("resume", path, path.with_name(f".{path.name}.lock"))
    with alone, watched(progress, "points") as watch:
        checkpoint.read(order)
        checkpoint.write(order)
        _run(checkpoint, order, items, where, watch)
    return checkpoint.frame(order)


def _run(
    checkpoint: Checkpoint,
    order: list[PointKey],
    items: Iterator[Item],
    where: Executor | None,
    watch: Progress | None,
) -> None:
    """Run what is not done; what is done outlives whatever stops it."""
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

    # Put in order out here, after the executor is closed: a user who waits for that may press Ctrl-C again.
    try:
        between()
        with opened(where) as (pool, runner):
            run_all(items, runner, pool, record, between)
        try:
            checkpoint.write(order)
        except OSError as error:
            raise Broken(_unwritten(checkpoint, error)) from None
    except BaseException as error:
        done = f"{len(checkpoint.outcomes):,} of {len(order):,} points are done, in `frame` of this exception"
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
    return f"{checkpoint.path} cannot be written ({error.strerror or error}) and holds what was written last"


def _file(resume: object) -> Path | None:
    """The file to resume from."""
    if resume is None:
        return None
    path = path_of("resume", resume, ".parquet file")
    if path.suffix != ".parquet":
        raise ConfigError("resume", f"must be the name of a .parquet file, is {resume!r}")
    return path


def _check_travels(source: Source, axes: tuple[Axis, ...]) -> None:
    """Refuse what cannot be sent to another process, before anything is."""
    for name, value in (("scenario", source), *((axis.name, axis.values) for axis in axes)):
        try:
            pickle.dumps(value)
        except Exception as error:  # whatever a class of the user raises
            raise ConfigError(
                name,
                f"cannot be sent to another process ({failure(error)}); define it at the top level "
                "of a module, or run the sweep without executor",
            ) from None
