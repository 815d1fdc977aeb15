"""Slai: SLO-aware scheduling, decodes delayed in favor of prompts up to their deadlines."""

from __future__ import annotations

from dataclasses import dataclass

from inferq.description import Answer, Description
from inferq.scheduler.by_key import Order
from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class DynamicOffset(Description):
    """An offset of `Slai` that depends on memory: `high` while the cache is nearly full, else `low`.

    It is `high` if, at the beginning of a step, the fraction of used blocks is at least `kv_share`. Decodes
    then become critical earlier and free memory. An unlimited cache is never nearly full.

    Source: bari2025 section 7.

    Args:
        low: offset below the threshold, above 0.
        high: offset from the threshold on, above 0.
        kv_share: the threshold, a fraction of all blocks, 0 to 1.

    Raises:
        ConfigError: a number outside these ranges.

    Example:
        >>> import inferq as iq
        >>> iq.research.Slai(offset=iq.research.DynamicOffset(low=5, high=20)).to_json()["offset"]
        {'kind': 'DynamicOffset', 'low': 5, 'high': 20, 'kv_share': 0.96}
    """

    low: float = 5
    high: float = 10
    kv_share: float = 0.96

    def __post_init__(self) -> None:
        """Let the core check the offset as part of a scheduler."""
        Description.__post_init__(self)
        Slai(offset=self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Slai(Scheduler):
    """SLO-aware scheduling: a decode is delayed in favor of prompts until its deadline is near.

    The next token of a request is due `itl_slo_s` (a column of the workload) after the previous one. Its
    decode becomes critical at its last schedulable time C = e + itl_slo_s − `offset` · (mean duration of an
    iteration so far), where e is the end of the iteration with its previous decode or the end of its prompt.
    A request without `itl_slo_s` is never critical. Each iteration takes, while `token_budget` lasts:

    1. critical decodes, by C, then `id`;
    2. unfinished prompts by arrival, each cut to the remaining budget;
    3. the queue in its order: a request is admitted when fewer than `max_active` run and blocks for all of
       its known tokens are free, and takes them (with `first_token="decode"`, blocks for the next token must
       be free as well). The first that cannot be admitted, also a victim, blocks later ones;
    4. decodes that are not critical, by C, then `id`, those without `itl_slo_s` last.

    An iteration has at most `max_decodes` decodes. A decode without a free block preempts the latest arrival
    that is not yet in the batch, itself last, by recompute.

    Source: bari2025 section 6, (8), with δ = `offset`, τ = `token_budget`, α = `max_active`,
        β = `max_decodes`; `class_first` is "SPF with priority" of appendix F.2. The mean is 0 before the
        first iteration has ended. The paper does not define preemption; here it is Sarathi's.

    Args:
        token_budget: maximum tokens of an iteration, at least 1.
        max_active: maximum running requests, at least 1.
        max_decodes: maximum decodes of an iteration, at least 1.
        offset: mean iterations by which a decode becomes critical before its deadline, above 0, or a
            `DynamicOffset`.
        order: order of the queue, as for `Sarathi`: `"spf"`, `"fcfs"`, `"srf"`, `"lpf"` or `ByKey(f)`.
        class_first: a class whose requests are admitted before all others; prompts that have started remain
            ahead of it.

    Raises:
        ConfigError: a number outside these ranges or an unknown order; in `simulate`, `class_first` is not a
            class of the workload.

    Example:
        Without a deadline the first request's decodes wait for a prompt that takes two iterations:

        >>> import inferq as iq
        >>> scheduler, kv = iq.research.Slai(), iq.KvCache.unlimited()
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=kv)
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

    def sequence_limit(self) -> int:
        """The maximum of active requests."""
        return self.max_active

    def fills_budget(self) -> Answer:
        """True if an iteration may contain a decode of every active request."""
        if self.max_decodes < min(self.max_active, self.token_budget):
            return Answer(None, f"Slai limits an iteration to {self.max_decodes:,} decodes")
        return Answer(True, "Slai fills its budget while a request can run")
