"""Timing tables measured with PyTorch layers on the local device.

Only functions import torch, which is the extra `inferq[calibrate]`.
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
from inferq.timing.hardware.layers import Attention, Dense, Experts
from inferq.timing.hardware.model_shape import ModelShape
from inferq.timing.tables.parts import ChunkPart, DecodePart, LinearPart
from inferq.timing.tables.timing_table import TimingTable

Grids: TypeAlias = Mapping[str, Sequence[int]]

_LEAST = {"tokens": 1, "chunk": 1, "context": 0, "sequences": 1, "mean_context": 0}
"""The axes, with their minimum."""
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
"""Larger spreads are noted."""
_DTYPES = ("bfloat16", "float16", "float32")
_LAYERS = 4
_NEEDS_TORCH = "calibrate: requires PyTorch 2.5 or newer"


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
    """Measure decoder layers of a model's shape on this machine, with random weights, as a `TimingTable`.

    Three parts are measured separately, each as a median over repetitions, and scaled from the measured
    layers to those of the model:

    - linear, by all tokens of the batch: norms, projections, gated MLP or routed experts in every layer; once
      the embedding, the last norm and the logits of one row;
    - chunk, by tokens and context: rotary positions, the write into the cache, causal attention;
    - decode, by sequences and their context, equal for all: the same steps with one token each, and the
      logits of all rows beyond the first.

    Method and limits:

    - On CUDA each shape is captured as a graph and measured by events; the L2 cache is overwritten before
      each repetition. Every layer has its own weights and cache, so that L2 does not contain its data. Host
      time is not included; set it as the engine's `overhead`.
    - Attention is `scaled_dot_product_attention`. With a paged cache (blocks of 16 tokens in random order),
      PyTorch gathers the blocks of a sequence before attention reads them: keys and values cross the memory
      bus about three times; a paged kernel (FlashAttention, FlashInfer) reads them once. By memory traffic,
      decode attention at long contexts is up to three times too slow; for chunks the error falls with their
      length. With a contiguous cache, attention reads it in place, once, without a block table. An engine
      whose kernel equals PyTorch's is between the two.
    - Linear layers are PyTorch matrix products; norms, rotary positions and activations are not fused.
    - All sequences of a point have the same context. Experts are selected uniformly, and run one after the
      other; engines have a fused kernel.
    - For a model on several devices, the share of one device is measured, without communication.

    A point that does not fit in memory ends its row, and all later rows there: each is extended with its last
    measured slope, which the provenance notes. A row without two points ends the grid.

    The CPU path is tested; the CUDA path is tested against a stand-in and has not been run on a GPU.

    Args:
        model: a name of the catalog, the path of a `config.json`, the same as a mapping, or a `ModelShape`.
        device: `cuda`, `cuda:1`, `cpu` … Default: `cuda` if available, else `cpu`.
        dtype: `bfloat16`, `float16` or `float32`. Default: `bfloat16` on CUDA, else `float32`.
        tensor_parallel: devices that share the model, one of which is measured; a divisor of the heads.
        grids: points of the axes `tokens`, `chunk`, `context`, `sequences`, `mean_context`, ascending, at
            least two each. Default: points that suit the device.
        repetitions: repetitions of each point, at least 1. Default: 20 on CUDA, 5 on a CPU.
        layers: measured layers, from 1 to the model's. Default: 4, or the model's if fewer. A single small
            layer stays in the CPU's cache.
        cache: `paged` or `contiguous`, see above.
        quick: every other point of default axes, and fewer repetitions.
        progress: True for a progress bar, or a callable with the completed and the total points.

    Returns:
        The table. Its `provenance` has source, version, date, license, the device and its driver, the shape,
        the measured layers, the spread of each point (interquartile range / median), and notes.

    Raises:
        ConfigError: PyTorch is missing, an unknown device, an invalid argument, heads that `tensor_parallel`
            does not divide, or a model without two points that fit in memory.

    Example:
        >>> import inferq as iq
        >>> table = iq.timing.calibrate("llama-3.1-8b", progress=True)  # doctest: +SKIP
        >>> table.write("llama-3.1-8b_here.parquet")  # doctest: +SKIP
    """
    kind, name = _device(device)
    shape = ModelShape.of(Path(model) if isinstance(model, os.PathLike) else model)
    sizes = layer_sizes(shape, whole("tensor_parallel", tensor_parallel, 1, MOST_COUNT))
    count = min(_LAYERS, shape.layers) if layers is None else whole("layers", layers, 1, shape.layers)
    most = (_QUICK_REPETITIONS if flag("quick", quick) else _REPETITIONS)[kind]
    times = most if repetitions is None else whole("repetitions", repetitions, 1, MOST_COUNT)
    points = _points(grids, _CUDA_GRIDS if kind == "cuda" else _CPU_GRIDS, quick)
    if dtype is None:
        dtype = "bfloat16" if kind == "cuda" else "float32"
    for field, value, names in (("dtype", dtype, _DTYPES), ("cache", cache, ("paged", "contiguous"))):
        if value not in names:
            raise ConfigError(field, f"must be one of {', '.join(names)}, got {value!r}")
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
                "layers",
                f"the weights of {count} layers do not fit in the memory of {name}; measure fewer layers",
            ) from None
        survey = Survey(lambda done: report(done, total) if report is not None else None)
        parts = _measured(rig, points, survey)
        provenance = {
            "source": f"inferq calibrate: PyTorch layers timed on {_device_name(kind, name)}",
            "version": f"inferq {__version__}, PyTorch {torch.__version__}",
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "license": "your own: measured on your machine",
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
    gathered = "attention gathers the blocks of its cache first; a paged kernel does not"
    in_place = "attention reads its cache in place, without the block tables of a paged kernel"
    caveats = [gathered if paged else in_place]
    if sizes.experts > 1:
        caveats.append("experts run one after the other, selected uniformly")
    if tensor_parallel > 1:
        caveats.append(f"the share of one of {tensor_parallel} devices; communication is not measured")
    return caveats


def _unsteady(spread: Mapping[str, Any]) -> list[str]:
    """The parts with a large spread at a point."""
    largest = {
        part: max(max(row) if isinstance(row, list) else row for row in rows) for part, rows in spread.items()
    }
    return [
        f"{part}: the spread of a point is up to {share:.0%}; the machine may have been busy"
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


def layer_sizes(shape: ModelShape, tensor_parallel: int) -> LayerSizes:
    """The sizes of a layer on one of `tensor_parallel` devices."""
    attention, part = _layer(shape)
    experts = part if isinstance(part, Experts) else None
    return LayerSizes(
        hidden=shape.hidden,
        heads=shape.heads // tensor_parallel,
        kv_heads=shape.kv_heads_of(tensor_parallel),
        head_size=attention.head_size,
        intermediate=-(-part.intermediate // tensor_parallel),
        experts=1 if experts is None else experts.experts,
        active_experts=1 if experts is None else experts.active,
        qkv_bias=attention.qkv_bias,
        qk_norm=attention.qk_norm > 0,
    )


def _layer(shape: ModelShape) -> tuple[Attention, Dense | Experts]:
    """The attention and the feed-forward part of a model whose layers are all equal and of the Llama kind.

    Raises:
        ConfigError: other layers.
    """
    group = shape.groups[0]
    mixer = group.mixers[0] if len(group.mixers) == 1 else None
    part = group.feed_forward
    if isinstance(mixer, Attention) and part is not None and len(shape.groups) == 1:
        plain = Attention(
            heads=mixer.heads,
            kv_heads=mixer.kv_heads,
            head_size=mixer.head_size,
            qkv_bias=mixer.qkv_bias,
            qk_norm=mixer.qk_norm and 2 * mixer.head_size,
        )
        shared = part.shared_intermediate if isinstance(part, Experts) else 0
        if mixer == plain and part.gated and not part.bias and not shared:
            return mixer, part
    raise ConfigError(
        "model",
        f"{shape.name} cannot be measured: calibrate supports models of one layer group with attention over "
        f"all tokens and a gated feed-forward part without shared experts, got "
        f"{' and '.join(map(str, shape.groups))}",
    )


def _points(grids: Grids | None, defaults: Grids, quick: bool) -> dict[str, list[int]]:
    """The points of every axis, checked."""
    if grids is not None and not isinstance(grids, Mapping):
        raise ConfigError("grids", f"must be a mapping from axes to points, got {grids!r}")
    given = dict(grids or {})
    for name in given:
        if name not in _LEAST:
            raise ConfigError("grids", f"unknown axis {name!r}{nearest(str(name), list(_LEAST))}")
    axes = {}
    for name, default in defaults.items():
        if name not in given:
            axes[name] = sorted({*default[::2], default[-1]}) if quick else list(default)
            continue
        axis = given[name]
        if isinstance(axis, (str, bytes)) or not hasattr(axis, "__iter__"):
            raise ConfigError(f"grids.{name}", f"must be a list of integers, got {axis!r}")
        points = [
            whole(f"grids.{name}[{place}]", point, _LEAST[name], MOST_COUNT)
            for place, point in enumerate(axis)
        ]
        if len(points) < 2 or any(after <= before for before, after in pairwise(points)):
            raise ConfigError(f"grids.{name}", f"must have at least two points, ascending, got {points}")
        axes[name] = points
    return axes


def _device(device: str | None) -> tuple[str, str]:
    """The kind of a device, and its PyTorch name."""
    if device is not None and not isinstance(device, str):
        raise ConfigError("device", f"must be text such as 'cuda', got {device!r}")
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(_NEEDS_TORCH, "pip install 'inferq[calibrate]'")
    import torch

    major, minor = map(int, torch.__version__.split(".")[:2])
    if (major, minor) < (2, 5):
        raise ConfigError(f"{_NEEDS_TORCH}, got {torch.__version__}: pip install 'inferq[calibrate]'")
    there = torch.cuda.is_available()
    name = device or ("cuda" if there else "cpu")
    kind, colon, place = name.partition(":")
    if kind not in _REPETITIONS or (colon and (kind == "cpu" or not place.isdecimal())):
        raise ConfigError("device", f"must be 'cuda', 'cuda:N' or 'cpu', got {device!r}")
    if kind == "cpu":
        return kind, name
    if not there:
        raise ConfigError("device", "PyTorch axes no CUDA device")
    if place and int(place) >= torch.cuda.device_count():
        raise ConfigError("device", f"must be one of {torch.cuda.device_count()} CUDA devices, got {name!r}")
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
    """The version of the display driver, which PyTorch does not report; None if unknown."""
    if kind == "cpu":
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    versions = done.stdout.split()
    return versions[0] if versions else None
