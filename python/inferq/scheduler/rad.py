"""Rad: tile-aligned prompts alone and decodes together, so that every matrix product fills its tiles."""

from __future__ import annotations

from dataclasses import dataclass

from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class Rad(Scheduler):
    """Resource-aware dynamic scheduling: one prompt at a time until `columns` requests can decode together.

    A prompt is computed alone, in chunks of lcm(`rows`, `columns`, `reduction`) tokens; its last chunk is
    shorter. Between prompts, if fewer than `columns` requests are decoding and the cycle has started fewer
    than `requests_per_cycle`, the head of the queue is admitted when blocks for all of its known tokens are
    free, and takes them. Otherwise all decoding requests decode one token each. A cycle ends when none of
    them is left.

    A decode without a free block preempts the latest arrival that is not yet in the batch, itself last, by
    recompute; a recomputed prompt counts in its cycle again. A victim that does not fit blocks the queue.

    Source: bari2025 Algorithm 1, with t_row = `rows`, t_col = `columns`, t_red = `reduction`,
        n = `requests_per_cycle`. Three errors are corrected. Line 13 must be min(lcm, L − i + 1), or the last
        token of a prompt is never computed. A cycle must also end when all of its requests have started and
        none decodes (outputs of one token), or the policy never continues. Assumption 3 names t_row twice in
        place of t_red. Theorem 1 counts one decode too many: the first token is emitted with the prompt
        (`first_token="prefill"`).

    Args:
        rows: rows of an output tile, t_row, from 1 to 1,048,576, as for the next two.
        columns: columns of an output tile, t_col, and the maximum requests that decode together.
        reduction: length of the reduction tile, t_red.
        requests_per_cycle: maximum requests that a cycle starts, n, at least 1.

    Raises:
        ConfigError: a number outside these ranges.

    Example:
        A prompt of 5 tokens in chunks of lcm(2, 2, 1) = 2 takes three iterations:

        >>> import inferq as iq
        >>> scheduler = iq.research.Rad(rows=2, columns=2, reduction=1, requests_per_cycle=10)
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=iq.KvCache.unlimited())
        >>> workload = {"arrival_s": [0.0], "prompt_tokens": [5], "output_tokens": [1]}
        >>> iq.simulate(workload, engine).requests["finish_s"].to_list()
        [3.0]
    """

    rows: int
    columns: int
    reduction: int
    requests_per_cycle: int
