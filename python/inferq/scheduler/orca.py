"""Orca: iteration-level batching with the maximum length reserved for every request."""

from __future__ import annotations

from dataclasses import dataclass

from inferq.description import Answer
from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class Orca(Scheduler):
    """Iteration-level batching, prompts first, with the maximum length reserved for every request.

    Each iteration takes unfinished prompts by arrival, then admits from the queue by arrival, then decodes
    one token of each request by arrival, while `token_budget` lasts. A request is admitted when a sequence
    slot and blocks for `max_model_len` tokens are free, and takes all of them, so there is no preemption. A
    prompt longer than the remaining budget waits; with `chunked=True` it is cut to the budget. The first
    request that cannot be admitted blocks later ones.

    A request is rejected at arrival if prompt and output together exceed `max_model_len`, if the cache has
    too few blocks for that length, or, without `chunked`, if its prompt exceeds `token_budget`.

    Source: Orca (Yu et al., OSDI 2022); li2025 section 3, "prefill-prioritized with mixed batching". The
        paper lists Orca among the work-conserving policies. This requires `chunked=True` and enough memory:
        whole prompts leave a part of the budget unused.

    Args:
        max_seqs: maximum running requests, at least 1.
        max_model_len: tokens for which each request reserves blocks, at least 1.
        token_budget: maximum tokens of an iteration, at least 1. None: no limit.
        chunked: cut prompts to the budget; requires a `token_budget`.

    Raises:
        ConfigError: a number outside these ranges, or `chunked` without a `token_budget`.

    Example:
        The second prompt shares an iteration with the first request's decode:

        >>> import inferq as iq
        >>> scheduler, kv = iq.research.Orca(), iq.KvCache.unlimited()
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=kv)
        >>> workload = {"arrival_s": [0.0, 0.5], "prompt_tokens": [10, 10], "output_tokens": [3, 1]}
        >>> iq.simulate(workload, engine).requests["finish_s"].to_list()
        [3.0, 2.0]
    """

    max_seqs: int = 128
    max_model_len: int = 8192
    token_budget: int | None = None
    chunked: bool = False

    def reserved_tokens(self) -> int:
        """The maximum length, for every request."""
        return self.max_model_len

    def chunks_prompts(self) -> bool:
        """True with `chunked`."""
        return self.chunked

    def fills_budget(self) -> Answer:
        """True with `chunked`."""
        if self.chunked:
            return Answer(True, "Orca fills its budget while a request can run")
        return Answer(False, "Orca leaves a part of the budget unused if no whole prompt fits")
