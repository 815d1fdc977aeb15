"""Which file cannot be written, in the words of the person who named it?"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Let an error of what is written beside a file name the file itself.

    Raises:
        OSError: what the block raised, about `path`.

    Example:
        >>> from pathlib import Path
        >>> from inferq.experiment.writing import named
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


def check_place(path: Path) -> None:
    """Make sure before long runs that there is a folder for a file.

    Raises:
        OSError: there is none, or the file is a folder.
    """
    with named(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "is a folder")
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "")


def _reason(error: OSError, path: Path) -> str:
    if not path.parent.is_dir() and error.errno in (errno.ENOENT, errno.ENOTDIR):
        return f"there is no folder {path.parent}"
    return error.strerror or str(error)
