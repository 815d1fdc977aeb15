"""Atomic writing of files, and locks."""

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
"""Distinguishes the temporary files of threads that write the same file."""

_FORMULA = r"^[=+\-@\t\r]"
"""First characters that make a spreadsheet read text as a formula."""


def writable(field: str, path: object) -> Path:
    """Check early that a file can be written, and return its path.

    Raises:
        ConfigError: the argument is no path or is a directory, or its directory does not exist.

    Example:
        >>> from inferq.files import writable
        >>> writable("path", "nowhere/page.html")
        Traceback (most recent call last):
        inferq.errors.ConfigError: path: directory 'nowhere' does not exist
    """
    place = path_of(field, path)
    if not place.parent.is_dir():
        raise ConfigError(field, f"directory {str(place.parent)!r} does not exist")
    if place.is_dir():
        raise ConfigError(field, f"{str(place)!r} is a directory")
    return place


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path; the new file replaces `path` at the end and is removed after an error.

    The new file is synced to disk before it replaces the old one. The target of a symbolic link is replaced.
    A device, a pipe or `/dev/stdout` is written to directly.

    Raises:
        OSError: the file cannot be written or replaced; the error names `path`.

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
                with part.open("rb+") as written:
                    os.fsync(written.fileno())
                if target.exists():
                    shutil.copymode(target, part)
                part.replace(target)
        except BaseException:
            if not direct:
                with suppress(OSError):
                    part.unlink(missing_ok=True)
            raise


def clear(path: Path) -> None:
    """Remove temporary files of killed processes; call it only while holding the lock on the file."""
    for leftover in path.parent.glob(f".{_literal(path.name)}.*.part"):
        leftover.unlink(missing_ok=True)


@contextmanager
def replacing_all(folder: Path) -> Iterator[Callable[[str], Path]]:
    """`replacing` for several files of a directory, which are replaced when all are complete.

    Yields:
        A function from a file name to the temporary path to write to.
    """
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(replacing(folder / name))


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file atomically; see `replacing`."""
    with replacing(path) as part:
        part.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; see `text_into`."""
    with replacing(path) as part:
        text_into(part, text)


def write_frame(path: Path, frame: pl.DataFrame, **options: Any) -> dict[str, Any]:
    """Write a frame as Parquet atomically; see `frame_into`."""
    with replacing(path) as part:
        return frame_into(part, frame, **options)


def text_into(part: Path, text: str) -> None:
    """Write UTF-8 text; an unpaired surrogate, which UTF-8 lacks, is written as its escape sequence."""
    part.write_bytes(text.encode("utf-8", "backslashreplace"))


def frame_into(part: Path, frame: pl.DataFrame, **options: Any) -> dict[str, Any]:
    """Write a frame as Parquet to the temporary path that `replacing` yields.

    Returns:
        The number of `bytes` written and their `sha256`.

    Raises:
        OSError: the file cannot be written, including errors that polars reports in its own class.
    """
    hashed: Any = _HashedFile()
    try:
        with part.open("wb") as hashed.file:
            frame.write_parquet(hashed, **options)
    except (OSError, pl.exceptions.PolarsError) as error:
        cause = hashed.error or error
        number = cause.errno if isinstance(cause, OSError) and cause.errno else errno.EIO
        what = str(cause) if number == errno.EIO else os.strerror(number)
        raise OSError(number, f"{what}; the previous file is unchanged", str(part)) from error
    return {"bytes": hashed.bytes, "sha256": hashed.digest.hexdigest()}


def write_table(path: Path, frame: pl.DataFrame) -> None:
    """Write a frame as `.csv` or `.parquet` atomically.

    In CSV, text that a spreadsheet would read as a formula (first character `=`, `+`, `-`, `@`, tab or
    return) is prefixed with `'`.
    """
    if path.suffix != ".csv":
        write_frame(path, frame)
        return
    texts = [name for name, kind in frame.schema.items() if kind in (pl.String, pl.Categorical, pl.Enum)]
    safe = [pl.col(name).cast(pl.String).str.replace(_FORMULA, "'${0}") for name in texts]
    write_text(path, frame.with_columns(safe).write_csv())


class _HashedFile(io.RawIOBase):
    """A file that hashes what is written and keeps the first error, which polars would reword."""

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
def locked(field: str, what: Path, lock: Path) -> Iterator[None]:
    """Lock a file or directory, so that no other process writes to it.

    The operating system releases the lock when the process ends. On network file systems the lock works if
    the server supports locks.

    Args:
        field: name in the error.
        what: the file or directory to lock.
        lock: the lock file; a `.json` file next to it records the process. Both are removed at the end.

    Raises:
        ConfigError: another process or thread holds the lock; the message names it and the time.
        OSError: the lock cannot be created.
    """
    from filelock import FileLock, Timeout

    holder = lock.with_name(f"{lock.name}.json")
    file_lock = FileLock(lock, timeout=0)
    with named(what):
        if not lock.parent.is_dir():  # FileLock would create it
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(lock))
        try:
            file_lock.acquire()
        except Timeout:
            raise ConfigError(
                field,
                f"{what} is being written by {_process_in(holder)}; wait for it, or choose another name",
            ) from None
    try:
        since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        about = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
        with suppress(OSError):  # the lock works without this record, e.g. on a full disk
            holder.write_text(json.dumps(about), encoding="utf-8")
        yield
    finally:
        with suppress(OSError):
            holder.unlink(missing_ok=True)
        with suppress(OSError):  # on Windows, closing removes the file
            lock.unlink(missing_ok=True)
        file_lock.release()


def _process_in(holder: Path) -> str:
    """The process that holds a lock, from its record."""
    try:
        about = json.loads(read_text(holder, most=4096))
        return f"process {about['pid']:d} on {about['host']} since {about['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _literal(name: str) -> str:
    """A glob pattern that matches exactly one name."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Make errors about a temporary file name the file itself.

    Raises:
        OSError: the error of the block, about `path`.

    Example:
        >>> from pathlib import Path
        >>> from inferq.files import named
        >>> with named(Path("nowhere/points.csv")):
        ...     Path("nowhere/.points.csv.part").touch()
        Traceback (most recent call last):
        FileNotFoundError: [Errno 2] directory nowhere does not exist: 'nowhere/points.csv'
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, _reason(error, path), str(path)) from None


def check_writable(path: Path) -> None:
    """Check before a long run that a file can be written; leave nothing behind.

    Raises:
        OSError: the file cannot be written; the error names `path`.
    """
    with named(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "is a directory")
        if path.exists():
            path.open("ab").close()
        else:
            part = path.with_name(f".{path.name}.{os.getpid()}-{next(_NUMBER)}.part")
            part.open("wb").close()
            part.unlink()


def _reason(error: OSError, path: Path) -> str:
    if not path.parent.is_dir() and error.errno in (errno.ENOENT, errno.ENOTDIR):
        return f"directory {path.parent} does not exist"
    return error.strerror or str(error)


def _holds_files(folder: Path) -> bool:
    """Whether a directory contains files, not the open descriptors of a process."""
    real = os.path.realpath(folder)
    return real != "/dev" and not real.startswith("/proc/")
