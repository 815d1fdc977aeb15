"""RadPhased: the tiles of `Rad`, with the prompts of a cycle before all of its decodes."""

from __future__ import annotations

from dataclasses import dataclass

from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class RadPhased(Scheduler):
    """`Rad` in two phases: first the prompts of a whole cycle, then all of its decodes.

    The prefill phase computes prompts one at a time, in chunks of lcm(`rows`, `columns`, `reduction`) tokens,
    until `requests_per_cycle` are begun, the queue is empty, or blocks for all known tokens of its head are
    not free. The decode phase keeps up to `columns` requests active, in the order in which their prompts were
    completed; all active ones decode one token each, and one that ends makes room for the next. When none is
    left a new cycle begins. Gaps between tokens are shorter than under `Rad`, the first token is later.

    A decode without a free block preempts the latest arrival that is not yet placed in the batch, those that
    wait for their turn to decode too, itself last, by recompute. The victim
    waits for the next cycle, at the head of the queue, and blocks those behind it.

    Source: bari2025 Algorithm 2 (appendix D), with t_row = `rows`, t_col = `columns`, t_red = `reduction`,
        n = `requests_per_cycle`. Line 7 must be min(lcm, L − i + 1), or the last token of a prompt is never
        computed. The text says that a request's first token comes in the decode phase; here
        `first_token` of the engine says when it comes.

    Args:
        rows: rows of an output tile, t_row, from 1 to 1,048,576 as the other two.
        columns: columns of an output tile, t_col, and most requests that decode together.
        reduction: length of the reduction tile, t_red.
        requests_per_cycle: most requests that a cycle begins, n, at least 1.

    Raises:
        ConfigError: a number outside these ranges.

    Example:
        Two prompts, then the decodes of the first, then that of the second:

        >>> import inferq as iq
        >>> scheduler = iq.RadPhased(rows=2, columns=1, reduction=1, requests_per_cycle=2)
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=iq.KvCache.unlimited())
        >>> workload = {"arrival_s": [0.0, 0.0], "prompt_tokens": [2, 2], "output_tokens": [3, 2]}
        >>> iq.simulate(workload, engine).requests.select("first_token_s", "finish_s").rows()
        [(1.0, 4.0), (2.0, 5.0)]
    """

    rows: int
    columns: int
    reduction: int
    requests_per_cycle: int
