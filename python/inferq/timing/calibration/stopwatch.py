"""Stopwatches for work on a device, from cold caches if possible."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

Work: TypeAlias = Callable[[], object]
"""A function that starts the same work on the same memory at every call, asynchronously."""

_FALLBACK_L2_BYTES = 128 * 2**20


class Stopwatch(Protocol):
    """Measures work on one kind of device."""

    cold: str
    """How repetitions start from cold caches."""

    def seconds(self, work: Work, repetitions: int) -> list[float]:
        """Seconds of each repetition, after a warm-up."""


class HostStopwatch:
    """Measures work on the CPU by its monotonic clock, after a warm-up run."""

    cold = "no: the CPU's caches persist between repetitions"

    def seconds(self, work: Work, repetitions: int) -> list[float]:
        """Seconds of each repetition."""
        work()
        samples = []
        for _ in range(repetitions):
            start = time.perf_counter_ns()
            work()
            samples.append((time.perf_counter_ns() - start) / 1e9)
        return samples


class CudaStopwatch:
    """Measures work on a CUDA device: a graph captured after a warm-up, replayed between two events.

    Before each repetition, outside the events, twice the size of the L2 cache is written. Meanwhile the host
    runs ahead, so that the launch of the graph is outside the events too: the times are those of the kernels,
    and host time is the engine's `overhead`.

    Args:
        torch: the module, replaceable in tests.
        device: the current CUDA device.
    """

    cold = "yes: twice the L2 cache is overwritten before each repetition"

    _WARM_UPS = 3

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        properties = torch.cuda.get_device_properties(device)
        cache_bytes = getattr(properties, "L2_cache_size", 0) or _FALLBACK_L2_BYTES
        self._flushed = torch.empty(2 * cache_bytes, dtype=torch.int8, device=device)

    def seconds(self, work: Work, repetitions: int) -> list[float]:
        """Seconds of each repetition."""
        cuda = self._torch.cuda
        graph = self._captured(work)
        graph.replay()
        events = [
            (cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(repetitions)
        ]
        for start, end in events:
            self._flushed.zero_()
            start.record()
            graph.replay()
            end.record()
        cuda.synchronize(self._device)
        return [start.elapsed_time(end) / 1e3 for start, end in events]

    def _captured(self, work: Work) -> Any:
        """Capture the work as a graph. Libraries initialize in the warm-up, on a separate stream."""
        cuda = self._torch.cuda
        stream = cuda.Stream(self._device)
        stream.wait_stream(cuda.current_stream(self._device))
        with cuda.stream(stream):
            for _ in range(self._WARM_UPS):
                work()
        cuda.current_stream(self._device).wait_stream(stream)
        cuda.synchronize(self._device)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            work()
        return graph
