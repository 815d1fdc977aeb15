"""`inferq report`: a page about a run, or about several side by side, and a trace for Perfetto."""

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
from inferq.scenario import Scenario
from inferq.systems.prices import Prices


def report(
    shown: Annotated[
        list[Path],
        typer.Argument(
            metavar="SCENARIO|DIR…",
            show_default=False,
            help="TOML files, which are run, and folders that a run was written to; several are shown "
            "side by side.",
        ),
    ],
    out: Annotated[
        Path | None, option("FILE", "The page; the first one's name and .html here unless told.")
    ] = None,
    title: Annotated[str | None, option("TEXT", "Heading of the page.")] = None,
    slo: Annotated[
        list[str] | None,
        option(
            "[CLASS.]METRIC=LIMIT",
            "An objective that the run is held against, once for each: ttft_p99=0.5 (seconds).",
        ),
    ] = None,
    prices: arguments.Prices = None,
    perfetto: Annotated[
        Path | None,
        option("FILE", "Write the iterations too: a trace for https://ui.perfetto.dev (.json, .gz)."),
    ] = None,
    set_: arguments.Set = None,
) -> None:
    """Run a scenario and write one HTML page about it, which opens without a network.

    Example: inferq report docs/chat.toml --slo ttft_p99=0.5 --out chat.html
    """
    first = shown[0]
    page = checked(Path(f"{first.stem}.html") if out is None else out, "out")
    title, objectives, priced = heading(title), slo_of(slo) if slo else None, Prices.of(prices)
    if perfetto is not None:
        if len(shown) > 1 or first.is_dir():
            raise ConfigError("perfetto", "is for one scenario, which is run with its iterations")
        if writable("perfetto", perfetto).resolve() == page.resolve():
            raise ConfigError("perfetto", f"must be another file than the page, is {str(perfetto)!r}")
    names = show.names(shown)
    if set_ and (kept := next((one for one in shown if one.is_dir()), None)):
        raise ConfigError("--set", f"{kept} has been run; inferq simulate {kept} --set … runs it anew")
    runs = [_run(one, set_, iterations=perfetto is not None) for one in shown]  # a wrong one is told at once
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
    with watched(True, "parts of the page", in_a_pipe=True) as tell:
        whole = result if len(results) == 1 else results
        write_report(whole, page, title=title, slo=objectives, prices=priced, progress=tell)
    gathered.value("page", str(page))
    show.lines([f"written to {page}"])
    if perfetto is not None:
        show.lines([f"written to {result.to_perfetto(perfetto)}"])


def _run(file: Path, set_: list[str] | None, *, iterations: bool) -> Callable[[], Result]:
    """Reads the scenario, or the result that lies in a folder; says how to have the run of it."""
    if file.is_dir():
        read = Result.read(file)

        def there() -> Result:
            show.lines([f"report {file}"])
            return read

        return there
    plan = arguments.scenario(file, set_)
    run = {**plan.options, "iterations": True} if iterations else plan.options

    def ran() -> Result:
        show.lines([f"report {file}", *plan.notes])
        show.system(plan.system)
        with watched(True, "requests", in_a_pipe=True) as tell:
            return Scenario(plan.workload, plan.system, run).run(progress=tell)

    return ran
