"""A workload in parts, so that it is never in memory as a whole.

Two kinds do: arrivals and lengths from distributions, which are drawn part by part, and files that are
scanned. All others are drawn or held whole and cut.
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
from inferq.workload.columns import COLUMNS, checked, class_names, sha256_of
from inferq.workload.prefixes import EXPLICIT, Later

ROWS = 2**17
"""Rows of a part: 131,072. A multiple of four, as the parts of a synthetic workload must be."""


class Parts:
    """The requests of a workload, which can be gone through more than once."""

    rows: int
    """How many."""
    columns: list[str]
    """The columns that it has."""
    classes: list[str] | None
    """The names of its classes, in the order of their codes; None without the column `class`."""

    def arrivals(self) -> Iterator[NDArray[np.float64]]:
        """The column `arrival_s`, part by part, not checked yet."""
        raise NotImplementedError

    def frames(self) -> Iterator[pl.DataFrame]:
        """Canonical frames, part by part."""
        raise NotImplementedError

    def later(self) -> Later | None:
        """To which rows later parts go back; None where no column says with what prompts begin."""
        return None

    def column(self, name: str) -> Iterator[pl.Series]:
        """A column as it would be in a frame of these rows, part by part."""
        return (frame[name] for frame in self.frames())


class OfFrame(Parts):
    """A frame in memory, cut into parts."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self.frame, self.rows, self.columns = frame, frame.height, frame.columns
        self.classes = class_names(frame)

    def arrivals(self) -> Iterator[NDArray[np.float64]]:
        """The column `arrival_s`."""
        yield self.frame["arrival_s"].to_numpy()

    def frames(self) -> Iterator[pl.DataFrame]:
        """Slices of the frame."""
        yield from self.frame.iter_slices(ROWS)

    def later(self) -> Later | None:
        """From a look at the columns that link rows."""
        return _later(self.frame.lazy(), self.columns)


class OfSynthetic(Parts):
    """Arrivals and lengths from distributions, drawn as far as it is gone through."""

    def __init__(self, form: dict[str, Any], columns: list[str], seed: int) -> None:
        self.rows, self.columns, self.classes = int(form["requests"]), columns, None
        self._form, self._seed = json.dumps(form), seed

    def arrivals(self) -> Iterator[NDArray[np.float64]]:
        """The arrivals, drawn without the lengths."""
        drawing = _core.Drawing(self._form, self._seed)
        for _ in range(0, self.rows, ROWS):
            yield drawing.arrivals(ROWS)

    def frames(self) -> Iterator[pl.DataFrame]:
        """The same rows as those of the drawn frame."""
        drawing = _core.Drawing(self._form, self._seed)
        for _ in range(0, self.rows, ROWS):
            drawn = drawing.columns(ROWS)
            yield pl.DataFrame({name: drawn[name] for name in self.columns})


class Scanned(Parts):
    """Parquet files that stay where they are until their rows are needed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        where = path_of("path", path)
        self.path = str(path)
        files = sorted(where.glob("*.parquet")) if where.is_dir() else [where]
        if not files:
            raise TraceError(self.path, "is a folder without a file that ends in .parquet")
        self.rows = sum(parquet_height(file, partial(TraceError, str(file))) for file in files)
        self._lazy = pl.scan_parquet(files, glob=False)
        schema = guarded(self._lazy.collect_schema, partial(TraceError, self.path))
        for name in schema:
            if name not in COLUMNS:
                raise TraceError(self.path, f"unknown column {name}{nearest(name, COLUMNS)}")
        if self.rows == 0:
            raise TraceError(self.path, "no rows: a workload has at least one request")
        self.columns = [name for name in COLUMNS if name in schema]
        if "arrival_s" in schema and not schema["arrival_s"].is_numeric():
            raise TraceError(
                self.path, f"arrival_s: holds {schema['arrival_s']}, must hold seconds as numbers"
            )
        self.classes = self._classes(schema["class"]) if "class" in schema else None

    def _classes(self, kind: pl.DataType) -> list[str]:
        """The names of an `Enum`, or those that occur, sorted: as a frame of these rows has them."""
        if isinstance(kind, pl.Enum):
            return kind.categories.to_list()
        named = pl.col("class").cast(pl.String).drop_nulls().unique().sort()
        names: list[str] = self._lazy.select(named).collect()["class"].to_list()
        return names

    def column(self, name: str) -> Iterator[pl.Series]:
        """A column as it would be in a frame of these rows, part by part."""
        for first in range(0, self.rows, ROWS):
            yield self._canonical(self._lazy.select(name).slice(first, ROWS).collect(), first)[name]

    def frame(self) -> pl.DataFrame:
        """All rows."""
        return self._canonical(self._lazy.collect(), 0)

    def arrivals(self) -> Iterator[NDArray[np.float64]]:
        """The column `arrival_s`, null as NaN."""
        for first in range(0, self.rows, ROWS):
            part = self._lazy.select(pl.col("arrival_s").cast(pl.Float64)).slice(first, ROWS).collect()
            yield part["arrival_s"].fill_null(float("nan")).to_numpy()

    def frames(self) -> Iterator[pl.DataFrame]:
        """Slices of the file, each checked as it comes; errors name the file and its row."""
        for first in range(0, self.rows, ROWS):
            yield self._canonical(self._lazy.slice(first, ROWS).collect(), first)

    def later(self) -> Later | None:
        """From a reading of the columns that link rows, before all others."""
        return _later(self._lazy, self.columns)

    def _canonical(self, frame: pl.DataFrame, first: int) -> pl.DataFrame:
        if "class" in frame.columns and frame["class"].null_count() == 0:
            names = pl.Enum(self.classes or [])
            frame = frame.with_columns(pl.col("class").cast(pl.String).cast(names))
        return checked(frame, lambda at: f"{self.path}: row {first + at}", first)

    def sha256(self) -> str:
        """That of a frame of these rows, column by column."""
        return sha256_of(self.rows, self.columns, self.column)

    def __repr__(self) -> str:
        """As the call that makes it."""
        return f"Workload.scan({self.path!r}, {self.rows} requests)"


def _later(lazy: pl.LazyFrame, columns: list[str]) -> Later | None:
    """To which rows later parts go back. Wrong values are left to the check of the parts."""
    by_session = {"session_id", "turn"} <= set(columns)
    if not by_session and not any(name in columns for name in EXPLICIT):
        return None
    none = np.empty(0, dtype=np.int64)
    part = (pl.col("at").cast(pl.Int64) // ROWS).alias("part")
    numbered = lazy.with_row_index("at")
    if "continues" in columns:
        row = pl.col("continues").cast(pl.Int64, strict=False).alias("row")
        back = numbered.select(row, part).filter(pl.col("row") // ROWS < pl.col("part"))
        until = back.group_by("row").agg(until=pl.col("part").max()).sort("row").collect()
        return Later(until["row"].to_numpy(), until["until"].to_numpy(), None)
    if any(name in columns for name in EXPLICIT) or not by_session:
        return Later(none, none, None)
    kind = lazy.collect_schema()["session_id"]
    session = pl.col("session_id") if kind.is_integer() else pl.col("session_id").cast(pl.String)
    turns = numbered.filter(pl.col("turn").is_not_null()).select(session, part).drop_nulls()
    spans = turns.group_by("session_id").agg(first=pl.col("part").min(), until=pl.col("part").max())
    several = spans.filter(pl.col("first") < pl.col("until")).select("session_id", "until")
    return Later(none, none, several.collect())
