"""The search for the rate at which a system ceases to keep an SLO."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from inferq.experiments.capacity_search.probe import Probe, Prober

STEPS = (2, 4, 16, 256, 65_536)
"""The first rates are so many times below, or above, that at which a search begins."""
ALL_AT_ONCE = 2**32
"""So many times faster than a workload came, its requests come as one."""
CHECKED = (0.25, 0.5, 0.75)
"""Shares of the answer at which the SLO should be kept as well."""
NEAR = 0.1
"""A check is left out where a probe is nearer than this."""
WALK = 12
"""So many probes look for a rate where the SLO is kept although it is broken at the lowest."""


class Search:
    """The probes of one search, and the bracket that they leave.

    Args:
        prober: runs them.
        precision: the bracket is narrow enough when high / low − 1 is not above it.
        tell: gets a sentence after each probe.
    """

    def __init__(self, prober: Prober, precision: float, tell: Callable[[str], object] | None) -> None:
        self._prober, self.precision, self._tell = prober, precision, tell
        self.probed: list[Probe] = []

    @property
    def low(self) -> float:
        """The largest rate that is kept, 0 where none is."""
        return max((one.rate for one in self.probed if one.verdict == "kept"), default=0.0)

    @property
    def high(self) -> float | None:
        """The smallest rate above it that is broken; None where none is."""
        low = self.low
        return min(
            (one.rate for one in self.probed if one.verdict == "broken" and one.rate > low), default=None
        )

    def between(self, low: float | None, top: float, floor: float, ceiling: float | None = None) -> None:
        """Find the bracket at or below `top`: at or above `low`, or wherever the requests still meet.

        Args:
            low: where to begin, and not to go below; None goes down from `top`.
            top: the largest rate that is tried.
            floor: the smallest.
            ceiling: of theory; where it lies below `top` the search goes down from it.
        """
        if low is not None and self._at(low).verdict != "kept":
            return
        if self._at(top).verdict == "kept":
            return
        if low is None:
            start = top if ceiling is None else min(ceiling, top)
            if start == top or self._at(start).verdict != "kept":
                self._go_down(start, floor)
            self._walk(top)
        self._narrow(low or floor)

    def upwards(self, low: float | None, start: float, floor: float) -> None:
        """Find the bracket where nothing says how high it may be.

        Args:
            low: where to begin, and not to go below; None begins at `start` and may go down.
            start: where to begin without `low`.
            floor: the smallest rate.
        """
        start = start if low is None else low
        first = self._at(start).verdict
        if first != "kept" and low is not None:
            return
        if first != "broken":
            self._go_up(start)
        if first != "kept":
            self._go_down(start, floor)
            self._walk(math.inf)
            if self.low > 0 and self.high is None and first == "broken":
                self._go_up(self.low)
        self._narrow(low or floor)

    def _at(self, rate: float) -> Probe:
        probe = self._prober.probe(rate)
        self.probed.append(probe)
        if self._tell is not None:
            self._tell(str(probe))
        return probe

    def _go_up(self, start: float) -> None:
        """Faster and faster until the SLO is broken."""
        for factor in (*STEPS, ALL_AT_ONCE):
            if self._at(start * factor).verdict == "broken":
                break

    def _go_down(self, top: float, floor: float) -> None:
        """Slower and slower until the SLO is kept, or no rate is left."""
        further = (STEPS[-1] ** power for power in itertools.count(2))
        for factor in itertools.chain(STEPS, further):
            rate = max(top / factor, floor)
            if self._at(rate).verdict == "kept" or rate == floor:
                break

    def _walk(self, top: float) -> None:
        """Where nothing is kept, and not because slower is better: towards the rate that comes nearest to it.

        A policy that waits for company serves a few worse than many, so that the best rate lies between.
        """
        for _ in range(WALK):
            ordered = sorted(self.probed, key=lambda one: one.rate)
            best = min(range(len(ordered)), key=lambda place: ordered[place].share)
            if self.low > 0 or best == 0:
                break
            rates = [one.rate for one in ordered]
            if best == len(rates) - 1 and rates[best] < top:
                self._at(min(2 * rates[best], top))
                continue
            sides = [pair for pair in ((best - 1, best), (best, best + 1)) if pair[1] < len(rates)]
            below, above = max(sides, key=lambda pair: rates[pair[1]] / rates[pair[0]])
            if rates[above] / rates[below] - 1 <= self.precision:
                break
            self._at(math.sqrt(rates[below] * rates[above]))

    def _narrow(self, least: float) -> None:
        """Halve the ratio of the bracket on either side of what is undecided, then look below the answer.

        Every probe splits an interval that is wider than the precision, so that they come to an end.
        """
        while self.low > 0:
            rate = self._next()
            if rate is None:
                break
            self._at(rate)
        for share in CHECKED:
            rate = share * self.low
            near = (abs(math.log(one.rate / rate)) < NEAR for one in self.probed if rate > 0)
            if rate > least and not any(near):
                self._at(rate)

    def _next(self) -> float | None:
        """The middle of the interval to be split; None where none is left."""
        low, high = self.low, self.high
        above = min((one.rate for one in self.probed if one.rate > low), default=None)
        if above is not None and above / low - 1 > self.precision:
            return math.sqrt(low * above)
        if high is None:
            return None
        last = max(one.rate for one in self.probed if one.rate < high and one.verdict != "broken")
        return math.sqrt(last * high) if high / last - 1 > self.precision else None
