"""Checks of arguments: types, ranges and names."""

from __future__ import annotations

import difflib
import math
import numbers
import operator
from collections.abc import Iterable

from inferq.elsewhere import name_of
from inferq.errors import ConfigError

MOST_COUNT = 2**31 - 1
"""Upper limit of counts: replicas, sequences, slots, tokens of a batch."""
MOST_TOKENS = 2**62
"""Upper limit of KV-cache tokens."""


def shown(value: object) -> str:
    """A value as errors show it, cut to 200 characters."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def finite(field: str, value: object) -> float:
    """Return `value` as a finite float, or raise `ConfigError`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigError(field, f"must be a number, got {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ConfigError(field, f"must be finite, got {shown(value)}")
    return number


def positive(field: str, value: object) -> float:
    """Return `value` as a finite float above 0, or raise `ConfigError`."""
    number = finite(field, value)
    if number <= 0:
        raise ConfigError(field, f"must be positive, got {shown(value)}")
    return number


def not_negative(field: str, value: object) -> float:
    """Return `value` as a finite, non-negative float, or raise `ConfigError`."""
    number = finite(field, value)
    if number < 0:
        raise ConfigError(field, f"must be non-negative, got {shown(value)}")
    return number


def whole(field: str, value: object, least: int, most: int | None = None) -> int:
    """Return `value` as an int from `least` to `most`, or raise `ConfigError`."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(field, f"must be an integer, got {shown(value)}") from None
    if isinstance(value, bool) or number < least or (most is not None and number > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(field, f"must be an integer {bounds}, got {shown(value)}")
    return number


def within(field: str, value: object, least: float, most: float) -> float:
    """Return `value` as a float from `least` (at least 0) to `most`, or raise `ConfigError`."""
    number = (positive if least > 0 else not_negative)(field, value)
    if not least <= number <= most:
        raise ConfigError(field, f"must be from {least:g} to {most:g}, got {shown(value)}")
    return number


def between(field: str, value: object, least: float, most: float) -> float:
    """Return `value` as a float strictly between `least` and `most`, or raise `ConfigError`."""
    number = finite(field, value)
    if not least < number < most:
        raise ConfigError(field, f"must be above {least:g} and below {most:g}, got {shown(value)}")
    return number


def flag(field: str, value: object) -> bool:
    """Return `value` if it is True or False, or raise `ConfigError`."""
    if not isinstance(value, bool):
        raise ConfigError(field, f"must be True or False, got {shown(value)}")
    return value


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint for an unknown name: the name used here, the most similar name, or the list of all names."""
    by_lower = {known.lower(): known for known in names}
    ours = name_of(name)
    if ours in by_lower:
        return f"; it is called {ours} here"
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return (
        f"; did you mean {by_lower[near[0]]}?" if near else f"; known names: {', '.join(by_lower.values())}"
    )
