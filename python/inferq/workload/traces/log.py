"""Requests of a log in the order of their arrival, whatever the order in which they were written."""

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
    """What a reader of a log gives back.

    A log has its records in the order in which they ended, so rows are sorted by arrival.

    Args:
        source: the file.
        columns: of a workload, by row; `arrival_s` as the file has it.
        rows: the records that the rows are of, in the words of `place`.
        place: names a record in an error.
        unit: of `arrival_s`.
        left_out: how many records are no requests, and why.
        metadata: what else there is to say.
        sort: whether the rows may be in another order than that of their arrivals.
    """
    if not rows:
        raise source.error(
            "holds no request that was answered: "
            + ", ".join(f"{count:,} {why.replace('_', ' ')}" for why, count in (left_out or {}).items())
        )
    series = {name: _series(name, values) for name, values in columns.items()}
    order: Any = np.arange(len(rows))
    about = dict(metadata or {})
    if "arrival_s" in series:
        seconds, told = arrivals(source, series["arrival_s"], unit)
        if sort and seconds.dtype.is_numeric() and not seconds.null_count():
            order = np.argsort(seconds.to_numpy(), kind="stable")
            if (np.diff(order) < 0).any():
                about["rows_sorted_by"] = "arrival_s"
                earliest = pl.Series("arrival_s", [series["arrival_s"][int(order[0])]])
                if told is not None:  # taken relative to the first row, which is another now
                    _, told = arrivals(source, earliest, unit)
                    seconds = seconds - seconds.min()
        series["arrival_s"] = seconds
        if told is not None:
            about["times"] = [told]
    frame = pl.DataFrame([one.rename(name) for name, one in series.items()])[order]
    return Reading(frame, lambda at: place(rows[int(order[at])]), dict(left_out or {}), [], about)


def _series(name: str, values: list[Any]) -> pl.Series:
    if any(isinstance(one, float) for one in values):
        return pl.Series(name, values, dtype=pl.Float64, strict=False)
    return pl.Series(name, values)
