"""Constant: one duration for every iteration."""

from __future__ import annotations

from dataclasses import dataclass

from inferq.timing.models.timing_model import TimingModel, TokenCost


@dataclass(frozen=True, slots=True)
class Constant(TimingModel):
    """Every iteration takes `seconds`: one slot of the papers' slotted models.

    Source: nie2026 section 3, li2025 section 4.3.

    Args:
        seconds: duration of an iteration.

    Raises:
        ConfigError: `seconds` is negative, not finite, or rounds to 0 attoseconds although it is not 0.

    Example:
        >>> import inferq as iq
        >>> iq.Constant(0.02).to_json()
        {'kind': 'Constant', 'seconds': 0.02}
    """

    seconds: float

    def cost(self) -> TokenCost:
        """A constant."""
        return TokenCost(self.seconds)

    def shortest_iteration_s(self) -> float:
        """The duration of every iteration."""
        return self.seconds
