"""Finished points of a sweep, in memory, in a frame, and in the file to resume from."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from inferq._lazy import pl
from inferq.errors import ConfigError, ResultError
from inferq.experiments.sweeps.axes import OWN_COLUMNS, Axis, Label, PointKey, dtype
from inferq.experiments.sweeps.fingerprint import joined, parted
from inferq.experiments.sweeps.point import Outcome
from inferq.files import clear, write_whole
from inferq.inputs import read_bytes, read_parquet
from inferq.results.metric import COUNTS, SUMMARY

_MOST_BYTES = 1 << 30
"""Maximum size of the file; 10⁶ points need about a tenth of it."""
_WRITE_AFTER_S = 1.0
_MOST_SHARE = 0.1
"""Maximum share of the time spent on writing the file."""


def frame_of(axes: Collection[Axis], rows: Iterable[tuple[PointKey, Outcome]]) -> pl.DataFrame:
    """One row per point and seed, as `sweep` returns them."""
    listed = list(rows)
    columns: dict[str, pl.Series] = {}
    for place, axis in enumerate(axes):
        labels: list[Any] = [key[0][place] for key, _ in listed]
        columns[axis.name] = pl.Series(axis.name, labels, dtype=dtype(axis.kind))
    outcomes = [outcome for _, outcome in listed]
    texts: dict[str, list[str | None]] = {
        "status": ["failed" if outcome.summary is None else "done" for outcome in outcomes],
        "error": [outcome.error for outcome in outcomes],
    }
    columns["seed"] = pl.Series("seed", [key[1] for key, _ in listed], dtype=pl.UInt64)
    columns.update({name: pl.Series(name, values, dtype=pl.String) for name, values in texts.items()})
    for place, name in enumerate(SUMMARY):
        numbers = [None if outcome.summary is None else outcome.summary[place] for outcome in outcomes]
        columns[name] = pl.Series(name, numbers, dtype=pl.Int64 if name in COUNTS else pl.Float64)
    findings = [outcome.findings for outcome in outcomes]
    columns["findings"] = pl.Series("findings", findings, dtype=pl.String)
    return pl.DataFrame(columns)


@dataclass(slots=True)
class Checkpoint:
    """The outcomes of a sweep so far, and the optional file that stores them."""

    axes: tuple[Axis, ...]
    path: Path | None = None
    fingerprint: str = ""
    """Fingerprint of the scenario; a file of another scenario is refused."""

    digests: tuple[Mapping[Label, str], ...] = ()
    """For each axis the digests of values whose labels are incomplete, by label."""

    outcomes: dict[PointKey, Outcome] = field(default_factory=dict)
    _file_types: dict[str, pl.DataType] = field(default_factory=dict)
    """Types of the columns of the axes in the file."""

    _others: dict[PointKey, tuple[Outcome, str]] = field(default_factory=dict)
    """Points in the file outside this grid, and their fingerprints. They remain in the file."""

    _written: int = -1
    """Outcomes in the file; −1 before it is written."""

    _next_write_s: float = 0.0

    def frame(self, order: Iterable[PointKey]) -> pl.DataFrame:
        """The rows of finished points, in the given order."""
        return frame_of(self.axes, [(key, self.outcomes[key]) for key in order if key in self.outcomes])

    def read(self, keys: Iterable[PointKey]) -> None:
        """Read finished points from the file, if it exists.

        Args:
            keys: the points of the grid.

        Raises:
            ResultError: the file is damaged; it names the column and the row.
            ConfigError: the file belongs to a sweep over other names or another scenario.
            OSError: the file cannot be read.
        """
        if self.path is None:
            return
        clear(self.path)
        if not self.path.exists():
            return
        frame = _checked(self.path, self.axes, self.fingerprint)
        self._file_types = {axis.name: frame.schema[axis.name] for axis in self.axes}
        points = _done(frame, self.axes)
        for key, (_, stored) in points.items():
            self._check_values(key, stored)
        for key in keys:
            if key in points:
                self.outcomes[key] = points.pop(key)[0]
        self._others = points

    def _values(self, key: PointKey) -> dict[str, str]:
        """Digests of the values of a point, by name."""
        pairs = zip(self.axes, self.digests, key[0], strict=True) if self.digests else ()
        return {axis.name: digests[label] for axis, digests, label in pairs if label in digests}

    def _check_values(self, key: PointKey, stored: str) -> None:
        """Reject a point of the file whose values have the labels of the grid but differ."""
        digests = parted(stored)[1]
        for name, digest in self._values(key).items():
            if digests.get(name) != digest:
                label = dict(zip((axis.name for axis in self.axes), key[0], strict=True))[name]
                raise ConfigError(
                    "resume",
                    f"{self.path} contains points of another {name}: {label!r} has changed since. Use "
                    "another file, or remove this one",
                )

    def write(self, order: Iterable[PointKey], *, now: bool = True) -> None:
        """Replace the file atomically by one with all finished points.

        Args:
            order: the points of the grid.
            now: False delays writing if the file was written recently.

        Raises:
            OSError: the file cannot be written; the old file is unchanged.
        """
        started = time.monotonic()
        if self.path is None or len(self.outcomes) == self._written:
            return
        if self._written >= 0 and not now and started < self._next_write_s:
            return

        rows = [(key, self.outcomes[key]) for key in order if key in self.outcomes]
        others = [(key, outcome) for key, (outcome, _) in self._others.items()]
        frame = frame_of(self._of_file(), [*rows, *others])
        fingerprints = [joined(self.fingerprint, self._values(key)) for key, _ in rows]
        fingerprints += [stored for _, stored in self._others.values()]
        memory = io.BytesIO()
        frame.with_columns(pl.Series("fingerprint", fingerprints, dtype=pl.String)).write_parquet(memory)
        write_whole(self.path, memory.getbuffer())
        self._written = len(self.outcomes)
        took_s = time.monotonic() - started
        self._next_write_s = started + max(_WRITE_AFTER_S, took_s / _MOST_SHARE)

    def _of_file(self) -> tuple[Axis, ...]:
        """The axes with the types of the file: integers as floats if it contains both."""
        return tuple(
            replace(axis, kind="number")
            if axis.kind == "whole" and self._others and self._file_types[axis.name].is_float()
            else axis
            for axis in self.axes
        )


def _checked(path: Path, axes: Collection[Axis], fingerprint: str) -> pl.DataFrame:
    """Read the file of a sweep over these names and this scenario."""
    damaged = partial(ResultError, f"resume: {path}")
    frame = read_parquet(read_bytes(path, damaged, _MOST_BYTES), damaged)
    if not set(OWN_COLUMNS) <= set(frame.columns):
        raise ConfigError("resume", f"{path} is not a file of a sweep by this version of inferq")
    names = [axis.name for axis in axes]
    columns = [name for name in frame.columns if name not in OWN_COLUMNS]
    if set(columns) != set(names):
        raise ConfigError(
            "resume",
            f"{path} contains points over {', '.join(columns) or 'no names'}, "
            f"but this sweep is over {', '.join(names) or 'no names'}",
        )
    _check_values(frame, damaged)
    for stored in frame["fingerprint"].unique(maintain_order=True):
        if (other := parted(stored)[0]) != fingerprint:
            raise ConfigError(
                "resume",
                f"{path} contains points of another scenario, {other}; this sweep has {fingerprint}. A "
                "function counts with its source file. Use another file, remove this one, or set key",
            )
    for axis in axes:
        if not _fits(frame.schema[axis.name], axis):
            raise ConfigError(
                "resume", f"{axis.name} is {frame.schema[axis.name]} in {path}, but {axis.kind} in this sweep"
            )
    return frame


def _check_values(frame: pl.DataFrame, damaged: Callable[[str], ResultError]) -> None:
    """Check types, statuses and numbers."""
    kinds: dict[str, Any] = {
        "seed": pl.UInt64,
        "status": pl.String,
        "error": pl.String,
        "findings": pl.String,
    }
    kinds |= {
        "fingerprint": pl.String,
        **{name: pl.Int64 if name in COUNTS else pl.Float64 for name in SUMMARY},
    }
    for name, kind in kinds.items():
        if frame.schema[name] != kind:
            raise damaged(f"{name}: must be {kind()}, got {frame.schema[name]}")
        if name in ("seed", "status", "fingerprint") and frame[name].null_count():
            raise damaged(f"{name}: row {_first(frame[name].is_null())} is null")
        if kind == pl.Float64 and (wrong := frame[name].is_nan() | frame[name].is_infinite()).any():
            raise damaged(f"{name}: row {_first(wrong)} is {frame[name][_first(wrong)]}, not a number")
        if kind == pl.Int64 and (wrong := frame[name] < 0).any():
            raise damaged(f"{name}: row {_first(wrong)} is negative: {frame[name][_first(wrong)]}")
    known = pl.Series(["done", "failed"])
    if (wrong := ~frame["status"].is_in(known.implode())).any():
        raise damaged(
            f"status: row {_first(wrong)} is {frame['status'][_first(wrong)]!r}, not done or failed"
        )
    counted = ("completed", "failed")
    for name in counted:
        if (wrong := (frame["status"] == "done") & frame[name].is_null()).any():
            raise damaged(f"{name}: row {_first(wrong)} is done but has no value")
    points = frame.select(pl.exclude(*kinds), "seed")
    if (wrong := points.is_duplicated()).any():
        raise damaged(f"row {_first(wrong)}: duplicate point")


def _first(rows: pl.Series) -> int:
    return int(rows.fill_null(False).arg_max() or 0)


def _done(frame: pl.DataFrame, axes: Collection[Axis]) -> dict[PointKey, tuple[Outcome, str]]:
    """Finished points of a file and their fingerprints, by labels and seed."""
    names = [axis.name for axis in axes]
    done = frame.filter(status="done")
    return {
        (tuple(row[name] for name in names), row["seed"]): (_outcome(row), row["fingerprint"])
        for row in done.iter_rows(named=True)
    }


def _fits(stored: pl.DataType, axis: Axis) -> bool:
    """Whether labels of a file can belong to an axis."""
    if axis.kind in ("whole", "number"):
        return stored.is_numeric()
    return stored == dtype(axis.kind)


def _outcome(row: Mapping[str, Any]) -> Outcome:
    return Outcome(tuple(row[name] for name in SUMMARY), row["findings"])
