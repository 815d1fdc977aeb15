"""Which points make a grid for these numbers, and between which of them does each lie?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferq._lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]


def spread(values: Vector, most: int) -> list[int]:
    """At most so many of the values, each a constant factor apart as far as there are values, ends included.

    Values that are not whole are rounded, the least down and the largest up.
    """
    low, high = float(np.floor(values.min())), float(np.ceil(values.max()))
    there = np.unique(values.round())
    # An end beside its own rounded value would be a grid point that no value is nearest to.
    there = np.array([low, *there[1:-1], high]) if there.size > 1 else np.unique([low, high])
    sizes = np.log1p(there)
    wanted = np.linspace(sizes[0], sizes[-1], most)
    after = np.searchsorted(sizes, wanted).clip(1, max(there.size - 1, 1)).clip(0, there.size - 1)
    before = (after - 1).clip(0)
    nearest = np.where(wanted - sizes[before] < sizes[after] - wanted, there[before], there[after])
    return [int(point) for point in np.unique(np.append(nearest, [low, high]))]


def between(points: list[int], values: Vector) -> tuple[NDArray[np.int64], Vector]:
    """For each value the place of the grid point below it, and how far it is on the way to the next.

    Below the first point and beyond the last, the first and the last stretch go on: less than 0, more than 1.
    A grid of one point is the same everywhere.
    """
    if len(points) == 1:
        return np.zeros(values.size, dtype=np.int64), np.zeros(values.size)
    grid = np.asarray(points, dtype=np.float64)
    place = (np.searchsorted(grid, values, side="right") - 1).clip(0, grid.size - 2)
    return place, (values - grid[place]) / (grid[place + 1] - grid[place])


def unvisited(points: list[int], values: Vector) -> tuple[float, float] | None:
    """The first stretch around a grid point, halfway to its neighbours, without a value; None if none."""
    grid = np.asarray(points, dtype=np.float64)
    edges = np.concatenate([grid[:1], (grid[1:] + grid[:-1]) / 2, grid[-1:]])
    ordered = np.sort(values)
    count = np.searchsorted(ordered, edges[1:], "right") - np.searchsorted(ordered, edges[:-1], "left")
    empty = np.flatnonzero(count == 0)
    return None if empty.size == 0 else (float(edges[empty[0]]), float(edges[empty[0] + 1]))
