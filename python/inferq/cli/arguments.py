"""Arguments and options shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from inferq.cli import options
from inferq.errors import ConfigError
from inferq.inputs import path_of
from inferq.scenario import Scenario as ReadScenario
from inferq.scenario import ScenarioFile


def option(
    metavar: str | None, help: str, *names: str, show_default: bool = True, panel: str | None = None
) -> Any:
    """An option of a command. Default name: that of the parameter."""
    return typer.Option(*names, metavar=metavar, help=help, show_default=show_default, rich_help_panel=panel)


def _folder(text: str) -> Path:
    """The directory of `--out`."""
    path = path_of("--out", text, "directory")
    if path.is_file():
        raise ConfigError(f"{text} is a file; --out must be a directory")
    return path


Scenario = Annotated[
    Path,
    typer.Argument(metavar="SCENARIO", show_default=False, help="TOML file, or the directory of a run."),
]
Trace = Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="Trace file.")]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Write results as Parquet and the scenario as JSON.",
        parser=_folder,
        rich_help_panel="Output",
    ),
]
Set = Annotated[
    list[str] | None,
    option(
        "FIELD=VALUE",
        "Set a field of the scenario: engine.scheduler.token_budget=4096. Repeatable.",
        "--set",
    ),
]
Prices = Annotated[
    Path | None,
    option(
        "FILE",
        "GPU prices per hour: TOML with a table [gpu_hour]. Adds cost and energy to the output.",
        panel="Output",
    ),
]
Threads = Annotated[int | None, option("N", "Concurrent runs. Default: all cores.")]
Summary = Annotated[Path | None, option("FILE", "Write the report as Markdown, for a pull request.")]


def scenario(file: Path, set_: list[str] | None) -> ReadScenario:
    """Read a scenario and set the fields of `--set`."""
    if not set_:
        return ReadScenario.read(file)
    return ScenarioFile.read(file).with_fields(options.settings(set_)).scenario()
