"""Is what was given a number of the kind that is asked for?"""

from __future__ import annotations

import math
import numbers
import operator

from inferq.errors import ConfigError


def finite(field: str, value: object) -> float:
    """`value` as a finite float, or a `ConfigError` naming `field`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigError(f"{field}: must be a number, not {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ConfigError(f"{field}: must be finite, not {value!r}")
    return number


def positive(field: str, value: object) -> float:
    """`value` as a finite float above 0, or a `ConfigError` naming `field`."""
    number = finite(field, value)
    if number <= 0:
        raise ConfigError(f"{field}: must be above 0, not {value!r}")
    return number


def not_negative(field: str, value: object) -> float:
    """`value` as a finite float from 0 on, or a `ConfigError` naming `field`."""
    number = finite(field, value)
    if number < 0:
        raise ConfigError(f"{field}: must be 0 or above, not {value!r}")
    return number


def whole(field: str, value: object, least: int, most: int | None = None) -> int:
    """`value` as an int from `least` to `most`, or a `ConfigError` naming `field`."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"{field}: must be a whole number, not {value!r}") from None
    if isinstance(value, bool) or number < least or (most is not None and number > most):
        bounds = f"from {least} on" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{field}: must be a whole number {bounds}, not {value!r}")
    return number
