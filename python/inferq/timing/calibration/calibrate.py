"""The parts of an iteration, timed layer by layer in PyTorch on the device at hand.

Only functions import torch: it is the extra `inferq[calibrate]`.
"""

from __future__ import annotations

import datetime
import importlib.util
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias

from inferq._version import __version__
from inferq.checks import MOST_COUNT, flag, nearest, whole
from inferq.errors import ConfigError
from inferq.progress import watched
from inferq.timing.calibration.layers import BLOCK_TOKENS, LayerSizes
from inferq.timing.calibration.stopwatch import CudaStopwatch, HostStopwatch, Stopwatch
from inferq.timing.calibration.survey import Rig, Survey, is_out_of_memory
from inferq.timing.hardware.model_shape import ModelShape
from inferq.timing.tables.parts import ChunkPart, DecodePart, LinearPart
from inferq.timing.tables.timing_table import TimingTable

Grids: TypeAlias = Mapping[str, Sequence[int]]

_LEAST = {"tokens": 1, "chunk": 1, "context": 0, "sequences": 1, "mean_context": 0}
"""The axes, and where each may begin."""
_CUDA_GRIDS: Grids = {
    "tokens": (
        *(1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512),
        *(768, 1024, 1536, 2048, 3072, 4096, 6144, 8192),
    ),
    "chunk": (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
    "context": (0, 512, 1024, 2048, 4096, 8192, 16384, 32768),
    "sequences": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    "mean_context": (0, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768),
}
_CPU_GRIDS: Grids = {
    "tokens": (1, 4, 16, 64, 256),
    "chunk": (1, 16, 64, 256),
    "context": (0, 64, 256, 1024),
    "sequences": (1, 4, 16),
    "mean_context": (0, 64, 256, 1024),
}
_REPETITIONS = {"cuda": 20, "cpu": 5}
_QUICK_REPETITIONS = {"cuda": 7, "cpu": 3}
_STEADY = 0.2
"""A larger spread than this is noted."""
_DTYPES = ("bfloat16", "float16", "float32")
_LAYERS = 4
_NEEDS_TORCH = "calibrate: needs PyTorch 2.5 or newer"


def calibrate(
    model: ModelShape | str | os.PathLike[str] | Mapping[str, Any],
    *,
    device: str | None = None,
    dtype: str | None = None,
    tensor_parallel: int = 1,
    grids: Grids | None = None,
    repetitions: int | None = None,
    layers: int | None = None,
    cache: Literal["paged", "contiguous"] = "paged",
    quick: bool = False,
    progress: bool | Callable[[int, int], object] | None = None,
) -> TimingTable:
    """Time decoder layers of a model's shape on this machine, with drawn weights, as a `TimingTable`.

    Three parts are timed apart, each as a median over repetitions, and scaled from the layers that were timed
    to those of the model:

    - linear, by all tokens of the batch: norms, projections, gated MLP or routed experts in every layer; once
      the embedding, the last norm and the logits of one row;
    - chunk, by tokens and context: rotary positions, the write into the cache, causal attention;
    - decode, by sequences and their context, the same for all: the same steps with one token each, and the
      logits of all rows beyond the first.

    What is honest about it, and what is not:

    - On CUDA each shape is captured as a graph and timed by events, the L2 cache overwritten before each
      repetition. Every layer has its own weights and cache, so that none finds its data in L2 because it has
      just been read. What the host adds is not in the table; give it to the engine as `overhead`.
    - Attention is `scaled_dot_product_attention`. With a paged cache (blocks of 16 tokens in a drawn order)
      plain PyTorch gathers the blocks of a sequence into one piece before attention reads them: keys and
      values cross the memory about three times, where a paged kernel (FlashAttention, FlashInfer) reads them
      once. By the bytes that move, decode attention comes out up to three times too slow at long contexts;
      chunks suffer less, the more tokens they have. With a contiguous cache attention reads it in place,
      once, and follows no block table. An engine whose kernel is as good as PyTorch's lies between the two.
    - Linear layers are plain matrix products of PyTorch; norms, rotary positions and activations are not
      fused.
    - All sequences of a point have the same context. Experts are visited as drawn evenly, and run one after
      the other where engines have a fused kernel.
    - Of a model on several devices one device's share is timed; the exchange between them is not.

    A point that does not fit the memory ends its row, and all later rows there: each goes on with the last
    slope that was measured in it, and the provenance notes it. A row without two points ends the grid.

    The processor's path is tested; the path through CUDA is tested against a stand-in, and has not yet been
    run on a GPU.

    Args:
        model: a name of the catalog, the path of a `config.json`, the same as a mapping, or a `ModelShape`.
        device: `cuda`, `cuda:1`, `cpu` …; None is `cuda` where there is one, else `cpu`.
        dtype: `bfloat16`, `float16` or `float32`; None is `bfloat16` on CUDA, else `float32`.
        tensor_parallel: devices that share the model, of which one is timed; it divides the heads.
        grids: points of the axes `tokens`, `chunk`, `context`, `sequences`, `mean_context`, ascending, at
            least two each; an axis that is left out has the points that suit the device.
        repetitions: of each point, at least 1; None is 20 on CUDA, 5 on the processor.
        layers: layers that are timed, from 1 to the model's; None is 4 or the model's. With one, mind that a
            small layer stays in the processor's cache.
        cache: `paged` or `contiguous`, see above.
        quick: every other point of an axis that is not given, and fewer repetitions.
        progress: True for a bar on a terminal, or a callable that gets points done and points in all.

    Returns:
        The table. Its `provenance` has source, version, date, license, the device and its driver, the shape,
        the layers timed, the spread of each point (the middle half of its repetitions over their median), and
        notes.

    Raises:
        ConfigError: PyTorch is missing, there is no such device, an argument is wrong, heads that
            `tensor_parallel` does not divide, or a model of which no two points fit the memory.

    Example:
        >>> import inferq as iq
        >>> table = iq.timing.calibrate("llama-3.1-8b", progress=True)  # doctest: +SKIP
        >>> table.write("llama-3.1-8b_here.parquet")  # doctest: +SKIP
    """
    kind, name = _device(device)
    shape = ModelShape.of(Path(model) if isinstance(model, os.PathLike) else model)
    sizes = _share(shape, whole("tensor_parallel", tensor_parallel, 1, MOST_COUNT))
    count = min(_LAYERS, shape.layers) if layers is None else whole("layers", layers, 1, shape.layers)
    most = (_QUICK_REPETITIONS if flag("quick", quick) else _REPETITIONS)[kind]
    times = most if repetitions is None else whole("repetitions", repetitions, 1, MOST_COUNT)
    points = _points(grids, _CUDA_GRIDS if kind == "cuda" else _CPU_GRIDS, quick)
    if dtype is None:
        dtype = "bfloat16" if kind == "cuda" else "float32"
    for field, value, names in (("dtype", dtype, _DTYPES), ("cache", cache, ("paged", "contiguous"))):
        if value not in names:
            raise ConfigError(field, f"must be one of {', '.join(names)}, is {value!r}")
    paged = cache == "paged"

    import torch

    total = (
        len(points["tokens"])
        + len(points["chunk"]) * len(points["context"])
        + len(points["sequences"]) * len(points["mean_context"])
    )
    current = torch.cuda.device(name) if kind == "cuda" else nullcontext()
    with watched(progress, "points") as report, current, torch.inference_mode():
        where = torch.device(name)
        watch: Stopwatch = CudaStopwatch(torch, where) if kind == "cuda" else HostStopwatch()
        try:
            vocabulary = -(-shape.vocab // tensor_parallel)
            rig = Rig(
                sizes, vocabulary, (count, shape.layers), where, getattr(torch, dtype), watch, times, paged
            )
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise ConfigError(
                "layers", f"the weights of {count} layers do not fit the memory of {name}; time fewer layers"
            ) from None
        survey = Survey(lambda done: report(done, total) if report is not None else None)
        parts = _measured(rig, points, survey)
        provenance = {
            "source": f"inferq calibrate: PyTorch layers timed on {_device_name(kind, name)}",
            "version": f"inferq {__version__}, PyTorch {torch.__version__}",
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "license": "your own: measured on your machine, nothing in it is anybody else's",
            "model": shape.name,
            "shape": {**asdict(sizes), "layers": shape.layers, "vocab": vocabulary},
            "gpu": _device_name(kind, name),
            "driver": _driver(kind),
            "cuda": torch.version.cuda if kind == "cuda" else None,
            "threads": torch.get_num_threads() if kind == "cpu" else None,
            "backend": "pytorch",
            "backend_version": str(torch.__version__),
            "dtype": dtype,
            "tensor_parallel": tensor_parallel,
            "layers_timed": count,
            "repetitions": times,
            "cold_cache": watch.cold,
            "cuda_graphs": kind == "cuda",
            "attention": f"scaled_dot_product_attention, {cache} cache, blocks of {BLOCK_TOKENS} tokens",
            "spread": survey.spread,
            "notes": [*survey.notes, *_caveats(sizes, tensor_parallel, paged), *_unsteady(survey.spread)],
        }
    return TimingTable(**parts, provenance=provenance, check_units=False)


def _caveats(sizes: LayerSizes, tensor_parallel: int, paged: bool) -> list[str]:
    gathered = "attention gathers the blocks of its cache first, which a paged kernel does not"
    in_place = "attention reads its cache in place, without the block tables that a paged kernel follows"
    caveats = [gathered if paged else in_place]
    if sizes.experts > 1:
        caveats.append("experts run one after the other, visited as drawn evenly")
    if tensor_parallel > 1:
        caveats.append(f"the share of one of {tensor_parallel} devices; their exchange is not timed")
    return caveats


def _unsteady(spread: Mapping[str, Any]) -> list[str]:
    """The parts with a point whose repetitions do not agree."""
    largest = {
        part: max(max(row) if isinstance(row, list) else row for row in rows) for part, rows in spread.items()
    }
    return [
        f"{part}: repetitions of a point lie up to {share:.0%} apart: was the machine busy?"
        for part, share in largest.items()
        if share > _STEADY
    ]


def _measured(rig: Rig, points: Grids, survey: Survey) -> dict[str, Any]:
    """The three parts of a table."""
    linear = survey.lattice(
        "linear", ("tokens", points["tokens"]), None, lambda tokens, _: rig.linear(tokens)
    )
    chunk = survey.lattice("chunk", ("chunk", points["chunk"]), ("context", points["context"]), rig.chunk)
    decode = survey.lattice(
        "decode",
        ("sequences", points["sequences"]),
        ("mean_context", points["mean_context"]),
        rig.decode,
    )
    return {
        "linear": LinearPart(tokens=linear.rows, seconds=[row[0] for row in linear.seconds]),
        "chunk": ChunkPart(chunk=chunk.rows, context=chunk.columns, seconds=chunk.seconds),
        "decode": DecodePart(sequences=decode.rows, mean_context=decode.columns, seconds=decode.seconds),
    }


def _share(shape: ModelShape, tensor_parallel: int) -> LayerSizes:
    """The sizes of one layer on one of so many devices."""
    kv_heads = shape.kv_heads_of(tensor_parallel)
    return LayerSizes(
        hidden=shape.hidden,
        heads=shape.heads // tensor_parallel,
        kv_heads=kv_heads,
        head_size=shape.head_size,
        intermediate=-(-shape.intermediate // tensor_parallel),
        experts=shape.experts,
        active_experts=shape.active_experts,
        qkv_bias=shape.qkv_bias,
        qk_norm=shape.qk_norm,
    )


def _points(grids: Grids | None, defaults: Grids, quick: bool) -> dict[str, list[int]]:
    """The points of every axis, those that are given judged."""
    if grids is not None and not isinstance(grids, Mapping):
        raise ConfigError("grids", f"must be a mapping from axes to points, is {grids!r}")
    given = dict(grids or {})
    for name in given:
        if name not in _LEAST:
            raise ConfigError("grids", f"unknown axis {name!r}{nearest(str(name), list(_LEAST))}")
    found = {}
    for name, default in defaults.items():
        if name not in given:
            found[name] = sorted({*default[::2], default[-1]}) if quick else list(default)
            continue
        axis = given[name]
        if isinstance(axis, (str, bytes)) or not hasattr(axis, "__iter__"):
            raise ConfigError(f"grids.{name}", f"must be a list of whole numbers, is {axis!r}")
        points = [
            whole(f"grids.{name}[{place}]", one, _LEAST[name], MOST_COUNT) for place, one in enumerate(axis)
        ]
        if len(points) < 2 or any(after <= before for before, after in pairwise(points)):
            raise ConfigError(f"grids.{name}", f"must be at least two points, ascending, is {points}")
        found[name] = points
    return found


def _device(device: str | None) -> tuple[str, str]:
    """The kind of a device, and its name as PyTorch writes it."""
    if device is not None and not isinstance(device, str):
        raise ConfigError("device", f"must be a text such as 'cuda', is {device!r}")
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(_NEEDS_TORCH, "pip install 'inferq[calibrate]'")
    import torch

    major, minor = map(int, torch.__version__.split(".")[:2])
    if (major, minor) < (2, 5):
        raise ConfigError(f"{_NEEDS_TORCH}, this is {torch.__version__}: pip install 'inferq[calibrate]'")
    there = torch.cuda.is_available()
    name = device or ("cuda" if there else "cpu")
    kind, colon, place = name.partition(":")
    if kind not in _REPETITIONS or (colon and (kind == "cpu" or not place.isdecimal())):
        raise ConfigError("device", f"must be 'cuda', 'cuda:N' or 'cpu', is {device!r}")
    if kind == "cpu":
        return kind, name
    if not there:
        raise ConfigError("device", "PyTorch finds no CUDA device here")
    if place and int(place) >= torch.cuda.device_count():
        raise ConfigError("device", f"there are {torch.cuda.device_count()} CUDA devices, not {name!r}")
    return kind, name


def _device_name(kind: str, name: str) -> str:
    if kind == "cuda":
        import torch

        return str(torch.cuda.get_device_name(name))
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _driver(kind: str) -> str | None:
    """The version of the display driver, which PyTorch does not tell; None where nothing does."""
    if kind == "cpu":
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    versions = done.stdout.split()
    return versions[0] if versions else None
