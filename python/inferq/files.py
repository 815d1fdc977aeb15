"""Files written so that an earlier one is lost only once the new one is whole; and locks."""

from __future__ import annotations

import errno
import hashlib
import io
import itertools
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

from inferq._lazy import pl
from inferq.errors import ConfigError
from inferq.inputs import path_of, read_text

_NUMBER = itertools.count()
"""So that two threads that write one file do not write the same part of it."""

_FORMULA = r"^[=+\-@\t\r]"
"""With what a text begins that a spreadsheet takes for a formula."""


def writable(field: str, path: object) -> Path:
    """The path of a file that can be written, made sure of before it costs anything.

    Raises:
        ConfigError: no path, a folder, or one in a folder that is not there; it names `field`.

    Example:
        >>> from inferq.files import writable
        >>> writable("path", "nowhere/page.html")
        Traceback (most recent call last):
        inferq.errors.ConfigError: path: there is no folder 'nowhere'
    """
    place = path_of(field, path)
    if not place.parent.is_dir():
        raise ConfigError(field, f"there is no folder {str(place.parent)!r}")
    if place.is_dir():
        raise ConfigError(field, f"{str(place)!r} is a folder")
    return place


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """The name under which to write a file, which takes its place at the end; after an error it is removed.

    What takes its place is on the disk by then, whole. A link stays, and the file that it leads to is
    replaced. What is there and is no file, such as a device, a pipe or `/dev/stdout`, is written to as it is.

    Raises:
        OSError: it cannot be written, or cannot take its place; it names `path`.

    Example:
        >>> import pathlib, tempfile
        >>> from inferq.files import replacing
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = pathlib.Path(folder) / "page.html"
        ...     with replacing(page) as part:
        ...         characters = part.write_text("whole")
        ...     page.read_text(), part.exists()
        ('whole', False)
    """
    place = Path(path)
    direct = place.exists() and not (place.is_file() and _holds_files(place.parent))
    target = Path(os.path.realpath(place))
    part = place if direct else target.with_name(f".{target.name}.{os.getpid()}-{next(_NUMBER)}.part")
    with named(place):
        try:
            yield part
            if not direct:
                with part.open("rb+") as whole:
                    os.fsync(whole.fileno())
                if target.exists():
                    shutil.copymode(target, part)
                part.replace(target)
        except BaseException:
            if not direct:
                with suppress(OSError):
                    part.unlink(missing_ok=True)
            raise


def clear(path: Path) -> None:
    """Remove what processes that were killed left of a file; only while the lock that covers it is held."""
    for left in path.parent.glob(f".{_literal(path.name)}.*.part"):
        left.unlink(missing_ok=True)


@contextmanager
def replacing_all(folder: Path) -> Iterator[Callable[[str], Path]]:
    """The same for several files of a folder: they take their places when all of them are whole.

    Yields:
        What gives the name under which to write a file of the folder.
    """
    with ExitStack() as whole:
        yield lambda name: whole.enter_context(replacing(folder / name))


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file, whole or not at all; see `replacing`."""
    with replacing(path) as part:
        part.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a text, whole or not at all; see `text_into`."""
    with replacing(path) as part:
        text_into(part, text)


def write_frame(path: Path, frame: pl.DataFrame, **options: Any) -> dict[str, Any]:
    """Write a frame as Parquet, whole or not at all; see `frame_into`."""
    with replacing(path) as part:
        return frame_into(part, frame, **options)


def text_into(part: Path, text: str) -> None:
    """Write a text in UTF-8; half a pair of surrogates, which has no bytes there, as its escape."""
    part.write_bytes(text.encode("utf-8", "backslashreplace"))


def frame_into(part: Path, frame: pl.DataFrame, **options: Any) -> dict[str, Any]:
    """Write a frame as Parquet under the name that `replacing` gives.

    Returns:
        The `bytes` of what was written, and its `sha256`.

    Raises:
        OSError: it cannot be written, also where polars calls that otherwise.
    """
    noted: Any = _Noted()
    try:
        with part.open("wb") as noted.file:
            frame.write_parquet(noted, **options)
    except (OSError, pl.exceptions.PolarsError) as error:
        cause = noted.error or error
        number = cause.errno if isinstance(cause, OSError) and cause.errno else errno.EIO
        what = str(cause) if number == errno.EIO else os.strerror(number)
        raise OSError(number, f"{what}; what was written before stays", str(part)) from error
    return {"bytes": noted.bytes, "sha256": noted.digest.hexdigest()}


def write_table(path: Path, frame: pl.DataFrame) -> None:
    """Write a frame as `.csv` or `.parquet`, whole or not at all.

    In a CSV file a text that a spreadsheet would take for a formula, since it begins with `=`, `+`, `-`, `@`,
    a tab or a return, has a `'` before it.
    """
    if path.suffix != ".csv":
        write_frame(path, frame)
        return
    texts = [name for name, kind in frame.schema.items() if kind in (pl.String, pl.Categorical, pl.Enum)]
    safe = [pl.col(name).cast(pl.String).str.replace(_FORMULA, "'${0}") for name in texts]
    write_text(path, frame.with_columns(safe).write_csv())


class _Noted(io.RawIOBase):
    """A file that knows what was written to it, and what went wrong: polars says it in words of its own."""

    file: IO[bytes]
    error: OSError | None = None

    def __init__(self) -> None:
        self.bytes, self.digest = 0, hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        try:
            written = self.file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.bytes += written
        self.digest.update(data)
        return written

    def flush(self) -> None:
        pass


@contextmanager
def held(field: str, what: Path, lock: Path) -> Iterator[None]:
    """Hold a file or a directory alone, so that no other process, on this machine or another, writes into it.

    The system drops the lock with the process, so that one that was killed blocks no other. Where files
    lie on another machine this holds as far as that machine knows locks.

    Args:
        field: named in the error.
        what: is held.
        lock: the file that is locked; beside it `….json` says by which process. Both go at the end.

    Raises:
        ConfigError: another process, or another thread of this one, holds it; it says which and since when.
        OSError: the lock cannot be made.
    """
    from filelock import FileLock, Timeout

    holder = lock.with_name(f"{lock.name}.json")
    taken = FileLock(lock, timeout=0)
    with named(what):
        if not lock.parent.is_dir():  # it would be made
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(lock))
        try:
            taken.acquire()
        except Timeout:
            raise ConfigError(
                field, f"{what} is being written by {_told(holder)}: wait for that, or take another name"
            ) from None
    try:
        since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        about = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
        with suppress(OSError):  # on a full disk the lock holds without it
            holder.write_text(json.dumps(about), encoding="utf-8")
        yield
    finally:
        with suppress(OSError):
            holder.unlink(missing_ok=True)
        with suppress(OSError):  # Windows removes it when it is closed
            lock.unlink(missing_ok=True)
        taken.release()


def _told(holder: Path) -> str:
    """The process that holds a lock, as far as that is written."""
    try:
        about = json.loads(read_text(holder, most=4096))
        return f"process {about['pid']:d} on {about['host']} since {about['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _literal(name: str) -> str:
    """A pattern that matches a name and no other."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Let an error of what is written beside a file name the file itself.

    Raises:
        OSError: what the block raised, about `path`.

    Example:
        >>> from pathlib import Path
        >>> from inferq.files import named
        >>> with named(Path("nowhere/points.csv")):
        ...     Path("nowhere/.points.csv.part").touch()
        Traceback (most recent call last):
        FileNotFoundError: [Errno 2] there is no folder nowhere: 'nowhere/points.csv'
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, _reason(error, path), str(path)) from None


def check_writable(path: Path) -> None:
    """Make sure before long runs that a file can be written; nothing is left behind.

    Raises:
        OSError: it cannot; it names `path`.
    """
    with named(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "is a folder")
        if path.exists():
            path.open("ab").close()
        else:
            part = path.with_name(f".{path.name}.{os.getpid()}-{next(_NUMBER)}.part")
            part.open("wb").close()
            part.unlink()


def _reason(error: OSError, path: Path) -> str:
    if not path.parent.is_dir() and error.errno in (errno.ENOENT, errno.ENOTDIR):
        return f"there is no folder {path.parent}"
    return error.strerror or str(error)


def _holds_files(folder: Path) -> bool:
    """Whether names in a folder are of files; in some they are of what a process has opened."""
    real = os.path.realpath(folder)
    return real != "/dev" and not real.startswith("/proc/")
