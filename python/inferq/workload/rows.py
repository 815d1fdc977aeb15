"""Rows in a description: written out where they are few, else named by their SHA-256 and kept beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from inferq._lazy import pl
from inferq.errors import ConfigError, TraceError
from inferq.files import write_frame
from inferq.inputs import read_parquet
from inferq.workload.columns import as_frame, checked, sha256

MOST_WRITTEN_OUT = 100
"""So many rows of a workload stand in its description."""


def to_json(frame: pl.DataFrame, digest: Callable[[], str]) -> dict[str, Any]:
    """The rows as JSON-ready data: `data` where reading that gives the same frame, else a SHA-256.

    Args:
        frame: the rows.
        digest: their SHA-256, as `columns.sha256` has it; asked for where they are not written out.
    """
    if frame.height <= MOST_WRITTEN_OUT:
        data = frame.to_dict(as_series=False)
        again = _read(data)
        if again is not None and again.schema == frame.schema and again.equals(frame):
            return {"data": data}
    return {"rows": frame.height, "columns": frame.columns, "sha256": digest()}


def _read(data: Mapping[str, Any]) -> pl.DataFrame | None:
    try:
        return checked(as_frame(data))
    except (ConfigError, TraceError):
        return None


def file_name(digest: str) -> str:
    """What a file of rows beside a description is called."""
    return f"rows-{digest[:16]}.parquet"


def write(frames: Iterator[pl.DataFrame], place: Path) -> None:
    """Write rows that a description names into the folder in which it lies."""
    for frame in frames:
        write_frame(place / file_name(sha256(frame)), frame)


@dataclass(frozen=True, slots=True, eq=False)
class Shelf:
    """Where the files and the rows are that a description names."""

    directory: Path | None = None
    """Where relative paths start; None for what lies in no file."""

    given: tuple[pl.DataFrame, ...] = ()
    """Rows that the user has."""

    files: tuple[Path, ...] = ()
    """Files that may hold rows, beside those of `directory`."""

    def path(self, name: str | os.PathLike[str], *, recorded: bool = False) -> Path:
        """Where a file is; one that a run has `recorded` may lie where that run stood."""
        here = Path(name) if self.directory is None else self.directory / name
        return Path(name) if recorded and not here.exists() and Path(name).exists() else here

    def rows(self, path: str, table: Mapping[str, Any]) -> pl.DataFrame:
        """The rows that the table of a description holds or names.

        Raises:
            ConfigError: they are not at hand; naming the field.
            TraceError: those written out are wrong.
        """
        if "data" in table:
            try:
                return checked(as_frame(table["data"]))
            except TraceError as error:
                raise error.within(f"{path}.data") from None
            except ConfigError:
                raise ConfigError(f"{path}.data", "must be a table of columns") from None
        digest = table.get("sha256")
        if not isinstance(digest, str):
            raise ConfigError(f"{path}.sha256", f"must be the SHA-256 of rows, is {digest!r}")
        frame = self.find(digest)
        if frame is not None:
            return frame
        named = ", ".join(map(str, table.get("columns", ["given values"])))
        what = f"{table.get('rows', '')} rows of {named}"
        raise ConfigError(
            f"{path}.sha256",
            f"no file beside the description has the {what} with this SHA-256: give them as rows=, or put "
            f"them there as {file_name(digest)}",
        )

    def find(self, digest: str) -> pl.DataFrame | None:
        """The rows with this SHA-256, where they are at hand."""
        for frame in self._candidates(digest):
            for one in (frame, _canonical(frame)):
                if one is not None and sha256(one) == digest:
                    return one
        return None

    def _candidates(self, digest: str) -> Iterator[pl.DataFrame]:
        yield from self.given
        beside = () if self.directory is None else (file_name(digest), "workload.parquet")
        for file in (*(self.directory / name for name in beside if self.directory), *self.files):
            if file.is_file():
                yield read_parquet(file, partial(ConfigError, file))


def _canonical(frame: pl.DataFrame) -> pl.DataFrame | None:
    try:
        return checked(frame)
    except TraceError:
        return None
