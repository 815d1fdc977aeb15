"""Progress of a run: a bar on a terminal, or a callable of the user's."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from inferq.errors import ConfigError

Progress: TypeAlias = Callable[[int, int], object]
"""Gets how much is done and how much there is in all."""

_SHOW_AFTER_S = 0.5


@contextmanager
def watched(progress: object, what: str = "requests") -> Iterator[Progress | None]:
    """The callable that gets how far the work is, or None.

    Args:
        progress: True for a bar on a terminal, which counts `what`; a callable; None or False for none.
        what: of which the bar shows how many are done.

    Raises:
        ConfigError: anything else.
    """
    if progress is None or progress is False:
        yield None
    elif callable(progress):
        yield progress
    elif progress is not True:
        raise ConfigError("progress", f"must be True, False, None or a callable, is {progress!r}")
    elif not sys.stderr.isatty():
        yield None
    else:
        bar = _Bar(what)
        try:
            yield bar
        finally:
            bar.close()


class _Bar:
    """A progress bar on standard error that appears only when the work takes its time."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._started = time.monotonic()
        self._shown: Any = None
        self._task: Any = None

    def __call__(self, done: int, total: int) -> None:
        if self._shown is None:
            if time.monotonic() - self._started < _SHOW_AFTER_S:
                return
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn(self._what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._shown = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._shown.add_task(self._what, total=total)
            self._shown.start()
        self._shown.update(self._task, completed=done)

    def close(self) -> None:
        if self._shown is not None:
            self._shown.stop()
