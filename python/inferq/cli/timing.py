"""`inferq timing`: show a table of measured iteration times."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from inferq.cli import gathered
from inferq.cli import show as screen
from inferq.cli.arguments import option
from inferq.display.document import Grid
from inferq.display.text import seconds
from inferq.errors import ConfigError
from inferq.timing.models.timing_model import iteration_s
from inferq.timing.tables.shipped import files
from inferq.timing.tables.timing_table import TimingTable

timing = typer.Typer(
    help="Show tables of measured iteration times.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

_FIRST = ("model", "gpu", "tensor_parallel", "backend", "backend_version", "source", "version", "date")
_LATER = ("date_of_measurement", "license", "attribution", "changes")
_DECODES = ((1, 1000), (8, 1000), (64, 1000), (64, 8000), (256, 1000))
"""Number of decodes and their context, shown if the grid covers them."""
_CHUNKS = ((32, 0), (128, 0), (512, 0), (512, 8000), (2048, 0), (8192, 0))
"""Tokens of a chunk, and its context."""


@timing.callback()
def _group() -> None:
    """Show tables of measured iteration times."""


@timing.command()
def show(
    table: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE | MODEL GPU", show_default=False, help="A Parquet file, or a shipped table."
        ),
    ],
    tensor_parallel: Annotated[
        int | None, option("N", "Tensor-parallel size of a shipped table.", "--tensor-parallel", "--tp")
    ] = None,
    backend: Annotated[str | None, option("NAME", "Backend of a shipped table. Default: vllm.")] = None,
) -> None:
    """Show the source of a table, some iteration times, and its error on held-out points.

    Example: inferq timing show llama-3.1-8b a100-80gb
    """
    if len(table) > 2:
        raise ConfigError(f"{table[2]!r}", "is unexpected; use a file, or a model and a GPU")
    if len(table) == 2:
        model, gpu = table
        _show(TimingTable.shipped(model, gpu, tensor_parallel=tensor_parallel, backend=backend or "vllm"))
        return
    (file,) = table
    if not Path(file).is_file():
        raise ConfigError(
            f"{file!r}", f"no such file; a shipped table requires model and GPU, {_shipped(file)}"
        )
    for name, given in (("--tensor-parallel", tensor_parallel), ("--backend", backend)):
        if given is not None:
            raise ConfigError(name, "requires a shipped table; a file has one table")
    _show(TimingTable.read(file))


def _shipped(name: str) -> str:
    """The shipped tables of a model, or the models."""
    gpus = [shipped.gpu for shipped in files() if shipped.model == name]
    if gpus:
        return f"as in: inferq timing show {name} {gpus[0]} (or {', '.join(gpus[1:])})"
    return f"and the models are {', '.join(dict.fromkeys(shipped.model for shipped in files()))}"


def _show(table: TimingTable) -> None:
    facts = table.provenance
    gathered.value("provenance", facts)
    width = max((len(name) for name in (*_FIRST, *_LATER) if name in facts), default=0)
    screen.lines([repr(table)])
    screen.lines(
        f"{name.replace('_', ' '):<{width}}  {facts[name]}" for name in (*_FIRST, *_LATER) if name in facts
    )
    screen.grid(_iterations(table))
    held_out, notes = facts.get("held_out_error"), facts.get("notes", ())
    if isinstance(held_out, Mapping):
        screen.grid(_errors(held_out))
    screen.lines(f"note: {note}" for note in (notes if isinstance(notes, tuple) else (notes,)))


def _iterations(table: TimingTable) -> Grid:
    """Times of some iterations that the grid covers."""
    rows: list[list[str]] = []
    last_tokens, last_chunk = table.linear.tokens[-1], table.chunk.chunk[-1]
    last_context, last_count = table.chunk.context[-1], table.decode.sequences[-1]
    decodes = [
        (count, context)
        for count, context in _DECODES
        if count <= min(last_count, last_tokens) and context <= table.decode.mean_context[-1]
    ]
    chunks = [
        (tokens, context)
        for tokens, context in _CHUNKS
        if tokens <= min(last_chunk, last_tokens) and context <= last_context
    ]
    for count, context in decodes:
        time_s = iteration_s(table, decodes=[context] * count)
        rows.append(["", "", f"{count:,}", f"{context:,}", seconds(time_s)])
    for tokens, context in chunks:
        time_s = iteration_s(table, chunks=[(tokens, context)])
        rows.append([f"{tokens:,}", f"{context:,}", "", "", seconds(time_s)])
    if (512, 0) in chunks and (64, 1000) in decodes and last_tokens >= 576:
        time_s = iteration_s(table, chunks=[(512, 0)], decodes=[1000] * 64)
        rows.append(["512", "0", "64", "1,000", seconds(time_s)])
    header = ("prefill tokens", "at context", "decodes", "of context", "iteration")
    return Grid(title="", header=header, lines=rows, texts=0)


def _errors(held_out: Mapping[str, Any]) -> Grid:
    """The error of the table on held-out points, from its provenance."""
    rows: list[list[str]] = []
    for part, error in held_out.items():
        if isinstance(error, Mapping):
            values = [error.get(name) for name in ("median", "p95", "max")]
            cells = [f"{100 * value:.2f} %" if isinstance(value, (int, float)) else "-" for value in values]
            rows.append([part.replace("_", " "), *cells])
    header = ("error on held-out points", "median", "p95", "max")
    return Grid(title="", header=header, lines=rows)
