"""`inferq trace`: describe a trace."""

from __future__ import annotations

import typer

from inferq.cli import arguments, show
from inferq.cli.groups import TraceFormat, expanded

trace = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@trace.callback()
def group() -> None:
    """Inspect traces."""


@trace.command()
@expanded
def describe(file: arguments.Trace, trace_format: TraceFormat) -> None:
    """Show columns, classes and statistics of a trace.

    Example: inferq trace describe traces/azure_2023.csv
    """
    show.workload(trace_format.read(file))
