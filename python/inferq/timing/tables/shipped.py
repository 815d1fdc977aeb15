"""The shipped tables of measured times."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from inferq._lazy import pl
from inferq.checks import whole
from inferq.errors import ConfigError
from inferq.timing.hardware.catalog import gpu_name, near
from inferq.timing.tables.table_file import provenance_of

FOLDER = Path(__file__).parent / "data"
PARTS = ("linear", "chunk", "decode", "mixed_iteration", "decode_iteration", "prompts_iteration")
"""Keys of held-out errors: the three parts; iterations with a chunk, of decodes, of several prompts."""


class Shipped(NamedTuple):
    """A file, and the fields of its name."""

    model: str
    gpu: str
    tensor_parallel: int
    backend: str
    weights: str
    file: Path


@cache
def files() -> Sequence[Shipped]:
    """All files: `<model>_<gpu>_tp<N>_<backend>.parquet`, with 8-bit weights `…-fp8.parquet`."""
    tables = []
    for file in sorted(FOLDER.glob("*.parquet")):
        model, gpu, size, backend = file.stem.split("_")
        backend, _, weights = backend.partition("-")
        tables.append(Shipped(model, gpu, int(size[2:]), backend, weights or "bf16", file))
    return tuple(tables)


def find(model: str, gpu: str, tensor_parallel: int | None, backend: str, weights: str = "bf16") -> Shipped:
    """Find the file of a model on a GPU, with the smallest number of GPUs by default.

    Raises:
        ConfigError: there is none; it lists the known ones.
    """
    if tensor_parallel is not None:
        whole("tensor_parallel", tensor_parallel, 1)
    tables = list(files())
    for field, value in (("model", model), ("gpu", gpu), ("backend", backend), ("weights", weights)):
        names = sorted({getattr(table, field) for table in tables})
        plain = value.strip().lower() if isinstance(value, str) else value
        plain = gpu_name(plain) if field == "gpu" and isinstance(plain, str) else plain
        tables = [table for table in tables if getattr(table, field) == plain]
        if not tables:
            of = "" if field == "model" else f" of {model}" + ("" if field == "gpu" else f" on {gpu}")
            raise ConfigError(field, f"no shipped table{of} has {value!r}{near(value, names)}")
    if tensor_parallel is None:
        return min(tables, key=lambda table: table.tensor_parallel)
    for table in tables:
        if table.tensor_parallel == tensor_parallel:
            return table
    sizes = ", ".join(str(table.tensor_parallel) for table in tables)
    raise ConfigError(
        "tensor_parallel",
        f"the shipped tables of {model} on {gpu} are for {sizes} GPUs, not {tensor_parallel}; "
        "a Roofline needs no table",
    )


def shipped_tables() -> pl.DataFrame:
    """List the shipped tables of measured times.

    Returns:
        A row for each table: `model, gpu, tensor_parallel, backend, weights, backend_version, source, date`,
        and the relative error against the source on held-out points, for each part and for whole iterations:
        `linear_median`, `linear_p95`, `chunk_…`, `decode_…`, `mixed_iteration_…` (one chunk of at most 8,192
        tokens with at most 512 decodes), `decode_iteration_…`, `prompts_iteration_…` (2 to 64 whole prompts
        of equal length).

    Example:
        >>> import inferq as iq
        >>> tables = iq.timing.shipped_tables()
        >>> tables.height, tables["gpu"].unique().sort().to_list()
        (123, ['a100-80gb', 'h100-80gb', 'h200', 'l40s', 'rtx-pro-6000'])
    """
    rows = []
    for table in files():
        provenance = provenance_of(table.file)
        errors = {
            f"{part}_{name}": provenance["held_out_error"][part][name]
            for part in PARTS
            for name in ("median", "p95")
        }
        source = {name: provenance[name] for name in ("backend_version", "source", "date")}
        rows.append({**table._asdict(), **source, **errors})
    return pl.DataFrame([{name: value for name, value in row.items() if name != "file"} for row in rows])
