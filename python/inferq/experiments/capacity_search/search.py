"""Search for the largest rate at which a system meets an SLO."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from inferq.experiments.capacity_search.probe import Probe, Prober

STEPS = (2, 4, 16, 256, 65_536)
"""Factors between the initial rate and the first rates below or above it."""
ALL_AT_ONCE = 2**32
"""Speed-up at which all requests arrive practically at the same time."""
CHECKED = (0.25, 0.5, 0.75)
"""Shares of the answer at which the SLO must be met as well."""
NEAR = 0.1
"""Relative distance to a probe below which a check is skipped."""
MOST_SEARCHED = 12
"""Probes for a rate that meets the SLO although the lowest rate violates it."""


class Search:
    """The probes of one search and the bracket around the answer.

    Args:
        prober: runs the probes.
        precision: largest high / low − 1 of the final bracket.
        log: called with a sentence after each probe.
    """

    def __init__(self, prober: Prober, precision: float, log: Callable[[str], object] | None) -> None:
        self._prober, self.precision, self._log = prober, precision, log
        self.probed: list[Probe] = []

    @property
    def low(self) -> float:
        """The largest rate that meets the SLO, or 0."""
        return max((probe.rate for probe in self.probed if probe.verdict == "met"), default=0.0)

    @property
    def high(self) -> float | None:
        """The smallest rate above `low` that violates the SLO, or None."""
        low = self.low
        return min(
            (probe.rate for probe in self.probed if probe.verdict == "violated" and probe.rate > low),
            default=None,
        )

    def between(self, low: float | None, top: float, floor: float, upper_bound: float | None = None) -> None:
        """Find the bracket at or below `top`.

        Args:
            low: first and lowest rate. None searches downwards from `top`.
            top: the largest rate.
            floor: the smallest rate.
            upper_bound: theoretical upper bound; if it is below `top`, the search starts there.
        """
        if low is not None and self._at(low).verdict != "met":
            return
        if self._at(top).verdict == "met":
            return
        if low is None:
            start = top if upper_bound is None else min(upper_bound, top)
            if start == top or self._at(start).verdict != "met":
                self._search_down(start, floor)
            self._search_between(top)
        self._narrow(low or floor)

    def upwards(self, low: float | None, start: float, floor: float) -> None:
        """Find the bracket without a largest rate.

        Args:
            low: first and lowest rate. None starts at `start`.
            start: first rate without `low`.
            floor: the smallest rate.
        """
        start = start if low is None else low
        first = self._at(start).verdict
        if first != "met" and low is not None:
            return
        if first != "violated":
            self._search_up(start)
        if first != "met":
            self._search_down(start, floor)
            self._search_between(math.inf)
            if self.low > 0 and self.high is None and first == "violated":
                self._search_up(self.low)
        self._narrow(low or floor)

    def _at(self, rate: float) -> Probe:
        probe = self._prober.probe(rate)
        self.probed.append(probe)
        if self._log is not None:
            self._log(str(probe))
        return probe

    def _search_up(self, start: float) -> None:
        """Increase the rate until the SLO is violated."""
        for factor in (*STEPS, ALL_AT_ONCE):
            if self._at(start * factor).verdict == "violated":
                break

    def _search_down(self, top: float, floor: float) -> None:
        """Decrease the rate until the SLO is met, down to `floor`."""
        further = (STEPS[-1] ** power for power in itertools.count(2))
        for factor in itertools.chain(STEPS, further):
            rate = max(top / factor, floor)
            if self._at(rate).verdict == "met" or rate == floor:
                break

    def _search_between(self, top: float) -> None:
        """If no rate meets the SLO, approach the rate that is closest to meeting it.

        A policy that waits for full batches can be slower at low rates, so that the best rate lies between.
        """
        for _ in range(MOST_SEARCHED):
            ordered = sorted(self.probed, key=lambda probe: probe.rate)
            best = min(range(len(ordered)), key=lambda place: ordered[place].share)
            if self.low > 0 or best == 0:
                break
            rates = [probe.rate for probe in ordered]
            if best == len(rates) - 1 and rates[best] < top:
                self._at(min(2 * rates[best], top))
                continue
            sides = [pair for pair in ((best - 1, best), (best, best + 1)) if pair[1] < len(rates)]
            below, above = max(sides, key=lambda pair: rates[pair[1]] / rates[pair[0]])
            if rates[above] / rates[below] - 1 <= self.precision:
                break
            self._at(math.sqrt(rates[below] * rates[above]))

    def _narrow(self, least: float) -> None:
        """Halve the ratio of the bracket on either side of the undecided rates, then check lower rates.

        Every probe splits an interval wider than the precision, so the search terminates.
        """
        while self.low > 0:
            rate = self._next()
            if rate is None:
                break
            self._at(rate)
        for share in CHECKED:
            rate = share * self.low
            near = (abs(math.log(probe.rate / rate)) < NEAR for probe in self.probed if rate > 0)
            if rate > least and not any(near):
                self._at(rate)

    def _next(self) -> float | None:
        """The middle of the next interval to split, or None."""
        low, high = self.low, self.high
        above = min((probe.rate for probe in self.probed if probe.rate > low), default=None)
        if above is not None and above / low - 1 > self.precision:
            return math.sqrt(low * above)
        if high is None:
            return None
        last = max(probe.rate for probe in self.probed if probe.rate < high and probe.verdict != "violated")
        return math.sqrt(last * high) if high / last - 1 > self.precision else None
