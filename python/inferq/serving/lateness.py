"""How late the server itself was: nobody should take the jitter of the host for that of the fleet."""

from __future__ import annotations

import math

_FINEST_S = 1e-6
_STEP = 1.05
"""A bin ends so many times later than it begins."""


class Lateness:
    """A histogram of how late things were done, in seconds of the wall, in bins 5 % wide.

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
        """Something was done so late."""
        self.count += 1
        self.longest_s = max(self.longest_s, late_s)
        place = 0 if late_s <= _FINEST_S else 1 + int(math.log(late_s / _FINEST_S) / math.log(_STEP))
        self._bins[place] = self._bins.get(place, 0) + 1

    def at(self, share: float) -> float:
        """What so large a share of all was not later than, to 5 %; 0 where nothing was done."""
        left = math.ceil(share * self.count)
        for place in sorted(self._bins):
            left -= self._bins[place]
            if left <= 0:
                return min(_FINEST_S * _STEP**place, self.longest_s)
        return 0.0

    def __str__(self) -> str:
        """In milliseconds."""
        if not self.count:
            return "no token was sent"
        p50, p99 = (f"{self.at(share) * 1000:.2f}" for share in (0.5, 0.99))
        longest = f"{self.longest_s * 1000:.2f}"
        return f"p50 {p50} ms, p99 {p99} ms, longest {longest} ms, over {self.count:,} iterations"
