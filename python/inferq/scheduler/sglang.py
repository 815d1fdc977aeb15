"""Sglang: the scheduler of SGLang."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class Sglang(Scheduler):
    """SGLang's scheduler: prompts first, as far as predicted outputs leave memory; otherwise decodes.

    SGLang tries to admit requests before each iteration. If it can, the iteration computes prompts only
    (with `mixed` also decodes), cut to `chunk_tokens`; if the last prompt is cut, it continues first in the
    next iteration. A request is admitted if its prompt and its whole output fit next to the predicted need of
    running requests: a fraction of their outputs that falls from `0.7 * conservativeness` to 0.14 of that
    within 600 decode iterations. If decodes find no page, the requests with the fewest emitted tokens are
    *retracted*: they lose their context, keep their tokens, and wait at the tail of the queue; the fraction
    is then recomputed. A retracted request costs the same as a prompt up to its last token.

    The cache is `KvCache(block=page, prefix_cache="radix")`, or one without a prefix cache. A request is
    rejected at arrival if SGLang would never admit it. It must satisfy that its prompt, its output (at most
    4,096 tokens of it) and a page are less than the cache, or, with `ignore_eos` and no prefix cache, its
    prompt in whole pages, its output, a page and a token. It is also rejected if SGLang would cut its output,
    unless prompt, output and a token are less than the cache. SGLang never resumes a retracted request that
    these rules exclude from the whole cache; here it resumes when it is alone. SGLang stops if a cut prompt
    finds no page; here the prompt waits, and is retracted if the last decode finds no page next to it.

    With `overlap` a step is planned when the previous step begins, so that the GPU does not wait for the
    scheduler. The plan lacks later arrivals and the tokens being computed: requests that end with these
    tokens still hold their sequence slots and memory, and a retracted request loses its token in flight.
    The plan foresees an end if the workload's `max_output_tokens` or the engine's `max_model_len` allows
    no further token. Any other end is a stop token, after which one more decode is computed and
    discarded.

    If the workload has the column `max_output_tokens`, memory is reserved for it, not for the actual output,
    with and without `overlap`. SGLang too reserves for the `max_new_tokens` of the client, at most what the
    cache and `max_model_len` leave.

    Source: SGLang 0.5.23, whose recorded batches this reproduces, with overlap (SGLang's default) and
        without. Priorities, other policies, speculative decoding and host caches are not modeled.

    Args:
        policy: `"fcfs"`, or `"lpm"`: longest cached prefix first; by arrival if more than 128 requests wait
            or there is no prefix cache.
        chunk_tokens: maximum prompt tokens of an iteration (`chunked_prefill_size`), at least a page. None or
            0: prompts are not cut.
        max_prefill_tokens: an iteration with this many prompt tokens admits no further prompt.
        max_seqs: maximum running requests (`max_running_requests`; SGLang chooses 2,048 to 4,096 by the size
            of the cache).
        mixed: run decodes next to prompts (`enable_mixed_chunk`); requires `chunk_tokens` above `max_seqs`.
            Without chunks SGLang does not mix, which is a finding.
        conservativeness: factor on the reserved part of outputs (`schedule_conservativeness`), 0 or above.
        ignore_eos: requests emit all of their tokens, so that memory is reserved for all of them.
        overlap: plan each step during the previous one; False: `--disable-overlap-schedule`.

    Raises:
        ConfigError: a number outside these ranges or an unknown policy; in an `Engine`,
            `prefix_cache="blocks"`, a cache that is not a multiple of a page, or chunks smaller than a page.

    Example:
        >>> import inferq as iq
        >>> cache = iq.KvCache(tokens=4096, block=16, prefix_cache="radix")
        >>> engine = iq.Engine(timing=iq.Constant(0.01), scheduler=iq.Sglang(policy="lpm"), kv=cache)
        >>> workload = {"arrival_s": [0, 1], "prompt_tokens": [64, 64], "output_tokens": [4, 4]}
        >>> shared = {**workload, "prefix_parts": [[[7, 48]], [[7, 48]]]}
        >>> iq.simulate(shared, engine).requests["cached_tokens"].to_list()
        [0, 48]
    """

    policy: Literal["fcfs", "lpm"] = "fcfs"
    chunk_tokens: int | None = 8192
    max_prefill_tokens: int = 16384
    max_seqs: int = 2048
    mixed: bool = False
    conservativeness: float = 1.0
    ignore_eos: bool = False
    overlap: bool = True

    def is_asynchronous(self) -> bool:
        """True with `overlap`."""
        return self.overlap

    def reads_output_limits(self) -> bool:
        """True: a request reserves memory for its output limit."""
        return True
