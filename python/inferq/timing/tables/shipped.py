"""The measured tables that come with inferq."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from inferq._lazy import pl
from inferq.checks import whole
from inferq.errors import ConfigError
from inferq.timing.hardware.catalog import near
from inferq.timing.tables.table_file import provenance_of

FOLDER = Path(__file__).parent / "data"
PARTS = ("linear", "chunk", "decode", "mixed_iteration", "decode_iteration", "prompts_iteration")
"""What has a held-out error: the three parts; iterations with a chunk, of decodes, of several prompts."""


class Shipped(NamedTuple):
    """A file, and what its name says."""

    model: str
    gpu: str
    tensor_parallel: int
    backend: str
    weights: str
    file: Path


@cache
def files() -> Sequence[Shipped]:
    """The files, by name: `<model>_<gpu>_tp<N>_<backend>.parquet`, or `…-fp8.parquet` by the weights."""
    tables = []
    for file in sorted(FOLDER.glob("*.parquet")):
        model, gpu, shared, backend = file.stem.split("_")
        backend, _, weights = backend.partition("-")
        tables.append(Shipped(model, gpu, int(shared[2:]), backend, weights or "bf16", file))
    return tuple(tables)


def find(model: str, gpu: str, tensor_parallel: int | None, backend: str, weights: str = "bf16") -> Shipped:
    """The file of a model on a GPU; of several, the one with the fewest GPUs.

    Raises:
        ConfigError: there is none; it says what is there.
    """
    if tensor_parallel is not None:
        whole("tensor_parallel", tensor_parallel, 1)
    left = list(files())
    asked = (("model", model), ("gpu", gpu), ("backend", backend), ("weights", weights))
    for field, value in asked:
        names = sorted({getattr(one, field) for one in left})
        plain = value.strip().lower() if isinstance(value, str) else value
        left = [one for one in left if getattr(one, field) == plain]
        if not left:
            of = "" if field == "model" else f" of {model}" + ("" if field == "gpu" else f" on {gpu}")
            raise ConfigError(field, f"no shipped table{of} has {value!r}{near(value, names)}")
    if tensor_parallel is None:
        return min(left, key=lambda one: one.tensor_parallel)
    for one in left:
        if one.tensor_parallel == tensor_parallel:
            return one
    sizes = ", ".join(str(one.tensor_parallel) for one in left)
    raise ConfigError(
        "tensor_parallel",
        f"the shipped table of {model} on {gpu} is for {sizes}, not {tensor_parallel}; `inferq timing bake` "
        "makes one, and a Roofline needs none",
    )


def shipped_tables() -> pl.DataFrame:
    """The measured tables that come with inferq, one a row.

    Returns:
        A frame with `model, gpu, tensor_parallel, backend, weights, backend_version, source, date`, then for
        each part and for whole iterations the held-out error against the source, as a share: `linear_median`,
        `linear_p95`, `chunk_…`, `decode_…`, `mixed_iteration_…` (one chunk of at most 8,192 tokens beside at
        most 512 decodes), `decode_iteration_…`, `prompts_iteration_…` (2 to 64 whole prompts of a length).

    Example:
        >>> import inferq as iq
        >>> tables = iq.timing.shipped_tables()
        >>> tables.height, tables["gpu"].unique().sort().to_list()
        (123, ['a100-80gb', 'h100-80gb', 'h200', 'l40s', 'rtx-pro-6000'])
    """
    rows = []
    for one in files():
        provenance = provenance_of(one.file)
        errors = {
            f"{part}_{name}": provenance["held_out_error"][part][name]
            for part in PARTS
            for name in ("median", "p95")
        }
        named = {name: provenance[name] for name in ("backend_version", "source", "date")}
        rows.append({**one._asdict(), **named, **errors})
    return pl.DataFrame([{name: value for name, value in row.items() if name != "file"} for row in rows])
