"""Exceptions.

| exception | raised when | parent |
|---|---|---|
| `ConfigError` | an argument or a field of a scenario is invalid; the message names it | `ValueError` |
| `ResultError` | a stored run or sweep is damaged; the message names file and field | `ConfigError` |
| `TraceError` | a workload or trace is invalid; the message names file, row and column | `ValueError` |
| `SimulationError` | a run cannot continue, e.g. because a policy broke a rule | `RuntimeError` |
| `SweepStopped` | a sweep cannot continue; `frame` holds the finished points | `SimulationError` |
| `SweepInterrupted` | Ctrl-C in a sweep; `frame` holds the finished points | `KeyboardInterrupt` |

Exceptions raised in user code, and `KeyboardInterrupt`, pass through unchanged.

Example:
    >>> import inferq as iq
    >>> try:
    ...     iq.Workload({"arrival_s": [0.0, 2.0, 1.0], "prompt_tokens": [5, 5, 5]})
    ... except iq.TraceError as error:
    ...     print(error)
    row 2: arrival_s is 1.0, before the 2.0 of row 1: sort the rows by arrival_s
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeVar

if TYPE_CHECKING:
    import polars as pl

__all__ = ["ConfigError", "ResultError", "SimulationError", "SweepInterrupted", "SweepStopped", "TraceError"]

E = TypeVar("E", bound="Misplaced")


class Misplaced(ValueError):
    """An error at a place: `path` is the place, `message` the problem; the text shows both."""

    _joint: ClassVar[str]
    """Separator between an outer and an inner place."""

    def __init__(self, path: object, message: str | None = None) -> None:
        """Set place and message; a single argument is a message without a place."""
        self.path, self.message = ("", str(path)) if message is None else (str(path), message)
        super().__init__(self.path, self.message)

    def within(self: E, outer: str, joint: str | None = None) -> E:
        """Return the same error with an outer place in front.

        Args:
            outer: path of the enclosing table, or name of the file.
            joint: separator. Default: the separator of the class.
        """
        between = self._joint if joint is None else joint
        if not self.path or (joint is None and self.path.startswith("[")):
            between = ""
        return type(self)(f"{outer}{between}{self.path}", self.message)

    def __str__(self) -> str:
        """`path: message`."""
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(Misplaced):
    """An argument or a field of a description is invalid; `path` names the field."""

    _joint = "."


class NotThereError(ConfigError, AttributeError):
    """A part that this result or workload lacks, such as `jobs` without a network.

    `hasattr` returns False for it.
    """


class ResultError(ConfigError):
    """A stored run or sweep is damaged; `path` names the file and the field."""

    _joint = ": "


class TraceError(Misplaced):
    """A workload or a trace is invalid; `path` names the file and the row."""

    _joint = ": "


class SimulationError(RuntimeError):
    """A run cannot continue; the message gives the reason."""


class SweepStopped(SimulationError):
    """A sweep could not continue."""

    def __init__(self, message: str, frame: pl.DataFrame) -> None:
        super().__init__(message)
        self.frame = frame
        """The finished points, in the format of `sweep`."""


class SweepInterrupted(KeyboardInterrupt):
    """A sweep was interrupted, e.g. by Ctrl-C."""

    def __init__(self, message: str, frame: pl.DataFrame) -> None:
        super().__init__(message)
        self.frame = frame
        """The finished points, in the format of `sweep`."""
