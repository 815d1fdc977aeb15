"""What can go wrong, and which exception says so?

| exception | raised when | parent |
|---|---|---|
| `ConfigError` | an argument or a field of a scenario is wrong; it names it | `ValueError` |
| `TraceError` | a workload or trace is wrong; it names file, row and column | `ValueError` |
| `SimulationError` | a run cannot go on: say, a policy breaks a rule; it names the rule | `RuntimeError` |
| `SweepStopped` | a sweep cannot go on; its `frame` holds what was done | `SimulationError` |
| `SweepInterrupted` | Ctrl-C in a sweep; `frame` holds what was done | `KeyboardInterrupt` |

An exception raised in a user's own code, and `KeyboardInterrupt`, come back untouched.

Example:
    >>> import inferq as iq
    >>> try:
    ...     iq.Workload({"arrival_s": [0.0, 2.0, 1.0], "prompt_tokens": [5, 5, 5]})
    ... except iq.TraceError as error:
    ...     print(error)
    row 2: arrival_s is 1.0, before the 2.0 of row 1: sort the rows by arrival_s
"""

from __future__ import annotations

from typing import NoReturn

from inferq._core import ConfigError, SimulationError, TraceError
from inferq._lazy import pl

__all__ = ["ConfigError", "SimulationError", "SweepInterrupted", "SweepStopped", "TraceError"]


class Renamed:
    """An attribute of a class that has another name now: asking for it says so."""

    def __init__(self, old: str, new: str) -> None:
        self._message = f"{old} is now {new}"

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(self._message)


class SweepStopped(SimulationError):
    """A sweep could not go on."""

    def __init__(self, message: str, frame: pl.DataFrame) -> None:
        super().__init__(message)
        self.frame = frame
        """The points that had finished, as `sweep` returns them."""


class SweepInterrupted(KeyboardInterrupt):
    """A sweep was interrupted, as by Ctrl-C."""

    def __init__(self, message: str, frame: pl.DataFrame) -> None:
        super().__init__(message)
        self.frame = frame
        """The points that had finished, as `sweep` returns them."""
