"""VllmV1: the scheduler of vLLM's v1 engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inferq.description import Answer, field_names
from inferq.scheduler.scheduler import Scheduler
from inferq.scheduler.speculation import Speculation


@dataclass(frozen=True, kw_only=True, slots=True)
class VllmV1(Scheduler):
    """vLLM's v1 scheduler: running requests in list order, then the queue while the budget lasts.

    There is no prefill phase and no decode phase: each running request computes what it owes, cut to the
    budget. A request without a free block preempts the last of the running list (`"fcfs"`) or the worst by
    priority and arrival (`"priority"`), by recompute. A step that preempted admits none. The head of the
    queue, a victim too, blocks those behind it.

    With `async_scheduling` a batch is planned when the one before it begins, so that the device need not wait
    for the scheduler. The plan does not know requests that came since, and those whose last token is being
    computed still hold their seats and blocks. An end is foreseen where the workload's `max_output_tokens`
    allows no further token; any other end is a stop token, behind which one more row is computed in vain.

    Source: vLLM 0.33, whose recorded batches this reproduces, with asynchronous scheduling (vLLM's own
        default) and without, with drafts and without. LoRA limits and KV connectors are left out.

    Args:
        token_budget: tokens of one iteration (`max_num_batched_tokens`), at least 1.
        max_seqs: requests that may run at once (`max_num_seqs`), at least 1.
        long_prefill_threshold: most tokens of one prompt in one iteration while more than one request is
            present (`long_prefill_token_threshold`); 0 sets no limit.
        policy: `"fcfs"`, or `"priority"`: the workload's `priority`, lower first, then arrival.
        reserve_full_prompt: admit only when blocks for all known tokens are free
            (`scheduler_reserve_full_isl`); only the chunk's blocks are taken.
        async_scheduling: plan each batch while the one before it runs (`--async-scheduling`, vLLM's default
            since 0.14).
        pause_s: seconds that the engine's loop sleeps after a batch during which nothing could be planned;
            only with `async_scheduling`. None: vLLM's 0.001 with it, no pause without.
        speculation: how requests decode by drafts, see `Speculation`; None: token by token.

    Raises:
        ConfigError: a number outside these ranges, an unknown policy, a pause without `async_scheduling`, or
            in an `Engine` drafts with a radix cache.

    Example:
        >>> import inferq as iq
        >>> iq.VllmV1().token_budget
        2048
        >>> synchronous = iq.VllmV1(async_scheduling=False)  # as vLLM was before 0.14
    """

    token_budget: int = 2048
    max_seqs: int = 128
    long_prefill_threshold: int = 0
    policy: Literal["fcfs", "priority"] = "fcfs"
    reserve_full_prompt: bool = True
    async_scheduling: bool = True
    pause_s: float | None = None
    speculation: Speculation | None = None

    def __repr__(self) -> str:
        """As the class is called, without `speculation` where there is none."""
        names = [name for name in field_names(VllmV1) if name != "speculation" or self.speculation]
        return f"VllmV1({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    def fills_budget(self) -> Answer:
        """It does unless the part of one prompt is bounded, or plans do not know the latest arrivals."""
        if self.speculation is not None:
            return Answer(False, "VllmV1 loads drafts, and how many are on offer depends on what came before")
        if self.async_scheduling:
            return Answer(False, "VllmV1 plans a batch before it knows which requests arrive until it starts")
        if 0 < self.long_prefill_threshold < self.token_budget:
            return Answer(False, f"VllmV1 cuts a prompt to {self.long_prefill_threshold:,} tokens")
        return Answer(True, "VllmV1 fills its budget while a request can run")

    def speculates(self) -> Speculation | None:
        """As `speculation` says."""
        return self.speculation

    def plans_ahead(self) -> bool:
        """With `async_scheduling`."""
        return self.async_scheduling

    def serves_oldest(self) -> bool:
        """First come, first served, with prompts that only the budget cuts."""
        is_plain = not self.async_scheduling and self.speculation is None
        return self.policy == "fcfs" and not self.long_prefill_threshold and is_plain
