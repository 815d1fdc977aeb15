"""The points of a sweep that are done, in memory, in a frame and in the file to resume from."""

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
"""Of the file; 10⁶ points have about a tenth of it."""
_WRITE_AFTER_S = 1.0
_SHARE = 0.1
"""At most so much of the time goes into writing the file."""


def frame_of(axes: Collection[Axis], rows: Iterable[tuple[PointKey, Outcome]]) -> pl.DataFrame:
    """One row for each point and seed, as `sweep` returns them."""
    listed = list(rows)
    columns: dict[str, pl.Series] = {}
    for place, axis in enumerate(axes):
        labels: list[Any] = [key[0][place] for key, _ in listed]
        columns[axis.name] = pl.Series(axis.name, labels, dtype=dtype(axis.kind))
    outcomes = [outcome for _, outcome in listed]
    texts: dict[str, list[str | None]] = {
        "status": ["failed" if one.summary is None else "done" for one in outcomes],
        "error": [one.error for one in outcomes],
    }
    columns["seed"] = pl.Series("seed", [key[1] for key, _ in listed], dtype=pl.UInt64)
    columns.update({name: pl.Series(name, values, dtype=pl.String) for name, values in texts.items()})
    for place, name in enumerate(SUMMARY):
        numbers = [None if one.summary is None else one.summary[place] for one in outcomes]
        columns[name] = pl.Series(name, numbers, dtype=pl.Int64 if name in COUNTS else pl.Float64)
    findings = [one.findings for one in outcomes]
    columns["findings"] = pl.Series("findings", findings, dtype=pl.String)
    return pl.DataFrame(columns)


@dataclass(slots=True)
class Checkpoint:
    """The outcomes of a sweep so far, and the file that keeps them where there is one."""

    axes: tuple[Axis, ...]
    path: Path | None = None
    fingerprint: str = ""
    """Of the scenario: points of another one do not count."""

    digests: tuple[Mapping[Label, str], ...] = ()
    """For each axis, by label: what the value is of which the label does not say all."""

    outcomes: dict[PointKey, Outcome] = field(default_factory=dict)
    _held: dict[str, pl.DataType] = field(default_factory=dict)
    """The types of the columns that the file had for the axes."""

    _others: dict[PointKey, tuple[Outcome, str]] = field(default_factory=dict)
    """Points of the same scenario in the file that this grid does not have, and their fingerprints: they stay
    there."""

    _written: int = -1
    """How many outcomes the file holds; −1 before it is written."""

    _next_write_s: float = 0.0

    def frame(self, order: Iterable[PointKey]) -> pl.DataFrame:
        """The rows of the points that are done, in that order."""
        return frame_of(self.axes, [(key, self.outcomes[key]) for key in order if key in self.outcomes])

    def read(self, asked: Iterable[PointKey]) -> None:
        """Take the points that are done from the file, if there is one.

        Args:
            asked: the points of the grid.

        Raises:
            ResultError: the file is no Parquet file, or damaged; it names the column and the row.
            ConfigError: it is none of a sweep over these names and this scenario.
            OSError: the file cannot be read.
        """
        if self.path is None:
            return
        clear(self.path)
        if not self.path.exists():
            return
        frame = _checked(self.path, self.axes, self.fingerprint)
        self._held = {axis.name: frame.schema[axis.name] for axis in self.axes}
        points = _done(frame, self.axes)
        for key, (_, held) in points.items():
            self._check_values(key, held)
        for key in asked:
            if key in points:
                self.outcomes[key] = points.pop(key)[0]
        self._others = points

    def _values(self, key: PointKey) -> dict[str, str]:
        """The digests of the values of a point, by name."""
        pairs = zip(self.axes, self.digests, key[0], strict=True) if self.digests else ()
        return {axis.name: digests[label] for axis, digests, label in pairs if label in digests}

    def _check_values(self, key: PointKey, held: str) -> None:
        """Refuse a point of the file whose values are shown like those of the grid, and are others."""
        theirs = parted(held)[1]
        for name, ours in self._values(key).items():
            if theirs.get(name) != ours:
                label = dict(zip((axis.name for axis in self.axes), key[0], strict=True))[name]
                raise ConfigError(
                    "resume",
                    f"{self.path} holds points of another {name}: {label!r} is not what it was when "
                    "they were run; name another file, or remove this one",
                )

    def write(self, order: Iterable[PointKey], *, now: bool = True) -> None:
        """Replace the file by one with all that is finished; a reader sees the old one or the new one.

        Args:
            order: the points of the grid.
            now: False leaves it for later when it was written a moment ago.

        Raises:
            OSError: the file cannot be written; the old one is as it was.
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
        fingerprints += [held for _, held in self._others.values()]
        memory = io.BytesIO()
        frame.with_columns(pl.Series("fingerprint", fingerprints, dtype=pl.String)).write_parquet(memory)
        write_whole(self.path, memory.getbuffer())
        self._written = len(self.outcomes)
        took_s = time.monotonic() - started
        self._next_write_s = started + max(_WRITE_AFTER_S, took_s / _SHARE)

    def _of_file(self) -> tuple[Axis, ...]:
        """The axes as the file shows them: whole numbers as numbers where it has both."""
        return tuple(
            replace(axis, kind="number")
            if axis.kind == "whole" and self._others and self._held[axis.name].is_float()
            else axis
            for axis in self.axes
        )


def _checked(path: Path, axes: Collection[Axis], fingerprint: str) -> pl.DataFrame:
    """The file of a sweep over these names and this scenario."""
    damaged = partial(ResultError, f"resume: {path}")
    frame = read_parquet(read_bytes(path, damaged, _MOST_BYTES), damaged)
    if not set(OWN_COLUMNS) <= set(frame.columns):
        raise ConfigError("resume", f"{path} is no file of a sweep by this version of inferq")
    names = [axis.name for axis in axes]
    columns = [name for name in frame.columns if name not in OWN_COLUMNS]
    if set(columns) != set(names):
        raise ConfigError(
            "resume",
            f"{path} holds points over {', '.join(columns) or 'no names'}, "
            f"this sweep is over {', '.join(names) or 'no names'}",
        )
    _check_values(frame, damaged)
    for held_for in frame["fingerprint"].unique(maintain_order=True):
        if (other := parted(held_for)[0]) != fingerprint:
            raise ConfigError(
                "resume",
                f"{path} holds points of another scenario: they are of {other}, "
                f"this sweep is of {fingerprint}; a function counts with all that it uses by name; name "
                "another file, or remove this one",
            )
    for axis in axes:
        if not _fits(frame.schema[axis.name], axis):
            raise ConfigError(
                "resume", f"{axis.name} is {frame.schema[axis.name]} in {path}, and {axis.kind} in this sweep"
            )
    return frame


def _check_values(frame: pl.DataFrame, damaged: Callable[[str], ResultError]) -> None:
    """Refuse what no sweep writes: other types, other states, numbers that are none."""
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
            raise damaged(f"{name}: holds {frame.schema[name]}, must hold {kind()}")
        if name in ("seed", "status", "fingerprint") and frame[name].null_count():
            raise damaged(f"{name}: row {_first(frame[name].is_null())} is null")
        if kind == pl.Float64 and (wrong := frame[name].is_nan() | frame[name].is_infinite()).any():
            raise damaged(f"{name}: row {_first(wrong)} is {frame[name][_first(wrong)]}, no number")
        if kind == pl.Int64 and (wrong := frame[name] < 0).any():
            raise damaged(f"{name}: row {_first(wrong)} is {frame[name][_first(wrong)]}, below 0")
    known = pl.Series(["done", "failed"])
    if (wrong := ~frame["status"].is_in(known.implode())).any():
        raise damaged(
            f"status: row {_first(wrong)} is {frame['status'][_first(wrong)]!r}, not done or failed"
        )
    counted = ("completed", "failed")
    for name in counted:
        if (wrong := (frame["status"] == "done") & frame[name].is_null()).any():
            raise damaged(f"{name}: row {_first(wrong)} is done and has none")
    points = frame.select(pl.exclude(*kinds), "seed")
    if (wrong := points.is_duplicated()).any():
        raise damaged(f"row {_first(wrong)}: the point is there twice")


def _first(rows: pl.Series) -> int:
    return int(rows.fill_null(False).arg_max() or 0)


def _done(frame: pl.DataFrame, axes: Collection[Axis]) -> dict[PointKey, tuple[Outcome, str]]:
    """The points of a file that are done and their fingerprints, by label and seed."""
    names = [axis.name for axis in axes]
    done = frame.filter(status="done")
    return {
        (tuple(row[name] for name in names), row["seed"]): (_outcome(row), row["fingerprint"])
        for row in done.iter_rows(named=True)
    }


def _fits(held: pl.DataType, axis: Axis) -> bool:
    """Whether labels of a file can be those of an axis."""
    if axis.kind in ("whole", "number"):
        return held.is_numeric()
    return held == dtype(axis.kind)


def _outcome(row: Mapping[str, Any]) -> Outcome:
    return Outcome(tuple(row[name] for name in SUMMARY), row["findings"])
