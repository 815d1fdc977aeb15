"""`inferq sweep`: run a scenario over a grid of settings."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer

from inferq._lazy import pl
from inferq.checks import whole
from inferq.cli import arguments, options, show
from inferq.cli.arguments import option
from inferq.cli.objectives import Goodput, goodput_of
from inferq.errors import ConfigError, SimulationError, SweepInterrupted, SweepStopped
from inferq.experiments.arguments import MOST_SEEDS
from inferq.experiments.sweeps.sweep import sweep as run
from inferq.files import check_writable, write_table

_MOST_ROWS = 60


def sweep(
    scenario: arguments.Scenario,
    set_: Annotated[
        list[str] | None,
        option(
            "FIELD=VALUE,…",
            "Values of a field: engine.scheduler.token_budget=256,512. Several options form a grid.",
            "--set",
        ),
    ] = None,
    seeds: Annotated[
        int | None, option("N", "Number of seeds per point, 0 to N-1. Default: the seed of the file.")
    ] = None,
    slo: Goodput = None,
    threads: arguments.Threads = None,
    out: Annotated[
        Path | None,
        option(
            "FILE",
            "Write the points to a .parquet or .csv file. A .parquet file is resumed.",
        ),
    ] = None,
) -> None:
    """Run a scenario written in TOML over a grid of its fields.

    Example: inferq sweep docs/chat.toml --set workload.arrivals.rate=6,8,10 --seeds 3 --out points.parquet
    """
    form = "engine.scheduler.token_budget=256,512"
    settings = options.pairs("--set", set_ or (), form, r".+\..+")
    grid = {name: options.values(text) for name, text in settings.items()}
    arguments: dict[str, Any] = {
        **grid,
        "seeds": None if seeds is None else range(whole("--seeds", seeds, 1, MOST_SEEDS)),
        "slo": goodput_of(slo),
        "progress": True,
    }
    if out is not None and out.suffix not in (".parquet", ".csv"):
        raise ConfigError("--out", f"must be a .parquet or .csv file, got {str(out)!r}")
    if out is not None and out.suffix == ".parquet":
        arguments["resume"] = out
    elif out is not None:
        check_writable(out)
    show.lines([f"sweep {scenario}", *(f"{name}: {', '.join(map(str, grid[name]))}" for name in grid)])
    pool = None if threads is None else ThreadPoolExecutor(whole("--threads", threads, 1))
    try:
        frame = run(scenario, executor=pool, **arguments)
    except SweepStopped as stopped:
        show.points(stopped.frame, list(grid), _MOST_ROWS)
        raise SimulationError(_without_frame(stopped)) from None
    except SweepInterrupted as interrupted:
        _finish(interrupted.frame, list(grid), out)
        typer.echo(f"inferq: {_without_frame(interrupted)}", err=True)
        raise
    finally:
        if pool is not None:
            pool.shutdown()
    _finish(frame, list(grid), out)
    failed = frame.filter(status="failed").height
    if failed:
        typer.echo(f"inferq: {failed:,} of {frame.height:,} points failed", err=True)
        raise typer.Exit(1)


def _without_frame(error: BaseException) -> str:
    """The text of an exception without the hint to its `frame`, which a shell does not have."""
    return str(error).partition(", see `frame`")[0]


def _finish(frame: pl.DataFrame, names: list[str], out: Path | None) -> None:
    """Show the points and write them to `out`."""
    show.points(frame, names, _MOST_ROWS)
    if out is None:
        return
    if out.suffix == ".csv":
        write_table(out, frame)
    show.lines([f"written to {out}"])
