"""One line for batches with a prompt, one length for batches of decodes alone (lin2026)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from inferq.timing.models.timing_model import TimingModel


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedSolo(TimingModel):
    """Linear in prefill tokens while a prompt is in the batch, otherwise one fixed time.

    An iteration lasts `alpha + beta·(prefill tokens)` when a chunk is present, else `solo`.

    Source: lin2026 (2) and (3), with `solo` = 1/γ.

    Args:
        alpha: seconds of an iteration with a chunk, before its tokens are counted.
        beta: seconds for each prefill token.
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

    uncounted: ClassVar[str] = "asks whether a prompt is there, not for tokens; use allocation"

    def shortest_iteration_s(self) -> float:
        """One of decodes, or of a short chunk."""
        return min(self.alpha, self.solo)
