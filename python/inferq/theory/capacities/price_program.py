"""The linear program whose solution is prices: few of its many rows decide, and all of them are kept."""

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
"""Unknowns: for a prompt token and for a chunk what linear layers and seats ask, then what chunks ask."""
TOKEN, DECODE, CONTEXT, ROW, CHUNK, CHUNK_TOKEN, PAIR = range(len(_NAMES))
_FIRST_ROWS, _MORE_ROWS = 500, 100
"""Rows that a program begins with, and those that it gains at once."""
_FAR = 1e6
"""Bounds of an unknown in its own unit, which a solution does not come near."""
_TOLERANCE = 1e-7
"""Share of its limit by which a row may be broken before all unknowns are stretched."""


class PriceProgram:
    """Rows of a linear program: Σ coefficient·unknown ≤ limit."""

    def __init__(self) -> None:
        self._rows: list[Numbers] = []
        self._limits: list[Numbers] = []

    def at_most(self, limit: Any, **coefficients: Any) -> None:
        """Rows, one for each number of the arrays that are given."""
        given = np.broadcast_arrays(
            *(np.asarray(one, dtype=float) for one in (limit, *coefficients.values()))
        )
        rows = np.zeros((given[0].size, len(_NAMES)))
        for name, values in zip(coefficients, given[1:], strict=True):
            rows[:, _NAMES.index(name)] = values.ravel()
        self._rows.append(rows)
        self._limits.append(given[0].ravel())

    def least(self, costs: Sequence[float], *, free: Sequence[int], strict: float) -> Numbers | None:
        """The unknowns with the least costs; None where there is no solution.

        Args:
            costs: of each unknown.
            free: unknowns that may be below 0.
            strict: the sign in which all unknowns are stretched until every row with a limit is kept for
                certain: the solver keeps rows to within its tolerance.
        """
        rows, limits = np.concatenate(self._rows), np.concatenate(self._limits)
        limited = limits != 0
        if not limited.any():
            return np.zeros(len(_NAMES))
        # Seconds, tokens and pairs differ by many powers of ten: a row is measured by its limit, an unknown
        # by the largest factor that it then has.
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
        # Few rows decide: some to begin with, then those that are most broken, until none is.
        kept = ~limited
        kept[:: max(1, len(rows) // _FIRST_ROWS)] = True
        while True:
            most = signs[kept]
            try:
                solution = minimize(
                    scaled, rows[kept], least=np.full(most.size, -np.inf), most=most, lower=lower, upper=_FAR
                )
            except SimulationError:
                return None
            if solution is None:
                return None
            beyond = rows @ solution.values - signs
            broken = np.flatnonzero((beyond > _TOLERANCE) & ~kept)
            if not len(broken):
                break
            kept[broken[np.argsort(beyond[broken])[-_MORE_ROWS:]]] = True
        if np.abs(solution.values).max() > _FAR / 2:
            return None
        widest = max(0.0, float(beyond[limited].max()))
        stretched: Numbers = solution.values / unit * (1 + strict * widest)
        return stretched
