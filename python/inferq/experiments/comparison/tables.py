"""Tables of a comparison: metrics of a system next to those of the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferq.display.document import Grid
from inferq.display.text import NONE, amount, number, percent, rounded


def row_name(row: Mapping[str, Any]) -> str:
    """The metric of a row of `Comparison.frame`, with its class."""
    group = row.get("class")
    return str(row["metric"]) if group is None else f"{row['metric']} of {group}"


def of_system(rows: Sequence[Mapping[str, Any]], baseline: str, name: str) -> Grid:
    """The metrics of a system, with differences to the baseline.

    Args:
        rows: all rows of `Comparison.frame`.
        baseline: name of the baseline.
        name: name of the system.
    """
    base = {(row.get("class"), row["metric"]): row for row in rows if row["system"] == baseline}
    of_name = [row for row in rows if row["system"] == name]
    if name == baseline:
        lines = [
            [row_name(row), _amount(row["mean"], row["unit"]), _half(row["half_width"], row["unit"])]
            for row in of_name
        ]
        return Grid(title=name, header=("metric", "mean", ""), lines=lines)
    lines = [
        [
            row_name(row),
            _amount(base[row.get("class"), row["metric"]]["mean"], row["unit"]),
            _amount(row["mean"], row["unit"]),
            difference(row),
            verdict(row),
        ]
        for row in of_name
    ]
    header = ("metric", baseline, name, "difference", "verdict")
    return Grid(title=f"{name} against {baseline}", header=header, lines=lines, last_is_text=True, wraps=True)


def verdict(row: Mapping[str, Any]) -> str:
    """The verdict of a difference, with the error of the model if it is larger or unknown."""
    return "; ".join(filter(None, (row["verdict"] or "no verdict", row["note"])))


def difference(row: Mapping[str, Any]) -> str:
    """A difference to the baseline with its half width, in percent; in the unit if the baseline is 0.

    The half width has two digits, the difference as many decimals.

    Example:
        >>> from inferq.experiments.comparison.tables import difference
        >>> difference({"relative": -0.3412, "relative_half_width": 0.0161, "difference": -0.01})
        '−34.1 ± 1.6 %'
    """
    share, half = row["relative"], row.get("relative_half_width")
    if share is not None:
        if half is None:
            return percent(share, sign=True)
        return f"{' '.join(rounded(100 * share, 100 * half, sign=True))} %"
    if row["difference"] is None:
        return NONE
    mark = "−" if row["difference"] < 0 else "+" if row["difference"] > 0 else ""
    size = f"{mark}{_amount(abs(row['difference']), row['unit'])}"
    return f"{size} {_half(row['difference_half_width'], row['unit'])}".strip()


def _amount(value: float | None, unit: str) -> str:
    """A value with its unit; rates without the noun, which is in the name of the metric."""
    return f"{number(value)}/s" if value is not None and unit.endswith("/s") else amount(value, unit)


def _half(value: float | None, unit: str) -> str:
    return "" if value is None else f"± {_amount(value, unit)}"
