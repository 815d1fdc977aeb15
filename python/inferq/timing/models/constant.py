"""One length for every iteration: the slot of slotted models."""

from __future__ import annotations

from dataclasses import dataclass

from inferq.timing.models.timing_model import TimingModel, TokenCost


@dataclass(frozen=True, slots=True)
class Constant(TimingModel):
    """Every iteration lasts `seconds`, whatever is in it: one slot of the papers' slotted models.

    Source: nie2026 section 3, li2025 section 4.3.

    Args:
        seconds: length of an iteration in seconds.

    Raises:
        ConfigError: `seconds` is negative, not finite, or rounds to 0 attoseconds although it is not 0.

    Example:
        >>> import inferq as iq
        >>> iq.Constant(0.02).to_json()
        {'kind': 'Constant', 'seconds': 0.02}
    """

    seconds: float

    def cost(self) -> TokenCost:
        """The same for any number of tokens."""
        return TokenCost(self.seconds)

    def shortest_iteration_s(self) -> float:
        """Each is as long."""
        return self.seconds
