"""Sarathi: chunked prefill in the same batch as decodes."""

from __future__ import annotations

from dataclasses import dataclass

from inferq.description import Answer
from inferq.scheduler.by_key import Order
from inferq.scheduler.preemption import Recompute, Restart, Swap
from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class Sarathi(Scheduler):
    """Chunked prefill next to decodes: no decode waits for a prompt.

    Each iteration takes decodes first, by arrival, one token each; decodes beyond `token_budget` wait and
    keep their blocks. Then unfinished prompts, then new ones, each cut to the remaining budget. A new prompt
    is admitted when blocks for all of its known tokens are free above the watermark, and takes them. A decode
    without a free block preempts the latest arrival that is not yet in the batch, itself last. The head of
    the queue, also a victim, blocks later requests until all of its known tokens fit.

    Source: Sarathi-Serve; bari2025 Algorithm 4; li2025 section 3. Unlike in Sarathi-Serve, decodes are
        limited by the budget too. The inner loop of bari2025's Algorithm 4 never ends for a prompt that
        finishes below the budget; here it continues with the next prompt.

    Args:
        token_budget: maximum tokens of an iteration, at least 1.
        max_seqs: maximum running requests, at least 1.
        order: order of the queue: `"fcfs"` by arrival; `"spf"` shortest prompt first; `"lpf"` longest prompt
            first; `"srf"` shortest remaining first, which uses prompt and output tokens at arrival; or
            `ByKey(f)`. Ties by arrival.
        watermark: fraction of all blocks (0 to 1) that an admission leaves free while another request holds
            blocks.
        preemption: how a victim resumes: `Recompute()`, `Restart()` or `Swap(...)`.

    Raises:
        ConfigError: a number outside these ranges, an unknown order, or an invalid preemption.

    Example:
        >>> import inferq as iq
        >>> iq.Sarathi(token_budget=1024, order="spf").to_json()["order"]
        'spf'
    """

    token_budget: int = 512
    max_seqs: int = 128
    order: Order = "fcfs"
    watermark: float = 0.01
    preemption: Recompute | Restart | Swap = Recompute()  # noqa: RUF009  # frozen

    def fills_budget(self) -> Answer:
        """True while a request can run."""
        return Answer(True, "Sarathi fills its budget while a request can run")

    def serves_oldest(self) -> bool:
        """True for first come, first served with recomputation: the youngest request is preempted."""
        return self.order == "fcfs" and isinstance(self.preemption, Recompute)
