"""ClassPriority: one class before another, whatever the policy within a class."""

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
    """Classes one after the other: each is planned by `inner` with what those before it leave.

    In each iteration, for each class in `order`, `inner` plans over the requests of that class alone with the
    token budget, the seats and the free blocks that are left. Where it would preempt for lack of a block, the
    victim is the latest arrival of the lowest class that has running requests, as long as that class is below
    the one that plans; else the victim that `inner` chooses. Only classes that have nothing left to load let
    the next ones fill the budget.

    Source: li2025 section 4.3, the agents of the Rybko–Stolyar network: priority of one type of task, decodes
        first and then first come first served within a type. The paper calls it non-preemptive and has no
        memory limit; requests that run keep running here too, unless blocks are short.

    Args:
        order: every class of the workload, the first one served first.
        inner: a policy that fills a budget: `Sarathi`, `KFcfs`, `VllmV1(async_scheduling=False)`, or `Orca`
            with `chunked=True`.

    Raises:
        ConfigError: no class or one named twice, another policy as `inner`; in `simulate`, a class of the
            workload that is not in `order`, or one in it that the workload does not have.

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

    def budget(self) -> int | None:
        """That of the policy within the classes."""
        return self.inner.budget()

    def seats(self) -> int | None:
        """Those of the policy within the classes."""
        return self.inner.seats()

    def reserved_tokens(self) -> int | None:
        """Those of the policy within the classes."""
        return self.inner.reserved_tokens()

    def cuts_prompts(self) -> bool:
        """As the policy within the classes does."""
        return self.inner.cuts_prompts()

    def spared_share(self) -> float:
        """That of the policy within the classes."""
        return self.inner.spared_share()

    def fills_budget(self) -> Answer:
        """As the policy within the classes does."""
        return self.inner.fills_budget()
