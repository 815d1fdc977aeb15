"""`inferq gate`: fail if a scenario regressed beyond its tolerance."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from inferq.cli import arguments, gathered, options, show
from inferq.cli.arguments import option
from inferq.errors import ConfigError, TraceError
from inferq.experiments.gates.baseline import DEFAULT_FILE
from inferq.experiments.gates.gate import accepted, checked, read_trials
from inferq.experiments.gates.gate_report import refused
from inferq.files import check_writable, write_text
from inferq.systems.prices import Prices


def gate(
    scenarios: Annotated[
        list[Path],
        typer.Argument(metavar="PATH…", show_default=False, help="TOML files, or directories of them."),
    ],
    baseline: Annotated[Path, option("FILE", "Baseline, a JSON file to commit.")] = Path(DEFAULT_FILE),
    update: Annotated[
        bool, option(None, "Write the results to the baseline instead of comparing.", "--update")
    ] = False,
    summary: arguments.Summary = None,
    prices: Annotated[
        Path | None,
        option("FILE", "GPU prices of scenarios without [gate.prices]: TOML with a table [gpu_hour]."),
    ] = None,
    threads: arguments.Threads = None,
    set_: arguments.Set = None,
) -> None:
    """Compare scenarios with a baseline. Exit status 1 if a metric regressed beyond its tolerance.

    The table [gate] of a scenario sets metrics, tolerances, seeds and confidence. Exit status 2: nothing was
    compared.

    Example: inferq gate docs/chat.toml --baseline docs/gate-baseline.json --summary gate.md
    """
    if summary is not None:
        check_writable(summary)
    paths = [str(path) for path in scenarios]
    given = [part for text in set_ or () for part in ("--set", text)]
    given += [] if prices is None else ["--prices", str(prices)]
    try:
        report = checked(
            read_trials(scenarios, options.settings(set_ or ()), Prices.of(prices)),
            baseline,
            update=update,
            threads=threads,
            accept=shlex.join(["inferq", "gate", *paths, *given, "--baseline", str(baseline), "--update"]),
            log=show.log,
        )
    except (ConfigError, TraceError, OSError) as error:
        if summary is not None:
            reason = str(error)
            if isinstance(error, OSError) and error.filename and error.strerror:
                reason = f"{error.filename}: {error.strerror}"
            write_text(summary, refused(reason))
        raise
    failure: OSError | None = None
    if update:
        try:
            report = accepted(report)
        except OSError as error:
            failure = error
    gathered.value("passed", report.passed)
    gathered.value("metrics", report.frame.to_dicts())
    gathered.value(
        "failed", {scenario.name: scenario.error for scenario in report.scenarios if scenario.error}
    )
    show.lines(str(report).splitlines())
    if summary is not None:
        write_text(summary, report.markdown())
    if failure is not None:
        raise failure
    if not report.passed:
        raise typer.Exit(1)
