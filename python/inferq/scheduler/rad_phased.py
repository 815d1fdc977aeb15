"""RadPhased: the tiles of `Rad`, with all prompts of a cycle before its decodes."""

from __future__ import annotations

from dataclasses import dataclass

from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class RadPhased(Scheduler):
    """`Rad` in two phases: first the prompts of a whole cycle, then all of its decodes.

    The prefill phase computes prompts one at a time, in chunks of lcm(`rows`, `columns`, `reduction`) tokens.
    It ends when `requests_per_cycle` have started, the queue is empty, or blocks for all known tokens of its
    head are not free. The decode phase keeps up to `columns` requests active, in the order in which their
    prompts were completed; all active ones decode one token each, and each one that ends is replaced by the
    next. When none is left, a new cycle begins. ITL is lower than under `Rad`, TTFT is higher.

    A decode without a free block preempts the latest arrival that is not yet in the batch, itself last, by
    recompute; requests that wait to decode can be preempted too. The victim waits for the next cycle, at the
    head of the queue, and blocks later requests.

    Source: bari2025 Algorithm 2 (appendix D), with t_row = `rows`, t_col = `columns`, t_red = `reduction`,
        n = `requests_per_cycle`. Line 7 must be min(lcm, L − i + 1), or the last token of a prompt is never
        computed. In the text, the decode phase emits a request's first token; here the engine's
        `first_token` determines it.

    Args:
        rows: rows of an output tile, t_row, from 1 to 1,048,576, as for the next two.
        columns: columns of an output tile, t_col, and the maximum requests that decode together.
        reduction: length of the reduction tile, t_red.
        requests_per_cycle: maximum requests that a cycle starts, n, at least 1.

    Raises:
        ConfigError: a number outside these ranges.

    Example:
        Two prompts, then the decodes of the first request, then the decode of the second:

        >>> import inferq as iq
        >>> scheduler = iq.research.RadPhased(rows=2, columns=1, reduction=1, requests_per_cycle=2)
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=iq.KvCache.unlimited())
        >>> workload = {"arrival_s": [0.0, 0.0], "prompt_tokens": [2, 2], "output_tokens": [3, 2]}
        >>> iq.simulate(workload, engine).requests.select("first_token_s", "finish_s").rows()
        [(1.0, 4.0), (2.0, 5.0)]
    """

    rows: int
    columns: int
    reduction: int
    requests_per_cycle: int
