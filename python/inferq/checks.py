"""Checks of arguments: numbers of a kind and within a range."""

from __future__ import annotations

import math
import numbers
import operator

from inferq.errors import ConfigError

MOST_COUNT = 2**31 - 1
"""As many replicas, seats, slots or tokens of a batch as may be asked about."""
MOST_TOKENS = 2**62
"""As many tokens of memory."""


def shown(value: object) -> str:
    """A value as an error shows it: whole if it is short."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def finite(field: str, value: object) -> float:
    """`value` as a finite float, or a `ConfigError` naming `field`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigError(field, f"must be a number, not {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ConfigError(field, f"must be finite, not {shown(value)}")
    return number


def positive(field: str, value: object) -> float:
    """`value` as a finite float above 0, or a `ConfigError` naming `field`."""
    number = finite(field, value)
    if number <= 0:
        raise ConfigError(field, f"must be above 0, not {shown(value)}")
    return number


def not_negative(field: str, value: object) -> float:
    """`value` as a finite float from 0 on, or a `ConfigError` naming `field`."""
    number = finite(field, value)
    if number < 0:
        raise ConfigError(field, f"must be 0 or above, not {shown(value)}")
    return number


def whole(field: str, value: object, least: int, most: int | None = None) -> int:
    """`value` as an int from `least` to `most`, or a `ConfigError` naming `field`."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(field, f"must be a whole number, not {shown(value)}") from None
    if isinstance(value, bool) or number < least or (most is not None and number > most):
        bounds = f"from {least} on" if most is None else f"from {least} to {most}"
        raise ConfigError(field, f"must be a whole number {bounds}, not {shown(value)}")
    return number


def within(field: str, value: object, least: float, most: float) -> float:
    """`value` as a float from `least`, 0 or above, to `most`, or a `ConfigError` naming `field`."""
    number = (positive if least > 0 else not_negative)(field, value)
    if not least <= number <= most:
        raise ConfigError(field, f"must be from {least:g} to {most:g}, not {shown(value)}")
    return number


def flag(field: str, value: object) -> bool:
    """`value` if it is True or False, else a `ConfigError` naming `field`."""
    if not isinstance(value, bool):
        raise ConfigError(field, f"must be True or False, not {shown(value)}")
    return value
