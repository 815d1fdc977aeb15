"""Reading of files (Parquet, JSON, TOML), with limits on kind, size, rows and depth.

Refused content raises the caller's kind of error, which adds the place. Errors of the operating system
(missing file, no permission) remain `OSError`.
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
"""Creates the error for a refused file from a message; the caller adds the place."""

T = TypeVar("T")

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

MOST_TEXT = 64 << 20
"""Bytes of a scenario, baseline, record or model configuration; typical files have a few thousand."""
MOST_DEEP = 100
"""Levels of nesting; a description of a system has a few."""
MOST_ROWS = 1 << 24
"""Rows of a Parquet file of any size."""
MOST_ROWS_PER_BYTE = 32
"""Rows of a Parquet file per byte: equal values need almost no bytes in a file but 8 bytes each in memory."""


def path_of(field: str, path: object, what: str = "file") -> Path:
    """Return a user's argument as a path.

    Raises:
        ConfigError: the argument is no path, is empty, or contains characters that file names cannot have.

    Example:
        >>> from inferq.inputs import path_of
        >>> path_of("out", "", "directory")
        Traceback (most recent call last):
        inferq.errors.ConfigError: out: must be the path of a directory, got ''
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if isinstance(text, str) and text and "\0" not in text:
        try:
            os.fsencode(text)
        except UnicodeEncodeError:
            pass
        else:
            return Path(text)
    raise ConfigError(field, f"must be the path of a {what}, got {path!r}")


def check_file(path: Path, refuse: Refuse = ConfigError) -> int:
    """Return the size of a file in bytes; refuse pipes and devices, which may never end.

    Raises:
        OSError: the file does not exist, or a link is broken.
    """
    try:
        status = path.stat()
    except ValueError as error:  # the operating system has no such names
        raise refuse(f"is not a valid file name ({error})") from None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise refuse("is a pipe or a device, not a file; copy its content into a file")
    return status.st_size


def read_bytes(path: Path, refuse: Refuse = ConfigError, most: int = MOST_TEXT) -> bytes:
    """Read a file of at most `most` bytes."""
    size = check_file(path, refuse)
    if size <= most:
        with path.open("rb") as file:
            content = file.read(most + 1)
        size = len(content)
    if size > most:
        raise refuse(f"has {size:,} bytes; the limit is {most:,}")
    return content


def read_text(path: Path, refuse: Refuse = ConfigError, most: int = MOST_TEXT) -> str:
    """Read a file of UTF-8 text, with or without a byte order mark."""
    try:
        return read_bytes(path, refuse, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise refuse(f"is not UTF-8 text (byte {error.start})") from None


def parsed_json(text: str, refuse: Refuse = ConfigError, *, constants: bool = True) -> Any:
    """Parse JSON.

    Args:
        text: the JSON.
        refuse: creates the error for invalid JSON, deep nesting and repeated keys.
        constants: whether NaN and the infinities, which Python writes, are accepted.

    Example:
        >>> from inferq.inputs import parsed_json
        >>> parsed_json('{"seed": 1, "seed": 2}')
        Traceback (most recent call last):
        inferq.errors.ConfigError: is not JSON: the key 'seed' occurs twice in one object
    """
    try:
        value = json_value(text, constants=constants)
    except RecursionError:
        raise refuse("is nested too deeply") from None
    except ValueError as error:
        raise refuse(f"is not JSON: {error}") from None
    check_depth(value, refuse)
    return value


def json_value(text: str, *, constants: bool) -> Any:
    """Parse JSON; an unpaired surrogate, which is no character, remains an escape sequence.

    Raises:
        ValueError: invalid JSON, or a key occurs twice in one object.
        RecursionError: the nesting is too deep.

    Example:
        >>> from inferq.inputs import json_value
        >>> json_value(chr(34) + chr(92) + "ud800" + chr(34), constants=False) == chr(92) + "ud800"
        True
    """
    constant = None if constants else _no_constant
    value = json.loads(text, object_pairs_hook=_unique, parse_constant=constant)
    return _characters(value) if _SURROGATE.search(text) else value


def parsed_toml(text: str, refuse: Refuse = ConfigError) -> dict[str, Any]:
    """Parse TOML."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        value = tomllib.loads(text)
    except RecursionError:
        raise refuse("is nested too deeply") from None
    except ValueError as error:  # also raised for integers with thousands of digits
        raise refuse(f"is not TOML: {error}") from None
    check_depth(value, refuse)
    return value


def check_depth(value: object, refuse: Refuse = ConfigError) -> None:
    """Refuse values that are nested more than `MOST_DEEP` levels."""
    layer: list[object] = [value]
    for _ in range(MOST_DEEP):
        layer = [
            inner
            for outer in layer
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not layer:
            return
    raise refuse("is nested too deeply")


def read_parquet(
    source: Path | bytes, refuse: Refuse = ConfigError, columns: list[str] | None = None
) -> pl.DataFrame:
    """Read a Parquet file, from a path or from its bytes."""
    height = parquet_height(source, refuse)
    frame: pl.DataFrame = guarded(
        lambda: pl.read_parquet(_opened(source), columns=columns, glob=False), refuse
    )
    if frame.height != height:
        raise refuse(f"contains {frame.height:,} rows; its footer states {height:,}")
    return frame


def parquet_height(source: Path | bytes, refuse: Refuse = ConfigError) -> int:
    """Return the row count in the footer of a Parquet file; refuse counts that do not fit its size."""
    size = len(source) if isinstance(source, bytes) else check_file(source, refuse)
    if not size:
        raise refuse("is empty")
    lazy = guarded(lambda: pl.scan_parquet(_opened(source), glob=False).select(pl.len()), refuse)
    height = int(guarded(lambda: lazy.collect().item(), refuse))
    most = max(MOST_ROWS, MOST_ROWS_PER_BYTE * size)
    if height > most:
        raise refuse(f"states {height:,} rows in {size:,} bytes; the limit is {most:,}")
    return height


def parquet_schema(source: Path | bytes, refuse: Refuse = ConfigError) -> dict[str, pl.DataType]:
    """Return the columns of a Parquet file with their types."""
    if isinstance(source, Path):
        check_file(source, refuse)
    return dict(guarded(lambda: pl.read_parquet_schema(_opened(source)), refuse))


def guarded(read: Callable[[], T], refuse: Refuse = ConfigError) -> T:
    """Call a polars reader; refuse the file if polars raises or panics."""
    try:
        with hushed():
            return read()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        lines = str(error).splitlines() or [type(error).__name__]
        raise refuse(f"cannot be read as Parquet: {lines[0]}") from None


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file, read in blocks of 1 MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def hushed() -> Iterator[None]:
    """Suppress what a library writes to standard error when it panics; the error that follows reports it.

    Other output is written at the end. With other threads running nothing is captured: they share standard
    error.
    """
    try:
        if threading.active_count() > 1:
            raise OSError("other threads are running")
        captured, real = tempfile.TemporaryFile(), os.dup(2)  # noqa: SIM115
    except OSError:  # also: no temporary directory, or no standard error
        yield
        return
    has_panicked = False
    with captured, os.fdopen(real, "wb") as out:
        os.dup2(captured.fileno(), 2)
        try:
            yield
        except BaseException as error:
            has_panicked = is_panic(error)
            raise
        finally:
            os.dup2(real, 2)
            captured.seek(0)
            if not has_panicked:
                shutil.copyfileobj(captured, out)


def is_panic(error: BaseException) -> bool:
    """Whether an exception is the panic of a Rust library; each library has its own class."""
    return type(error).__name__ == "PanicException"


def _opened(source: Path | bytes) -> Any:
    return io.BytesIO(source) if isinstance(source, bytes) else source


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a repeated key would lose a value."""
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for place, key in enumerate(keys) if key in keys[:place])
        raise ValueError(f"the key {repeated!r} occurs twice in one object")
    return table


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _characters(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list):
        return [_characters(entry) for entry in value]
    if isinstance(value, dict):
        return {_characters(name): _characters(entry) for name, entry in value.items()}
    return value
