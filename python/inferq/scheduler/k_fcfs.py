"""KFcfs: the family of policies for which throughput optimality is proved."""

from __future__ import annotations

from dataclasses import dataclass

from inferq.description import Answer
from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class KFcfs(Scheduler):
    """(Kp, Kd)-FCFS: decodes of the oldest requests, then prompts of the oldest, up to the token budget.

    Each iteration decodes one token of the `k_decode` oldest requests whose prompts are complete. Then at
    most `k_prefill` requests inside their prompts get as many tokens as the budget leaves: unfinished prompts
    by arrival, then the queue by arrival, each admitted when blocks for all of its known tokens are free,
    which it takes. There is no other cap on how many run.

    A decode without a free block preempts the latest arrival that is not yet placed in the batch, itself
    last, by recompute. A step that preempted may admit, but not its own victims;
    one at the head of the queue blocks those behind it until all of its known tokens fit.

    Source: li2025 section 2.3, with Kp = `k_prefill`, Kd = `k_decode`, b = `token_budget`. The paper leaves
        open which of the K oldest go first; here it is the oldest. It has no memory limit; preemption is
        Sarathi's. It counts a decode for every output token, `first_token="decode"`. With caps too small to
        fill the budget the policy is not work-conserving; `Result.work_conservation` tells.

    Args:
        token_budget: tokens of one iteration, at least 1.
        k_prefill: requests whose prompts share one iteration, at least 1.
        k_decode: requests that decode in one iteration, at least 1.

    Raises:
        ConfigError: a number outside these ranges.

    Example:
        One prompt at a time, although the budget has room for both:

        >>> import inferq as iq
        >>> scheduler = iq.KFcfs(token_budget=8, k_prefill=1, k_decode=4)
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=iq.KvCache.unlimited())
        >>> workload = {"arrival_s": [0.0, 0.0], "prompt_tokens": [4, 4], "output_tokens": [1, 1]}
        >>> iq.simulate(workload, engine).requests["first_token_s"].to_list()
        [1.0, 2.0]
    """

    token_budget: int
    k_prefill: int
    k_decode: int

    def fills_budget(self) -> Answer:
        """It does if its caps let as many requests in as the budget has tokens."""
        kinds = min(self.k_prefill, self.k_decode)
        if kinds >= self.token_budget:
            return Answer(True, "KFcfs lets as many requests in as the budget has tokens")
        return Answer(None, f"KFcfs lets only {kinds:,} requests of one kind into an iteration")
