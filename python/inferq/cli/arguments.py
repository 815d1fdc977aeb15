"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from inferq.cli import options
from inferq.errors import ConfigError
from inferq.inputs import path_of
from inferq.scenario import Scenario as ReadScenario
from inferq.scenario import ScenarioFile
from inferq.workload.traces.read_trace import read_trace
from inferq.workload.workload import Workload


def option(metavar: str | None, help: str, *names: str, show_default: bool = True) -> Any:
    """An option of a command: what stands for its value, and what it says; `names` where it has its own."""
    return typer.Option(*names, metavar=metavar, help=help, show_default=show_default)


Scenario = Annotated[
    Path, typer.Argument(metavar="SCENARIO", show_default=False, help="A TOML file, or a run's record.")
]
Trace = Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="A trace.")]
Format = Annotated[str | None, option("NAME", "Format of the trace, else found from its content.")]
Columns = Annotated[
    str | None,
    option(
        "OURS=THEIRS,…",
        "Which columns of a table or fields of JSON fill which, as in "
        "arrival_s=ts,prompt_tokens=usage.prompt_tokens.",
    ),
]
Tokenizer = Annotated[Path | None, option("FILE", "A tokenizer.json that counts the tokens of texts.")]
TokensPerWord = Annotated[float | None, option("RATIO", "Count the tokens of texts by their words.")]
TimeUnit = Annotated[
    str | None, option("UNIT", "Of the arrival times of a table or log: s, ms, us or ns; s unless told.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Write the results as Parquet, the scenario as JSON.",
        parser=lambda text: _folder(text),
    ),
]
Set = Annotated[
    list[str] | None,
    option(
        "FIELD=VALUE",
        "Set a field of the scenario, as engine.scheduler.token_budget=4096; as often as needed.",
        "--set",
    ),
]
Prices = Annotated[
    Path | None,
    option(
        "FILE",
        "What GPUs cost an hour: TOML with a table [gpu_hour], a card a line; money and energy are told too.",
    ),
]
Threads = Annotated[int | None, option("N", "How many runs go on at once; every core unless told.")]


def _folder(text: str) -> Path:
    """The folder of `--out`, which no file is in the way of."""
    place = path_of("--out", text, "directory")
    if place.is_file():
        raise ConfigError(f"{text} is a file; the results are several, in a folder of that name")
    return place


def scenario(file: Path, set_: list[str] | None) -> ReadScenario:
    """The scenario of a file or of the folder of a run, with the fields of `--set` set."""
    if not set_:
        return ReadScenario.read(file)
    return ScenarioFile.read(file).with_fields(options.settings(set_)).scenario()


def trace(
    file: Path,
    format: str | None,
    columns: str | None,
    tokenizer: Path | None,
    tokens_per_word: float | None,
    time_unit: str | None,
) -> Workload:
    """The trace that these arguments name."""
    return read_trace(
        file,
        format,
        columns=options.columns(columns),
        tokenizer=tokenizer,
        tokens_per_word=tokens_per_word,
        time_unit=time_unit,
    )
