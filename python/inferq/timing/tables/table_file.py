"""The Parquet format of a table of measured times: a row per point, provenance in the metadata."""

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
from inferq.timing.tables.parts import ChunkPart, DecodePart, Grids, LinearPart
from inferq.timing.tables.provenance import thawed

KEY = "inferq.timing_table"
"""The metadata key of the provenance."""

_AXES = {"linear": ("tokens", ""), "chunk": ("chunk", "context"), "decode": ("sequences", "mean_context")}
"""The axes in the columns `row` and `column` of each part."""
_SHARED = "chunk shared"
"""The part of the row with `ChunkPart.shared_s`, absent if that is 0."""


def write_file(file: str | os.PathLike[str], grids: Grids, provenance: Mapping[str, Any]) -> None:
    """Write a table atomically; `TimingTable.write` documents the schema.

    Raises:
        ConfigError: the path is not valid for a file.
        OSError: the file cannot be written.
    """
    place = writable("file", file)
    text = json.dumps(thawed(provenance), ensure_ascii=False, separators=(",", ":"))
    write_frame(place, _points(grids), compression="zstd", statistics=False, metadata={KEY: text})


def read_file(file: Path) -> tuple[Grids, dict[str, Any]]:
    """Read the parts of a table and its provenance.

    Raises:
        ConfigError: the file is not a table.
    """
    frame = read_parquet(file)
    provenance = _provenance(guarded(lambda: pl.read_parquet_metadata(file)))
    return _grids(frame), provenance


def existing(file: object) -> Path:
    """Return the path of an existing file, or raise a `ConfigError`."""
    place = path_of("file", file)
    if not place.is_file():
        raise ConfigError("file", f"no such file: {str(place)!r}")
    return place


def _points(grids: Grids) -> pl.DataFrame:
    """A row for each point of each grid."""
    rows: list[tuple[str, int, int, float]] = []
    linear = grids.linear
    rows += [
        ("linear", tokens, 0, seconds) for tokens, seconds in zip(linear.tokens, linear.seconds, strict=True)
    ]
    for name in ("chunk", "decode"):
        part = getattr(grids, name)
        row_axis, column_axis = (getattr(part, axis) for axis in _AXES[name])
        rows += [
            (name, row, column, part.seconds[i][j])
            for i, row in enumerate(row_axis)
            for j, column in enumerate(column_axis)
        ]
    if grids.chunk.shared_s:
        rows.append((_SHARED, 0, 0, grids.chunk.shared_s))
    schema = {"part": pl.String, "row": pl.Int64, "column": pl.Int64, "seconds": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _grids(frame: pl.DataFrame) -> Grids:
    for name, kinds in (("part", "text"), ("row", "whole"), ("column", "whole"), ("seconds", "numbers")):
        if name not in frame.columns:
            raise ConfigError(f"column {name} is missing; a table has part, row, column and seconds")
        dtype = frame[name].dtype
        fits = {
            "text": str(dtype) in ("String", "Categorical") or str(dtype).startswith(("Enum", "Categorical")),
            "whole": dtype.is_integer(),
            "numbers": dtype.is_numeric(),
        }
        if not fits[kinds]:
            raise ConfigError(
                f"column {name} must have {kinds}{' numbers' * (kinds == 'whole')}, got {dtype}"
            )
        if name != "seconds" and frame[name].null_count():
            at = int(frame[name].is_null().to_numpy().argmax())
            raise ConfigError(f"row {at}: {name} is null")
    values: dict[str, dict[tuple[int, int], float]] = {name: {} for name in (*_AXES, _SHARED)}
    for at, (part, row, column, seconds) in enumerate(
        frame.select("part", "row", "column", "seconds").iter_rows()
    ):
        if part not in values:
            raise ConfigError(f"row {at}: unknown part {part!r}: must be linear, chunk, {_SHARED} or decode")
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
    return Grids(
        LinearPart(tokens, [row[0] for row in seconds_of]),
        ChunkPart(*grids["chunk"], shared_s=shared_s),
        DecodePart(*grids["decode"]),
    )


def _provenance(metadata: Mapping[str, str]) -> dict[str, Any]:
    if KEY not in metadata:
        raise ConfigError(
            f"not a table of times: the file's metadata lack {KEY}, the provenance; "
            "TimingTable.write creates such files"
        )
    provenance = parsed_json(
        metadata[KEY], lambda reason: ConfigError(f"the provenance in the metadata {reason}")
    )
    if not isinstance(provenance, dict):
        raise ConfigError(f"the provenance in the metadata must be a table, got {provenance!r}")
    return provenance


def _grid(
    part: str, points: Mapping[tuple[int, int], float]
) -> tuple[list[int], list[int], list[list[float]]]:
    """The ascending axes of a part, and its times."""
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
