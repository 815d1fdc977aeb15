"""Sglang: the scheduler of SGLang."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class Sglang(Scheduler):
    """SGLang's scheduler: prompts first, as far as guessed outputs leave memory; otherwise all decode.

    Before each iteration SGLang tries to admit requests. If it can, the iteration computes prompts alone
    (`mixed`: and the decodes beside them), cut to `chunk_tokens`; the last prompt may be cut, and goes on
    first in the next iteration. A request is admitted if its prompt and its whole output fit beside what
    those that run are expected to need: a share of their outputs that falls from `0.7 * conservativeness` to
    0.14 of that within 600 decode iterations. When decodes find no page, those that emitted least are
    *retracted*: they lose their context, keep their tokens, and wait at the tail of the queue; the share is
    then set anew. A retracted request that is computed again is priced as a prompt to its last token.

    The cache is `KvCache(block=page, prefix_cache="radix")`, or one without a prefix cache. A request is
    rejected at arrival if SGLang would never admit it: unless its prompt, its output (4,096 tokens of it at
    most) and a page are less than the cache, or, with `ignore_eos` and no prefix cache, its prompt in whole
    pages, its output, a page and a token. So it is if SGLang would cut its output: unless prompt, output and
    a token are less. Where a request that was retracted has no room in the whole cache by these rules, SGLang
    would wait for ever; here it goes on once no other is there. Where SGLang would stop for want of
    memory, because a prompt that is cut finds no page, that prompt waits, and is retracted if the last decode
    finds none beside it.

    With `overlap` a step is planned when the one before it begins, so that the GPU need not wait for the
    scheduler. The plan does not know requests that came since, nor the tokens that are being computed: those
    that end with them still have their seats and memory, and a retracted request loses its token in flight.
    An end is foreseen where the workload's `max_output_tokens` allows no further token; any other end is a
    stop token, behind which one more decode is computed in vain. With that column, what the client allows is
    reserved, and not what the request will emit.

    Source: SGLang 0.5.23, whose recorded batches this reproduces, with overlap (SGLang's own default) and
        without. Priorities, other policies, drafts and host caches are left out.

    Args:
        policy: `"fcfs"`, or `"lpm"`: the longest part of a prompt found in the cache goes first; with
            more than 128 waiting, or without a prefix cache, by arrival.
        chunk_tokens: most tokens of prompts in one iteration (`chunked_prefill_size`), at least a page; None
            or 0: prompts are not cut.
        max_prefill_tokens: no further prompt is admitted to an iteration that computes so many tokens.
        max_seqs: requests that may run at once (`max_running_requests`; SGLang itself takes 2,048 to 4,096,
            by the size of the cache).
        mixed: decode beside prompts (`enable_mixed_chunk`); needs `chunk_tokens` above `max_seqs`. Without
            chunks SGLang mixes nothing, which is a finding.
        conservativeness: how much of the outputs is reserved (`schedule_conservativeness`), 0 or more.
        ignore_eos: requests are known to emit all of their tokens, so that all of them are reserved.
        overlap: plan each step while the one before it runs; False: `--disable-overlap-schedule`.

    Raises:
        ConfigError: a number outside these ranges or an unknown policy; in an `Engine`,
            `prefix_cache="blocks"`, pages that do not divide the cache, or chunks below a page.

    Example:
        >>> import inferq as iq
        >>> cache = iq.KvCache(tokens=4096, block=16, prefix_cache="radix")
        >>> engine = iq.Engine(timing=iq.Constant(0.01), scheduler=iq.Sglang(policy="lpm"), kv=cache)
        >>> asked = {"arrival_s": [0, 1], "prompt_tokens": [64, 64], "output_tokens": [4, 4]}
        >>> shared = {**asked, "prefix_parts": [[[7, 48]], [[7, 48]]]}
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

    def plans_ahead(self) -> bool:
        """With `overlap`."""
        return self.overlap
