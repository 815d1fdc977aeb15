"""Nested WAIT: thresholds along the stages of decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class NestedWait(Scheduler):
    """Nested WAIT: thresholds along the decode stages, for requests of unknown lengths.

    The stage of a request is how many iterations it has had since it was admitted; its prompt is stage 0,
    computed whole. Segment 1 covers the stages 0 to `segments[0]`, segment i the stages after
    `segments[i − 2]` up to `segments[i − 1]`; the last one has no upper end. At the entry of segment 1 stands
    the queue, at the entry of a later one those whose next stage is its first.

    Each step finds the longest run of segments from the first on of which every entry holds at least its
    threshold. Of each segment in it, as many as its threshold enter, in the order in which they came, and all
    that are inside advance. All others pause and keep their blocks. A new request is admitted while blocks
    for all of its known tokens are free, which it takes (with `first_token="decode"`, those for the next one
    must be free as well). There is no token budget and no cap on how many run. With `prompt_groups` each
    group of prompt lengths runs on its own, with the same thresholds.

    When blocks are short, the latest admitted of all running requests, paused ones too, loses its context and
    returns to its queue, until the rest fits; that step admits none. At the head of that queue it blocks
    those behind it. When nothing is left to come anywhere, thresholds no longer count; `Result.drained` names
    those that were still here.

    Source: ao2025 Algorithm 2 and section 7.2, with n_i = `thresholds`, l'_i = `segments`. The index sets of
        Algorithm 2 add up the l' as if they were increments; section 5.1 and Figure 6 have them as here.
        Thresholds should satisfy (10), strictly: those of section 6 meet it with equality, and their queues
        drift up slowly. The memory (11) is right for two segments at most, for it must use
        l'_(j−1) + l'_j, and leaves out the stage of the prompt.

    Args:
        segments: the last stage of each segment, ascending, the first 0 or above; how far the last one
            reaches does not matter.
        thresholds: requests at the entry of each segment that let it advance, at least 1, as many as there
            are segments.
        prompt_groups: greatest prompt length of each group, ascending; one more group holds what is longer.
            Empty: one group of all.

    Raises:
        ConfigError: lists of different lengths, or numbers outside these ranges.

    Example:
        The segments and thresholds of the paper's Figure 6. The third request lets the first segment advance:

        >>> import inferq as iq
        >>> scheduler = iq.NestedWait(segments=[0, 2], thresholds=[3, 3])
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=iq.KvCache.unlimited())
        >>> workload = {"arrival_s": [0.0, 0.0, 1.0], "prompt_tokens": [9] * 3, "output_tokens": [1, 1, 2]}
        >>> iq.simulate(workload, engine).requests["admitted_s"].to_list()
        [1.0, 1.0, 1.0]
    """

    segments: Sequence[int]
    thresholds: Sequence[int]
    prompt_groups: Sequence[int] = ()
