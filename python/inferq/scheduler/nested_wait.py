"""NestedWait: thresholds along the stages of decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class NestedWait(Scheduler):
    """Nested WAIT: thresholds along the decode stages, for requests of unknown lengths.

    The stage of a request is its number of iterations since admission; its prompt is stage 0, computed
    whole. Segment 1 covers the stages 0 to `segments[0]`, segment i the stages after `segments[i − 2]` up to
    `segments[i − 1]`; the last segment has no upper end. The queue waits at the entry of segment 1. Requests
    whose next stage is the first of a later segment wait at its entry.

    Each step finds the longest run of segments, starting with the first, in which every entry holds at least
    its threshold. In each of these segments, as many requests as the threshold enter, first come, first
    served, and all requests inside advance. All other requests pause and keep their blocks. A new request is
    admitted while blocks for all of its known tokens are free, and takes them (with `first_token="decode"`,
    blocks for the next token must be free as well). There is no token budget and no limit on running
    requests. With `prompt_groups` each group of prompt lengths runs separately, with the same thresholds.

    When blocks are short, the latest admitted of all running requests, paused ones included, loses its
    context and returns to its queue, until the rest fits; that step admits no request. At the head of its
    queue the victim blocks later requests. When no more arrivals are expected, thresholds no longer apply;
    `Result.drained` lists the requests that remained.

    Source: ao2025 Algorithm 2 and section 7.2, with n_i = `thresholds`, l'_i = `segments`. The index sets of
        Algorithm 2 add up the l' as increments; section 5.1 and Figure 6 use them as here. Thresholds should
        satisfy (10) strictly: those of section 6 satisfy it with equality, and their queues drift up slowly.
        The memory (11) is correct for at most two segments, because it must use l'_(j−1) + l'_j, and omits
        the stage of the prompt.

    Args:
        segments: the last stage of each segment, ascending, the first 0 or above. The last value has no
            effect.
        thresholds: requests required at the entry of each segment, at least 1, one for each segment.
        prompt_groups: maximum prompt length of each group, ascending; an additional group holds longer
            prompts. Default: one group.

    Raises:
        ConfigError: lists of different lengths, or numbers outside these ranges.

    Example:
        Segments and thresholds of the paper's Figure 6. The third request lets the first segment advance:

        >>> import inferq as iq
        >>> scheduler = iq.research.NestedWait(segments=[0, 2], thresholds=[3, 3])
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=iq.KvCache.unlimited())
        >>> workload = {"arrival_s": [0.0, 0.0, 1.0], "prompt_tokens": [9] * 3, "output_tokens": [1, 1, 2]}
        >>> iq.simulate(workload, engine).requests["admitted_s"].to_list()
        [1.0, 1.0, 1.0]
    """

    segments: Sequence[int]
    thresholds: Sequence[int]
    prompt_groups: Sequence[int] = ()

    def waits_for_full_batches(self) -> bool:
        """True: a segment waits for its threshold."""
        return True
