"""MemoryLinear: time linear in the KV memory of a batch (ao2025)."""

from __future__ import annotations

from dataclasses import dataclass

from inferq.timing.models.timing_model import TimingModel, TokenCost


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLinear(TimingModel):
    """Time linear in the KV memory that the batch reads and writes; paused requests take none.

    An iteration takes `base + per_kv_token·(Σ (x + c) over chunks + Σ (context + 1) over decode rows)`.

    Source: ao2025 (1) with d0 = `base`, d1 = `per_kv_token`.

    Args:
        base: seconds of every iteration.
        per_kv_token: seconds per token whose keys and values are read or written.

    Raises:
        ConfigError: a coefficient is negative, not finite, or rounds to 0 attoseconds although it is not 0.

    Example:
        Llama-2-7B on an A100:

        >>> import inferq as iq
        >>> iq.research.MemoryLinear(base=0.015, per_kv_token=2.6e-7).base
        0.015
    """

    base: float
    per_kv_token: float

    def cost(self) -> TokenCost:
        """Both terms."""
        return TokenCost(self.base, per_kv_token_s=self.per_kv_token)

    def shortest_iteration_s(self) -> float:
        """The base."""
        return self.base
