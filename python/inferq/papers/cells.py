"""How is a number of a report written, and where do its notes go?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from inferq.papers.report import Row, Table

NONE = "–"
DIGITS = 5
"""Significant digits of what was computed."""

HEADER = ("where", "what", "paper", "theory", "simulation", "gap")
"""The columns of a table of rows; the first two are text."""


def printed(value: float | None) -> str:
    """A number of a paper, with the digits that were given.

    >>> printed(3.263), printed(25.808), printed(6000.0), printed(4.2e-9), printed(None)
    ('3.263', '25.808', '6,000', '4.2e-09', '–')
    """
    if value is None:
        return NONE
    if value == round(value) and abs(value) < 1e15:
        return f"{round(value):,}"
    return f"{value:,}" if 1e-4 <= abs(value) < 1e15 else f"{value:g}"


def computed(value: float | None, half_width: float | None = None) -> str:
    """A number that was computed, and its interval: as far as the interval's second digit.

    >>> computed(3.2632811), computed(131000.4), computed(0.000372), computed(3.2581, 0.0123)
    ('3.2633', '131,000', '0.000372', '3.258 ± 0.012')
    >>> computed(0.0), computed(-1234.5678), computed(2.0), computed(None), computed(5.25, 0.0)
    ('0', '-1,234.6', '2', '–', '5.25 ± 0')
    """
    if value is None:
        return NONE
    if half_width is None or not half_width > 0:
        text = _digits(value, _decimals(value, DIGITS), trim=True)
        return text if half_width is None else f"{text} ± 0"
    decimals = _decimals(half_width, 2)
    return f"{_digits(value, decimals)} ± {_digits(half_width, decimals)}"


def gap(value: float | None) -> str:
    """A share as a signed percentage.

    >>> gap(-0.0251), gap(0.000004), gap(2.5), gap(None)
    ('−2.51 %', '0.00 %', '+250 %', '–')
    """
    if value is None:
        return NONE
    text = f"{100 * abs(value):,.2f}" if abs(value) < 1 else f"{100 * abs(value):,.0f}"
    return f"{_sign(value) if float(text.replace(',', '')) else ''}{text} %"


def noted(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """The notes of a table: the number of its note for each row, and the notes, each once.

    >>> one, two = Row(where="", what="", unit="", note="a"), Row(where="", what="", unit="")
    >>> noted([one, two, one])
    (['1', '', '1'], ['a'])
    """
    notes = list(dict.fromkeys(row.note for row in rows if row.note))
    return [str(notes.index(row.note) + 1) if row.note else "" for row in rows], notes


def of_row(row: Row) -> list[str]:
    """The cells of a row under `HEADER`."""
    what = f"{row.what}, {row.unit}" if row.unit else row.what
    return [
        *(row.where, what, printed(row.paper), computed(row.theory)),
        *(computed(row.simulation, row.half_width), gap(row.gap)),
    ]


def of_table(table: Table) -> tuple[list[str], list[bool], list[list[str]]]:
    """The names of the columns of a table, which of them hold numbers, and its cells."""
    frame = table.frame
    numeric = [frame[name].dtype.is_numeric() for name in frame.columns]
    cells = [
        [_cell(value, table.decimals.get(name, 2)) for name, value in zip(frame.columns, line, strict=True)]
        for line in frame.iter_rows()
    ]
    return frame.columns, numeric, cells


def _cell(value: object, decimals: int) -> str:
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.{decimals}f}" if math.isfinite(value) else NONE
    return f"{value:,}" if isinstance(value, int) else str(value)


def _decimals(value: float, digits: int) -> int:
    """How many decimals show so many significant digits."""
    return 0 if value == 0 else max(0, digits - 1 - math.floor(math.log10(abs(value))))


def _digits(value: float, decimals: int, trim: bool = False) -> str:
    if value and decimals > 9:
        return f"{value:.{DIGITS - 1}g}"
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if trim and "." in text else text


def _sign(value: float) -> str:
    return "−" if value < 0 else "+"
