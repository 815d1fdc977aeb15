"""VllmV1: the scheduler of vLLM's v1 engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inferq.description import Answer, field_names
from inferq.scheduler.scheduler import Scheduler
from inferq.scheduler.speculation import Speculation


@dataclass(frozen=True, kw_only=True, slots=True)
class VllmV1(Scheduler):
    """The scheduler of vLLM's v1 engine: running requests in list order, then the queue within the budget.

    There is no prefill phase and no decode phase: each running request computes its pending tokens, cut to
    the budget. A request without a free block preempts the last of the running list (`"fcfs"`) or the worst
    by priority and arrival (`"priority"`), by recompute. A step with preemptions admits no request. The head
    of the queue, also a victim, blocks later requests.

    With `async_scheduling` a batch is planned when the previous one begins, so that the GPU does not wait for
    the scheduler. The plan lacks later arrivals, and requests whose last token is being computed still hold
    their sequence slots and blocks. The plan foresees an end if the workload's `max_output_tokens` or the
    engine's `max_model_len` allows no further token. Any other end is a stop token, after which one more row
    is computed and discarded.

    Source: vLLM 0.33, whose recorded batches this reproduces, with asynchronous scheduling (vLLM's default)
        and without, with speculative decoding and without. LoRA limits and KV connectors are not modeled.

    Args:
        token_budget: maximum tokens of an iteration (`max_num_batched_tokens`), at least 1.
        max_seqs: maximum running requests (`max_num_seqs`), at least 1.
        long_prefill_threshold: maximum tokens of one prompt in an iteration while several requests are
            present (`long_prefill_token_threshold`). 0: no limit.
        policy: `"fcfs"`, or `"priority"`: the workload's `priority`, lower first, then arrival.
        reserve_full_prompt: admit only when blocks for all known tokens are free
            (`scheduler_reserve_full_isl`); only the chunk's blocks are taken.
        async_scheduling: plan each batch during the previous one (`--async-scheduling`, vLLM's default since
            0.14).
        pause_s: seconds that the engine loop sleeps after a batch during which nothing could be planned;
            requires `async_scheduling`. Default: vLLM's 0.001 with `async_scheduling`, else no pause.
        speculation: speculative decoding, see `Speculation`. None: no speculation.

    Raises:
        ConfigError: a number outside these ranges, an unknown policy, a pause without `async_scheduling`, or
            in an `Engine` speculation with a radix cache.

    Example:
        >>> import inferq as iq
        >>> iq.VllmV1().token_budget
        2048
        >>> synchronous = iq.VllmV1(async_scheduling=False)  # the default of vLLM before 0.14
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
        """The call of the class, without `speculation` if there is none."""
        names = [name for name in field_names(VllmV1) if name != "speculation" or self.speculation]
        return f"VllmV1({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    def fills_budget(self) -> Answer:
        """True unless a limit on prompts, asynchronous scheduling or speculation leaves a part unused."""
        if self.speculation is not None:
            return Answer(False, "VllmV1 loads drafts, whose number depends on earlier iterations")
        if self.async_scheduling:
            return Answer(
                False, "VllmV1 plans a batch before it starts, without requests that arrive until then"
            )
        if 0 < self.long_prefill_threshold < self.token_budget:
            return Answer(False, f"VllmV1 cuts a prompt to {self.long_prefill_threshold:,} tokens")
        return Answer(True, "VllmV1 fills its budget while a request can run")

    def speculative_decoding(self) -> Speculation | None:
        """The field `speculation`."""
        return self.speculation

    def is_asynchronous(self) -> bool:
        """True with `async_scheduling`."""
        return self.async_scheduling

    def serves_oldest(self) -> bool:
        """True for first come, first served, if only the budget cuts prompts."""
        is_plain = not self.async_scheduling and self.speculation is None
        return self.policy == "fcfs" and not self.long_prefill_threshold and is_plain
