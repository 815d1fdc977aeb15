"""A survey of the grids: what each point takes, and where the memory of the device ends."""

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

_KEPT = 16
"""One part in so many stays free, for the copies that are made of what was taken."""


@dataclass(frozen=True, slots=True)
class Timed:
    """What the repetitions of one point say: their median, and the middle half of them over the median."""

    seconds: float
    spread: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Timed:
        """The point with these repetitions, in seconds."""
        seconds = statistics.median(samples)
        if len(samples) < 2:
            return cls(seconds, 0.0)
        low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(seconds, round((high - low) / seconds, 4) if seconds else 0.0)


@dataclass(frozen=True, slots=True)
class Lattice:
    """A grid without holes: seconds of each row, in it of each column."""

    rows: list[int]
    columns: list[int]
    seconds: list[list[float]]


class Survey:
    """Measures grids point by point, remembers spreads, and ends a grid where the memory ends."""

    def __init__(self, tell: Callable[[int], object]) -> None:
        self.notes: list[str] = []
        self.spread: dict[str, Any] = {}
        self._tell = tell
        self._done = 0

    def lattice(
        self,
        part: str,
        row_axis: tuple[str, Sequence[int]],
        column_axis: tuple[str, Sequence[int]] | None,
        measure: Callable[[int, int], Timed],
    ) -> Lattice:
        """The grid of a part without holes; one column where there is no second axis."""
        (row_name, rows), (column_name, columns) = row_axis, column_axis or ("", (0,))
        least = 1 if column_axis is None else 2
        fits = len(columns)
        found: list[list[Timed]] = []
        for row in rows:
            measured: list[Timed] = []
            for column in columns[:fits]:
                timed = _unless_out_of_memory(measure, row, column)
                if timed is None:
                    self._note(part, f"{row_name} {row}", column_name, columns[: len(measured)])
                    break
                measured.append(timed)
                self._count(1)
            # Where a point does not fit, it does not with more sequences or longer chunks either.
            self._count(len(columns) - len(measured))
            fits = len(measured)
            if fits < least:
                self._count((len(rows) - len(found) - 1) * len(columns))
                break
            found.append(measured)
        if len(found) < 2:
            raise ConfigError("grids", f"{part}: no two points of {row_name} fit the memory of the device")
        width = len(found[0])
        self.spread[part] = [[timed.spread for timed in row] for row in found]
        if column_axis is None:
            self.spread[part] = [row[0] for row in self.spread[part]]
        kept_columns = list(columns[:width])
        return Lattice(
            list(rows[: len(found)]),
            kept_columns,
            [_extended([timed.seconds for timed in row], kept_columns) for row in found],
        )

    def _note(self, part: str, row: str, column_axis: str, measured: Sequence[int]) -> None:
        """Say where the memory ended."""
        if column_axis and len(measured) > 1:
            self.notes.append(
                f"{part}: {row} does not fit the memory beyond {column_axis} {measured[-1]}; from there on, "
                "and with more, the last slope of each row goes on"
            )
        else:
            self.notes.append(f"{part}: {row} does not fit the memory; the grid ends before it")

    def _count(self, points: int) -> None:
        self._done += points
        self._tell(self._done)


def _extended(seconds: list[float], columns: Sequence[int]) -> list[float]:
    """A row that goes on with its last slope, never falling, to the last column."""
    last = len(seconds) - 1
    if last + 1 == len(columns):
        return seconds
    slope = max(0.0, (seconds[last] - seconds[last - 1]) / (columns[last] - columns[last - 1]))
    return [*seconds, *(seconds[last] + slope * (one - columns[last]) for one in columns[last + 1 :])]


def _unless_out_of_memory(measure: Callable[[int, int], Timed], row: int, column: int) -> Timed | None:
    """What is measured, or None where the memory does not suffice; nothing of it stays reserved then."""
    try:
        timed: Timed | None = measure(row, column)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        timed = None
    # The frames of the error, and the tensors in them, are gone here.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return timed


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error of PyTorch or of Python, or what it was raised during, is that memory is used up."""
    if error is None:
        return False
    text = str(error).lower()
    is_named = "out of memory" in text or "can't allocate memory" in text or "not enough memory" in text
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and is_named):
        return True
    # A capture that ran out of memory ends with an error of its own.
    return is_out_of_memory(error.__context__)


class Rig:
    """Layers with drawn weights on a device, and the work of one point of each part.

    Args:
        sizes: of a layer.
        vocabulary: rows of the embedding and of the logits.
        layers: how many are timed, and how many the model has.
        device: where.
        dtype: of weights, cache and rows.
        watch: what times them.
        repetitions: of each point.
        paged: whether the blocks of the cache lie in a drawn order, and are gathered.
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
        """Everything but attention, of a batch of `tokens`."""
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
        return Timed.of([self._scale * one + end for one, end in zip(inside, once, strict=True)])

    def chunk(self, tokens: int, context: int) -> Timed:
        """The attention of a chunk in all layers."""
        samples = self._attention(1, tokens, context)
        return Timed.of([self._scale * one for one in samples])

    def decode(self, sequences: int, context: int) -> Timed:
        """The attention of decodes in all layers, and their logits beyond those of one row."""
        samples = self._attention(sequences, 1, context)
        logits_s = max(0.0, self._logits_of(sequences) - self._logits_of(1))
        return Timed.of([self._scale * one + logits_s for one in samples])

    def _attention(self, sequences: int, tokens: int, context: int) -> list[float]:
        sizes = self._sizes
        blocks = sequences * blocks_of(context + tokens)
        if tokens > 1:
            # On the processor each layer has a mask of truth values, and attention makes numbers of one.
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
        """Seconds of the last norm and the logits of so many rows."""
        if rows not in self._logits_s:
            hidden = self._draw(rows, self._sizes.hidden)
            samples = self._watch.seconds(lambda: self._head(hidden), self._repetitions)
            self._logits_s[rows] = statistics.median(samples)
        return self._logits_s[rows]

    def _head(self, rows: Any) -> Any:
        return functional.linear(rms_norm(rows, self._norm), self._logits)

    def _routing(self, tokens: int) -> Routing | None:
        """Experts drawn evenly, known before the work: a graph cannot ask how many tokens an expert gets."""
        if self._sizes.experts == 1:
            return None
        lots = torch.rand(tokens, self._sizes.experts, generator=self._generator, device=self._device)
        return Routing.of(lots.topk(self._sizes.active_experts, dim=-1).indices, self._sizes.experts)

    def _draw(self, *shape: int) -> Any:
        self._expect(math.prod(shape))
        return torch.randn(shape, generator=self._generator, device=self._device, dtype=self._dtype)

    def _expect(self, numbers: int) -> None:
        """Refuse what the host has no room for; a CUDA device says so itself.

        Raises:
            MemoryError: so many numbers do not fit.
        """
        room, needed = room_bytes(), numbers * self._dtype.itemsize
        if self._device.type == "cpu" and room is not None and needed > room:
            raise MemoryError(f"{needed:,} bytes are asked for, {room:,} are there")


def room_bytes(system: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that can still be taken; None where that is unknown, as outside Linux.

    Linux promises memory that it does not have, and ends the process that touches it: there a large array is
    no `MemoryError`, so that it must be asked before.

    Args:
        system: where Linux says what is available.
        group: where it says the limit of a container.
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
    return max(0, room - total // _KEPT)
