"""Progress reports: a bar in a terminal or notebook, lines in a pipe, or a user's callable."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol, TypeAlias

from inferq.errors import ConfigError

Progress: TypeAlias = Callable[[int, int], object]
"""Receives the completed and the total amount of work."""

_SHOW_AFTER_S = 0.5
_PULSE_AFTER_S = 1.2
"""Time without a report after which the bar appears anyway."""
_EVERY_S = 1.8
"""Interval between lines in a pipe."""


@contextmanager
def watched(
    progress: object, what: str = "requests", *, in_a_pipe: bool = False
) -> Iterator[Progress | None]:
    """Yield the callable that receives progress, or None.

    Args:
        progress: True for a bar in a terminal or notebook; a callable; None or False for no progress.
        what: unit of work that the bar counts.
        in_a_pipe: whether True writes lines if standard error is neither a terminal nor a notebook.

    Raises:
        ConfigError: `progress` has another type.
    """
    if progress is None or progress is False:
        yield None
    elif callable(progress):
        yield progress
    elif progress is not True:
        raise ConfigError("progress", f"must be True, False, None or a callable, got {progress!r}")
    else:
        bar = _bar(what, in_a_pipe)
        if bar is None:
            yield None
            return
        try:
            yield bar
        finally:
            bar.close()


class _Shown(Protocol):
    """A progress display."""

    def __call__(self, done: int, total: int) -> None: ...
    def close(self) -> None: ...


def _bar(what: str, in_a_pipe: bool) -> _Shown | None:
    """The display that fits the environment; None if there is none."""
    if _in_a_notebook():
        return _NotebookBar(what)
    if sys.stderr.isatty():
        return _TerminalBar(what)
    return _Lines(what) if in_a_pipe else None


def _in_a_notebook() -> bool:
    """Whether the code runs in a Jupyter kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")


class _TerminalBar:
    """A progress bar on standard error that appears only for long work.

    Before the first report it shows an indeterminate bar.
    """

    def __init__(self, what: str) -> None:
        from threading import Lock, Timer

        self._what = what
        self._started = time.monotonic()
        self._shown: Any = None
        self._task: Any = None
        self._lock = Lock()
        self._ended = False
        self._timer = Timer(_PULSE_AFTER_S, self._show, (0, None))
        self._timer.daemon = True
        self._timer.start()

    def __call__(self, done: int, total: int) -> None:
        if self._shown is not None or time.monotonic() - self._started >= _SHOW_AFTER_S:
            self._timer.cancel()
            self._show(done, total)

    def _show(self, done: int, total: int | None) -> None:
        with self._lock:
            if self._ended:
                return
            if self._shown is None:
                from rich.console import Console
                from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
                from rich.progress import TimeRemainingColumn as Remaining

                columns = (TextColumn(self._what), BarColumn(), MofNCompleteColumn(), Remaining())
                self._shown = Progress(*columns, console=Console(stderr=True), transient=True)
                self._task = self._shown.add_task(self._what, total=total)
                self._shown.start()
            self._shown.update(self._task, completed=done, total=total)

    def close(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._ended = True
            if self._shown is not None:
                self._shown.stop()


class _NotebookBar:
    """A progress bar below the running cell, removed at the end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._started = self._updated = time.monotonic()
        self._shown: Any = None

    def __call__(self, done: int, total: int) -> None:
        shell = import_module("IPython.display")
        now = time.monotonic()
        if now - (self._started if self._shown is None else self._updated) < _SHOW_AFTER_S / 2:
            return
        self._updated = now
        bar = shell.HTML(
            f'<progress value="{done}" max="{total}"></progress> {done:,} of {total:,} {self._what}'
        )
        if self._shown is None:
            self._shown = shell.display(bar, display_id=True)
        else:
            self._shown.update(bar)

    def close(self) -> None:
        if self._shown is not None:
            self._shown.update(import_module("IPython.display").HTML(""))


class _Lines:
    """A line on standard error every two seconds."""

    def __init__(self, what: str) -> None:
        from threading import Event, Thread

        self._what, self._done = what, (0, 0)
        self._started = time.monotonic()
        self._ended = Event()
        self._thread = Thread(target=self._write, daemon=True)
        self._thread.start()

    def __call__(self, done: int, total: int) -> None:
        self._done = (done, total)

    def _write(self) -> None:
        while not self._ended.wait(_EVERY_S):
            done, total = self._done
            far = f"{done:,} of {total:,} {self._what}" if total else f"no {self._what} yet"
            print(f"… {far}, {time.monotonic() - self._started:.0f} s", file=sys.stderr, flush=True)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
