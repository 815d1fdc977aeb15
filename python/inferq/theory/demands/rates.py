"""How many requests come at most within a stretch of time, when the rates change with the hour?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from inferq.checks import within
from inferq.errors import ConfigError
from inferq.theory.demands.demand import MOST_RATE, Demand


@dataclass(frozen=True, slots=True)
class Periods:
    """Rates of each class that stay for a while and then change, over and over."""

    seconds: tuple[float, ...]
    rates: tuple[dict[str, float], ...]
    """Requests per second of each class, for each of `seconds`."""

    @classmethod
    def of(cls, demand: Demand, given: object) -> Periods:
        """The periods that were given, or one with the rates of the demand.

        Raises:
            ConfigError: no period, one that takes no time, rates that are negative or leave out a class, or a
                class that never comes.
        """
        names = [one.name for one in demand.classes]
        if given is None:
            return cls((1.0,), ({one.name: one.rate or 0.0 for one in demand.classes},))
        if isinstance(given, (str, bytes)) or not isinstance(given, Sequence) or not given:
            raise ConfigError(
                "periods: must be [(seconds, {class: rate per second}), …], one period at least"
            )
        seconds, rates = [], []
        for place, period in enumerate(given):
            path = f"periods[{place}]"
            if not isinstance(period, Sequence) or len(period) != 2 or not isinstance(period[1], Mapping):
                raise ConfigError(f"{path}: must be (seconds, {{class: rate per second}}), is {period!r}")
            seconds.append(within(f"{path}: seconds", period[0], 1e-9, 1e12))
            if set(period[1]) != set(names):
                raise ConfigError(
                    f"{path}: has rates of {sorted(period[1])}, the classes are {sorted(names)}"
                )
            here = {
                name: within(f"{path}: rate of {name!r}", period[1][name], 0, MOST_RATE) for name in names
            }
            rates.append(here)
        for name in names:
            if not any(here[name] for here in rates):
                raise ConfigError(f"periods: class {name!r} has a rate of 0 in all of them")
        return cls(tuple(seconds), tuple(rates))

    @property
    def constant(self) -> bool:
        """Whether nothing changes."""
        return len(self.seconds) == 1

    def mean(self, *names: str) -> float:
        """Requests per second of these classes together, in the long run."""
        whole = math.fsum(self.seconds)
        return (
            math.fsum(
                span * here[name]
                for span, here in zip(self.seconds, self.rates, strict=True)
                for name in names
            )
            / whole
        )

    def most(self, window_s: float, *names: str) -> float:
        """Expected arrivals of these classes in the fullest window of that length, Λ of ao2025 appendix D.

        The sum over a sliding window is linear between the instants at which one of its ends meets a change.
        """
        totals = [math.fsum(here[name] for name in names) for here in self.rates]
        if self.constant:
            return totals[0] * window_s
        starts = [0.0, *accumulate(self.seconds)]
        whole_s = starts.pop()
        counts = [0.0, *accumulate(span * rate for span, rate in zip(self.seconds, totals, strict=True))]

        def until(at_s: float) -> float:
            turns, rest_s = divmod(at_s, whole_s)
            place = max(k for k, start in enumerate(starts) if start <= rest_s)
            return turns * counts[-1] + counts[place] + totals[place] * (rest_s - starts[place])

        opens = [*starts, *((start - window_s) % whole_s for start in starts)]
        return max(until(at_s + window_s) - until(at_s) for at_s in opens)
