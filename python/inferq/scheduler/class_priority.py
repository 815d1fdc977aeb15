"""ClassPriority: strict priority of classes around any policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferq.description import Answer
from inferq.scheduler.k_fcfs import KFcfs
from inferq.scheduler.orca import Orca
from inferq.scheduler.sarathi import Sarathi
from inferq.scheduler.scheduler import Scheduler
from inferq.scheduler.vllm_v1 import VllmV1


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassPriority(Scheduler):
    """Strict priority between classes: `inner` plans each class with the resources that are left.

    In each iteration, `inner` plans the classes in `order`, one at a time, with the remaining token budget,
    sequence slots and free blocks. If it would preempt for lack of a block, the victim is the latest arrival
    of the lowest class with running requests, if that class is lower than the planned one; otherwise
    `inner` chooses the victim. Lower classes fill the budget only when higher classes have nothing left to
    run: while a request of a class waits for blocks or a sequence slot, lower classes admit no request, even
    one that would fit. Their running requests continue. A limit of `inner` within a class, such as
    `k_prefill` of `KFcfs`, does not hold lower classes back.

    Source: li2025 section 4.3, the agents of the Rybko–Stolyar network: priority of one type of task, decodes
        first and first come, first served within a type; the other type is mixed in only if the first cannot
        fill the batch. The paper calls it non-preemptive and has no memory limit: with ample memory this is
        its policy. What happens when blocks are short is not in the paper.

    Args:
        order: every class of the workload, highest priority first.
        inner: a work-conserving policy: `Sarathi`, `KFcfs`, `VllmV1(async_scheduling=False)`, or `Orca` with
            `chunked=True`.

    Raises:
        ConfigError: no class, a duplicate class, or another policy as `inner`; in `simulate`, `order` and the
            classes of the workload differ.

    Example:
        >>> import inferq as iq
        >>> scheduler = iq.ClassPriority(order=["urgent", "batch"], inner=iq.Sarathi(token_budget=8))
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=iq.KvCache.unlimited())
        >>> workload = {"arrival_s": [0.0, 0.0], "prompt_tokens": [8, 8], "output_tokens": [1, 1]}
        >>> iq.simulate({**workload, "class": ["batch", "urgent"]}, engine).requests["finish_s"].to_list()
        [2.0, 1.0]
    """

    order: Sequence[str]
    inner: Sarathi | KFcfs | Orca | VllmV1

    def batching_policy(self) -> Scheduler:
        """The field `inner`."""
        return self.inner

    def token_limit(self) -> int | None:
        """The limit of `inner`."""
        return self.inner.token_limit()

    def sequence_limit(self) -> int | None:
        """The limit of `inner`."""
        return self.inner.sequence_limit()

    def reserved_tokens(self) -> int | None:
        """The reservation of `inner`."""
        return self.inner.reserved_tokens()

    def chunks_prompts(self) -> bool:
        """As for `inner`."""
        return self.inner.chunks_prompts()

    def admission_margin(self) -> float:
        """The watermark of `inner`."""
        return self.inner.admission_margin()

    def waits_for_full_batches(self) -> bool:
        """As for `inner`."""
        return self.inner.waits_for_full_batches()

    def fills_budget(self) -> Answer:
        """As for `inner`."""
        return self.inner.fills_budget()
