"""Smoothing: values at grid points, 0 or above and no more bent than needed, closest to the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferq._lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
    Matrix = NDArray[np.float64]

_SMOOTH = (1e-9, 1e-6, 1e-4, 1e-2, 1.0)
"""Weights of the bends of the grid beside those of the data, among which cross-validation chooses."""
_FOLDS = 5
_LEAST_ATTENTION = (0.1, 1e-3)
"""The weight that makes attention small where the data leave open what it is: its share of that of the bends,
and the most of it."""
_ROUNDING = 1e-14
"""What is added to the diagonal of equations that have ones there."""


class System:
    """Weighted least squares over grid points, on one set of weights."""

    def __init__(
        self, design: Any, target: Vector, weights: Vector, bends: Matrix, attention: Vector
    ) -> None:
        size = float(np.sqrt(np.sum(weights**2) / attention.size))
        self.rows = design.multiply((weights / size)[:, None]).tocsr()
        self.target = target * weights / size
        self.bends, self.attention = bends.T @ bends, attention

    def _penalty(self, smooth: float) -> Matrix:
        share, most = _LEAST_ATTENTION
        return np.asarray(smooth * self.bends + min(share * smooth, most) * np.diag(self.attention))

    def smoothest(self, robust: bool) -> float:
        """The weight of the bends under which iterations that are left out are foretold best."""
        fold = np.arange(self.target.size) % _FOLDS
        each = [np.flatnonzero(fold == one) for one in range(_FOLDS)]
        grams = [(self.rows[rows].T @ self.rows[rows]).toarray() for rows in each]
        sides = [self.rows[rows].T @ self.target[rows] for rows in each]
        gram, side = np.sum(grams, axis=0), np.sum(sides, axis=0)
        misses = []
        for smooth in _SMOOTH:
            missed = np.empty(self.target.size)
            for rows, own, its in zip(each, grams, sides, strict=True):
                rest, norms = _scaled(gram - own + self._penalty(smooth))
                values = _answer(rest, (side - its) / norms) / norms
                missed[rows] = self.target[rows] - self.rows[rows] @ values
            misses.append(float(np.mean(np.abs(missed)) if robust else np.mean(missed**2)))
        return _SMOOTH[int(np.argmin(misses))]

    def solved(self, smooth: float, above: NDArray[np.bool_]) -> tuple[Vector, NDArray[np.bool_]]:
        """The values that are 0 or above with the least sum of squares, and which of them are above.

        Args:
            smooth: the weight of the bends.
            above: a guess of which are.
        """
        gram = (self.rows.T @ self.rows).toarray() + self._penalty(smooth)
        scaled, norms = _scaled(gram)
        values, above = _not_negative(scaled, (self.rows.T @ self.target) / norms, above)
        return values / norms, above


def _scaled(gram: Matrix) -> tuple[Matrix, Vector]:
    """The normal equations with ones on the diagonal, and by what their rows and columns were divided."""
    norms = np.sqrt(np.maximum(np.diag(gram), 0.0))
    norms[norms == 0] = 1.0
    return gram / np.outer(norms, norms) + _ROUNDING * np.eye(norms.size), norms


def _answer(gram: Matrix, side: Vector) -> Vector:
    """What solves the normal equations; the least solution where rounding leaves them without one."""
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    try:
        return np.asarray(cho_solve(cho_factor(gram), side))
    except LinAlgError:
        return np.asarray(np.linalg.lstsq(gram, side, rcond=None)[0])


def _not_negative(gram: Matrix, side: Vector, above: NDArray[np.bool_]) -> tuple[Vector, NDArray[np.bool_]]:
    """Least squares of values that are 0 or above, from its normal equations.

    Which values are above 0 is found by exchange of all that are on the wrong side, and of one at a time
    where that does not get better. Source: block principal pivoting, Portugal, Júdice and Vicente (1994).
    """
    least, patience = side.size + 1, 3
    values = np.zeros(side.size)
    for _ in range(20 * side.size):
        values = np.zeros(side.size)
        if above.any():
            values[above] = _answer(gram[np.ix_(above, above)], side[above])
        slope = gram @ values - side
        small, flat = 1e-12 * np.abs(values).max(), 1e-13 * np.abs(side).max()
        wrong = np.flatnonzero(np.where(above, values < -small, slope < -flat))
        if wrong.size == 0:
            break
        if wrong.size < least:
            least, patience = wrong.size, 3
        elif patience > 0:
            patience -= 1
        else:
            wrong = wrong[-1:]
        above = above.copy()
        above[wrong] = ~above[wrong]
    return np.maximum(values, 0.0), above
