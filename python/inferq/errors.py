"""What can go wrong, and which exception says so?

| exception | raised when | parent |
|---|---|---|
| `ConfigError` | an argument or a field of a scenario is wrong; it names it | `ValueError` |
| `ResultError` | what a run or a sweep left on disk is damaged; it names file and field | `ConfigError` |
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

from typing import TYPE_CHECKING, ClassVar, NoReturn, TypeVar

if TYPE_CHECKING:
    import polars as pl

__all__ = ["ConfigError", "ResultError", "SimulationError", "SweepInterrupted", "SweepStopped", "TraceError"]

E = TypeVar("E", bound="Misplaced")


class Misplaced(ValueError):
    """Something that is wrong at a place: `path` says where, `message` what; its text is both."""

    _joint: ClassVar[str]
    """What stands between an outer place and an inner one."""

    def __init__(self, path: object, message: str | None = None) -> None:
        """Say where and what; one text alone is a message about no place."""
        self.path, self.message = ("", str(path)) if message is None else (str(path), message)
        super().__init__(self.path, self.message)

    def within(self: E, outer: str, joint: str | None = None) -> E:
        """The same error with its place one level further out.

        Args:
            outer: the path of the table, or the name of the file, that holds what is wrong.
            joint: what stands between the two, where it is not what usually does.
        """
        between = self._joint if joint is None else joint
        if not self.path or (joint is None and self.path.startswith("[")):
            between = ""
        return type(self)(f"{outer}{between}{self.path}", self.message)

    def __str__(self) -> str:
        """`path: message`."""
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(Misplaced):
    """An argument or a field of a description makes no sense; `path` is the field's, from the outside in."""

    _joint = "."


class NotThereError(ConfigError, AttributeError):
    """A part of a result or workload that this one has not, such as `jobs` where there was no network.

    To `hasattr` and to whatever lists attributes it is not there.
    """


class ResultError(ConfigError):
    """What a run or a sweep left on disk is damaged; `path` is the file's and the field's."""

    _joint = ": "


class TraceError(Misplaced):
    """A workload or a trace makes no sense; `path` is the file's and the row's."""

    _joint = ": "


class SimulationError(RuntimeError):
    """A run cannot go on; the message says why."""


class Renamed:
    """An attribute of a class that has another name now: asking for it says so."""

    def __init__(self, new: str) -> None:
        self._new = new

    def __set_name__(self, owner: type, name: str) -> None:
        self._old = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(f"{owner.__name__}.{self._old} is now {owner.__name__}.{self._new}")


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
