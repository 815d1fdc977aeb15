"""Non-negative least squares with a knee, and standard errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from inferq._lazy import np, optimize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
    Design = Callable[[int], tuple[NDArray[np.float64], NDArray[np.float64]]]

HUBER = 1.345
"""Standard deviations beyond which a residual counts linearly: 95 % efficient for normal noise."""
NORMAL_MAD = 1.4826
"""The standard deviation of a normal distribution over the median of its absolute values."""
_FAR = 1e-6
"""Rows with a smaller Huber weight (over a million standard deviations off) are left out: their squares would
hide the differences between knees."""
_ROUNDS = 60
_SETTLED = 1e-10
_GRID, _ZOOM, _ALL = 32, 12, 24
_ROUNDING = 1e-20
"""Sums of squares with a smaller relative difference are equal up to rounding."""


@dataclass(frozen=True)
class Solution:
    """The best values of the free coefficients."""

    values: Vector
    knee: int
    residuals: Vector
    """(Measured − predicted) times `weights`."""
    weights: Vector
    """Weights of the rows by duration, without Huber's."""
    scale: float | None
    """The robust standard deviation of the residuals; None for ordinary least squares."""


def solved(
    design: Design,
    measured: Vector,
    tokens: Vector | None,
    knee: int,
    *,
    floor: int,
    robust: bool,
    relative: bool,
) -> Solution:
    """Solve non-negative (weighted, Huber) least squares, with a search of the knee if `tokens` are given.

    Args:
        design: the columns of the free coefficients, and the known seconds, for a knee.
        measured: durations in seconds.
        tokens: tokens of each iteration, to search the knee. None: use `knee`.
        knee: the knee if it is not searched.
        floor: all knees up to it predict the same.
        robust: Huber's loss, by reweighting; its scale is from the median absolute residual.
        relative: weight rows by 1 / predicted duration. (1 / measured would favor short measurements and
            bias all coefficients down.)
    """
    lengths = measured
    huber = np.ones_like(measured)
    if robust and relative:
        # A fit of one extreme outlier alone has a relative error of 1 in all other rows and is a fixed point:
        # therefore start from the solution for absolute errors.
        first = solved(design, measured, tokens, knee, floor=floor, robust=True, relative=False)
        lengths = measured - first.residuals
        huber = _huber_weights(first.residuals * _weights(lengths, measured))[0]
        knee = first.knee
    scale: float | None = None
    previous = None
    for turn in range(_ROUNDS):
        weights = _weights(lengths, measured) if relative else np.ones_like(measured)
        rows = weights * np.sqrt(huber)
        if tokens is not None:
            everywhere = turn == 0 or (robust and turn == 1)
            candidates = _grid(tokens, floor) if everywhere else _around(knee, tokens, floor)
            knee = _best_knee(design, measured, rows, candidates, floor)
        columns, constant = design(knee)
        values = _least_squares(columns * rows[:, None], (measured - constant) * rows)[0]
        predicted = columns @ values + constant
        residuals = (measured - predicted) * weights
        state = np.append(predicted, scale or 0.0)
        if previous is not None and np.allclose(state, previous, rtol=_SETTLED, atol=0):
            break
        previous, lengths = state, predicted
        if robust:
            huber, scale = _huber_weights(residuals)
            if scale <= 1e-12 * float(np.median(measured * weights)):
                scale = 0.0
                break  # more than half of the rows fit exactly
        elif not relative:
            break
    return Solution(values, knee, residuals, weights, scale)


def _weights(lengths: Vector, measured: Vector) -> Vector:
    """The weights of relative errors for the given durations."""
    return np.asarray(1 / np.maximum(lengths, 1e-3 * np.median(measured)))


def _huber_weights(residuals: Vector) -> tuple[Vector, float]:
    """Huber's weight of each row, and the robust standard deviation."""
    scale = NORMAL_MAD * float(np.median(np.abs(residuals)))
    huber = np.minimum(1.0, HUBER * scale / np.maximum(np.abs(residuals), 1e-300))
    return np.where(huber < _FAR, 0.0, huber), scale


def _least_squares(columns: NDArray[np.float64], target: Vector) -> tuple[Vector, float]:
    """Non-negative coefficients and the residual sum of squares."""
    count = columns.shape[1]
    if count == 0:
        return np.empty(0), float(target @ target)
    norms = np.sqrt(np.einsum("ij,ij->j", columns, columns))
    norms[norms == 0] = 1.0
    values, left, rank, _ = np.linalg.lstsq(columns / norms, target, rcond=None)
    if rank == count and left.size and values.min() >= 0:
        return values / norms, float(left[0])
    # The QR triangle has the same sums of squares as all rows.
    triangle: NDArray[np.float64] = np.asarray(
        np.linalg.qr(np.column_stack([columns / norms, target]), mode="r")
    )
    values, rest = optimize.nnls(triangle[:count, :count], triangle[:count, count])
    beyond = triangle[count:, count]
    return values / norms, float(rest**2 + beyond @ beyond)


def _top(tokens: Vector) -> int:
    """The largest knee with two different counts of tokens above it."""
    return int(np.unique(tokens)[-2]) - 1


def _grid(tokens: Vector, floor: int) -> list[int]:
    top = max(_top(tokens), floor)
    of_data = np.quantile(tokens, np.linspace(0, 1, _GRID))
    even = np.linspace(floor, top, _GRID)
    return [int(knee) for knee in np.unique(np.concatenate([of_data, even]).round().clip(floor, top))]


def _around(knee: int, tokens: Vector, floor: int) -> list[int]:
    """Knees at increasing distance from the best one."""
    reach = max(knee // 8, _ALL)
    steps = 2 ** np.arange(int(reach).bit_length())
    points = knee + np.concatenate([-steps, [0], steps])
    return [int(point) for point in np.unique(points.clip(floor, max(_top(tokens), floor)))]


def _best_knee(design: Design, measured: Vector, rows: Vector, candidates: list[int], floor: int) -> int:
    """The knee with the smallest sum of squares (ties: the smallest), on successively finer grids.

    If it is the floor and 0 is as good, 0; with a base above 0 it may not be.
    """
    left: dict[int, float] = {}

    def squares_at(knee: int) -> float:
        if knee not in left:
            columns, constant = design(knee)
            left[knee] = _least_squares(columns * rows[:, None], (measured - constant) * rows)[1]
        return left[knee]

    rounding = _ROUNDING * float(np.sum((measured * rows) ** 2))
    while True:
        squares = [squares_at(knee) for knee in candidates]
        limit = min(squares) * (1 + 1e-9) + rounding
        at = next(place for place, value in enumerate(squares) if value <= limit)
        low, high = candidates[max(at - 1, 0)], candidates[min(at + 1, len(candidates) - 1)]
        near = high - low <= 2 and {low, candidates[at], high} <= left.keys()
        if near or all(after - before == 1 for before, after in pairwise(candidates)):
            return 0 if candidates[at] == floor and squares_at(0) <= limit else candidates[at]
        if high - low <= _ALL:
            candidates = list(range(low, high + 1))
        else:
            inner = np.linspace(low, high, _ZOOM + 1).round()
            candidates = sorted({int(point) for point in inner} | {candidates[at]})


def standard_errors(jacobian: NDArray[np.float64], solution: Solution) -> Vector:
    """Heteroscedasticity-consistent standard errors of the coefficients.

    White's sandwich estimator with the correction HC3 of MacKinnon and White (1985), for Huber's loss with
    its derivatives: (J'ψ'J)⁻¹ (Σ ψ² J J') (J'ψ'J)⁻¹.

    Args:
        jacobian: rows weighted as the residuals, one column per coefficient.
        solution: the result of `solved`.
    """
    residuals = solution.residuals
    bend = np.ones_like(residuals)
    if solution.scale:
        bend = (np.abs(residuals) <= HUBER * solution.scale).astype(np.float64)
        residuals = residuals.clip(-HUBER * solution.scale, HUBER * solution.scale)
    norms = np.linalg.norm(jacobian, axis=0)
    norms[norms == 0] = 1.0
    scaled = jacobian / norms
    leverage = np.sum(np.linalg.qr(scaled)[0] ** 2, axis=1)
    open_rows = scaled * (residuals / np.maximum(1 - leverage, 1e-9))[:, None]
    bread = np.linalg.pinv(scaled.T @ (scaled * bend[:, None]))
    return np.asarray(np.linalg.norm(bread @ open_rows.T, axis=1) / norms)


def inseparable(columns: NDArray[np.float64]) -> list[int]:
    """Linearly dependent columns, up to a millionth; empty if all are independent."""
    norms = np.linalg.norm(columns, axis=0)
    _, sizes, directions = np.linalg.svd(np.linalg.qr(columns / norms, mode="r"))
    if sizes[-1] > 1e-6 * sizes[0]:
        return []
    share = np.abs(directions[-1])
    return [int(place) for place in np.flatnonzero(share > 0.05 * share.max())]
