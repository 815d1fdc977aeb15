"""`inferq report`: write a page about one or several runs, and a trace for Perfetto."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from inferq.cli import arguments, gathered, show
from inferq.cli.arguments import option
from inferq.cli.objectives import slo_of
from inferq.errors import ConfigError
from inferq.experiments.report import checked, heading
from inferq.experiments.report import report as write_report
from inferq.files import writable
from inferq.progress import watched
from inferq.reports import identity
from inferq.results.result import Result
from inferq.results.slo import Slo, with_itl_limits
from inferq.scenario import Scenario
from inferq.systems.prices import Prices


def report(
    shown: Annotated[
        list[Path],
        typer.Argument(
            metavar="SCENARIO|DIR…",
            show_default=False,
            help="TOML files to run, or directories of runs. Several are compared on one page.",
        ),
    ],
    out: Annotated[
        Path | None, option("FILE", "The page. Default: name of the first argument with .html.")
    ] = None,
    title: Annotated[str | None, option("TEXT", "Heading of the page.")] = None,
    slo: Annotated[
        list[str] | None,
        option(
            "[CLASS.]METRIC=LIMIT",
            "Objective of the run: ttft_p99=0.5 (seconds). Repeatable.",
        ),
    ] = None,
    prices: arguments.Prices = None,
    perfetto: Annotated[
        Path | None,
        option("FILE", "Write iterations as a trace for https://ui.perfetto.dev (.json, .gz)."),
    ] = None,
    set_: arguments.Set = None,
) -> None:
    """Run a scenario and write an HTML page that needs no network.

    Example: inferq report docs/chat.toml --slo ttft_p99=0.5 --out chat.html
    """
    first = shown[0]
    page = checked(Path(f"{first.stem}.html") if out is None else out, "out")
    title, objectives, priced = heading(title), slo_of(slo) if slo else None, Prices.of(prices)
    if perfetto is not None:
        if len(shown) > 1 or first.is_dir():
            raise ConfigError("perfetto", "requires exactly one scenario, not a directory of a run")
        if writable("perfetto", perfetto).resolve() == page.resolve():
            raise ConfigError("perfetto", f"must differ from the page, got {str(perfetto)!r}")
    names = show.names(shown)
    if set_ and (finished := next((path for path in shown if path.is_dir()), None)):
        raise ConfigError(
            "--set", f"{finished} is a finished run; use inferq simulate {finished} --set … to rerun it"
        )
    # Errors are reported before the first run.
    runs = [_run(path, set_, objectives, iterations=perfetto is not None) for path in shown]
    results = {name: run() for name, run in zip(names, runs, strict=True)}
    show.findings(objectives.questions if objectives else ())
    for name, result in results.items():
        show.findings(
            finding.about(name, run=name) if len(results) > 1 else finding for finding in result.findings
        )
    gathered.value("runs", {name: result.summary().row(0, named=True) for name, result in results.items()})
    result = results[names[0]]
    if title is None and len(results) == 1:
        title = f"{names[0]}: {identity.headline(result)}"
    with watched(True, "parts of the page", in_a_pipe=True) as progress:
        whole = result if len(results) == 1 else results
        write_report(whole, page, title=title, slo=objectives, prices=priced, progress=progress)
    gathered.value("page", str(page))
    show.lines([f"written to {page}"])
    if perfetto is not None:
        show.lines([f"written to {result.to_perfetto(perfetto)}"])


def _run(file: Path, set_: list[str] | None, slo: Slo | None, *, iterations: bool) -> Callable[[], Result]:
    """Read a scenario or a stored result, and return a function that provides the result."""
    if file.is_dir():
        read = Result.read(file)

        def stored() -> Result:
            show.lines([f"report {file}"])
            return read

        return stored
    plan = arguments.scenario(file, set_)
    run = {**plan.options, "iterations": True} if iterations else plan.options
    if slo is not None:
        run = with_itl_limits(run, slo.objectives)

    def simulated() -> Result:
        show.lines([f"report {file}", *plan.notes])
        show.system(plan.system)
        with watched(True, "requests", in_a_pipe=True) as progress:
            return Scenario(plan.workload, plan.system, run).run(progress=progress)

    return simulated
