"""MixedSolo: a line for batches with a prompt, a constant for decodes only (lin2026)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from inferq.timing.models.timing_model import TimingModel


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedSolo(TimingModel):
    """Time linear in prefill tokens if the batch has a prompt, else constant.

    An iteration takes `alpha + beta·(prefill tokens)` if it has a chunk, else `solo`.

    Source: lin2026 (2) and (3), with `solo` = 1/γ.

    Args:
        alpha: fixed seconds of an iteration with a chunk.
        beta: seconds per prefill token.
        solo: seconds of an iteration of decodes only.

    Raises:
        ConfigError: a number is negative, not finite, or rounds to 0 attoseconds although it is not 0.

    Example:
        >>> import inferq as iq
        >>> iq.research.MixedSolo(alpha=0.02, beta=0.0001, solo=0.015).solo
        0.015
    """

    alpha: float
    beta: float
    solo: float

    uncounted: ClassVar[str] = "depends on whether a prompt is present, not on tokens; use allocation"

    def shortest_iteration_s(self) -> float:
        """Decodes only, or a short chunk."""
        return min(self.alpha, self.solo)
