"""`inferq report`: a page about a run, and its trace for Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from inferq.cli import arguments, show
from inferq.cli.arguments import option
from inferq.errors import ConfigError
from inferq.reports.report import checked, heading
from inferq.reports.report import report as write_report
from inferq.results.files import writable
from inferq.scenario import Scenario


def report(
    scenario: arguments.Scenario,
    out: Annotated[
        Path | None, option("FILE", "The page; the scenario's name and .html here unless told.")
    ] = None,
    title: Annotated[str | None, option("TEXT", "Heading of the page.")] = None,
    perfetto: Annotated[
        Path | None,
        option("FILE", "Write the iterations too: a trace for https://ui.perfetto.dev (.json, .gz)."),
    ] = None,
) -> None:
    """Run a scenario and write one HTML page about it, which opens without a network.

    Example: inferq report docs/chat.toml --out chat.html
    """
    plan = Scenario.read(scenario)
    page = checked(Path(f"{scenario.stem}.html") if out is None else out, "out")
    title = heading(title) or f"What became of {scenario.stem}?"
    if perfetto is not None and writable("perfetto", perfetto).resolve() == page.resolve():
        raise ConfigError("perfetto", f"must be another file than the page, is {str(perfetto)!r}")
    run = plan.options if perfetto is None else {**plan.options, "iterations": True}
    show.lines([f"report {scenario}", *plan.notes])
    show.system(plan.system)
    result = Scenario(plan.workload, plan.system, run).run(progress=True)
    show.lines(f"finding: {text}" for text in result.findings)
    show.lines([f"written to {write_report(result, page, title=title)}"])
    if perfetto is not None:
        show.lines([f"written to {result.to_perfetto(perfetto)}"])
