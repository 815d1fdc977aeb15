"""Wait: a class of requests waits until enough of them can fill an iteration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait(Scheduler):
    """WAIT: a class advances only while at least its threshold of requests wait to begin.

    A class whose queue holds at least its threshold advances: all of its running requests decode one token,
    and up to the threshold are admitted by arrival, whole prompts in the same iteration, while a sequence
    slot and blocks for all known tokens are free (with `first_token="decode"`, also blocks for the next
    token, or two requests could deadlock). All other classes are paused and keep their blocks. Classes are
    visited in the order of their codes: sorted by name, unless the workload's column defines another order.
    There is no token budget.

    When blocks are short for the decodes, the latest admitted of all running requests, paused ones included,
    loses its context and returns to its queue, until the rest fits; that step admits no request. At the head
    of its queue the victim blocks its class.

    When no more arrivals are expected, thresholds no longer apply, so that every request ends;
    `Result.drained` lists the requests that remained.

    Source: ao2025 Algorithm 1, with n_j = `thresholds`; a type is a class, and all requests of a class should
        have the same lengths. The algorithm does not define overflow and the last requests. The paper counts
        the iteration of the prompt as a token in (4) and not in section 2.3: `first_token="decode"` is the
        latter. Thresholds should satisfy (9). The rule of section 6.1, n_j = B·ρ_j / (l'_j + 1), is not
        proportional to the rates λ_j and satisfies it only for large B.

    Args:
        thresholds: waiting requests required to begin, at least 1: one number for every class, or a mapping
            with a number for every class of the workload.
        max_seqs: maximum running requests, at least 1. None: no limit.

    Raises:
        ConfigError: a number outside these ranges, an empty mapping; in `simulate`, a class without a
            threshold or a threshold without a class.

    Example:
        The first request waits for a second one:

        >>> import inferq as iq
        >>> scheduler = iq.research.Wait(thresholds=2)
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=iq.KvCache.unlimited())
        >>> workload = {"arrival_s": [0.0, 3.0], "prompt_tokens": [10, 10], "output_tokens": [2, 2]}
        >>> iq.simulate(workload, engine).requests["admitted_s"].to_list()
        [3.0, 3.0]
        >>> iq.research.Wait(thresholds={"chat": 4, "code": 2}).to_json()["thresholds"]
        {'chat': 4, 'code': 2}
    """

    thresholds: int | Mapping[str, int]
    max_seqs: int | None = None

    def waits_for_full_batches(self) -> bool:
        """True: a class waits for its threshold."""
        return True
