"""Lateness of the server itself, which separates jitter of the host from latency of the fleet."""

from __future__ import annotations

import math

_FINEST_S = 1e-6
_STEP = 1.05
"""Ratio of the upper to the lower edge of a bin."""


class Lateness:
    """A histogram of lateness in seconds of wall time, with bins 5 % wide.

    Example:
        >>> lateness = Lateness()
        >>> for milliseconds in (1, 1, 1, 8):
        ...     lateness.note(milliseconds / 1000)
        >>> lateness.count, lateness.longest_s, 0.00095 < lateness.at(0.5) < 0.00106
        (4, 0.008, True)
    """

    def __init__(self) -> None:
        self.count, self.longest_s = 0, 0.0
        self._bins: dict[int, int] = {}

    def note(self, late_s: float) -> None:
        """Add a value."""
        self.count += 1
        self.longest_s = max(self.longest_s, late_s)
        place = 0 if late_s <= _FINEST_S else 1 + int(math.log(late_s / _FINEST_S) / math.log(_STEP))
        self._bins[place] = self._bins.get(place, 0) + 1

    def at(self, share: float) -> float:
        """The quantile at `share`, within 5 %; 0 if there are no values."""
        left = math.ceil(share * self.count)
        for place in sorted(self._bins):
            left -= self._bins[place]
            if left <= 0:
                return min(_FINEST_S * _STEP**place, self.longest_s)
        return 0.0

    def __str__(self) -> str:
        """Percentiles in milliseconds."""
        if not self.count:
            return "no token was sent"
        p50, p99 = (f"{self.at(share) * 1000:.2f}" for share in (0.5, 0.99))
        longest = f"{self.longest_s * 1000:.2f}"
        return f"p50 {p50} ms, p99 {p99} ms, longest {longest} ms, over {self.count:,} iterations"
