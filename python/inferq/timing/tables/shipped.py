"""The shipped tables of measured times."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path

from inferq._lazy import pl
from inferq.checks import whole
from inferq.errors import ConfigError
from inferq.timing.hardware.catalog import entries, gpu_name, near
from inferq.timing.hardware.model_shape import ModelShape
from inferq.timing.tables.archive import Archive, Key

ARCHIVE = Path(__file__).parent / "data" / "tables.bin"
PARTS = ("linear", "chunk", "decode", "mixed_iteration", "decode_iteration", "prompts_iteration")
"""Keys of held-out errors: the three parts; iterations with a chunk, of decodes, of several prompts."""


@cache
def archive() -> Archive:
    """The archive of the package, open."""
    return Archive(ARCHIVE)


def known_tables() -> Sequence[Key]:
    """What the shipped tables were measured for."""
    return archive().keys()


@lru_cache(maxsize=256)
def tables_of(shape: ModelShape) -> Sequence[Key]:
    """The tables of models of a shape; models of the same shape run the same kernels."""
    models = {key.model for key in known_tables()}
    same = {name for name in entries("models") if name in models and ModelShape.of(name) == shape}
    return tuple(key for key in known_tables() if key.model in same)


def find(
    model: str,
    gpu: str,
    *,
    tensor_parallel: int | None = None,
    expert_parallel: int = 1,
    data_parallel: int = 1,
    backend: str = "vllm",
    weights: str | None = None,
    kv_dtype: str | None = None,
) -> Key:
    """Find a table; `TimingTable.shipped` documents the arguments.

    Raises:
        ConfigError: there is none; it lists the known ones.
    """
    sizes = {
        "tensor_parallel": tensor_parallel,
        "expert_parallel": expert_parallel,
        "data_parallel": data_parallel,
    }
    for field, size in sizes.items():
        if size is not None:
            whole(field, size, 1)
    keys = list(known_tables())
    names = {"model": model, "gpu": gpu, "backend": backend, "weights": weights, "kv_dtype": kv_dtype}
    for field, value in names.items():
        known = sorted({getattr(key, field) for key in keys})
        plain = value.strip().lower() if isinstance(value, str) else value
        plain = gpu_name(plain) if field == "gpu" and isinstance(plain, str) else plain
        if plain is None:
            plain = "bf16" if "bf16" in known else known[0]
        keys = [key for key in keys if getattr(key, field) == plain]
        if not keys:
            of = "" if field == "model" else f" of {model}" + ("" if field == "gpu" else f" on {gpu}")
            raise ConfigError(field, f"no shipped table{of} has {value!r}{near(value, known)}")
    matches = [
        key for key in keys if (key.expert_parallel, key.data_parallel) == (expert_parallel, data_parallel)
    ]
    if tensor_parallel is not None:
        matches = [key for key in matches if key.tensor_parallel == tensor_parallel]
    if matches:
        return min(matches, key=lambda key: key.tensor_parallel)
    shown = ", ".join(dict.fromkeys(key.parallelism for key in keys))
    wanted = keys[0]._replace(
        tensor_parallel=tensor_parallel or keys[0].tensor_parallel,
        expert_parallel=expert_parallel,
        data_parallel=data_parallel,
    )
    raise ConfigError(
        next((field for field, size in [*sizes.items()][1:] if size != 1), "tensor_parallel"),
        f"the shipped tables of {model} on {gpu} are for {shown} GPUs, not {wanted.parallelism}; "
        "a Roofline needs no table",
    )


def shipped_tables() -> pl.DataFrame:
    """List the shipped tables of measured times.

    Returns:
        A row for each table: `model, gpu, tensor_parallel, expert_parallel, data_parallel, backend, weights,
        kv_dtype, backend_version, source, date`, and the relative error against the source on held-out
        points, for each part and for whole iterations: `linear_median`, `linear_p95`, `chunk_…`, `decode_…`,
        `mixed_iteration_…` (one chunk of at most 8,192 tokens with at most 512 decodes),
        `decode_iteration_…`, `prompts_iteration_…` (2 to 64 whole prompts of equal length).

    Example:
        >>> import inferq as iq
        >>> tables = iq.timing.shipped_tables()
        >>> tables.height, tables["model"].n_unique()
        (595, 34)
        >>> tables["gpu"].unique().sort().to_list()
        ['a100-80gb', 'b200', 'b300', 'gb200', 'gb300', 'h100-80gb', 'h200', 'l40s', 'rtx-pro-6000']
    """
    rows = []
    for key in known_tables():
        provenance = archive().provenance(key)
        errors = {
            f"{part}_{name}": provenance["held_out_error"][part][name]
            for part in PARTS
            for name in ("median", "p95")
        }
        source = {name: provenance[name] for name in ("backend_version", "source", "date")}
        rows.append({**key._asdict(), **source, **errors})
    return pl.DataFrame(rows)
