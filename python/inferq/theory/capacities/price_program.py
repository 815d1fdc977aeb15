"""The linear program of prices: few of its many rows bind, but all of them hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from inferq._lazy import np
from inferq.errors import SimulationError
from inferq.theory.linear_program import minimize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers: TypeAlias = NDArray[np.float64]

_NAMES = ("token", "decode", "context", "row", "chunk", "chunk_token", "pair")
"""Unknowns: per prompt token and per chunk the linear layers and slots (`row`), then the chunk attention."""
TOKEN, DECODE, CONTEXT, ROW, CHUNK, CHUNK_TOKEN, PAIR = range(len(_NAMES))
_FIRST_ROWS, _MORE_ROWS = 500, 100
"""Rows in the first program, and rows added per step."""
_FAR = 1e6
"""Bound of an unknown in its own unit; no solution is near it."""
_TOLERANCE = 1e-7
"""Share of its limit by which a row may be violated before all unknowns are scaled."""


class PriceProgram:
    """Rows of a linear program: Σ coefficient·unknown ≤ limit."""

    def __init__(self) -> None:
        self._rows: list[Numbers] = []
        self._limits: list[Numbers] = []

    def at_most(self, limit: Any, **coefficients: Any) -> None:
        """Add rows, one for each element of the arrays."""
        arrays = np.broadcast_arrays(
            *(np.asarray(values, dtype=float) for values in (limit, *coefficients.values()))
        )
        rows = np.zeros((arrays[0].size, len(_NAMES)))
        for name, values in zip(coefficients, arrays[1:], strict=True):
            rows[:, _NAMES.index(name)] = values.ravel()
        self._rows.append(rows)
        self._limits.append(arrays[0].ravel())

    def least(self, costs: Sequence[float], *, free: Sequence[int], strict: float) -> Numbers | None:
        """The unknowns with the least costs; None if there is no solution.

        Args:
            costs: cost of each unknown.
            free: unknowns that may be negative.
            strict: the sign by which all unknowns are scaled until every row with a limit holds exactly: the
                solver satisfies rows only within its tolerance.
        """
        rows, limits = np.concatenate(self._rows), np.concatenate(self._limits)
        limited = limits != 0
        if not limited.any():
            return np.zeros(len(_NAMES))
        # Seconds, tokens and pairs differ by many powers of ten. So rows are divided by their limits, and
        # unknowns by the largest coefficient that they then have.
        rows[limited] /= np.abs(limits[limited])[:, None]
        signs = np.sign(limits)
        unit = np.abs(rows[limited]).max(axis=0)
        unit[unit == 0] = 1.0
        rows /= unit
        heights = np.abs(rows[~limited]).max(axis=1)
        rows[~limited] /= np.where(heights > 0, heights, 1.0)[:, None]
        scaled = np.asarray(costs) / unit
        scaled /= np.abs(scaled).max() or 1.0
        lower = np.array([-_FAR if place in free else 0.0 for place in range(len(_NAMES))])
        # Few rows bind: begin with some, then add those with the largest violation, until none is left.
        used = ~limited
        used[:: max(1, len(rows) // _FIRST_ROWS)] = True
        while True:
            most = signs[used]
            try:
                solution = minimize(
                    scaled, rows[used], least=np.full(most.size, -np.inf), most=most, lower=lower, upper=_FAR
                )
            except SimulationError:
                return None
            if solution is None:
                return None
            beyond = rows @ solution.values - signs
            broken = np.flatnonzero((beyond > _TOLERANCE) & ~used)
            if not len(broken):
                break
            used[broken[np.argsort(beyond[broken])[-_MORE_ROWS:]]] = True
        if np.abs(solution.values).max() > _FAR / 2:
            return None
        widest = max(0.0, float(beyond[limited].max()))
        stretched: Numbers = solution.values / unit * (1 + strict * widest)
        return stretched
