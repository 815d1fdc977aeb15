"""VllmV0: vLLM's first scheduler, prompts before decodes."""

from __future__ import annotations

from dataclasses import dataclass

from inferq.description import Answer
from inferq.scheduler.preemption import Recompute, Restart, Swap
from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class VllmV0(Scheduler):
    """vLLM's first scheduler: prompts alone whenever one can be admitted, decodes otherwise.

    An iteration is prefill only, whole prompts by arrival, as long as anything can be admitted: decodes stall
    meanwhile. Else it is decode only. A decode without a free block preempts the latest arrival, itself last.
    A resumed input longer than the budget is computed alone, in consecutive prefill iterations. The head of
    the queue, a victim too, blocks those behind it; with `Swap` so does every request on the host.

    A request whose prompt exceeds `token_budget` can never be batched and is rejected at arrival.

    Source: vLLM v0 without chunking, "vanilla vLLM" in li2025 section 3.

    Args:
        token_budget: tokens of one prefill iteration, at least 1.
        max_seqs: requests that may run at once, at least 1.
        watermark: share of all blocks (0 to 1) that an admission leaves free while another request holds
            blocks.
        preemption: what becomes of a victim: `Recompute()`, `Restart()` or `Swap(...)`.

    Raises:
        ConfigError: a number outside these ranges or a preemption that is no description.

    Example:
        >>> import inferq as iq
        >>> iq.VllmV0(preemption=iq.Swap(per_token=2e-7, base=0)).to_json()["preemption"]["kind"]
        'Swap'
    """

    token_budget: int = 4096
    max_seqs: int = 256
    watermark: float = 0.01
    preemption: Recompute | Restart | Swap = Recompute()  # noqa: RUF009  # frozen

    def cuts_prompts(self) -> bool:
        """Prompts are computed whole."""
        return False

    def fills_budget(self) -> Answer:
        """It does not: prompts alone, else decodes alone."""
        return Answer(False, "VllmV0 does not mix prompts and decodes")
