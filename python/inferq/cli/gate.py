"""`inferq gate`: has a change made a scenario worse than it may become?"""

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
        typer.Argument(metavar="PATH…", show_default=False, help="TOML files, and folders of them."),
    ],
    baseline: Annotated[Path, option("FILE", "The JSON file to compare with; commit it.")] = Path(
        DEFAULT_FILE
    ),
    update: Annotated[
        bool, option(None, "Write what is found into the baseline instead.", "--update")
    ] = False,
    summary: Annotated[
        Path | None, option("FILE", "Write the report as Markdown, for a pull request.")
    ] = None,
    prices: Annotated[
        Path | None,
        option("FILE", "What GPUs cost, for scenarios without [gate.prices]: TOML with a table [gpu_hour]."),
    ] = None,
    threads: arguments.Threads = None,
    set_: arguments.Set = None,
) -> None:
    """Hold scenarios against a baseline; exit status 1 where a metric is worse than it may become.

    The table [gate] of a scenario says which metrics, how much worse each may become, and with how many seeds
    and which confidence that is judged. Exit status 2: nothing was compared, and the line says why.

    Example: inferq gate docs/chat.toml --baseline docs/gate-baseline.json --summary gate.md
    """
    if summary is not None:
        check_writable(summary)
    paths = [str(path) for path in scenarios]
    given = [part for one in set_ or () for part in ("--set", one)]
    given += [] if prices is None else ["--prices", str(prices)]
    try:
        report = checked(
            read_trials(scenarios, options.settings(set_ or ()), Prices.of(prices)),
            baseline,
            update=update,
            threads=threads,
            accept=shlex.join(["inferq", "gate", *paths, *given, "--baseline", str(baseline), "--update"]),
            tell=show.tell,
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
    gathered.value("failed", {one.name: one.error for one in report.scenarios if one.error})
    show.lines(str(report).splitlines())
    if summary is not None:
        write_text(summary, report.markdown())
    if failure is not None:
        raise failure
    if not report.passed:
        raise typer.Exit(1)
