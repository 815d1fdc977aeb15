"""Load of arrivals: the rate over the whole run, and the peak over its busiest window."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from inferq._lazy import NDArray, np, pl
from inferq.display.text import counted, number

WINDOWS_S = (
    *(1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10_800, 21_600, 43_200, 86_400),
)
"""Lengths of windows, in seconds."""
MOST_WINDOWS, LEAST_WINDOWS = 100, 5
"""Windows in the span of arrivals."""
LEAST_ARRIVALS = 100
"""Least mean arrivals of a window; with fewer, the busiest window shows chance."""
VARIES = 1.2
"""Least peak of a load that varies, relative to the whole rate."""
_DEVIATIONS = 5
"""A peak is this many standard deviations of a Poisson process above the mean. None of
4,000 steady Poisson processes of 300 to 20,000 arrivals exceeded it."""
_UNITS = ((3600, "hour"), (60, "minute"), (1, "second"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Arrivals per second over the whole run and in its busiest window.

    Windows start at multiples of their length. Their length is the shortest of `WINDOWS_S` with at most 100
    windows in the span of arrivals and at least 100 arrivals on average. With fewer than five windows there
    is no peak.

    Example:
        Twenty minutes with two arrivals per second, except for minute 3 to 4 with five per second:

        >>> import numpy as np
        >>> from inferq.workload.load import Load
        >>> steady, busy = np.arange(0, 1200, 0.5), np.arange(180, 240, 1 / 3)
        >>> load = Load.of(lambda: [np.concatenate([steady, busy])])
        >>> load.peak_per_s, load.window_s, load.start_s, load.varies
        (5.0, 60, 180, True)
        >>> print(load)
        2.15 requests/s over the whole run, peak 5 (minute 3 to 4)
    """

    rate_per_s: float
    """(n − 1) / (last − first arrival)."""
    unit: str = "requests"
    window_s: int = 0
    """Length of the windows. 0 without a peak."""
    start_s: int = 0
    """Start of the busiest window."""
    arrivals: int = 0
    """Arrivals in the busiest window."""

    @classmethod
    def of(cls, parts: Callable[[], Iterable[NDArray[np.float64]]], unit: str = "requests") -> Load | None:
        """The load of arrival times in seconds. None if all arrive at one instant.

        Args:
            parts: returns the arrival times in parts, in any order.
            unit: what arrives, in the plural.
        """
        first_s, last_s, count = math.inf, -math.inf, 0
        for part in parts():
            if part.size:
                first_s, last_s = min(first_s, float(part.min())), max(last_s, float(part.max()))
                count += part.size
        if count < 2 or not last_s > first_s:
            return None
        span_s = last_s - first_s
        rate = (count - 1) / span_s
        window_s = next(
            (
                length
                for length in WINDOWS_S
                if length * MOST_WINDOWS >= span_s and length * rate >= LEAST_ARRIVALS
            ),
            0,
        )
        if not window_s or window_s * LEAST_WINDOWS > span_s:
            return cls(rate_per_s=rate, unit=unit)
        origin = math.floor(first_s / window_s)
        counts = np.zeros(math.floor(last_s / window_s) - origin + 1, np.int64)
        for part in parts():
            places = np.floor(part / window_s).astype(np.int64) - origin
            counts += np.bincount(places, minlength=counts.size)
        busiest = int(counts.argmax())
        return cls(
            rate_per_s=rate,
            unit=unit,
            window_s=window_s,
            start_s=(origin + busiest) * window_s,
            arrivals=int(counts[busiest]),
        )

    @classmethod
    def of_frame(cls, frame: pl.DataFrame) -> Load | None:
        """The load of a drawn workload. None without arrival times, or if all are equal."""
        if "arrival_s" not in frame.columns:
            return None
        return cls.of(lambda: [frame["arrival_s"].drop_nulls().to_numpy()])

    @property
    def peak_per_s(self) -> float:
        """Arrivals per second in the busiest window; the whole rate without a peak."""
        return self.arrivals / self.window_s if self.window_s else self.rate_per_s

    @property
    def varies(self) -> bool:
        """Whether the peak exceeds the whole rate by a fifth, and by more than chance."""
        mean = self.rate_per_s * self.window_s
        return self.arrivals > max(VARIES * mean, mean + _DEVIATIONS * math.sqrt(mean))

    @property
    def when(self) -> str:
        """The busiest window as text, such as `minute 12 to 13`."""
        each_s, name = next(unit for unit in _UNITS if self.window_s % unit[0] == 0)
        first, last = (number(at_s / each_s) for at_s in (self.start_s, self.start_s + self.window_s))
        return f"{name if self.window_s == each_s else f'{name}s'} {first} to {last}"

    @property
    def length(self) -> str:
        """The length of the windows as text, such as `1 minute`."""
        each_s, name = next(unit for unit in _UNITS if self.window_s % unit[0] == 0)
        return counted(self.window_s // each_s, name)

    @property
    def short(self) -> str:
        """The load for a title, such as `10.51 requests/s, peak 21.90`."""
        peak = f", peak {number(self.peak_per_s)}" if self.varies else ""
        return f"{number(self.rate_per_s)} {self.unit}/s{peak}"

    def __str__(self) -> str:
        """Both rates and the busiest window."""
        rate = f"{number(self.rate_per_s)} {self.unit}/s over the whole run"
        return f"{rate}, peak {number(self.peak_per_s)} ({self.when})" if self.varies else rate
