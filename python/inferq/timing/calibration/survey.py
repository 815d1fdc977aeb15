"""Measurement of grids, within the memory of the device."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferq._lazy import functional, torch
from inferq.errors import ConfigError
from inferq.timing.calibration.layers import (
    Attention,
    Layer,
    LayerSizes,
    PagedCache,
    Routing,
    blocks_of,
    rms_norm,
)
from inferq.timing.calibration.stopwatch import Stopwatch

_RESERVE = 16
"""The fraction 1 / this of memory stays free for copies."""


@dataclass(frozen=True, slots=True)
class Timed:
    """The repetitions of a point: their median, and interquartile range / median."""

    seconds: float
    spread: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Timed:
        """Create the point from its repetitions in seconds."""
        seconds = statistics.median(samples)
        if len(samples) < 2:
            return cls(seconds, 0.0)
        low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(seconds, round((high - low) / seconds, 4) if seconds else 0.0)


@dataclass(frozen=True, slots=True)
class Lattice:
    """A grid without holes: seconds by row and column."""

    rows: list[int]
    columns: list[int]
    seconds: list[list[float]]


class Survey:
    """Measures grids point by point, records spreads, and ends a grid at the limit of memory."""

    def __init__(self, report: Callable[[int], object]) -> None:
        self.notes: list[str] = []
        self.spread: dict[str, Any] = {}
        self._report = report
        self._done = 0

    def lattice(
        self,
        part: str,
        row_axis: tuple[str, Sequence[int]],
        column_axis: tuple[str, Sequence[int]] | None,
        measure: Callable[[int, int], Timed],
    ) -> Lattice:
        """The grid of a part without holes; one column without a second axis."""
        (row_name, rows), (column_name, columns) = row_axis, column_axis or ("", (0,))
        least = 1 if column_axis is None else 2
        fits = len(columns)
        measured_rows: list[list[Timed]] = []
        for row in rows:
            measured: list[Timed] = []
            for column in columns[:fits]:
                timed = _unless_out_of_memory(measure, row, column)
                if timed is None:
                    self._note(part, f"{row_name} {row}", column_name, columns[: len(measured)])
                    break
                measured.append(timed)
                self._count(1)
            # A point that does not fit does not fit with more sequences or longer chunks either.
            self._count(len(columns) - len(measured))
            fits = len(measured)
            if fits < least:
                self._count((len(rows) - len(measured_rows) - 1) * len(columns))
                break
            measured_rows.append(measured)
        if len(measured_rows) < 2:
            raise ConfigError("grids", f"{part}: no two points of {row_name} fit in the memory of the device")
        width = len(measured_rows[0])
        self.spread[part] = [[timed.spread for timed in row] for row in measured_rows]
        if column_axis is None:
            self.spread[part] = [row[0] for row in self.spread[part]]
        measured_columns = list(columns[:width])
        return Lattice(
            list(rows[: len(measured_rows)]),
            measured_columns,
            [_extended([timed.seconds for timed in row], measured_columns) for row in measured_rows],
        )

    def _note(self, part: str, row: str, column_axis: str, measured: Sequence[int]) -> None:
        """Note the limit of memory."""
        if column_axis and len(measured) > 1:
            self.notes.append(
                f"{part}: {row} does not fit in memory beyond {column_axis} {measured[-1]}; from there on, "
                "and with more, the last slope of each row is extended"
            )
        else:
            self.notes.append(f"{part}: {row} does not fit in memory; the grid ends before it")

    def _count(self, points: int) -> None:
        self._done += points
        self._report(self._done)


def _extended(seconds: list[float], columns: Sequence[int]) -> list[float]:
    """Extend a row with its last slope, at least 0, to the last column."""
    last = len(seconds) - 1
    if last + 1 == len(columns):
        return seconds
    slope = max(0.0, (seconds[last] - seconds[last - 1]) / (columns[last] - columns[last - 1]))
    return [*seconds, *(seconds[last] + slope * (column - columns[last]) for column in columns[last + 1 :])]


def _unless_out_of_memory(measure: Callable[[int, int], Timed], row: int, column: int) -> Timed | None:
    """The measurement, or None without enough memory; its allocations are then freed."""
    try:
        timed: Timed | None = measure(row, column)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        timed = None
    # The frames of the exception, and the tensors in them, are freed here.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return timed


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an exception or its context is an out-of-memory error."""
    if error is None:
        return False
    text = str(error).lower()
    is_named = "out of memory" in text or "can't allocate memory" in text or "not enough memory" in text
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and is_named):
        return True
    # A capture that runs out of memory raises another error.
    return is_out_of_memory(error.__context__)


class Rig:
    """Layers with random weights on a device, and the work of one point of each part.

    Args:
        sizes: sizes of a layer.
        vocabulary: rows of the embedding and of the logits.
        layers: the number of measured layers, and of layers of the model.
        device: the device.
        dtype: number format of weights, cache and rows.
        watch: the stopwatch.
        repetitions: repetitions of each point.
        paged: whether the blocks of the cache are in random order and gathered.
    """

    def __init__(
        self,
        sizes: LayerSizes,
        vocabulary: int,
        layers: tuple[int, int],
        device: Any,
        dtype: Any,
        watch: Stopwatch,
        repetitions: int,
        paged: bool = True,
    ) -> None:
        self._sizes = sizes
        self._device = device
        self._dtype = dtype
        self._watch = watch
        self._repetitions = repetitions
        self._paged = paged
        self._generator = torch.Generator(device).manual_seed(0)
        self._scale = layers[1] / layers[0]
        self._expect(layers[0] * sizes.matrix_weights + 2 * vocabulary * sizes.hidden)
        self._layers = [Layer(sizes, self._draw) for _ in range(layers[0])]
        self._embedding = self._draw(vocabulary, sizes.hidden)
        self._logits = self._draw(vocabulary, sizes.hidden)
        self._norm = self._draw(sizes.hidden)
        self._logits_s: dict[int, float] = {}

    def linear(self, tokens: int) -> Timed:
        """Everything except attention, for a batch of `tokens`."""
        sizes = self._sizes
        names = torch.randint(len(self._embedding), (tokens,), generator=self._generator, device=self._device)
        hidden = self._draw(tokens, sizes.hidden)
        routings = [self._routing(tokens) for _ in self._layers]

        def blocks() -> None:
            rows = hidden
            for layer, routing in zip(self._layers, routings, strict=True):
                queries, _, _ = layer.project(rows)
                rows = layer.finish(rows, queries, routing)

        def ends() -> None:
            self._head(self._embedding.index_select(0, names)[:1])

        inside = self._watch.seconds(blocks, self._repetitions)
        once = self._watch.seconds(ends, self._repetitions)
        return Timed.of([self._scale * layer_s + end_s for layer_s, end_s in zip(inside, once, strict=True)])

    def chunk(self, tokens: int, context: int) -> Timed:
        """The attention of a chunk in all layers."""
        samples = self._attention(1, tokens, context)
        return Timed.of([self._scale * layer_s for layer_s in samples])

    def decode(self, sequences: int, context: int) -> Timed:
        """The attention of decodes in all layers, and the logits of all rows except one."""
        samples = self._attention(sequences, 1, context)
        logits_s = max(0.0, self._logits_of(sequences) - self._logits_of(1))
        return Timed.of([self._scale * layer_s + logits_s for layer_s in samples])

    def _attention(self, sequences: int, tokens: int, context: int) -> list[float]:
        sizes = self._sizes
        blocks = sequences * blocks_of(context + tokens)
        if tokens > 1:
            # On the CPU each layer has a boolean mask, which attention converts to numbers.
            self._expect((len(self._layers) + 2) * tokens * (context + tokens))
        batches = []
        for _ in self._layers:
            order = (
                torch.randperm(blocks, generator=self._generator, device=self._device)
                if self._paged
                else None
            )
            cache = PagedCache(sequences, context + tokens, sizes, self._draw, order)
            rows = [
                self._draw(sequences * tokens, heads, sizes.head_size)
                for heads in (sizes.heads, sizes.kv_heads, sizes.kv_heads)
            ]
            batches.append((Attention.of(cache, context, tokens, sizes.head_size, self._dtype), rows))

        def work() -> None:
            for attend, rows in batches:
                attend(*rows)

        return self._watch.seconds(work, self._repetitions)

    def _logits_of(self, rows: int) -> float:
        """Seconds of the last norm and the logits of a number of rows."""
        if rows not in self._logits_s:
            hidden = self._draw(rows, self._sizes.hidden)
            samples = self._watch.seconds(lambda: self._head(hidden), self._repetitions)
            self._logits_s[rows] = statistics.median(samples)
        return self._logits_s[rows]

    def _head(self, rows: Any) -> Any:
        return functional.linear(rms_norm(rows, self._norm), self._logits)

    def _routing(self, tokens: int) -> Routing | None:
        """Uniformly selected experts, fixed in advance, because a graph cannot read tokens per expert."""
        if self._sizes.experts == 1:
            return None
        lots = torch.rand(tokens, self._sizes.experts, generator=self._generator, device=self._device)
        return Routing.of(lots.topk(self._sizes.active_experts, dim=-1).indices, self._sizes.experts)

    def _draw(self, *shape: int) -> Any:
        self._expect(math.prod(shape))
        return torch.randn(shape, generator=self._generator, device=self._device, dtype=self._dtype)

    def _expect(self, numbers: int) -> None:
        """Raise if host memory is insufficient; a CUDA device raises by itself.

        Raises:
            MemoryError: the numbers do not fit.
        """
        room, needed = room_bytes(), numbers * self._dtype.itemsize
        if self._device.type == "cpu" and room is not None and needed > room:
            raise MemoryError(f"{needed:,} bytes are required, {room:,} are available")


def room_bytes(system: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Available bytes; None if unknown, as outside Linux.

    Linux overcommits memory and kills the process that uses it: a large array raises no `MemoryError`, so
    available memory must be checked first.

    Args:
        system: the file with the available memory.
        group: the directory with the limit of a container.
    """
    try:
        lines = [line.split() for line in system.read_text(encoding="utf-8").splitlines()]
        bytes_of = {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines if len(words) > 1}
        total, room = bytes_of["MemTotal"], bytes_of["MemAvailable"]
    except (OSError, ValueError, KeyError):
        return None
    try:
        limit = int((group / "memory.max").read_text(encoding="utf-8"))
        used = int((group / "memory.current").read_text(encoding="utf-8"))
        lines = [line.split() for line in (group / "memory.stat").read_text(encoding="utf-8").splitlines()]
        cached = next((int(words[1]) for words in lines if words[:1] == ["inactive_file"]), 0)
        total, room = min(total, limit), min(room, limit - used + cached)
    except (OSError, ValueError):
        pass  # no container, or one without a limit
    return max(0, room - total // _RESERVE)
