"""`inferq calibrate`: measure the parts of an iteration on this device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from inferq.cli import show
from inferq.cli.arguments import option
from inferq.errors import ConfigError
from inferq.files import check_writable
from inferq.timing.calibration.calibrate import calibrate as timed
from inferq.timing.models.timing_model import iteration_s
from inferq.timing.tables.timing_table import TimingTable, refuse_milliseconds


def calibrate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            show_default=False,
            help="Model name such as llama-3.1-8b, or a config.json as on Hugging Face.",
        ),
    ],
    out: Annotated[
        Path,
        option("FILE", "The table (.parquet).", show_default=False),
    ],
    device: Annotated[str | None, option("NAME", "cuda, cuda:1 or cpu. Default: cuda if available.")] = None,
    dtype: Annotated[
        str | None, option("NAME", "bfloat16, float16 or float32. Default: bfloat16 on cuda, float32 on cpu.")
    ] = None,
    tensor_parallel: Annotated[
        int,
        option("N", "Tensor-parallel size; the share of one device is timed.", "--tensor-parallel", "--tp"),
    ] = 1,
    layers: Annotated[int | None, option("N", "Number of timed layers. Default: up to 4.")] = None,
    repetitions: Annotated[
        int | None, option("N", "Repetitions of each point. Default: 20 on cuda, 5 on cpu.")
    ] = None,
    cache: Annotated[
        str, option("KIND", "KV cache: paged gathers blocks before attention, contiguous reads in place.")
    ] = "paged",
    quick: Annotated[
        bool, option(None, "Measure every other point with fewer repetitions.", "--quick")
    ] = False,
) -> None:
    """Time the layers of a model on this machine and write a timing table.

    Requires PyTorch: pip install 'inferq[calibrate]'. Weights are random; nothing is downloaded.

    Example: inferq calibrate llama-3.1-8b --out llama-3.1-8b_here.parquet
    """
    if out.suffix != ".parquet":
        raise ConfigError("--out", f"must be a .parquet file, got {str(out)!r}")
    check_writable(out)
    table = timed(
        model,
        device=device,
        dtype=dtype,
        tensor_parallel=tensor_parallel,
        layers=layers,
        repetitions=repetitions,
        cache=cast("Literal['paged', 'contiguous']", cache),  # checked by calibrate
        quick=quick,
        progress=True,
    )
    table.write(out)
    show.lines([f"calibrate {model}", *_summary(table), f"written to {out}", *_use(table, out)])


def _summary(table: TimingTable) -> list[str]:
    """The measured grid, the spread of repetitions, and the times of a few iterations."""
    facts = table.provenance
    linear, chunk, decode = table.linear, table.chunk, table.decode
    sequences, context = decode.sequences[-1], decode.mean_context[len(decode.mean_context) // 2]
    tokens = chunk.chunk[-1]
    grids = (
        f"linear {len(linear.tokens)}, chunk {len(chunk.chunk)} × {len(chunk.context)}, "
        f"decode {len(decode.sequences)} × {len(decode.mean_context)} points"
    )
    spread = ", ".join(f"{part} {_largest(facts['spread'][part]):.0%}" for part in facts["spread"])
    return [
        f"device     {facts['gpu']}, {facts['backend']} {facts['backend_version']}, {facts['dtype']}",
        f"timed      {facts['layers_timed']} of {facts['shape']['layers']} layers, "
        f"{facts['repetitions']} times",
        f"grids      {grids}",
        f"spread     largest interquartile range of repetitions relative to the median: {spread}",
        *(f"note       {note}" for note in facts["notes"]),
        f"iteration  1 decode at context {context:,}: {_ms(iteration_s(table, decodes=[context]))}",
        f"           {sequences:,} decodes at context {context:,}: "
        f"{_ms(iteration_s(table, decodes=[context] * sequences))}",
        f"           a chunk of {tokens:,} tokens: {_ms(iteration_s(table, chunks=[(tokens, 0)]))}",
    ]


def _use(table: TimingTable, out: Path) -> list[str]:
    """How to use the file."""
    try:
        refuse_milliseconds(table)
        slow_python, slow_toml = "", ""
    except ConfigError:  # a slow machine, not milliseconds
        slow_python, slow_toml = ", check_units=False", ", check_units = false"
    return [
        f'use it     iq.Engine(timing=iq.TimingTable.read("{out}"{slow_python}), …), or in a scenario',
        f'           timing = {{ kind = "TimingTable", file = "{out}"{slow_toml} }}',
    ]


def _largest(spread: float | tuple[object, ...]) -> float:
    """The largest number in nested tuples."""
    return max(map(_largest, spread)) if isinstance(spread, tuple) else spread  # type: ignore[arg-type]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms"
