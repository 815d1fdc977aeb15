"""Files written so that an earlier one is lost only once the new one is whole."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from inferq.errors import ConfigError


def writable(field: str, path: object) -> Path:
    """The path of a file that can be written, made sure of before it costs anything.

    Raises:
        ConfigError: no path, a folder, or one in a folder that is not there; it names `field`.

    Example:
        >>> from inferq.results.files import writable
        >>> writable("path", "nowhere/page.html")
        Traceback (most recent call last):
        inferq.errors.ConfigError: path: there is no folder 'nowhere'
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigError(field, f"must be the path of a file, is {path!r}")
    place = Path(text)
    if not place.parent.is_dir():
        raise ConfigError(field, f"there is no folder {str(place.parent)!r}")
    if place.is_dir():
        raise ConfigError(field, f"{text!r} is a folder")
    return place


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """The name under which to write a file, which takes its place at the end; after an error it is removed.

    A link stays, and the file that it leads to is replaced. What is there and is no file, such as a device, a
    pipe or `/dev/stdout`, is written to as it is.

    Raises:
        OSError: it cannot be written, or cannot take its place; it names `path`.

    Example:
        >>> import pathlib, tempfile
        >>> from inferq.results.files import replacing
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
    part = place if direct else target.with_name(f".{target.name}.part")
    with named(place):
        try:
            yield part
            if not direct:
                if target.exists():
                    shutil.copymode(target, part)
                part.replace(target)
        except BaseException:
            if not direct:
                with suppress(OSError):
                    part.unlink(missing_ok=True)
            raise


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file that is on the disk, whole, when it takes its place; see `replacing`."""
    with replacing(path) as part, part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Let an error of what is written beside a file name the file itself.

    Raises:
        OSError: what the block raised, about `path`.

    Example:
        >>> from pathlib import Path
        >>> from inferq.results.files import named
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
            part = path.with_name(f".{path.name}.{os.getpid()}.part")
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
