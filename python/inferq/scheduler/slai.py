"""SLAI: decodes put off in favor of prompts, as long as the deadlines of their next tokens allow."""

from __future__ import annotations

from dataclasses import dataclass

from inferq.description import Answer, Description
from inferq.scheduler.by_key import Order
from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class DynamicOffset(Description):
    """An offset of `Slai` that follows the memory: `high` while the cache is nearly full, else `low`.

    At the beginning of each step it is `high` when used blocks are at least `kv_share` of all, so that
    decodes become critical earlier and clear the memory. An unlimited cache is never nearly full.

    Source: bari2025 section 7.

    Args:
        low: offset below the share, above 0.
        high: offset from the share on, above 0.
        kv_share: share of all blocks, 0 to 1.

    Raises:
        ConfigError: a number outside these ranges.

    Example:
        >>> import inferq as iq
        >>> iq.Slai(offset=iq.DynamicOffset(low=5, high=20)).to_json()["offset"]
        {'kind': 'DynamicOffset', 'low': 5, 'high': 20, 'kv_share': 0.96}
    """

    low: float = 5
    high: float = 10
    kv_share: float = 0.96

    def __post_init__(self) -> None:
        """Let the core judge the offset where it reads it: inside a scheduler."""
        Description.__post_init__(self)
        Slai(offset=self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Slai(Scheduler):
    """SLO-aware scheduling: a decode is put off in favor of prompts until its deadline comes near.

    The next token of a request should come `itl_slo_s` (a column of the workload) after the one before. Its
    decode becomes critical at its last schedulable time C = e + itl_slo_s − `offset` · (mean length of an
    iteration so far), where e is the end of the iteration that held the decode before, or that completed the
    prompt. A request without `itl_slo_s` is never critical. Each iteration takes, while `token_budget` lasts:

    1. critical decodes, by C, then `id`;
    2. unfinished prompts by arrival, each cut to the budget that is left;
    3. the queue in its order: a request is admitted when fewer than `max_active` run and blocks for all of
       its known tokens are free, which it takes (with `first_token="decode"`, those for the next one must be
       free as well); the first that cannot be admitted, a victim too, blocks
       the others;
    4. decodes that are not critical, by C, then `id`, those without `itl_slo_s` last.

    No more than `max_decodes` decodes are in one iteration. A decode without a free block preempts the latest
    arrival that is not yet placed in the batch, itself last, by recompute.

    Source: bari2025 section 6, (8), with δ = `offset`, τ = `token_budget`, α = `max_active`,
        β = `max_decodes`; `class_first` is "SPF with priority" of appendix F.2. The mean is 0 before the
        first iteration has ended. The paper does not say what becomes of a request that finds no block: here
        it is Sarathi's rule.

    Args:
        token_budget: tokens of one iteration, at least 1.
        max_active: requests that may run at once, at least 1.
        max_decodes: decodes of one iteration, at least 1.
        offset: mean iterations by which a decode becomes critical before its deadline, above 0, or a
            `DynamicOffset`.
        order: order of the queue, as of `Sarathi`: `"spf"`, `"fcfs"`, `"srf"`, `"lpf"` or `ByKey(f)`.
        class_first: a class whose requests are admitted before all others; prompts that have begun stay
            ahead of it.

    Raises:
        ConfigError: a number outside these ranges or an unknown order; in `simulate`, a `class_first` that is
            no class of the workload.

    Example:
        Without a deadline the first request's decodes wait for a prompt that takes two iterations:

        >>> import inferq as iq
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Slai(), kv=iq.KvCache.unlimited())
        >>> workload = {"arrival_s": [0.0, 0.5], "prompt_tokens": [10, 1024], "output_tokens": [3, 1]}
        >>> iq.simulate(workload, engine).requests.select("first_token_s", "max_itl_s", "finish_s").rows()
        [(1.0, 3.0, 5.0), (3.0, None, 3.0)]
    """

    token_budget: int = 512
    max_active: int = 128
    max_decodes: int = 128
    offset: float | DynamicOffset = 10
    order: Order = "spf"
    class_first: str | None = None

    def seats(self) -> int:
        """Requests that are active at once."""
        return self.max_active

    def fills_budget(self) -> Answer:
        """It does if as many decodes may join an iteration as there are seats."""
        if self.max_decodes < min(self.max_active, self.token_budget):
            return Answer(None, f"Slai lets only {self.max_decodes:,} decodes into an iteration")
        return Answer(True, "Slai fills its budget while a request can run")
