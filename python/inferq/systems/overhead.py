"""Overhead: host time of the iterations of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inferq.checks import not_negative, whole
from inferq.description import Description, fields_of
from inferq.errors import ConfigError

_RARE = ("launch_s", "exposed_s")
"""Fields that are left out if they are 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Overhead(Description):
    """Host time of an iteration: scheduling, input preparation, sampling, detokenization.

    An iteration takes `base_s + per_sequence_s·(chunks and decodes in the batch)` longer than its timing
    model. With `overlapped` (host and GPU work in parallel), it takes the longer of both. A batch of more
    than `largest_graph_tokens` tokens takes `beyond_graph_s` longer in any case: its kernels are launched one
    by one, and the GPU waits for each. Without CUDA graphs, the host launches the kernels of every iteration
    in `launch_s`, while the GPU runs earlier ones: no iteration is shorter than `launch_s` plus the other
    host time. In the `exposed_s` of every iteration the GPU waits, also if the host is overlapped otherwise.

    No value fits all engines; zero is kernel time only. Published values:

    - vLLM before 0.6 left the GPU idle for 5 to 13 ms between two decode steps (vLLM issue 6854, July 2024).
      Processing the outputs of Llama-3-70B took 0.2 ms for 1 sequence and 3.4 ms for 32 (issue 6913, July
      2024), so `Overhead(base_s=0.005, per_sequence_s=0.0001)` is the lower end.
    - SGLang from 0.4 on overlaps host and GPU work; an engine without overlap may lose half of its time
      (SGLang's announcement of 0.4, December 2024). TensorRT-LLM also overlaps by default. Such engines are
      `overlapped=True` with the host's time, or no overhead.
    - No number is published for vLLM's V1 engine. Measure the gap between two iterations on your system.

    Args:
        base_s: seconds per iteration, at most 1.
        per_sequence_s: seconds per chunk and per decode, at most 0.05.
        overlapped: whether host and GPU work in parallel.
        largest_graph_tokens: tokens of the largest batch captured as a CUDA graph, 512 in vLLM by default; 0
            without graphs. None: no batch exceeds it.
        beyond_graph_s: additional seconds of a larger batch, at most 1.
        launch_s: seconds in which the host launches the kernels of an iteration without a graph, at most 1.
        exposed_s: seconds per iteration that are never overlapped, at most 1.

    Raises:
        ConfigError: a number that is negative, not finite, or looks like milliseconds; in an engine also a
            number that rounds to 0 attoseconds although it is not 0.

    Example:
        >>> import inferq as iq
        >>> parts = {"timing": iq.Constant(0.01), "scheduler": iq.VllmV1(), "kv": iq.KvCache.unlimited()}
        >>> workload = {"arrival_s": [0.0], "prompt_tokens": [8], "output_tokens": [1]}
        >>> for overhead in (iq.Overhead(base_s=0.004), iq.Overhead(base_s=0.004, overlapped=True)):
        ...     iq.simulate(workload, iq.Engine(**parts, overhead=overhead)).requests["ttft_s"].to_list()
        [0.014]
        [0.01]
    """

    base_s: float = 0
    per_sequence_s: float = 0
    overlapped: bool = False
    largest_graph_tokens: int | None = None
    beyond_graph_s: float = 0
    launch_s: float = 0
    exposed_s: float = 0

    def __post_init__(self) -> None:
        """Reject negative times and times in another unit."""
        Description.__post_init__(self)
        longest = {"per_sequence_s": 0.05}
        for name in ("base_s", "per_sequence_s", "beyond_graph_s", "launch_s", "exposed_s"):
            longest_s = longest.get(name, 1.0)
            if not_negative(name, getattr(self, name)) > longest_s:
                raise ConfigError(
                    name,
                    f"{getattr(self, name):g} s looks like milliseconds or microseconds; the maximum is "
                    f"{longest_s:g} s",
                )

        if self.largest_graph_tokens is not None:
            whole("largest_graph_tokens", self.largest_graph_tokens, 0, 2**31 - 1)
        if (self.largest_graph_tokens is None) != (not self.beyond_graph_s):
            raise ConfigError(
                "beyond_graph_s", "requires largest_graph_tokens, and conversely: set both or neither"
            )

    def __repr__(self) -> str:
        """All fields, without `launch_s` and `exposed_s` if they are 0."""
        shown = (name for name in fields_of(self) if name not in _RARE or getattr(self, name))
        return f"Overhead({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def to_json(self) -> dict[str, Any]:
        """Return the overhead as JSON-ready values."""
        described = fields_of(self)
        if self.largest_graph_tokens is None:
            del described["largest_graph_tokens"], described["beyond_graph_s"]
        for name in _RARE:
            if not getattr(self, name):
                del described[name]
        return described
