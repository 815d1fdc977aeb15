"""Smoothing: non-negative values at grid points by penalized least squares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferq._lazy import load, np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
    Matrix = NDArray[np.float64]

_SMOOTH = (1e-9, 1e-6, 1e-4, 1e-2, 1.0)
"""Candidate weights of second differences relative to the data, for cross-validation."""
_FOLDS = 5
_LEAST_ATTENTION = (0.1, 1e-3)
"""Weight of a penalty on attention values that the data do not determine: a fraction of the smoothing
weight, and its maximum."""
_ROUNDING = 1e-14
"""Added to the unit diagonal of the scaled equations."""


class System:
    """Weighted least squares over grid points, with one set of weights."""

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
        """The smoothing weight with the best prediction of held-out iterations."""
        fold = np.arange(self.target.size) % _FOLDS
        each = [np.flatnonzero(fold == number) for number in range(_FOLDS)]
        grams = [(self.rows[rows].T @ self.rows[rows]).toarray() for rows in each]
        sides = [self.rows[rows].T @ self.target[rows] for rows in each]
        gram, side = np.sum(grams, axis=0), np.sum(sides, axis=0)
        losses = []
        for smooth in _SMOOTH:
            missed = np.empty(self.target.size)
            for rows, own, part in zip(each, grams, sides, strict=True):
                rest, norms = _scaled(gram - own + self._penalty(smooth))
                values = _answer(rest, (side - part) / norms) / norms
                missed[rows] = self.target[rows] - self.rows[rows] @ values
            losses.append(float(np.mean(np.abs(missed)) if robust else np.mean(missed**2)))
        return _SMOOTH[int(np.argmin(losses))]

    def solved(self, smooth: float, above: NDArray[np.bool_]) -> tuple[Vector, NDArray[np.bool_]]:
        """The non-negative least-squares solution, and the mask of positive values.

        Args:
            smooth: the smoothing weight.
            above: an initial guess of the mask.
        """
        gram = (self.rows.T @ self.rows).toarray() + self._penalty(smooth)
        scaled, norms = _scaled(gram)
        values, above = _not_negative(scaled, (self.rows.T @ self.target) / norms, above)
        return values / norms, above


def _scaled(gram: Matrix) -> tuple[Matrix, Vector]:
    """The normal equations scaled to a unit diagonal, and the divisors of rows and columns."""
    norms = np.sqrt(np.maximum(np.diag(gram), 0.0))
    norms[norms == 0] = 1.0
    return gram / np.outer(norms, norms) + _ROUNDING * np.eye(norms.size), norms


def _answer(gram: Matrix, side: Vector) -> Vector:
    """Solve the normal equations; the minimum-norm solution if they are singular by rounding."""
    linalg = load("scipy.linalg")
    try:
        return np.asarray(linalg.cho_solve(linalg.cho_factor(gram), side))
    except linalg.LinAlgError:
        return np.asarray(np.linalg.lstsq(gram, side, rcond=None)[0])


def _not_negative(gram: Matrix, side: Vector, above: NDArray[np.bool_]) -> tuple[Vector, NDArray[np.bool_]]:
    """Non-negative least squares from the normal equations.

    All values on the wrong side of the bound are exchanged, or one at a time without progress. Source: block
    principal pivoting, Portugal, Júdice and Vicente (1994).
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
