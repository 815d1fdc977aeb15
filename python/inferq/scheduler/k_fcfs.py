"""KFcfs: the family of policies with a proof of throughput optimality."""

from __future__ import annotations

from dataclasses import dataclass

from inferq.description import Answer
from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class KFcfs(Scheduler):
    """(Kp, Kd)-FCFS: decodes of the oldest requests, then prompts of the oldest, up to the token budget.

    Each iteration decodes one token of the `k_decode` oldest requests whose prompts are complete. Then at
    most `k_prefill` requests share the rest of the budget for their prompts: unfinished prompts by arrival,
    then the queue by arrival. A request is admitted when blocks for all of its known tokens are free, and
    takes them. There is no limit on running requests.

    A decode without a free block preempts the latest arrival that is not yet in the batch, itself last, by
    recompute. A step with preemptions may admit requests, but not its own victims. A victim at the head of
    the queue blocks later requests until all of its known tokens fit.

    Source: li2025 section 2.3, with Kp = `k_prefill`, Kd = `k_decode`, b = `token_budget`. The paper leaves
        open which of the K oldest have priority; here it is the oldest. The paper has no memory limit;
        preemption is Sarathi's. It counts a decode for every output token, `first_token="decode"`. With caps
        too small to fill the budget the policy is not work-conserving; see `Result.work_conservation`.

    Args:
        token_budget: tokens of one iteration, at least 1.
        k_prefill: maximum requests with prompt tokens in an iteration, at least 1.
        k_decode: maximum decodes of an iteration, at least 1.

    Raises:
        ConfigError: a number outside these ranges.

    Example:
        One prompt at a time, although the budget has room for both:

        >>> import inferq as iq
        >>> scheduler = iq.research.KFcfs(token_budget=8, k_prefill=1, k_decode=4)
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=iq.KvCache.unlimited())
        >>> workload = {"arrival_s": [0.0, 0.0], "prompt_tokens": [4, 4], "output_tokens": [1, 1]}
        >>> iq.simulate(workload, engine).requests["first_token_s"].to_list()
        [1.0, 2.0]
    """

    token_budget: int
    k_prefill: int
    k_decode: int

    def fills_budget(self) -> Answer:
        """True if the caps admit as many requests as the budget has tokens."""
        cap = min(self.k_prefill, self.k_decode)
        if cap >= self.token_budget:
            return Answer(True, "KFcfs admits as many requests as the budget has tokens")
        return Answer(None, f"KFcfs limits an iteration to {cap:,} prefills or decodes")
