"""Tables baked when an engine needs them, and the user's folder that keeps them."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from contextlib import suppress
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from inferq.errors import ConfigError
from inferq.progress import watched
from inferq.timing.baking.checkpoints import Source
from inferq.timing.baking.kernels import SYSTEMS
from inferq.timing.baking.sampling import bake
from inferq.timing.hardware.catalog import entries
from inferq.timing.hardware.gpu import Gpu
from inferq.timing.hardware.model_shape import ModelShape
from inferq.timing.tables.archive import Key
from inferq.timing.tables.timing_table import TimingTable

REVISION = 3
"""Part of the name of a kept file; raise it if the same database gives other tables."""
PLATFORM = "Linux on x86-64, Python 3.11 or newer"
"""Where the extra can be installed."""
HELD_OUT = 300
"""Held-out points of each part: a few tenths of a second."""


def is_installed() -> bool:
    """Whether the extra `inferq[tables]` is installed."""
    return find_spec("aiconfigurator_core") is not None


def folder() -> Path:
    """The folder of kept tables, by the rules of the operating system."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "inferq" / "tables"


def can_keep() -> bool:
    """Whether the folder of kept tables exists and can be written."""
    return os.access(folder(), os.W_OK)


def has_system(gpu: Gpu) -> bool:
    """Whether the database has measurements on a GPU."""
    return _system(gpu) is not None


def _system(gpu: Gpu) -> str | None:
    """The name of a measured GPU; None if the database lacks it."""
    return next((name for name in entries("gpus") if name in SYSTEMS and Gpu.of(name) == gpu), None)


@lru_cache(maxsize=256)
def table(shape: ModelShape, gpu: Gpu, key: Key) -> TimingTable:
    """The table of a key, kept or newly baked with a progress bar.

    The same version of the database gives the same table.

    Raises:
        ConfigError: the database lacks the model, its number formats or the GPU, or cannot split the model.
    """
    source = Source.like(shape, key.weights) or Source.of(key.model)
    system = _system(gpu)
    if system is None:
        raise ConfigError("gpu", f"aiconfigurator has no measurements on {gpu.name}")
    file = folder() / _name(source, key)
    if file.is_file():
        with suppress(ConfigError, OSError):  # a damaged file: the table is baked again
            return TimingTable.read(file)
    with watched(True, "rows") as progress:
        baked = bake(
            source,
            system,
            key.backend,
            tensor_parallel=key.tensor_parallel,
            expert_parallel=key.expert_parallel,
            data_parallel=key.data_parallel,
            weights=key.weights,
            kv_dtype=key.kv_dtype,
            held_out=HELD_OUT,
            progress=progress,
        )
    with suppress(OSError):  # a read-only folder: the next process bakes again
        file.parent.mkdir(parents=True, exist_ok=True)
        baked.write(file)
    return baked


def _name(source: Source, key: Key) -> str:
    """A file name that is unique for the files of the model, the key, and the version of the database."""
    version = metadata.version("aiconfigurator-core")
    content = json.dumps([source, key, version, REVISION], sort_keys=True)
    words = [key.gpu, f"tp{key.tensor_parallel}", key.backend, key.weights, key.kv_dtype]
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    return f"{'_'.join([source.name.replace('/', '--'), *words, digest])}.parquet"
