"""Requests of logs, sorted by arrival."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferq._lazy import np, pl
from inferq.workload.columns import Place
from inferq.workload.traces.source import Reading, Source
from inferq.workload.traces.table import arrivals


def reading(
    source: Source,
    columns: Mapping[str, list[Any]],
    rows: list[int],
    place: Place,
    *,
    unit: str | None = None,
    left_out: Mapping[str, int] | None = None,
    metadata: Mapping[str, Any] | None = None,
    sort: bool = True,
) -> Reading:
    """Return the reading of a log.

    Records of a log are in the order of their end, so rows are sorted by arrival.

    Args:
        source: the file.
        columns: columns of a workload by row; `arrival_s` in the unit of the file.
        rows: number of each row's record, as `place` expects it.
        place: names a record in an error.
        unit: unit of `arrival_s`.
        left_out: number of records left out, by reason.
        metadata: further metadata.
        sort: rows may be in another order than that of arrival.
    """
    if not rows:
        raise source.error(
            "contains no successful requests: "
            + ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in (left_out or {}).items())
        )
    series = {name: _series(name, values) for name, values in columns.items()}
    order: Any = np.arange(len(rows))
    details = dict(metadata or {})
    if "arrival_s" in series:
        seconds, note = arrivals(source, series["arrival_s"], unit)
        if sort and seconds.dtype.is_numeric() and not seconds.null_count():
            order = np.argsort(seconds.to_numpy(), kind="stable")
            if (np.diff(order) < 0).any():
                details["rows_sorted_by"] = "arrival_s"
                earliest = pl.Series("arrival_s", [series["arrival_s"][int(order[0])]])
                if note is not None:  # times are relative to the first row, which has changed
                    _, note = arrivals(source, earliest, unit)
                    seconds = seconds - seconds.min()
        series["arrival_s"] = seconds
        if note is not None:
            details["times"] = [note]
    frame = pl.DataFrame([values.rename(name) for name, values in series.items()])[order]
    return Reading(frame, lambda at: place(rows[int(order[at])]), dict(left_out or {}), [], details)


def _series(name: str, values: list[Any]) -> pl.Series:
    if any(isinstance(value, float) for value in values):
        return pl.Series(name, values, dtype=pl.Float64, strict=False)
    return pl.Series(name, values)
