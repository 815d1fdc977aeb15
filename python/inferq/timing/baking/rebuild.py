"""The archive of shipped tables, baked from `shipped.toml`: `python -m inferq.timing.baking`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from inferq.errors import ConfigError
from inferq.inputs import parsed_toml, read_text
from inferq.timing.baking.sampling import bake
from inferq.timing.tables.archive import Key, write
from inferq.timing.tables.parts import Grids

LIST = Path(__file__).with_name("shipped.toml")
PROCESSES = 2


class Order(NamedTuple):
    """A table to bake: the model's name in the catalog, and the arguments of `bake`."""

    model: str
    checkpoint: str
    gpu: str
    backend: str
    tensor_parallel: int
    expert_parallel: int
    data_parallel: int
    weights: str | None
    kv_dtype: str


def orders(file: Path = LIST) -> Iterator[Order]:
    """The tables of a list."""
    for entry in parsed_toml(read_text(file))["tables"]:
        for gpu in entry["gpus"]:
            for backend in entry.get("backends", ["vllm"]):
                for parallel in entry["parallel"]:
                    tensor, expert, data = [*map(int, parallel.split("/")), 1, 1][:3]
                    for kv_dtype in entry.get("kv", ["bf16"]):
                        yield Order(
                            entry["model"],
                            entry.get("checkpoint", entry["model"]),
                            gpu,
                            backend,
                            tensor,
                            expert,
                            data,
                            entry.get("weights"),
                            kv_dtype,
                        )


def baked(order: Order) -> tuple[Key, Grids, Mapping[str, Any]] | str:
    """A table with its key, or the reason why there is none."""
    model, checkpoint, gpu, backend, *sizes, weights, kv_dtype = order
    tensor, expert, data = sizes
    try:
        table = bake(
            checkpoint,
            gpu,
            backend,
            tensor_parallel=tensor,
            expert_parallel=expert,
            data_parallel=data,
            weights=weights,
            kv_dtype=kv_dtype,
        )
    except ConfigError as error:
        return str(error)
    provenance = {**table.provenance, "model": model}
    key = Key(model, gpu, tensor, expert, data, backend, provenance["weights"], kv_dtype)
    return key, Grids(table.linear, table.chunk, table.decode), provenance


def rebuild(file: Path) -> None:
    """Bake all tables of the list into an archive, and print the reasons of missing tables."""
    tables = {}
    every = list(orders())
    with ProcessPoolExecutor(PROCESSES) as pool:
        for order, table in zip(every, pool.map(baked, every), strict=True):
            if isinstance(table, str):
                print(f"not baked: {' '.join(map(str, order))}: {table}")
            else:
                key, grids, provenance = table
                tables[key] = grids, provenance
    write(file, tables)
    print(f"{len(tables)} tables, {file.stat().st_size:,} bytes: {file}")
