"""Linear programs, solved by HiGHS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from inferq._lazy import highspy, np
from inferq.errors import SimulationError

if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from numpy.typing import NDArray

    Numbers: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Solution:
    """An optimal solution."""

    values: Numbers
    """One per variable."""
    prices: Numbers
    """The change of the objective per unit of a row's bound, one per row."""


def minimize(
    costs: Numbers,
    rows: Numbers,
    *,
    least: Numbers,
    most: Numbers,
    lower: float | Numbers = 0.0,
    upper: float = np.inf,
    tolerance: float = 1e-7,
) -> Solution | None:
    """Minimize costs·x subject to least ≤ rows·x ≤ most and lower ≤ x ≤ upper.

    Args:
        costs: one per variable.
        rows: coefficients, one row per constraint.
        least: lower bound per row; −∞ for none.
        most: upper bound per row.
        lower: lower bound of the variables.
        upper: upper bound of the variables.
        tolerance: feasibility tolerance of the primal and the dual.

    Returns:
        The solution; None if no x satisfies the constraints.

    Raises:
        SimulationError: HiGHS stopped without an optimum.
    """
    count, variables = rows.shape
    used = rows != 0
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = variables, count
    program.col_cost_ = costs
    program.col_lower_ = np.broadcast_to(lower, variables).astype(float)
    program.col_upper_ = np.full(variables, upper)
    program.row_lower_, program.row_upper_ = least, most
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = np.concatenate([[0], np.cumsum(used.sum(axis=1))])
    program.a_matrix_.index_, program.a_matrix_.value_ = np.nonzero(used)[1], rows[used]
    # The base class: creating a `Highs` prints a banner on standard output, whatever `output_flag` is.
    solver: Any = highspy.Highs.__mro__[1]()
    for name, value in (
        ("output_flag", False),
        ("primal_feasibility_tolerance", tolerance),
        ("dual_feasibility_tolerance", tolerance),
    ):
        solver.setOptionValue(name, value)
    solver.passModel(program)
    status: Any = None
    # Presolve may report a program as infeasible that the tolerances allow.
    for presolve in ("on", "off"):
        solver.setOptionValue("presolve", presolve)
        solver.run()
        status = solver.getModelStatus()
        if status == highspy.HighsModelStatus.kOptimal:
            solution = solver.getSolution()
            return Solution(np.array(solution.col_value), np.array(solution.row_dual))
    if status == highspy.HighsModelStatus.kInfeasible:
        return None
    raise SimulationError(f"HiGHS found no optimum: {solver.modelStatusToString(status)}")
