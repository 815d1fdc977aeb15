"""Rows of a workload's description: inline if they are few, otherwise a SHA-256 and a separate file."""

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
"""Maximum number of rows that a description contains inline."""


def to_json(frame: pl.DataFrame, digest: Callable[[], str]) -> dict[str, Any]:
    """Return the rows as JSON-ready data: `data` if it reads back as the same frame, else a SHA-256.

    Args:
        frame: the rows.
        digest: computes `columns.sha256` of the frame; called only if needed.
    """
    if frame.height <= MOST_WRITTEN_OUT:
        data = frame.to_dict(as_series=False)
        read_back = _read(data)
        if read_back is not None and read_back.schema == frame.schema and read_back.equals(frame):
            return {"data": data}
    return {"rows": frame.height, "columns": frame.columns, "sha256": digest()}


def _read(data: Mapping[str, Any]) -> pl.DataFrame | None:
    try:
        return checked(as_frame(data))
    except (ConfigError, TraceError):
        return None


def file_name(digest: str) -> str:
    """Return the name of the file with the rows of a description."""
    return f"rows-{digest[:16]}.parquet"


def write(frames: Iterator[pl.DataFrame], place: Path) -> None:
    """Write the rows that a description names by SHA-256 to its folder."""
    for frame in frames:
        write_frame(place / file_name(sha256(frame)), frame)


@dataclass(frozen=True, slots=True, eq=False)
class RowStore:
    """Locations of the files and rows that a description names."""

    directory: Path | None = None
    """Base of relative paths; None for a description that is not in a file."""

    frames: tuple[pl.DataFrame, ...] = ()
    """Rows that the user passes."""

    files: tuple[Path, ...] = ()
    """Files that may contain rows, in addition to those in `directory`."""

    def path(self, name: str | os.PathLike[str], *, recorded: bool = False) -> Path:
        """Return the path of a file. In a record of a run, it may be relative to the working directory."""
        path = Path(name) if self.directory is None else self.directory / name
        return Path(name) if recorded and not path.exists() and Path(name).exists() else path

    def rows(self, path: str, table: Mapping[str, Any]) -> pl.DataFrame:
        """Return the rows that a table contains or names.

        Raises:
            ConfigError: no file contains the rows; it names the field.
            TraceError: inline rows are wrong.
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
            raise ConfigError(f"{path}.sha256", f"must be the SHA-256 of rows, got {digest!r}")
        frame = self.find(digest)
        if frame is not None:
            return frame
        columns = ", ".join(map(str, table.get("columns", ["given values"])))
        missing = f"{table.get('rows', '')} rows of {columns}"
        raise ConfigError(
            f"{path}.sha256",
            f"no file contains the {missing} with this SHA-256: pass them as rows=, or save them as "
            f"{file_name(digest)} in the folder of the description",
        )

    def find(self, digest: str) -> pl.DataFrame | None:
        """Return the rows with this SHA-256; None if no file contains them."""
        for frame in self._candidates(digest):
            for candidate in (frame, _canonical(frame)):
                if candidate is not None and sha256(candidate) == digest:
                    return candidate
        return None

    def _candidates(self, digest: str) -> Iterator[pl.DataFrame]:
        yield from self.frames
        names = () if self.directory is None else (file_name(digest), "workload.parquet")
        for file in (*(self.directory / name for name in names if self.directory), *self.files):
            if file.is_file():
                yield read_parquet(file, partial(ConfigError, file))


def _canonical(frame: pl.DataFrame) -> pl.DataFrame | None:
    try:
        return checked(frame)
    except TraceError:
        return None
