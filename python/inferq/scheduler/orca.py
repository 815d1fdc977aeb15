"""Orca: prompts first, decodes beside them, the longest sequence reserved for every request."""

from __future__ import annotations

from dataclasses import dataclass

from inferq.description import Answer
from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class Orca(Scheduler):
    """Prompts first, decodes beside them: iteration-level batching with the maximum length reserved.

    Each iteration takes unfinished prompts by arrival, then admits from the queue by arrival, then one token
    of each decode by arrival, while `token_budget` lasts. A request is admitted when a seat and blocks for
    `max_model_len` tokens are free, and takes them all, so nothing is ever preempted. Whole prompts that
    exceed the budget that is left wait; with `chunked=True` they are cut to it. The first that cannot be
    admitted blocks those behind it.

    A request is rejected at arrival when prompt and output together exceed `max_model_len`, when that length
    needs more blocks than the cache has, or, without `chunked`, when its prompt exceeds `token_budget`.

    Source: Orca (Yu et al., OSDI 2022); li2025 section 3, "prefill-prioritized with mixed batching". The
        paper counts Orca among the work-conserving policies. That takes `chunked=True` and enough memory:
        whole prompts leave the end of a budget empty.

    Args:
        max_seqs: requests that may run at once, at least 1.
        max_model_len: tokens for which each request reserves blocks, at least 1.
        token_budget: tokens of one iteration, at least 1; None sets no limit.
        chunked: cut prompts to the budget; needs a `token_budget`.

    Raises:
        ConfigError: a number outside these ranges, or `chunked` without a `token_budget`.

    Example:
        The second prompt shares an iteration with the first request's decode:

        >>> import inferq as iq
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Orca(), kv=iq.KvCache.unlimited())
        >>> workload = {"arrival_s": [0.0, 0.5], "prompt_tokens": [10, 10], "output_tokens": [3, 1]}
        >>> iq.simulate(workload, engine).requests["finish_s"].to_list()
        [3.0, 2.0]
    """

    max_seqs: int = 128
    max_model_len: int = 8192
    token_budget: int | None = None
    chunked: bool = False

    def reserved_tokens(self) -> int:
        """The longest sequence, for every request."""
        return self.max_model_len

    def cuts_prompts(self) -> bool:
        """Only with `chunked`."""
        return self.chunked

    def fills_budget(self) -> Answer:
        """It does where prompts are cut."""
        if self.chunked:
            return Answer(True, "Orca fills its budget while a request can run")
        return Answer(False, "Orca leaves the end of a budget empty that no whole prompt fits")
