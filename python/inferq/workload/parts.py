"""Workloads in parts, which need not fit into memory.

Arrivals and lengths from distributions are drawn part by part, and scanned files are read part by part. All
other workloads are in memory and sliced.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from inferq import _core
from inferq._lazy import NDArray, np, pl
from inferq.checks import nearest
from inferq.errors import TraceError
from inferq.inputs import guarded, parquet_height, path_of
from inferq.workload.columns import ALIASES, COLUMNS, checked, class_names, sha256_of
from inferq.workload.prefixes import EXPLICIT, LaterLinks

ROWS = 2**17
"""Rows in a part: 131,072. Parts of a synthetic workload must be a multiple of four."""


class Parts:
    """Base class of workloads in parts. All methods may be called repeatedly."""

    rows: int
    """Number of requests."""
    columns: list[str]
    """Names of the columns."""
    classes: list[str] | None
    """Names of the classes in the order of their codes; None without a column `class`."""

    def arrivals(self) -> Iterator[NDArray[np.float64]]:
        """Yield the unchecked column `arrival_s` by parts."""
        raise NotImplementedError

    def frames(self) -> Iterator[pl.DataFrame]:
        """Yield canonical frames."""
        raise NotImplementedError

    def later_links(self) -> LaterLinks | None:
        """Return the rows that later parts continue; None if no column describes the prompts' beginnings."""
        return None

    def column(self, name: str) -> Iterator[pl.Series]:
        """Yield a canonical column by parts."""
        return (frame[name] for frame in self.frames())


class FrameParts(Parts):
    """Slices of a frame in memory."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self.frame, self.rows, self.columns = frame, frame.height, frame.columns
        self.classes = class_names(frame)

    def arrivals(self) -> Iterator[NDArray[np.float64]]:
        """Yield the column `arrival_s`."""
        yield self.frame["arrival_s"].to_numpy()

    def frames(self) -> Iterator[pl.DataFrame]:
        """Yield slices of the frame."""
        yield from self.frame.iter_slices(ROWS)

    def later_links(self) -> LaterLinks | None:
        """Return the links from the columns that link rows."""
        return _later_links(self.frame.lazy(), self.columns)


class SyntheticParts(Parts):
    """Arrivals and lengths from distributions, drawn on demand."""

    def __init__(self, form: dict[str, Any], columns: list[str], seed: int) -> None:
        self.rows, self.columns, self.classes = int(form["requests"]), columns, None
        self._form, self._seed = json.dumps(form), seed

    def arrivals(self) -> Iterator[NDArray[np.float64]]:
        """Yield arrivals, drawn without lengths."""
        drawing = _core.Drawing(self._form, self._seed)
        for _ in range(0, self.rows, ROWS):
            yield drawing.arrivals(ROWS)

    def frames(self) -> Iterator[pl.DataFrame]:
        """Yield the rows of the drawn frame."""
        drawing = _core.Drawing(self._form, self._seed)
        for _ in range(0, self.rows, ROWS):
            drawn = drawing.columns(ROWS)
            yield pl.DataFrame({name: drawn[name] for name in self.columns})


class Scanned(Parts):
    """Parquet files whose rows are read on demand."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        location = path_of("path", path)
        self.path = str(path)
        files = sorted(location.glob("*.parquet")) if location.is_dir() else [location]
        if not files:
            raise TraceError(
                self.path, "is a folder without .parquet files; give a folder or file of Parquet"
            )
        self.rows = sum(parquet_height(file, partial(TraceError, str(file))) for file in files)
        self._lazy = pl.scan_parquet(files, glob=False)
        schema = guarded(self._lazy.collect_schema, partial(TraceError, self.path))
        aliases = {
            name: column for name, column in ALIASES.items() if name in schema and column not in schema
        }
        if aliases:
            self._lazy = self._lazy.rename(aliases)
            schema = self._lazy.collect_schema()
        for name in schema:
            if name not in COLUMNS:
                raise TraceError(self.path, f"unknown column {name}{nearest(name, COLUMNS)}")
        if self.rows == 0:
            raise TraceError(self.path, "no rows: a workload has at least one request")
        self.columns = [name for name in COLUMNS if name in schema]
        if "arrival_s" in schema and not schema["arrival_s"].is_numeric():
            raise TraceError(
                self.path, f"arrival_s: must contain seconds as numbers, got {schema['arrival_s']}"
            )
        self.classes = self._classes(schema["class"]) if "class" in schema else None

    def _classes(self, kind: pl.DataType) -> list[str]:
        """Return the names of an `Enum`, or the sorted names in the files, as in a canonical frame."""
        if isinstance(kind, pl.Enum):
            return kind.categories.to_list()
        names = pl.col("class").cast(pl.String).drop_nulls().unique().sort()
        classes: list[str] = self._lazy.select(names).collect()["class"].to_list()
        return classes

    def column(self, name: str) -> Iterator[pl.Series]:
        """Yield a canonical column by parts."""
        for first in range(0, self.rows, ROWS):
            yield self._canonical(self._lazy.select(name).slice(first, ROWS).collect(), first)[name]

    def frame(self) -> pl.DataFrame:
        """Return all rows."""
        return self._canonical(self._lazy.collect(), 0)

    def arrivals(self) -> Iterator[NDArray[np.float64]]:
        """Yield the column `arrival_s` with NaN for null."""
        for first in range(0, self.rows, ROWS):
            part = self._lazy.select(pl.col("arrival_s").cast(pl.Float64)).slice(first, ROWS).collect()
            yield part["arrival_s"].fill_null(float("nan")).to_numpy()

    def frames(self) -> Iterator[pl.DataFrame]:
        """Yield checked slices of the files; errors name the file and the row."""
        for first in range(0, self.rows, ROWS):
            yield self._canonical(self._lazy.slice(first, ROWS).collect(), first)

    def later_links(self) -> LaterLinks | None:
        """Return the links from the columns that link rows, which are read in advance."""
        return _later_links(self._lazy, self.columns)

    def _canonical(self, frame: pl.DataFrame, first: int) -> pl.DataFrame:
        if "class" in frame.columns and frame["class"].null_count() == 0:
            names = pl.Enum(self.classes or [])
            frame = frame.with_columns(pl.col("class").cast(pl.String).cast(names))
        return checked(frame, lambda at: f"{self.path}: row {first + at}", first)

    def sha256(self) -> str:
        """Return the SHA-256 of the whole frame, read column by column."""
        return sha256_of(self.rows, self.columns, self.column)

    def __repr__(self) -> str:
        """Return the call that creates it."""
        return f"Workload.scan({self.path!r}, {self.rows} requests)"


def _later_links(lazy: pl.LazyFrame, columns: list[str]) -> LaterLinks | None:
    """Return the rows that later parts continue. The check of the parts reports wrong values."""
    by_session = {"session_id", "turn"} <= set(columns)
    if not by_session and not any(name in columns for name in EXPLICIT):
        return None
    no_rows = np.empty(0, dtype=np.int64)
    part = (pl.col("at").cast(pl.Int64) // ROWS).alias("part")
    numbered = lazy.with_row_index("at")
    if "continues" in columns:
        row = pl.col("continues").cast(pl.Int64, strict=False).alias("row")
        back = numbered.select(row, part).filter(pl.col("row") // ROWS < pl.col("part"))
        until = back.group_by("row").agg(until=pl.col("part").max()).sort("row").collect()
        return LaterLinks(until["row"].to_numpy(), until["until"].to_numpy(), None)
    if any(name in columns for name in EXPLICIT) or not by_session:
        return LaterLinks(no_rows, no_rows, None)
    kind = lazy.collect_schema()["session_id"]
    session = pl.col("session_id") if kind.is_integer() else pl.col("session_id").cast(pl.String)
    turns = numbered.filter(pl.col("turn").is_not_null()).select(session, part).drop_nulls()
    spans = turns.group_by("session_id").agg(first=pl.col("part").min(), until=pl.col("part").max())
    several = spans.filter(pl.col("first") < pl.col("until")).select("session_id", "until")
    return LaterLinks(no_rows, no_rows, several.collect())
