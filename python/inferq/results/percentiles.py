"""Percentiles of data that exceeds the memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from inferq._lazy import NDArray, np

_BITS = 21
"""A third of the bits of a double without its sign."""


def percentiles(parts: Callable[[], Iterator[NDArray[np.float64]]], percents: Sequence[float]) -> list[float]:
    """Linear percentiles of data in parts, bit for bit as numpy computes them from the whole.

    Non-negative doubles have the order of their bits. Each pass over the parts determines a third of the bits
    of the requested values, with the memory of one part. A single part is passed to numpy.

    Args:
        parts: returns an iterator over the parts; no value is negative or NaN.
        percents: from 0 to 100.

    Returns:
        One value for each of `percents`; NaN without data.

    Example:
        >>> import numpy as np
        >>> from inferq.results.percentiles import percentiles
        >>> percentiles(lambda: iter([np.array([4.0, 1.0]), np.array([2.0])]), [50, 75])
        [2.0, 3.0]
    """
    each = parts()
    first, is_all = next(each, np.empty(0)), next(each, None) is None
    if is_all and first.size:
        return [float(value) for value in np.percentile(first, percents)]
    rows = sum(part.size for part in parts())
    if not rows:
        return [math.nan] * len(percents)
    places = [(rows - 1) * (percent / 100) for percent in percents]
    lower = [math.floor(place) for place in places]
    upper = [min(place + 1, rows - 1) for place in lower]
    ranks = {*lower, *upper}
    begins, before = dict.fromkeys(ranks, 0), dict.fromkeys(ranks, 0)
    """The known leading bits of the value at a rank, and the number of values with lower leading bits."""
    for shift in (2 * _BITS, _BITS, 0):
        counts = _counts(parts, {*begins.values()}, shift)
        for place in ranks:
            reached = np.cumsum(counts[begins[place]])
            at = int(np.searchsorted(reached, place - before[place], side="right"))
            before[place] += int(reached[at - 1]) if at else 0
            begins[place] = begins[place] << _BITS | at
    at_place = {place: float(np.int64(bits).view(np.float64)) for place, bits in begins.items()}
    return [
        _between(at_place[low], at_place[high], place - low)
        for low, high, place in zip(lower, upper, places, strict=True)
    ]


def _counts(
    parts: Callable[[], Iterator[NDArray[np.float64]]], begins: Iterable[int], shift: int
) -> dict[int, NDArray[np.int64]]:
    """Numbers of values with given leading bits, by the following bits, the last of which is at `shift`."""
    counts = {begin: np.zeros(1 << _BITS, np.int64) for begin in begins}
    for part in parts():
        bits = (part + 0.0).view(np.int64) >> shift  # a zero has no sign
        for begin, count in counts.items():
            np.add.at(count, bits[bits >> _BITS == begin] & ((1 << _BITS) - 1), 1)
    return counts


def _between(lower: float, upper: float, share: float) -> float:
    """Linear interpolation between two neighbors, rounded as numpy does."""
    step = upper - lower
    return lower + step * share if share < 0.5 else upper - step * (1 - share)
