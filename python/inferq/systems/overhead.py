"""Overhead: what the host adds to the iterations of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inferq.checks import not_negative, whole
from inferq.description import Description, fields_of
from inferq.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Overhead(Description):
    """What the host takes for an iteration: scheduling, preparing inputs, sampling, detokenising.

    An iteration takes `base_s + per_sequence_s·(chunks and decodes in the batch)` longer than its timing
    model says; with `overlapped`, where the host works while the GPU does, it takes the larger of the two.
    A batch of more than `largest_graph_tokens` tokens takes `beyond_graph_s` more in any case: its kernels
    are launched one by one, and the GPU waits for each.

    No value fits all engines; zero is what kernels alone take. What has been published:

    - vLLM before 0.6 left the GPU idle for 5 to 13 ms between two decode steps (vLLM issue 6854, July 2024).
      Processing the outputs of Llama-3-70B took 0.2 ms for 1 sequence and 3.4 ms for 32 (issue 6913, July
      2024), so `Overhead(base_s=0.005, per_sequence_s=0.0001)` is the lower end.
    - SGLang from 0.4 on hides the host's work behind the GPU's; an engine that does not may lose half of its
      time (SGLang's announcement of 0.4, December 2024). TensorRT-LLM does the same by default, and engines
      of this kind are `overlapped=True` with the host's time, or no overhead.
    - For vLLM's V1 engine we know of no published number. Measure the gap between two iterations of your own.

    Args:
        base_s: seconds for every iteration, at most 1.
        per_sequence_s: seconds for each chunk and each decode of it, at most 0.05.
        overlapped: is the host's work done while the GPU works?
        largest_graph_tokens: tokens (of chunks and decodes) of the largest batch that was captured as a CUDA
            graph, 512 in vLLM by default; None: no batch is larger.
        beyond_graph_s: seconds more for a larger batch, at most 1.

    Raises:
        ConfigError: a number that is negative, not finite, or looks like milliseconds; in an engine also one
            that rounds to 0 attoseconds although it is not 0.

    Example:
        >>> import inferq as iq
        >>> parts = {"timing": iq.Constant(0.01), "scheduler": iq.VllmV1(), "kv": iq.KvCache.unlimited()}
        >>> one = {"arrival_s": [0.0], "prompt_tokens": [8], "output_tokens": [1]}
        >>> for overhead in (iq.Overhead(base_s=0.004), iq.Overhead(base_s=0.004, overlapped=True)):
        ...     iq.simulate(one, iq.Engine(**parts, overhead=overhead)).requests["ttft_s"].to_list()
        [0.014]
        [0.01]
    """

    base_s: float = 0
    per_sequence_s: float = 0
    overlapped: bool = False
    largest_graph_tokens: int | None = None
    beyond_graph_s: float = 0

    def __post_init__(self) -> None:
        """Refuse times that are negative or in another unit where they are written."""
        Description.__post_init__(self)
        for name, longest_s in (("base_s", 1.0), ("per_sequence_s", 0.05), ("beyond_graph_s", 1.0)):
            if not_negative(name, getattr(self, name)) > longest_s:
                raise ConfigError(
                    name,
                    f"{getattr(self, name):g} s looks like milliseconds or microseconds; it may be "
                    f"{longest_s:g} s at most",
                )

        if self.largest_graph_tokens is not None:
            whole("largest_graph_tokens", self.largest_graph_tokens, 1, 2**31 - 1)
        if (self.largest_graph_tokens is None) != (not self.beyond_graph_s):
            raise ConfigError(
                "beyond_graph_s", "and largest_graph_tokens say one thing together: give both or neither"
            )

    def to_json(self) -> dict[str, Any]:
        """The overhead as JSON-ready values."""
        described = fields_of(self)
        if self.largest_graph_tokens is None:
            del described["largest_graph_tokens"], described["beyond_graph_s"]
        return described
