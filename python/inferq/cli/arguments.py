"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferq.cli import options
from inferq.workload.traces.read_trace import read_trace
from inferq.workload.workload import Workload

Scenario = Annotated[Path, typer.Argument(metavar="SCENARIO", show_default=False, help="A TOML file.")]
Trace = Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="A trace.")]
Format = Annotated[
    str | None,
    typer.Option("--format", metavar="NAME", help="Format of the trace, else found from its content."),
]
Columns = Annotated[
    str | None,
    typer.Option("--columns", metavar="OURS=THEIRS,…", help="Names of the columns of a plain CSV file."),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option("--tokenizer", metavar="FILE", help="A tokenizer.json that counts the tokens of texts."),
]
TokensPerWord = Annotated[
    float | None,
    typer.Option("--tokens-per-word", metavar="RATIO", help="Count the tokens of texts by their words."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Write the results as Parquet, the scenario as JSON."),
]
Threads = Annotated[
    int | None,
    typer.Option(metavar="N", help="How many runs go on at once; every core unless told."),
]


def trace(
    file: Path, format: str | None, columns: str | None, tokenizer: Path | None, tokens_per_word: float | None
) -> Workload:
    """The trace that these arguments name."""
    return read_trace(
        file, format, columns=options.columns(columns), tokenizer=tokenizer, tokens_per_word=tokens_per_word
    )
