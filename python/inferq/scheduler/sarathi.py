"""Sarathi: chunked prefill beside decodes, so that no decode waits for a prompt."""

from __future__ import annotations

from dataclasses import dataclass

from inferq.description import Answer
from inferq.scheduler.by_key import Order
from inferq.scheduler.preemption import Recompute, Restart, Swap
from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class Sarathi(Scheduler):
    """Chunked prefill beside decodes: no decode waits for a prompt.

    Each iteration takes decodes first, by arrival, one token each; what exceeds `token_budget` waits and
    keeps its blocks. Then unfinished prompts, then new ones, each cut to the budget that is left. A new
    prompt is admitted when blocks for all of its known tokens are free above the watermark, and takes them. A
    decode without a free block preempts the latest arrival that is not yet placed in the batch, itself last.
    The head of the queue, a victim too, blocks those behind it until there is room for all of its known
    tokens.

    Source: Sarathi-Serve; bari2025 Algorithm 4; li2025 section 3. Unlike Sarathi-Serve, decodes are cut to
        the budget too. The inner loop of bari2025's Algorithm 4 never ends for a prompt that finishes below
        the budget; here it goes on to the next prompt.

    Args:
        token_budget: tokens of one iteration, at least 1.
        max_seqs: requests that may run at once, at least 1.
        order: order of the queue: `"fcfs"` by arrival; `"spf"` shortest prompt first; `"lpf"` longest prompt
            first; `"srf"` shortest remaining first, which knows lengths: prompt and output tokens together,
            as they are at arrival; or `ByKey(f)`. Ties by arrival.
        watermark: share of all blocks (0 to 1) that an admission leaves free while another request holds
            blocks.
        preemption: what becomes of a victim: `Recompute()`, `Restart()` or `Swap(...)`.

    Raises:
        ConfigError: a number outside these ranges, an unknown order, or a preemption that is no description.

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
        """It does while a request is there to run."""
        return Answer(True, "Sarathi fills its budget while a request can run")

    def serves_oldest(self) -> bool:
        """First come, first served, the youngest preempted by recomputation."""
        return self.order == "fcfs" and isinstance(self.preemption, Recompute)
