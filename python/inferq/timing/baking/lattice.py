"""Grid points for linear interpolation of a sampled function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from inferq._lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LINE_TOLERANCE, MOST_ON_LINE = 0.01, 56
"""A line gets points until the largest relative error is below the tolerance, up to this many points."""
LATTICE_TOLERANCE, MOST_ON_SIDE = 0.02, 20
"""The same for each side of a lattice."""


def spread(first: int, last: int, per_doubling: int) -> list[int]:
    """Integers from `first` to `last`, with `per_doubling` for each factor of 2."""
    steps = int(np.ceil(np.log2(last / first) * per_doubling)) + 1
    return sorted({round(value) for value in np.geomspace(first, last, steps)})


def powers(last: int) -> list[int]:
    """The powers of 2 up to `last`."""
    return [2**power for power in range(last.bit_length()) if 2**power <= last]


def batch_sizes(last: int) -> list[int]:
    """Every count up to 16, then a spread, and both sides of the tile edges, where matrix products jump."""
    edges = [edge for edge in range(32, last, 16) if edge <= 256 or edge % 256 == 0]
    chosen = {*range(1, 17), *spread(16, last, 12), *edges, *(edge + 1 for edge in edges)}
    return sorted(count for count in chosen if count <= last)


def values(
    function: Callable[[int, int], float],
    rows: Sequence[int],
    columns: Sequence[int],
    after_row: Callable[[], object],
) -> Floats:
    """A function on a grid, by rows."""
    grid = []
    for row in rows:
        grid.append([function(row, column) for column in columns])
        after_row()
    return np.array(grid)


def line(points: Sequence[int], times: Floats) -> list[int]:
    """Indices of enough points: repeatedly add the point with the largest error."""
    chosen = [0, len(points) - 1]
    while len(chosen) < MOST_ON_LINE:
        error = np.abs(np.interp(points, np.take(points, chosen), times[chosen]) / times - 1)
        if error.max() <= LINE_TOLERANCE:
            break
        chosen = sorted({*chosen, int(error.argmax())})
    return chosen


def sides(
    rows: Sequence[int], columns: Sequence[int], times: Floats, counts: NDArray[np.bool_]
) -> tuple[list[int], list[int]]:
    """Indices of enough rows and columns.

    The point with the largest error adds its row or its column, whichever reduces the mean square of the
    errors more. `counts` selects the points whose errors count.
    """
    over, down = [0, len(rows) - 1], [0, len(columns) - 1]
    while True:
        error = _error(rows, columns, times, over, down, counts)
        if error.max() <= LATTICE_TOLERANCE:
            return over, down
        row, column = (int(at) for at in np.unravel_index(error.argmax(), error.shape))
        choices = []
        if row not in over and len(over) < MOST_ON_SIDE:
            choices.append((sorted({*over, row}), down))
        if column not in down and len(down) < MOST_ON_SIDE:
            choices.append((over, sorted({*down, column})))
        if not choices:
            return over, down
        over, down = min(
            choices,
            key=lambda both: float((_error(rows, columns, times, both[0], both[1], counts) ** 2).mean()),
        )


def _error(
    rows: Sequence[int],
    columns: Sequence[int],
    times: Floats,
    over: list[int],
    down: list[int],
    counts: NDArray[np.bool_],
) -> Floats:
    there = interpolated(
        np.take(rows, over),
        np.take(columns, down),
        times[np.ix_(over, down)],
        np.array(rows)[:, None],
        np.array(columns),
    )
    return np.where(counts, np.abs(there / times - 1), 0.0)


def interpolated(rows: Any, columns: Any, times: Floats, row: Any, column: Any) -> Floats:
    """Interpolate between rows, then between columns, as a table does, but for rounding."""
    row, column = np.broadcast_arrays(np.asarray(row, dtype=float), np.asarray(column, dtype=float))
    upper = np.clip(np.searchsorted(rows, row, side="right") - 1, 0, len(rows) - 2)
    left = np.clip(np.searchsorted(columns, column, side="right") - 1, 0, len(columns) - 2)
    down = (row - rows[upper]) / (rows[upper + 1] - rows[upper])
    over = (column - columns[left]) / (columns[left + 1] - columns[left])
    at_left = times[upper, left] * (1 - down) + times[upper + 1, left] * down
    at_right = times[upper, left + 1] * (1 - down) + times[upper + 1, left + 1] * down
    return np.asarray(at_left * (1 - over) + at_right * over)
