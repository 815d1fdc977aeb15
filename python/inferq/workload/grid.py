"""Coarse grids of recorded arrival times, such as whole seconds."""

from __future__ import annotations

from typing import NamedTuple

from inferq._lazy import NDArray, np

_LEAST_INSTANTS = 4
_LEAST_SHARE = 0.1
_ON_GRID = 0.9


class Grid(NamedTuple):
    """The grid of tied arrivals."""

    step_s: float
    tied: int
    """Arrivals that share their instant with another one."""
    most: int
    """Arrivals at one instant."""


def grid_of(arrival_s: NDArray[np.float64]) -> Grid | None:
    """Return the grid of sorted arrivals; None if fewer than 10 % share an instant, or without a common step.

    The step is the most frequent gap between successive instants with ties, because recorded times that are
    rounded to a grid mostly use successive grid points.
    """
    instants, counts = np.unique(arrival_s, return_counts=True)
    ties = instants[counts > 1]
    tied = int(counts[counts > 1].sum())
    if ties.size < _LEAST_INSTANTS or tied < _LEAST_SHARE * arrival_s.size:
        return None
    gaps = np.diff(ties)
    unit = float(np.median(gaps))
    rounded, frequency = np.unique(np.round(gaps / unit, 4), return_counts=True)
    step = float(rounded[frequency.argmax()]) * unit
    if not step > 0:
        return None
    is_common = on_grid(ties - ties[0], step).mean() >= _ON_GRID
    return Grid(step, tied, int(counts.max())) if is_common else None


def on_grid(offsets_s: NDArray[np.float64], step_s: float) -> NDArray[np.bool_]:
    """Return which offsets are multiples of the step, with room for rounding errors of scaled times."""
    places = offsets_s / step_s
    matches: NDArray[np.bool_] = np.abs(places - np.round(places)) < 0.01 * np.maximum(1.0, places / 1000)
    return matches
