"""FasterTransformer: request-level (static) batching."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class FasterTransformer(Scheduler):
    """Request-level batching: a batch runs until its last request ends, and no request joins it.

    When no batch runs, requests are admitted by arrival while a sequence slot and blocks for `max_model_len`
    tokens are free. All their prompts are computed whole, in one iteration. Every later iteration decodes
    one token of each unfinished request. There is no preemption and no token budget.

    A request is rejected at arrival if prompt and output together exceed `max_model_len`, or if the cache
    has too few blocks for that length.

    Source: FasterTransformer; bari2025 Algorithm 3; li2025 section 3. Algorithm 3 tests "mode = Prefill"
        twice; the first should be Decode. li2025 does not state its batch limit, `max_seqs` here, which
        determines the stable rate. Its description, decodes before any prefill and then one batch of
        prompts, sustains far less than request-level batching if taken literally; here the whole batch is
        one request-level batch.

    Args:
        max_seqs: maximum requests of a batch, at least 1.
        max_model_len: tokens for which each request reserves blocks, at least 1.
        free: when a request's blocks are freed: `"each"`: when it ends; `"batch"`: when its batch ends.

    Raises:
        ConfigError: a number outside these ranges or an unknown `free`.

    Example:
        The second request waits until the batch of the first ends:

        >>> import inferq as iq
        >>> scheduler = iq.research.FasterTransformer(max_seqs=32)
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=iq.KvCache.unlimited())
        >>> workload = {"arrival_s": [0.0, 0.5], "prompt_tokens": [10, 10], "output_tokens": [3, 1]}
        >>> iq.simulate(workload, engine).requests["admitted_s"].to_list()
        [0.0, 3.0]
    """

    max_seqs: int = 128
    max_model_len: int = 8192
    free: Literal["each", "batch"] = "each"

    def reserved_tokens(self) -> int:
        """The maximum length, for every request."""
        return self.max_model_len
