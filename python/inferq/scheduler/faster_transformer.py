"""FasterTransformer: request-level batching, the batch that runs until its last request ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class FasterTransformer(Scheduler):
    """Request-level batching: a batch runs until its last request ends, and none joins it.

    While none runs, requests are admitted by arrival as long as a seat and blocks for `max_model_len`
    tokens are free, and take them; all their prompts are computed whole, in one iteration. Then every
    iteration decodes one token of each request that has not ended. Nothing is preempted; there is no token
    budget.

    A request is rejected at arrival when prompt and output together exceed `max_model_len`, or when that
    length needs more blocks than the cache has.

    Source: FasterTransformer; bari2025 Algorithm 3; li2025 section 3. Algorithm 3 tests "mode = Prefill"
        twice, the first is meant to be Decode. li2025 does not state its limit on the batch, `max_seqs` here,
        on which the stable rate depends. What it describes, decodes before any prefill and then one batch of
        prompts, sustains far less than request-level batching when taken literally; here the whole batch
        is one request-level batch.

    Args:
        max_seqs: requests of one batch, at least 1.
        max_model_len: tokens for which each request reserves blocks, at least 1.
        free: `"each"`: a request's blocks are freed when it ends; `"batch"`: when the last of its batch does.

    Raises:
        ConfigError: a number outside these ranges or an unknown `free`.

    Example:
        The second request waits until the first one's batch has ended:

        >>> import inferq as iq
        >>> scheduler = iq.FasterTransformer(max_seqs=32)
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=iq.KvCache.unlimited())
        >>> workload = {"arrival_s": [0.0, 0.5], "prompt_tokens": [10, 10], "output_tokens": [3, 1]}
        >>> iq.simulate(workload, engine).requests["admitted_s"].to_list()
        [0.0, 3.0]
    """

    max_seqs: int = 128
    max_model_len: int = 8192
    free: Literal["each", "batch"] = "each"

    def reserved_tokens(self) -> int:
        """The longest sequence, for every request."""
        return self.max_model_len
