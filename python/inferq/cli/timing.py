"""`inferq timing`: show and bake tables of measured iteration times."""

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
from inferq.files import writable
from inferq.progress import watched
from inferq.timing.models.timing_model import iteration_s
from inferq.timing.tables.shipped import known_tables
from inferq.timing.tables.timing_table import TimingTable

timing = typer.Typer(
    help="Show and bake tables of measured iteration times.",
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
    """Show and bake tables of measured iteration times."""


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
    weights: Annotated[
        str | None, option("FORMAT", "Format of the weights. Default: bf16 if measured.")
    ] = None,
) -> None:
    """Show the source of a table, some iteration times, and its error on held-out points.

    Example: inferq timing show llama-3.1-8b a100-80gb
    """
    if len(table) > 2:
        raise ConfigError(f"{table[2]!r}", "is unexpected; use a file, or a model and a GPU")
    if len(table) == 2:
        model, gpu = table
        _show(
            TimingTable.shipped(
                model, gpu, tensor_parallel=tensor_parallel, backend=backend or "vllm", weights=weights
            )
        )
        return
    (file,) = table
    if not Path(file).is_file():
        raise ConfigError(
            f"{file!r}", f"no such file; a shipped table requires model and GPU, {_shipped(file)}"
        )
    for name, given in (
        ("--tensor-parallel", tensor_parallel),
        ("--backend", backend),
        ("--weights", weights),
    ):
        if given is not None:
            raise ConfigError(name, "requires a shipped table; a file has one table")
    _show(TimingTable.read(file))


@timing.command()
def bake(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            show_default=False,
            help="Name of a known model or of one of aiconfigurator, or a folder with a config.json.",
        ),
    ],
    gpu: Annotated[
        str,
        typer.Argument(
            metavar="GPU", show_default=False, help="Name of a known GPU or of a system of aiconfigurator."
        ),
    ],
    tensor_parallel: Annotated[int, option("N", "Tensor-parallel size.", "--tensor-parallel", "--tp")] = 1,
    expert_parallel: Annotated[int, option("N", "Expert-parallel size.", "--expert-parallel", "--ep")] = 1,
    data_parallel: Annotated[
        int, option("N", "Attention data-parallel size.", "--data-parallel", "--dp")
    ] = 1,
    backend: Annotated[str, option("NAME", "vllm, sglang or trtllm.")] = "vllm",
    weights: Annotated[
        str | None, option("FORMAT", "Format of the weights. Default: the checkpoint's.")
    ] = None,
    kv_dtype: Annotated[
        str | None, option("FORMAT", "Format of the KV cache. Default: the checkpoint's.")
    ] = None,
    out: Annotated[
        Path | None, option("FILE", "The table (.parquet). Default: named after model, GPU and backend.")
    ] = None,
) -> None:
    """Sample the measured kernels of a model on a GPU and write them as a table.

    Requires aiconfigurator: pip install 'inferq[tables]' (Linux on x86-64, Python 3.11 or newer).

    Example: inferq timing bake qwen3-8b h200 --out qwen3-8b.parquet
    """
    name = f"{Path(model).resolve().name}_{gpu}_tp{tensor_parallel}_{backend}.parquet"
    file = writable("--out", name if out is None else out)
    if file.suffix != ".parquet":
        raise ConfigError("--out", f"must be a .parquet file, got {str(file)!r}")
    from inferq.timing.baking.sampling import bake as baked  # imports polars and numpy

    with watched(True, "rows") as progress:
        table = baked(
            model,
            gpu,
            backend,
            tensor_parallel=tensor_parallel,
            expert_parallel=expert_parallel,
            data_parallel=data_parallel,
            weights=weights,
            kv_dtype=kv_dtype,
            progress=progress,
        )
    table.write(file)
    screen.lines([repr(table), f"written to {file}; to show it: inferq timing show {file}"])


def _shipped(name: str) -> str:
    """The shipped tables of a model, or the models."""
    gpus = list(dict.fromkeys(key.gpu for key in known_tables() if key.model == name))
    if gpus:
        return f"as in: inferq timing show {name} {gpus[0]} (or {', '.join(gpus[1:])})"
    return f"and the models are {', '.join(dict.fromkeys(key.model for key in known_tables()))}"


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
