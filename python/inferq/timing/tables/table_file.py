"""The file of a table of measured times: Parquet, a row a point, provenance in the metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferq._lazy import pl
from inferq.errors import ConfigError
from inferq.files import writable, write_frame
from inferq.inputs import guarded, parsed_json, path_of, read_parquet
from inferq.timing.tables.timing_table import (
    ChunkPart,
    DecodePart,
    LinearPart,
    TimingTable,
    refuse_milliseconds,
    thawed,
)

KEY = "inferq.timing_table"
"""Under this name a file's metadata hold the provenance, as JSON."""

_AXES = {"linear": ("tokens", ""), "chunk": ("chunk", "context"), "decode": ("sequences", "mean_context")}
"""What the columns `row` and `column` of a part are."""
_SHARED = "chunk shared"
"""The part of the one row that holds `ChunkPart.shared_s`; it is left out where that is 0."""


def write(table: TimingTable, file: str | os.PathLike[str]) -> None:
    """Write `table`, whole or not at all; the schema is that of `TimingTable.write`.

    Raises:
        ConfigError: `file` cannot be the path of a file.
        OSError: it cannot be written.
    """
    place = writable("file", file)
    frame = _points(table)
    provenance = json.dumps(thawed(table.provenance), ensure_ascii=False, separators=(",", ":"))
    write_frame(place, frame, compression="zstd", statistics=False, metadata={KEY: provenance})


def read(file: str | os.PathLike[str], check_units: bool) -> TimingTable:
    """The table in a file; see `TimingTable.read`.

    Raises:
        ConfigError: what is there is no table; it names the file.
    """
    place = existing(file)
    try:
        frame = read_parquet(place)
        metadata = guarded(lambda: pl.read_parquet_metadata(place))
        return _table(frame, metadata, check_units)
    except ConfigError as error:
        raise ConfigError("file", f"{place}: {error}") from None


def provenance_of(file: Path) -> Mapping[str, Any]:
    """The provenance in a file that inferq wrote, without its points."""
    return _provenance(pl.read_parquet_metadata(file))


def existing(file: object) -> Path:
    """The path of a file that is there, or a `ConfigError`."""
    place = path_of("file", file)
    if not place.is_file():
        raise ConfigError("file", f"there is no file {str(place)!r}")
    return place


def _points(table: TimingTable) -> pl.DataFrame:
    """A row for each point of each grid."""
    rows: list[tuple[str, int, int, float]] = []
    linear = table.linear
    rows += [
        ("linear", tokens, 0, seconds) for tokens, seconds in zip(linear.tokens, linear.seconds, strict=True)
    ]
    for name in ("chunk", "decode"):
        part = getattr(table, name)
        above, along = (getattr(part, axis) for axis in _AXES[name])
        rows += [
            (name, row, column, part.seconds[down][over])
            for down, row in enumerate(above)
            for over, column in enumerate(along)
        ]
    if table.chunk.shared_s:
        rows.append((_SHARED, 0, 0, table.chunk.shared_s))
    schema = {"part": pl.String, "row": pl.Int64, "column": pl.Int64, "seconds": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _table(frame: pl.DataFrame, metadata: Mapping[str, str], check_units: bool) -> TimingTable:
    provenance = _provenance(metadata)
    for name, kinds in (("part", "text"), ("row", "whole"), ("column", "whole"), ("seconds", "numbers")):
        if name not in frame.columns:
            raise ConfigError(f"has no column {name}; a table has part, row, column and seconds")
        dtype = frame[name].dtype
        fits = {
            "text": str(dtype) in ("String", "Categorical") or str(dtype).startswith(("Enum", "Categorical")),
            "whole": dtype.is_integer(),
            "numbers": dtype.is_numeric(),
        }
        if not fits[kinds]:
            raise ConfigError(
                f"column {name} holds {dtype}, must hold {kinds}{' numbers' * (kinds == 'whole')}"
            )
        if name != "seconds" and frame[name].null_count():
            at = int(frame[name].is_null().to_numpy().argmax())
            raise ConfigError(f"row {at}: {name} is null")
    values: dict[str, dict[tuple[int, int], float]] = {name: {} for name in (*_AXES, _SHARED)}
    for at, (part, row, column, seconds) in enumerate(
        frame.select("part", "row", "column", "seconds").iter_rows()
    ):
        if part not in values:
            raise ConfigError(f"row {at}: part is {part!r}, must be linear, chunk, {_SHARED} or decode")
        if part == "linear" and column != 0:
            raise ConfigError(f"row {at}: the linear part has one axis, but column is {column}, not 0")
        if part == _SHARED and (row, column) != (0, 0):
            raise ConfigError(f"row {at}: part {_SHARED} has no axes, but row is {row} and column {column}")
        if (row, column) in values[part]:
            raise ConfigError(f"row {at}: a second time for {_where(part, row, column)}")
        if seconds is None or seconds != seconds:
            raise ConfigError(f"row {at}: a hole in the grid: {_where(part, row, column)} has no time")
        values[part][row, column] = float(seconds)
    shared_s = values.pop(_SHARED).get((0, 0), 0.0)
    grids = {part: _grid(part, points) for part, points in values.items()}
    tokens, _, seconds_of = grids["linear"]
    table = TimingTable(
        linear=LinearPart(tokens, [row[0] for row in seconds_of]),
        chunk=ChunkPart(*grids["chunk"], shared_s=shared_s),
        decode=DecodePart(*grids["decode"]),
        provenance=provenance,
        check_units=False,
    )
    if check_units:
        refuse_milliseconds(table)
    return table


def _provenance(metadata: Mapping[str, str]) -> dict[str, Any]:
    if KEY not in metadata:
        raise ConfigError(
            f"the file's metadata have no {KEY}, the provenance: it is no table of times. "
            "TimingTable.write makes such files"
        )
    provenance = parsed_json(
        metadata[KEY], lambda reason: ConfigError(f"the provenance in the metadata {reason}")
    )
    if not isinstance(provenance, dict):
        raise ConfigError(f"the provenance in the metadata must be a table, is {provenance!r}")
    return provenance


def _grid(
    part: str, points: Mapping[tuple[int, int], float]
) -> tuple[list[int], list[int], list[list[float]]]:
    """The axes of a part, ascending, and its times; every row of points must have every column."""
    rows, columns = (sorted({point[axis] for point in points}) for axis in (0, 1))
    for axis, numbers in ((0, rows), (1, columns)):
        if len(numbers) < 2 and _AXES[part][axis]:
            raise ConfigError(
                f"part {part}: {len(numbers)} points of {_AXES[part][axis]}; a line needs at least two"
            )
    for row in rows:
        for column in columns:
            if (row, column) not in points:
                raise ConfigError(f"a hole in the grid: {_where(part, row, column)} has no time")
    return rows, columns, [[points[row, column] for column in columns] for row in rows]


def _where(part: str, row: int, column: int) -> str:
    down, along = _AXES[part]
    return f"{part} at {down} {row}" + (f", {along} {column}" if along else "")
