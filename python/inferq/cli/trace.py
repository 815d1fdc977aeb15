"""`inferq trace`: what a trace holds."""

from __future__ import annotations

import typer

from inferq.cli import arguments, show

trace = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@trace.callback()
def group() -> None:
    """Look at traces."""


@trace.command()
def describe(
    file: arguments.Trace,
    format: arguments.Format = None,
    columns: arguments.Columns = None,
    tokenizer: arguments.Tokenizer = None,
    tokens_per_word: arguments.TokensPerWord = None,
    time_unit: arguments.TimeUnit = None,
) -> None:
    """Show what a trace holds.

    Example: inferq trace describe traces/azure_2023.csv
    """
    show.workload(arguments.trace(file, format, columns, tokenizer, tokens_per_word, time_unit))
