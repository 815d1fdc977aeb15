"""Files that are read: real ones alone, no larger than expected, and the Parquet, JSON and TOML in them.

Whatever a function here refuses is raised as the caller's kind of error, which adds the place. What the
system says of a file (it is not there, it may not be read) stays an `OSError`.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from inferq._lazy import pl
from inferq.errors import ConfigError

Refuse = Callable[[str], Exception]
"""Makes the error that says why a file is refused; its place is the caller's to add."""

T = TypeVar("T")

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

MOST_TEXT = 64 << 20
"""Bytes of a scenario, a baseline, a record or a description of a model; those that people write have a few
thousand, and rows of a trace stand in a file of their own."""
MOST_DEEP = 100
"""Tables within tables; a description of a system has a few."""
MOST_ROWS = 1 << 24
"""Rows of a Parquet file of any size …"""
MOST_ROWS_PER_BYTE = 32
"""… and as many for each of its bytes: equal values cost next to nothing in a file, and 8 bytes in memory."""


def path_of(field: str, path: object, what: str = "file") -> Path:
    """What a user gives as a path.

    Raises:
        ConfigError: it is none, is empty, or holds what no name on this system can; it names `field`.

    Example:
        >>> from inferq.inputs import path_of
        >>> path_of("out", "", "directory")
        Traceback (most recent call last):
        inferq.errors.ConfigError: out: must be the path of a directory, is ''
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if isinstance(text, str) and text and "\0" not in text:
        try:
            os.fsencode(text)
        except UnicodeEncodeError:
            pass
        else:
            return Path(text)
    raise ConfigError(field, f"must be the path of a {what}, is {path!r}")


def check_file(path: Path, refuse: Refuse = ConfigError) -> int:
    """Refuse what is no file: a pipe or a device might never end. Returns its bytes.

    Raises:
        OSError: there is nothing of this name, or a link leads nowhere.
    """
    try:
        found = path.stat()
    except ValueError as error:  # a name that the system cannot have
        raise refuse(f"is no name of a file ({error})") from None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise refuse("is not a file but a pipe or a device, which might never end: copy it into a file")
    return found.st_size


def read_bytes(path: Path, refuse: Refuse = ConfigError, most: int = MOST_TEXT) -> bytes:
    """The content of a file of at most so many bytes."""
    size = check_file(path, refuse)
    if size <= most:
        with path.open("rb") as file:
            content = file.read(most + 1)
        size = len(content)
    if size > most:
        raise refuse(f"has {size:,} bytes, at most {most:,} are read")
    return content


def read_text(path: Path, refuse: Refuse = ConfigError, most: int = MOST_TEXT) -> str:
    """A file of UTF-8 text, with a mark of byte order or without."""
    try:
        return read_bytes(path, refuse, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise refuse(f"is no UTF-8 text (byte {error.start})") from None


def parsed_json(text: str, refuse: Refuse = ConfigError, *, constants: bool = True) -> Any:
    """The value of a text in JSON.

    Args:
        text: the JSON.
        refuse: makes the error: no JSON, nested too deeply, a key twice in one object.
        constants: whether NaN and the infinities pass, which Python writes and JSON does not know.

    Example:
        >>> from inferq.inputs import parsed_json
        >>> parsed_json('{"seed": 1, "seed": 2}')
        Traceback (most recent call last):
        inferq.errors.ConfigError: is no JSON: the key 'seed' is there twice in one object
    """
    try:
        value = json_value(text, constants=constants)
    except RecursionError:
        raise refuse("is nested too deeply") from None
    except ValueError as error:
        raise refuse(f"is no JSON: {error}") from None
    check_depth(value, refuse)
    return value


def json_value(text: str, *, constants: bool) -> Any:
    """The value of a text in JSON; half a pair of surrogates, which is no character, stays an escape.

    Raises:
        ValueError: no JSON, or a key twice in one object.
        RecursionError: nested too deeply.

    Example:
        >>> from inferq.inputs import json_value
        >>> json_value(chr(34) + chr(92) + "ud800" + chr(34), constants=False) == chr(92) + "ud800"
        True
    """
    constant = None if constants else _no_constant
    value = json.loads(text, object_pairs_hook=_unique, parse_constant=constant)
    return _characters(value) if _SURROGATE.search(text) else value


def parsed_toml(text: str, refuse: Refuse = ConfigError) -> dict[str, Any]:
    """The tables of a text in TOML."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        value = tomllib.loads(text)
    except RecursionError:
        raise refuse("is nested too deeply") from None
    except ValueError as error:  # of its own kind, and of numbers with thousands of digits
        raise refuse(f"is no TOML: {error}") from None
    check_depth(value, refuse)
    return value


def check_depth(value: object, refuse: Refuse = ConfigError) -> None:
    """Refuse what is nested so deeply that it cannot be gone through."""
    layer: list[object] = [value]
    for _ in range(MOST_DEEP):
        layer = [
            inner
            for one in layer
            if isinstance(one, (dict, list))
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, (dict, list))
        ]
        if not layer:
            return
    raise refuse("is nested too deeply")


def read_parquet(
    source: Path | bytes, refuse: Refuse = ConfigError, columns: list[str] | None = None
) -> pl.DataFrame:
    """The rows of a Parquet file, or of its content."""
    height = parquet_height(source, refuse)
    frame: pl.DataFrame = guarded(
        lambda: pl.read_parquet(_opened(source), columns=columns, glob=False), refuse
    )
    if frame.height != height:
        raise refuse(f"holds {frame.height:,} rows, and says that it has {height:,}")
    return frame


def parquet_height(source: Path | bytes, refuse: Refuse = ConfigError) -> int:
    """How many rows a Parquet file says that it has, refused where they are too many for its size."""
    size = len(source) if isinstance(source, bytes) else check_file(source, refuse)
    if not size:
        raise refuse("is empty")
    lazy = guarded(lambda: pl.scan_parquet(_opened(source), glob=False).select(pl.len()), refuse)
    height = int(guarded(lambda: lazy.collect().item(), refuse))
    most = max(MOST_ROWS, MOST_ROWS_PER_BYTE * size)
    if height > most:
        raise refuse(f"says that it has {height:,} rows in {size:,} bytes; at most {most:,} are read")
    return height


def parquet_schema(source: Path | bytes, refuse: Refuse = ConfigError) -> dict[str, pl.DataType]:
    """The columns of a Parquet file and their types."""
    if isinstance(source, Path):
        check_file(source, refuse)
    return dict(guarded(lambda: pl.read_parquet_schema(_opened(source)), refuse))


def guarded(read: Callable[[], T], refuse: Refuse = ConfigError) -> T:
    """What polars reads; where it raises or panics over a damaged file, that is refused."""
    try:
        with hushed():
            return read()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        said = str(error).splitlines() or [type(error).__name__]
        raise refuse(f"cannot be read as Parquet: {said[0]}") from None


def sha256_of_file(path: Path) -> str:
    """Of the content of a file, of which a little is in memory at a time."""
    summed = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            summed.update(block)
    return summed.hexdigest()


@contextmanager
def hushed() -> Iterator[None]:
    """Keeps back what a library writes on standard error as it panics: the error that follows says it.

    All else is written once it is over. Beside other threads nothing is kept: standard error is theirs too.
    """
    try:
        if threading.active_count() > 1:
            raise OSError("not alone")
        kept, real = tempfile.TemporaryFile(), os.dup(2)  # noqa: SIM115
    except OSError:  # or no place for it, or no standard error
        yield
        return
    has_panicked = False
    with kept, os.fdopen(real, "wb") as out:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException as error:
            has_panicked = is_panic(error)
            raise
        finally:
            os.dup2(real, 2)
            kept.seek(0)
            if not has_panicked:
                shutil.copyfileobj(kept, out)


def is_panic(error: BaseException) -> bool:
    """Whether a library written in Rust says so that it broke; each has a class of its own for it."""
    return type(error).__name__ == "PanicException"


def _opened(source: Path | bytes) -> Any:
    return io.BytesIO(source) if isinstance(source, bytes) else source


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; a key that it has twice would lose one of its values."""
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for place, key in enumerate(keys) if key in keys[:place])
        raise ValueError(f"the key {twice!r} is there twice in one object")
    return table


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _characters(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list):
        return [_characters(one) for one in value]
    if isinstance(value, dict):
        return {_characters(name): _characters(one) for name, one in value.items()}
    return value
