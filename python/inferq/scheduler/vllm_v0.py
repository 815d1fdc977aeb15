"""VllmV0: the scheduler of vLLM v0, prompts before decodes."""

from __future__ import annotations

from dataclasses import dataclass

from inferq.description import Answer
from inferq.scheduler.preemption import Recompute, Restart, Swap
from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class VllmV0(Scheduler):
    """The scheduler of vLLM v0: prompts alone whenever one can be admitted, decodes otherwise.

    An iteration contains whole prompts only, by arrival, if any request can be admitted; decodes stall
    meanwhile. Otherwise it contains decodes only. A decode without a free block preempts the latest arrival,
    itself last. A resumed input longer than the budget is computed alone, in consecutive prefill iterations.
    The head of the queue, also a victim, blocks later requests; with `Swap` so does every request on the
    host.

    A request whose prompt exceeds `token_budget` cannot be batched and is rejected at arrival.

    Source: vLLM v0 without chunking, "vanilla vLLM" in li2025 section 3.

    Args:
        token_budget: maximum tokens of a prefill iteration, at least 1.
        max_seqs: maximum running requests, at least 1.
        watermark: fraction of all blocks (0 to 1) that an admission leaves free while another request holds
            blocks.
        preemption: how a victim resumes: `Recompute()`, `Restart()` or `Swap(...)`.

    Raises:
        ConfigError: a number outside these ranges or an invalid preemption.

    Example:
        >>> import inferq as iq
        >>> iq.VllmV0(preemption=iq.Swap(per_token=2e-7, base=0)).to_json()["preemption"]["kind"]
        'Swap'
    """

    token_budget: int = 4096
    max_seqs: int = 256
    watermark: float = 0.01
    preemption: Recompute | Restart | Swap = Recompute()  # noqa: RUF009  # frozen

    def chunks_prompts(self) -> bool:
        """False: prompts are computed whole."""
        return False

    def fills_budget(self) -> Answer:
        """False: an iteration contains prompts or decodes, not both."""
        return Answer(False, "VllmV0 does not mix prompts and decodes")
