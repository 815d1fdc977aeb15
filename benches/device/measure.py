"""Kernel times of one GPU, in a CSV next to those of the shipped tables and of the datasheet.

    python benches/device/measure.py --out h100.csv

It requires PyTorch and one H100 or H200, and is sized for 8 minutes. `--tiny --device cpu` runs the same code
on small sizes in seconds. Each row has a measured time and a reference: a shipped table, or the longer of
computing and reading memory at the rates of the datasheet.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import inferq as iq
from inferq.errors import ConfigError
from inferq.timing.calibration.calibrate import layer_sizes
from inferq.timing.calibration.layers import Attention, Layer, LayerSizes, PagedCache, forward
from inferq.timing.hardware.gpu import Gpu
from inferq.timing.hardware.model_shape import ModelShape

GPUS = {"H100": "h100-80gb", "H200": "h200"}
"""Words in the names of devices, and GPUs of the catalog."""


@dataclass(frozen=True)
class Sizes:
    """What is measured: models, and sizes of batches and matrices."""

    models: tuple[str, ...]
    grids: dict[str, tuple[int, ...]]
    layers: int
    batch_tokens: tuple[int, ...]
    sustained_s: float
    expert_tokens: tuple[int, ...]
    experts: tuple[int, int, int]
    """Experts, width of the model, width of an expert."""
    gemm_tokens: tuple[int, ...]
    gemms: tuple[tuple[int, int], ...]
    """Inputs and outputs of the matrices."""


FULL = Sizes(
    models=("llama-3.1-8b", "qwen3-30b-a3b"),
    grids={
        "tokens": (1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
        "chunk": (1, 128, 512, 2048, 8192),
        "context": (0, 2048, 8192),
        "sequences": (1, 8, 32, 128, 256),
        "mean_context": (0, 512, 2048, 8192),
    },
    layers=2,
    batch_tokens=(384, 1024, 4096, 8192, 16384),
    sustained_s=20.0,
    expert_tokens=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    experts=(128, 2048, 768),
    gemm_tokens=(1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    gemms=((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096)),
)
TINY = Sizes(
    models=("llama-3.1-8b", "qwen3-30b-a3b"),
    grids={name: (0, 8) if "context" in name else (1, 8) for name in FULL.grids},
    layers=1,
    batch_tokens=(4, 8),
    sustained_s=0.05,
    expert_tokens=(1, 4),
    experts=(4, 32, 16),
    gemm_tokens=(1, 8),
    gemms=((32, 48),),
)


@dataclass(frozen=True)
class Row:
    """One measured point."""

    section: str
    case: str
    tokens: int
    context: int
    measured_s: float
    late_s: float | None = None
    """Mean of the last quarter of a sustained measurement."""
    reference_s: float | None = None
    reference: str = ""
    note: str = ""

    def cells(self) -> dict[str, Any]:
        """The columns of the CSV."""
        ratio = self.measured_s / self.reference_s if self.reference_s else None
        return {**asdict(self), "measured_over_reference": ratio}


def shrunk(shape: ModelShape) -> dict[str, Any]:
    """The keys of a `config.json` of a model of the same kind, small enough for a test."""
    small = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "vocab_size": 50,
    }
    if shape.experts == 1:
        return {**small, "model_type": "llama"}
    return {**small, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}


def datasheet_s(gpu: Gpu, tokens: int, inputs: int, outputs: int, weights: str, matrices: int = 1) -> float:
    """The longer of computing and reading memory for products of (tokens, inputs) and (inputs, outputs).

    Inputs and weights have the format of `weights`, outputs have 16 bits.
    """
    size = 1 if weights == "fp8" else 2
    flops = 2 * matrices * tokens * inputs * outputs
    moved = matrices * (size * (tokens * inputs + inputs * outputs) + 2 * tokens * outputs)
    return max(flops / gpu.flops(weights), moved / gpu.bandwidth_bytes_per_s)


class Device:
    """A PyTorch device, and repetitions of work on it: as a CUDA graph between two events, or called."""

    def __init__(self, torch: Any, name: str) -> None:
        self.torch = torch
        self.at = torch.device(name)
        self.is_cuda = self.at.type == "cuda"
        self.dtype = torch.bfloat16 if self.is_cuda else torch.float32
        self.label = torch.cuda.get_device_name(self.at) if self.is_cuda else "cpu"
        self.gpu = next((card for word, card in GPUS.items() if word in self.label), None)

    def draw(self, *shape: int) -> Any:
        """Random numbers."""
        return self.torch.randn(shape, device=self.at, dtype=self.dtype)

    def samples(self, work: Callable[[], object], seconds: float, each: int = 10) -> list[float]:
        """Mean seconds of `each` repetitions in a row, again and again for `seconds`."""
        run = self._captured(work) if self.is_cuda else work
        run()
        times: list[float] = []
        end = time.monotonic() + seconds
        while not times or time.monotonic() < end:
            times.append(self._timed(run, each))
        return times

    def median(self, work: Callable[[], object]) -> float:
        """The median of short repetitions."""
        return statistics.median(self.samples(work, 0.2 if self.is_cuda else 0.01))

    def _timed(self, run: Callable[[], object], each: int) -> float:
        if not self.is_cuda:
            start = time.perf_counter()
            for _ in range(each):
                run()
            return (time.perf_counter() - start) / each
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(each):
            run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / each

    def _captured(self, work: Callable[[], object]) -> Callable[[], object]:
        cuda = self.torch.cuda
        stream = cuda.Stream(self.at)
        stream.wait_stream(cuda.current_stream(self.at))
        with cuda.stream(stream):
            for _ in range(3):
                work()
        cuda.current_stream(self.at).wait_stream(stream)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            work()
        return graph.replay  # type: ignore[no-any-return]


def calibrated(device: Device, sizes: Sizes, is_tiny: bool) -> Iterator[Row]:
    """Iterations of tables that `inferq calibrate` measures, next to the shipped tables."""
    for name in sizes.models:
        model = shrunk(ModelShape.of(name)) if is_tiny else name
        table = iq.timing.calibrate(
            model, device=str(device.at), layers=sizes.layers, grids=sizes.grids, quick=True
        )
        shipped = shipped_table(device, name)
        for sequences in sizes.grids["sequences"]:
            for context in sizes.grids["mean_context"]:
                decodes = [context] * sequences
                reference_s = None if shipped is None else iq.timing.iteration_s(shipped, decodes=decodes)
                measured_s = iq.timing.iteration_s(table, decodes=decodes)
                yield Row("decodes", name, sequences, context, measured_s, None, reference_s, "table")
        for tokens in sizes.grids["chunk"]:
            chunks = [(tokens, 0)]
            reference_s = None if shipped is None else iq.timing.iteration_s(shipped, chunks=chunks)
            measured_s = iq.timing.iteration_s(table, chunks=chunks)
            yield Row("chunk", name, tokens, 0, measured_s, None, reference_s, "table")


def shipped_table(device: Device, model: str) -> iq.TimingTable | None:
    """The shipped table of a model on this GPU; None without one."""
    try:
        return None if device.gpu is None else iq.TimingTable.shipped(model, device.gpu, tensor_parallel=1)
    except ConfigError:
        return None


def sustained(device: Device, sizes: Sizes, is_tiny: bool) -> Iterator[Row]:
    """Chunks of one prompt without a pause, for as long as clocks take to fall."""
    name = sizes.models[0]
    shape = ModelShape.of(shrunk(ModelShape.of(name)) if is_tiny else name)
    layer = layer_sizes(shape, 1)
    layers = [Layer(layer, device.draw) for _ in range(sizes.layers)]
    shipped = shipped_table(device, name)
    for tokens in sizes.batch_tokens:
        samples = device.samples(_step(device, layer, layers, tokens), sizes.sustained_s)
        late = samples[-max(1, len(samples) // 4) :]
        whole = None if shipped is None else iq.timing.iteration_s(shipped, chunks=[(tokens, 0)])
        yield Row(
            "sustained",
            f"{name}, {sizes.layers} of {shape.layers} layers",
            tokens,
            0,
            statistics.median(samples),
            statistics.fmean(late),
            None if whole is None else whole * sizes.layers / shape.layers,
            "table: its share of layers, output layer included",
        )


def _step(device: Device, sizes: LayerSizes, layers: Sequence[Layer], tokens: int) -> Callable[[], object]:
    """The layers of a chunk of a new prompt."""
    hidden = device.draw(tokens, sizes.hidden)
    attention = [
        Attention.of(
            PagedCache(1, tokens, sizes, device.draw, None), 0, tokens, sizes.head_size, device.dtype
        )
        for _ in layers
    ]
    return lambda: forward(layers, hidden, attention)


def experts(device: Device, sizes: Sizes) -> Iterator[Row]:
    """Both matrices of all experts, with equally many tokens each."""
    count, hidden, width = sizes.experts
    grouped = getattr(device.torch, "_grouped_mm", None) if device.is_cuda else None
    note = "one kernel" if grouped is not None else "one product of batched matrices"
    for tokens in sizes.expert_tokens:
        for name, inputs, outputs in (("up", hidden, 2 * width), ("down", width, hidden)):
            weights = device.draw(count, inputs, outputs)
            if grouped is None:
                rows = device.draw(count, tokens, inputs)
                seconds = device.median(partial(device.torch.bmm, rows, weights))
            else:
                rows = device.draw(count * tokens, inputs)
                ends = device.torch.arange(
                    tokens, count * tokens + 1, tokens, device=device.at, dtype=device.torch.int32
                )
                seconds = device.median(partial(grouped, rows, weights, offs=ends))
            reference_s = _reference(device, tokens, inputs, outputs, "bf16", count)
            case = f"{name}: {count} × {inputs} × {outputs}"
            yield Row("experts", case, tokens, 0, seconds, None, reference_s, "datasheet", note)


def gemms(device: Device, sizes: Sizes) -> Iterator[Row]:
    """Matrix products in BF16 (32-bit floats on a CPU) and FP8."""
    for inputs, outputs in sizes.gemms:
        weights = device.draw(outputs, inputs)
        for tokens in sizes.gemm_tokens:
            rows = device.draw(tokens, inputs)
            seconds = device.median(partial(device.torch.matmul, rows, weights.T))
            reference_s = _reference(device, tokens, inputs, outputs, "bf16")
            case = f"{inputs} × {outputs}"
            yield Row(f"gemm {_name(device.dtype)}", case, tokens, 0, seconds, None, reference_s, "datasheet")
            try:
                seconds = device.median(_fp8(device, rows, weights))
            except (RuntimeError, NotImplementedError, AttributeError) as error:
                # The GPU or the version of torch has no FP8 product; other rows are still measured.
                reason = str(error).partition("\n")[0][:80]
                print(f"  no FP8 product of {tokens} × {inputs} × {outputs}: {reason}", file=sys.stderr)
                continue
            reference_s = _reference(device, tokens, inputs, outputs, "fp8")
            yield Row("gemm fp8", case, tokens, 0, seconds, None, reference_s, "datasheet")


def _fp8(device: Device, rows: Any, weights: Any) -> Callable[[], object]:
    """The product with one scale per tensor; the kernel needs rows in multiples of 16."""
    torch, eight = device.torch, device.torch.float8_e4m3fn
    padded = torch.zeros(-(-len(rows) // 16) * 16, rows.shape[1], device=device.at, dtype=device.dtype)
    padded[: len(rows)] = rows
    scale = torch.ones((), device=device.at, dtype=torch.float32)
    left, right = padded.to(eight), weights.to(eight).T
    return lambda: torch._scaled_mm(left, right, scale, scale, out_dtype=torch.bfloat16)


def _reference(
    device: Device, tokens: int, inputs: int, outputs: int, weights: str, matrices: int = 1
) -> float | None:
    if device.gpu is None:
        return None
    return datasheet_s(Gpu.of(device.gpu), tokens, inputs, outputs, weights, matrices)


def _name(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


def measured(device: Device, sizes: Sizes, is_tiny: bool) -> Iterator[Row]:
    """All rows; each section reports its duration on standard error."""
    sections: tuple[tuple[str, Callable[[], Iterator[Row]]], ...] = (
        ("GEMMs", lambda: gemms(device, sizes)),
        ("experts", lambda: experts(device, sizes)),
        ("sustained steps", lambda: sustained(device, sizes, is_tiny)),
        ("calibration", lambda: calibrated(device, sizes, is_tiny)),
    )
    for title, rows in sections:
        start = time.monotonic()
        yield from rows()
        print(f"{title}: {time.monotonic() - start:.0f} s", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the CSV, row by row, so that an interrupted run keeps its rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the CSV")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to test the script")
    given = parser.parse_args(arguments)
    import torch

    device, sizes = Device(torch, given.device), TINY if given.tiny else FULL
    with given.out.open("w", encoding="utf-8", newline="") as file, torch.inference_mode():
        writer = csv.DictWriter(file, ["device", *Row("", "", 0, 0, math.nan).cells()])
        writer.writeheader()
        for row in measured(device, sizes, given.tiny):
            writer.writerow({"device": device.label, **row.cells()})
            file.flush()
    print(f"{device.label}: written to {given.out}")


if __name__ == "__main__":
    main()
