"""How is a number of a run written for a reader?"""

from __future__ import annotations

import math

NONE = "–"
"""What there is not."""


def number(value: float | None) -> str:
    """A number with at most two decimals, or three digits where it is small.

    >>> number(None), number(12.0), number(3207.4), number(17.333), number(0.012345)
    ('–', '12', '3,207', '17.33', '0.0123')
    """
    if value is None or math.isnan(value):
        return NONE
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"


def seconds(value: float | None) -> str:
    """A length of time in milliseconds or seconds.

    >>> seconds(None), seconds(0.0386), seconds(0.0000123), seconds(12.3456), seconds(71262.4)
    ('–', '38.6 ms', '0.0123 ms', '12.35 s', '71,262 s')
    """
    if value is None or math.isnan(value):
        return NONE
    if value < 0.9995:
        return f"{value * 1000:.1f} ms" if value >= 0.001 or value == 0 else f"{value * 1000:.3g} ms"
    return f"{value:.2f} s" if value < 1000 else f"{value:,.0f} s"


def percent(value: float | None) -> str:
    """A share in percent, three digits.

    >>> percent(None), percent(0.0), percent(0.27463), percent(1.0)
    ('–', '0 %', '27.5 %', '100 %')
    """
    if value is None or math.isnan(value):
        return NONE
    return f"{100 * value:.3g} %" if abs(value) < 10 else f"{100 * value:,.0f} %"
