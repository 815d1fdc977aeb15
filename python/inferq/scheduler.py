"""Which requests join the next iteration, and who must leave when the cache is full?

A scheduler only asks; the replica checks the token budget, the cap on sequences and the KV blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from inferq.description import Description


class Preemption(Description):
    """A description of what becomes of a request that must give up its blocks: `Recompute` or `Swap`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Recompute(Preemption):
    """A preempted request loses its context and computes prompt and generated tokens anew.

    The tokens that it has emitted stay emitted: its time to first token is not reset.

    Source: vLLM v0 and v1, Sarathi-Serve.

    Example:
        >>> import inferq as iq
        >>> iq.Recompute().describe()
        {'kind': 'Recompute'}
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Swap(Preemption):
    """A preempted request keeps its context on the host and comes back before anyone is admitted.

    Moving `x` tokens of context costs `base + per_token·x`, charged to the iteration that swaps out and again
    to the one that swaps in. The oldest swapped request returns first.

    Source: li2025 (A.3) with a1 = `per_token`, a2 = `base`; the order of returning is vLLM v0's.

    Args:
        per_token: seconds for each token of context that is moved.
        base: seconds for each move.

    Raises:
        ConfigError: a cost is negative, not finite, or rounds to 0 attoseconds although it is not 0.

    Example:
        >>> import inferq as iq
        >>> iq.VllmV0(preemption=iq.Swap(per_token=2e-7, base=0.001)).preemption.base
        0.001
    """

    per_token: float
    base: float

    def __post_init__(self) -> None:
        """Let the core judge the costs where it reads them: inside a scheduler."""
        Preemption.__post_init__(self)
        Sarathi(preemption=self)


PREEMPTIONS = (Recompute, Swap)


class Scheduler(Description):
    """A description of a scheduling policy: one of the classes of this module."""

    __slots__ = ()
    part: ClassVar[str | None] = "scheduler"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sarathi(Scheduler):
    """Chunked prefill beside decodes: no decode waits for a prompt.

    Each iteration takes decodes first, by arrival, one token each; what exceeds `token_budget` waits and
    keeps its blocks. Then unfinished prompts, then new ones, each cut to the budget that is left. A new
    prompt is admitted when blocks for all of its known tokens are free above the watermark, and takes them. A
    decode without a free block preempts the latest arrival that is not yet placed in the batch, itself last.

    Source: Sarathi-Serve, bari2025 Algorithm 4. Unlike Sarathi-Serve, decodes are cut to the
        budget too.

    Args:
        token_budget: tokens of one iteration, at least 1.
        max_seqs: requests that may run at once, at least 1.
        order: order of the queue: `"fcfs"` by arrival, `"spf"` shortest prompt first.
        watermark: share of all blocks (0 to 1) that an admission leaves free while another request holds
            blocks.
        preemption: what becomes of a victim: `Recompute()` or `Swap(...)`.

    Raises:
        ConfigError: a number outside these ranges, an unknown order, or a preemption that is no description.

    Example:
        >>> import inferq as iq
        >>> iq.Sarathi(token_budget=1024, order="spf").describe()["order"]
        'spf'
    """

    parts: ClassVar[Mapping[str, tuple[type[Any], ...]]] = {"preemption": PREEMPTIONS}

    token_budget: int = 512
    max_seqs: int = 128
    order: Literal["fcfs", "spf"] = "fcfs"
    watermark: float = 0.01
    preemption: Preemption = Recompute()


@dataclass(frozen=True, kw_only=True, slots=True)
class VllmV1(Scheduler):
    """vLLM's v1 scheduler: running requests in list order, then the queue while the budget lasts.

    There is no prefill phase and no decode phase: each running request computes what it owes, cut to the
    budget. A request without a free block preempts the last of the running list (`"fcfs"`) or the worst by
    priority and arrival (`"priority"`), by recompute. A step that preempted admits nobody. The head of the
    queue blocks those behind it.

    Source: vLLM 0.32, whose recorded batches this reproduces. Asynchronous scheduling,
        drafts, LoRA
    limits and KV connectors are left out.

    Args:
        token_budget: tokens of one iteration (`max_num_batched_tokens`), at least 1.
        max_seqs: requests that may run at once (`max_num_seqs`), at least 1.
        long_prefill_threshold: most tokens of one prompt in one iteration while more than one request is
            present (`long_prefill_token_threshold`); 0 sets no limit.
        policy: `"fcfs"`, or `"priority"`: the workload's `priority`, lower first, then arrival.
        reserve_full_prompt: admit only when blocks for all known tokens are free
            (`scheduler_reserve_full_isl`); only the chunk's blocks are taken.

    Raises:
        ConfigError: a number outside these ranges or an unknown policy.

    Example:
        >>> import inferq as iq
        >>> iq.VllmV1().token_budget
        2048
    """

    token_budget: int = 2048
    max_seqs: int = 128
    long_prefill_threshold: int = 0
    policy: Literal["fcfs", "priority"] = "fcfs"
    reserve_full_prompt: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class VllmV0(Scheduler):
    """vLLM's first scheduler: prompts alone whenever one can be admitted, decodes otherwise.

    An iteration is prefill only, whole prompts by arrival, as long as anything can be admitted: decodes stall
    meanwhile. Else it is decode only. A decode without a free block preempts the latest arrival, itself last.
    A resumed input longer than the budget is computed alone, in consecutive prefill iterations.

    A request whose prompt exceeds `token_budget` can never be batched and is rejected at arrival.

    Source: vLLM v0 without chunking, "vanilla vLLM" in li2025 section 3.

    Args:
        token_budget: tokens of one prefill iteration, at least 1.
        max_seqs: requests that may run at once, at least 1.
        watermark: share of all blocks (0 to 1) that an admission leaves free while another request holds
            blocks.
        preemption: what becomes of a victim: `Recompute()` or `Swap(...)`.

    Raises:
        ConfigError: a number outside these ranges or a preemption that is no description.

    Example:
        >>> import inferq as iq
        >>> iq.VllmV0(preemption=iq.Swap(per_token=2e-7, base=0)).describe()["preemption"]["kind"]
        'Swap'
    """

    parts: ClassVar[Mapping[str, tuple[type[Any], ...]]] = {"preemption": PREEMPTIONS}

    token_budget: int = 4096
    max_seqs: int = 256
    watermark: float = 0.01
    preemption: Preemption = Recompute()


SCHEDULERS = (Sarathi, VllmV1, VllmV0)
