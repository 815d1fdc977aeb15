"""Timing tables fitted to durations of whole iterations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inferq._lazy import load, np, pl
from inferq.checks import nearest, whole
from inferq.errors import ConfigError
from inferq.timing.fits.regression import HUBER, NORMAL_MAD
from inferq.timing.fits.smoothing import System
from inferq.timing.fits.terms import LEAST_S, tokens
from inferq.timing.tables.parts import ChunkPart, DecodePart, LinearPart
from inferq.timing.tables.timing_table import TimingTable
from inferq.workload.columns import MOST_TOKENS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from inferq.timing.fits.iteration_log import Log

    Vector = NDArray[np.float64]
    Matrix = NDArray[np.float64]

MOST_POINTS = {"tokens": 16, "chunk": 8, "context": 6, "sequences": 8, "mean_context": 6}
"""The axes of a table, with the maximum number of points."""
PARTS = {"linear": ("tokens",), "chunk": ("chunk", "context"), "decode": ("sequences", "mean_context")}
_ROWS_A_POINT = 4
"""Minimum iterations per grid point; fewer iterations reduce the grids."""
_MET = 1e-5
"""Residuals below this fraction of the median duration are negligible."""
_PLANE = 1e-3
"""Weight of the non-planarity of a cell relative to second differences; it determines corners."""
_ROUNDS = 40
_SETTLED = 1e-7


@dataclass(frozen=True)
class Tabulated:
    """A fitted table."""

    table: TimingTable
    coefficients: pl.DataFrame
    predicted: Vector
    notes: tuple[str, ...]


def tabulated(
    log: Log,
    grids: Mapping[str, Sequence[int]] | None,
    fixed: Mapping[str, Any] | None,
    *,
    robust: bool,
    relative: bool,
) -> Tabulated:
    """Fit a table with non-negative values to iterations.

    Args:
        log: the result of `checked_log`.
        grids: the points of some axes. Default: points from the data.
        fixed: known parts.
        robust: Huber's loss.
        relative: relative errors.
    """
    flat = _fixed(fixed)
    if flat.keys() == PARTS.keys():
        raise ConfigError("fixed", "all parts are fixed: leave out a part to fit it")
    return _Tabulating(log, _grids(grids, flat), flat, robust, relative).run()


def _fixed(fixed: Mapping[str, Any] | None) -> dict[str, Any]:
    if fixed is None:
        return {}
    if not isinstance(fixed, Mapping):
        raise ConfigError("fixed", f"must map names of parts to parts, got {fixed!r}")
    kinds: dict[str, type[Any]] = {"linear": LinearPart, "chunk": ChunkPart, "decode": DecodePart}
    for name, part in fixed.items():
        if name not in kinds:
            raise ConfigError("fixed", f"{name!r} is not a part of a TimingTable{nearest(str(name), kinds)}")
        if not isinstance(part, kinds[name]):
            raise ConfigError(
                f"fixed.{name}", f"must be a {kinds[name].__name__}, got a {type(part).__name__}"
            )
    return dict(fixed)


def _grids(grids: Mapping[str, Sequence[int]] | None, flat: Iterable[str]) -> dict[str, list[int]]:
    if grids is None:
        return {}
    if not isinstance(grids, Mapping):
        raise ConfigError("grids", f"must map axes to grid points, got {grids!r}")
    given = {}
    for name, points in grids.items():
        if name not in MOST_POINTS:
            raise ConfigError(
                "grids", f"{name!r} is not an axis of a TimingTable{nearest(str(name), MOST_POINTS)}"
            )
        for part in flat:
            if name in PARTS[part]:
                raise ConfigError(
                    f"grids.{name}", f"cannot be combined with fixed, which has the part {part}"
                )
        if isinstance(points, (str, bytes)) or not hasattr(points, "__iter__"):
            raise ConfigError(f"grids.{name}", f"must be a list of integers, got {points!r}")
        least = 0 if name in ("context", "mean_context") else 1
        line = [
            whole(f"grids.{name}[{place}]", point, least, MOST_TOKENS) for place, point in enumerate(points)
        ]
        if len(line) < 2:
            raise ConfigError(f"grids.{name}", f"must have at least two points, got {len(line)}")
        for place in range(1, len(line)):
            if line[place] <= line[place - 1]:
                raise ConfigError(
                    f"grids.{name}[{place}]", f"must ascend, got {line[place]} after {line[place - 1]}"
                )
        given[name] = line
    return given


class _Tabulating:
    """One call of `tabulated`: the grids, and the weights of each iteration on them."""

    def __init__(
        self, log: Log, grids: dict[str, list[int]], flat: dict[str, Any], robust: bool, relative: bool
    ) -> None:
        self.log, self.known, self.robust, self.relative = log, flat, robust, relative
        self.measured = log["duration_s"]
        prefill, decodes = log["prefill_tokens"], log["decodes"]
        square = prefill**2
        squares = log.get("prefill_squares", square)
        with np.errstate(divide="ignore", invalid="ignore"):
            count = np.where(prefill > 0, square / squares, 0.0)
            if "prefill_products" in log:
                context = np.where(prefill > 0, log["prefill_products"] / prefill, 0.0)
            else:
                context = np.where(prefill > 0, log.get("prefill_context", 0 * prefill) / count, 0.0)
            mean = np.where(decodes > 0, log["context_tokens"] / decodes, 0.0)
            size = np.where(prefill > 0, squares / prefill, 0.0)
        self.cut_known = "prefill_products" in log or "prefill_context" in log
        self.several = int((count > 1 + 1e-9).sum())
        self.times = {"linear": np.ones_like(prefill), "chunk": count, "decode": (decodes > 0).astype(float)}
        self.values = {
            "tokens": tokens(log),
            "chunk": size,
            "context": context,
            "sequences": decodes,
            "mean_context": mean,
        }
        self.fitted_parts = [part for part in PARTS if part not in flat]
        self.axes = self._axes(grids)

    def _axes(self, grids: dict[str, list[int]]) -> dict[str, list[int]]:
        counts = {
            axis: MOST_POINTS[axis] for part in self.fitted_parts for axis in PARTS[part] if axis not in grids
        }

        def total() -> int:
            points = 0
            for part in self.fitted_parts:
                sizes = [counts.get(axis) or len(grids[axis]) for axis in PARTS[part]]
                points += sizes[0] * (sizes[1] if len(sizes) > 1 else 1)
            return points

        while counts and total() * _ROWS_A_POINT > self.measured.size and max(counts.values()) > 2:
            widest = max(counts, key=lambda axis: counts[axis])
            counts[widest] -= 1
        axes: dict[str, list[int]] = {}
        for part in self.fitted_parts:
            there = self.times[part] > 0
            if not there.any():
                what = "has a chunk" if part == "chunk" else "has decodes"
                raise ConfigError(
                    part,
                    f"no iteration {what}: add such iterations, or set "
                    f'fixed={{"{part}": …}} to the part of another table',
                )
            for axis in PARTS[part]:
                values = self.values[axis][there]
                axes[axis] = grids[axis] if axis in grids else spread(values, counts[axis])
                self._check_axis(part, axis, axes[axis], values)
        points = sum(math.prod(len(axes[axis]) for axis in PARTS[part]) for part in self.fitted_parts)
        if self.measured.size <= points:
            raise ConfigError(
                "frame",
                f"{self.measured.size} iterations cannot identify {points} grid points: add "
                "iterations, or reduce the points in grids",
            )
        return axes

    def _check_axis(self, part: str, axis: str, points: list[int], values: Vector) -> None:
        low, high = float(values.min()), float(values.max())
        name = f"{part}.{axis}"
        alike = np.ptp(values) < 1  # grid points are integers
        flat = axis == "context" and alike and len(points) < 3
        if alike and not flat:
            raise ConfigError(
                name,
                f"every iteration has {low:g}, so other points are unknown: add iterations that differ in it",
            )
        if points[0] > low or points[-1] < high:
            raise ConfigError(
                f"grids.{axis}",
                f"must cover the iterations, which have {low:g} to {high:g}, got {points[0]} to {points[-1]}",
            )
        if flat:
            return  # the time is assumed constant over contexts, which a note reports
        empty = unvisited(points, values)
        if empty is not None:
            raise ConfigError(
                name,
                f"no iteration has {empty[0]:g} to {empty[1]:g}, so the grid point in this range is not "
                "identified: leave it out, or add iterations",
            )

    def _design(self, part: str, axes: Mapping[str, Sequence[int]]) -> Any:
        """The contribution of each grid point of a part to each iteration, as a sparse matrix."""
        csr_array = load("scipy.sparse").csr_array

        rows = np.arange(self.measured.size)
        times = self.times[part]
        first, *second = PARTS[part]
        place, share = between(list(axes[first]), self.values[first])
        corners = [(place, 1 - share), (place + (len(axes[first]) > 1), share)]
        width = 1
        for axis in second:
            width = len(axes[axis])
            column, along = between(list(axes[axis]), self.values[axis])
            corners = [
                (at * width + column + (step if width > 1 else 0), weight * other)
                for at, weight in corners
                for step, other in ((0, 1 - along), (1, along))
            ]
        shape = (rows.size, len(axes[first]) * width)
        counts = times > 0
        return sum(
            (
                csr_array(((weight * times)[counts], (rows[counts], at[counts])), shape=shape)
                for at, weight in corners
            ),
            start=csr_array(shape),
        )

    def _second_differences(self, part: str) -> Matrix:
        """Second differences of all neighboring triples on an axis, by row.

        In addition, with a small weight, the non-planarity of all cells.
        """
        lengths = [len(self.axes[axis]) for axis in PARTS[part]]
        place = np.arange(int(np.prod(lengths))).reshape(lengths)
        rows = []
        for along, axis in enumerate(PARTS[part]):
            grid = np.asarray(self.axes[axis], dtype=np.float64)
            lines = np.moveaxis(place, along, -1).reshape(-1, grid.size)
            for at in range(1, grid.size - 1):
                near = (grid[at + 1] - grid[at]) / (grid[at + 1] - grid[at - 1])
                for line in lines:
                    row = np.zeros(place.size)
                    row[line[at - 1 : at + 2]] = near, -1.0, 1 - near
                    rows.append(row)
        if place.ndim > 1:
            edges = (place[:-1, :-1], place[:-1, 1:], place[1:, :-1], place[1:, 1:])
            for corners in np.stack(edges, axis=-1).reshape(-1, 4):
                row = np.zeros(place.size)
                row[corners] = _PLANE * np.array([1.0, -1.0, -1.0, 1.0])
                rows.append(row)
        return np.asarray(rows).reshape(-1, place.size)

    def run(self) -> Tabulated:
        """Solve and describe the solution."""
        block_diag, hstack = load("scipy.linalg").block_diag, load("scipy.sparse").hstack

        designs = {part: self._design(part, self.axes) for part in self.fitted_parts}
        design = hstack(list(designs.values()), format="csr")
        constant = self._known()
        differences = block_diag(*(self._second_differences(part) for part in self.fitted_parts))
        seen = {part: np.asarray(abs(own).sum(axis=0)).ravel() for part, own in designs.items()}
        # Points without iterations continue their neighbors and are not penalized.
        attention = np.concatenate([(seen[p] > 0) * float(p != "linear") for p in self.fitted_parts])
        values, smooth = self._solved(design, self.measured - constant, differences, attention, self.relative)
        predicted = design @ values + constant
        parts = dict(self.known)
        rows, at = [], 0
        for part in self.fitted_parts:
            width = designs[part].shape[1]
            seconds = np.where(values[at : at + width] < LEAST_S, 0.0, values[at : at + width])
            at += width
            parts[part], described = self._part(part, seconds, seen[part])
            rows += described
        for part, own in self.known.items():
            rows += _described(part, own, "fixed")
        provenance = {
            "source": "inferq.timing.fit",
            "iterations": int(self.measured.size),
            "loss": "Huber" if self.robust else "least squares",
            "errors": "relative" if self.relative else "absolute",
            "smoothness": smooth,
        }
        coefficients = _frame(rows)
        table = TimingTable(**parts, provenance=provenance, check_units=False)
        return Tabulated(table, coefficients, predicted, self._notes(coefficients, constant))

    def _known(self) -> Vector:
        seconds = np.zeros_like(self.measured)
        for part, own in self.known.items():
            axes = {axis: getattr(own, axis) for axis in PARTS[part]}
            seconds += np.maximum(self._design(part, axes) @ np.ravel(own.seconds), 0.0)
            if part == "chunk":
                seconds -= own.shared_s * np.maximum(self.times["chunk"] - 1, 0.0)
        return seconds

    def _solved(
        self, design: Any, target: Vector, differences: Matrix, attention: Vector, relative: bool
    ) -> tuple[Vector, float]:
        """The values of the grid points, reweighted until convergence, and the smoothing weight."""
        lengths, huber = self.measured, np.ones_like(target)
        if self.robust and relative:
            # As in `solved`: relative errors alone may converge to a fit of one outlier.
            first = design @ self._solved(design, target, differences, attention, False)[0]
            lengths = first + self.measured - target
            huber = self._huber_weights((target - first) * self._weights(lengths, relative))
        smooth, previous, values = 0.0, None, np.zeros(design.shape[1])
        above = np.ones(design.shape[1], dtype=np.bool_)
        for turn in range(_ROUNDS):
            weights = self._weights(lengths, relative)
            system = System(design, target, weights * np.sqrt(huber), differences, attention)
            if turn == 0 or (self.robust and turn == 3):
                smooth = system.smoothest(self.robust)
            values, above = system.solved(smooth, above)
            predicted = design @ values + (self.measured - target)
            if previous is not None and np.allclose(predicted, previous, rtol=_SETTLED, atol=0):
                break
            previous, lengths = predicted, predicted
            if self.robust:
                huber = self._huber_weights((self.measured - predicted) * weights)
            elif not relative:
                break
        return values, smooth

    def _weights(self, lengths: Vector, relative: bool) -> Vector:
        """The weights of errors relative to these durations, or to the median duration."""
        median = float(np.median(self.measured))
        return (
            np.asarray(1 / np.maximum(lengths, 1e-3 * median))
            if relative
            else np.full_like(lengths, 1 / median)
        )

    def _huber_weights(self, residuals: Vector) -> Vector:
        """Huber's weight of each iteration, by its relative residual."""
        scale = max(NORMAL_MAD * float(np.median(np.abs(residuals))), _MET)
        return np.asarray(np.minimum(1.0, HUBER * scale / np.maximum(np.abs(residuals), 1e-300)))

    def _part(self, part: str, values: Vector, seen: Vector) -> tuple[Any, list[tuple[Any, ...]]]:
        """A part of the table, and a row for each grid point."""
        axes = [list(self.axes[axis]) for axis in PARTS[part]]
        grid, weight = (array.reshape([len(axis) for axis in axes]) for array in (values, seen))
        if len(axes) > 1 and len(axes[1]) == 1:
            axes[1] = [axes[1][0], axes[1][0] + 1]
            grid = np.repeat(grid, 2, axis=1)
            weight = np.column_stack([weight, np.full_like(weight, np.nan)])
        kind: Any = {"linear": LinearPart, "chunk": ChunkPart, "decode": DecodePart}[part]
        seconds = grid.tolist() if len(axes) == 1 else [row.tolist() for row in grid]
        part_of = kind(*axes, seconds)
        origin = np.where(weight > 0, np.where(grid > 0, "fitted", "bound"), "continued")
        origin = np.where(np.isnan(weight), "flat", origin)
        how, counts = origin.ravel().tolist(), np.nan_to_num(weight).ravel().tolist()
        rows = _described(part, part_of, "")
        return part_of, [
            (*row[:4], count, label) for row, count, label in zip(rows, counts, how, strict=True)
        ]

    def _notes(self, coefficients: pl.DataFrame, flat: Vector) -> tuple[str, ...]:
        notes = [
            "Only whole iterations are measured: time that the data do not assign to a part counts as linear."
        ]
        continued = coefficients.filter(how="continued").height
        if continued:
            notes.append(
                f"{continued} of {coefficients.height} grid points have no iteration near: they continue "
                "their neighbors."
            )
        over = float((flat > self.measured).mean())
        if over >= 0.01:
            notes.append(f"{over:.0%} of the iterations are shorter than the fixed parts.")
        prefilled = bool(self.times["chunk"].any())
        if prefilled and "prefill_squares" not in self.log:
            notes.append("The log has no prefill_squares: at most one chunk per iteration is assumed.")
        if self.several:
            notes.append(f"{self.several:,} iterations have several chunks: equal chunks are assumed.")
        if "chunk" in self.fitted_parts and not self.cut_known:
            notes.append(
                "The log has neither prefill_products nor prefill_context: chunks have no context. "
                "A run with chunked prompts is beyond the table, which a finding reports."
            )
        elif "chunk" in self.fitted_parts and len(self.axes["context"]) == 1:
            notes.append(
                f"Every chunk has context {self.axes['context'][0]}: other contexts are beyond the table."
            )
        if not ((self.times["chunk"] > 0) & (self.times["decode"] > 0)).any():
            notes.append("No iteration mixes chunks and decodes: the sum of their times is an assumption.")
        notes.append("Beyond the grid, the last lines are extended, and a run there has a finding.")
        return tuple(notes)


def _described(part: str, table: Any, how: str) -> list[tuple[Any, ...]]:
    """A row for each grid point of a part: part, row, column, seconds, iterations, how."""
    if part == "linear":
        return [
            (part, at, None, seconds, None, how)
            for at, seconds in zip(table.tokens, table.seconds, strict=True)
        ]
    first, second = (getattr(table, axis) for axis in PARTS[part])
    return [
        (part, row, column, seconds, None, how)
        for row, line in zip(first, table.seconds, strict=True)
        for column, seconds in zip(second, line, strict=True)
    ]


def _frame(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    schema = {
        "part": pl.String,
        "row": pl.Int64,
        "column": pl.Int64,
        "seconds": pl.Float64,
        "iterations": pl.Float64,
        "how": pl.String,
    }
    order = pl.col("part").replace_strict({name: place for place, name in enumerate(PARTS)})
    return pl.DataFrame(rows, schema=schema, orient="row").sort(order, maintain_order=True)


def spread(values: Vector, most: int) -> list[int]:
    """Select at most `most` geometrically spaced values, including both ends.

    Fractional values are rounded, the smallest down and the largest up.
    """
    low, high = float(np.floor(values.min())), float(np.ceil(values.max()))
    there = np.unique(values.round())
    # An end next to its own rounded value would be a grid point without a nearest value.
    there = np.array([low, *there[1:-1], high]) if there.size > 1 else np.unique([low, high])
    sizes = np.log1p(there)
    counts = np.linspace(sizes[0], sizes[-1], most)
    after = np.searchsorted(sizes, counts).clip(1, max(there.size - 1, 1)).clip(0, there.size - 1)
    before = (after - 1).clip(0)
    nearest = np.where(counts - sizes[before] < sizes[after] - counts, there[before], there[after])
    return [int(point) for point in np.unique(np.append(nearest, [low, high]))]


def between(points: list[int], values: Vector) -> tuple[NDArray[np.int64], Vector]:
    """The index of the grid point below each value, and its fraction of the way to the next.

    Outside the grid, the first and last intervals are extended: fractions below 0 and above 1. A grid of one
    point is constant.
    """
    if len(points) == 1:
        return np.zeros(values.size, dtype=np.int64), np.zeros(values.size)
    grid = np.asarray(points, dtype=np.float64)
    place = (np.searchsorted(grid, values, side="right") - 1).clip(0, grid.size - 2)
    return place, (values - grid[place]) / (grid[place + 1] - grid[place])


def unvisited(points: list[int], values: Vector) -> tuple[float, float] | None:
    """The first interval around a grid point, halfway to its neighbors, without a value; None if none."""
    grid = np.asarray(points, dtype=np.float64)
    edges = np.concatenate([grid[:1], (grid[1:] + grid[:-1]) / 2, grid[-1:]])
    ordered = np.sort(values)
    count = np.searchsorted(ordered, edges[1:], "right") - np.searchsorted(ordered, edges[:-1], "left")
    empty = np.flatnonzero(count == 0)
    return None if empty.size == 0 else (float(edges[empty[0]]), float(edges[empty[0] + 1]))
