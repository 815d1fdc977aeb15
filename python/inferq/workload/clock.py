"""Conversion of arrival times (dates, Unix timestamps and other units) to seconds."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from inferq._lazy import np, pl
from inferq.checks import shown
from inferq.errors import ConfigError, TraceError
from inferq.workload.columns import Place, row

UNITS: Mapping[str, int] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Units per second."""

EPOCH_S = 1e9
"""Threshold for Unix timestamps: values from here on (September 2001) count from 1970."""

_FORMS = (
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%dT%H:%M%#z",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%d",
)


def with_seconds(frame: pl.DataFrame) -> tuple[pl.DataFrame, str | None]:
    """Return the frame with arrivals in seconds, and a note on the conversion.

    Strings of plain numbers stay strings; the column check rejects them later.
    """
    if "arrival_s" not in frame.columns:
        return frame, None
    times = frame["arrival_s"]
    if times.dtype == pl.String and times.cast(pl.Float64, strict=False).null_count() == times.null_count():
        return frame, None
    seconds, note = in_seconds(times)
    return frame.with_columns(seconds.rename("arrival_s")), note


def in_seconds(
    times: pl.Series, unit: str | None = None, place: Place = row, *, ordered: bool = True
) -> tuple[pl.Series, str | None]:
    """Return arrival times in seconds, and a note if they were converted to relative times.

    Args:
        times: numbers, datetimes, or strings of either.
        unit: `"s"`, `"ms"`, `"us"` or `"ns"`. Default: seconds; Unix timestamps by their size.
        place: names a row in an error.
        ordered: the first row is the earliest.

    Raises:
        ConfigError: the unit is unknown.
        TraceError: a string is neither a number nor a time; it names the row.
    """
    if unit is not None and unit not in UNITS:
        raise ConfigError("time_unit", f"must be 's', 'ms', 'us' or 'ns', got {unit!r}")
    if times.dtype == pl.String:
        times = _parsed(times, place)
    if times.dtype == pl.Date:
        times = times.cast(pl.Datetime("ns"))
    if isinstance(times.dtype, pl.Datetime):
        if unit is not None:
            raise ConfigError("time_unit", f"not supported: {times.name} contains dates; leave time_unit out")
        local = (
            times.dt.replace_time_zone(None)
            if times.dtype.time_zone is None
            else times.dt.convert_time_zone("UTC")
        )
        nanoseconds = local.cast(pl.Datetime("ns")).to_physical()
        start = _first(nanoseconds, ordered) or 0
        return _since(nanoseconds, start, 10**9), _note("dates", start / 1e9)
    if not times.dtype.is_numeric() or times.null_count():
        return times, None  # the column check raises the error
    first = _first(times, ordered)
    unit = unit or (_epoch_unit(first) if first is not None and EPOCH_S <= first < 1e20 else "s")
    parts = UNITS[unit]
    if first is not None and EPOCH_S <= first / parts < 1e11:
        return _since(times, first, parts), _note(f"counted from 1970 in {unit}", first / parts)
    if parts == 1:
        return times, None
    return _since(times, 0, parts), None


def _epoch_unit(number: float) -> str:
    """Return the unit of a Unix timestamp from its number of digits: seconds have ten."""
    return "s" if number < 1e11 else "ms" if number < 1e14 else "us" if number < 1e17 else "ns"


def _first(times: pl.Series, ordered: bool) -> float | int | None:
    if not times.len():
        return None
    first = times[0] if ordered else times.min()
    return first if isinstance(first, (int, float)) else None


def _since(times: pl.Series, first: float | int | None, parts: int) -> pl.Series:
    """Return seconds since `first`. numpy divides; polars would multiply by the rounded inverse."""
    return pl.Series(times.name, (times - (first or 0)).to_numpy().astype(np.float64) / parts)


def _note(kind: str, first_s: float) -> str:
    moment = datetime.datetime.fromtimestamp(first_s, tz=datetime.timezone.utc)
    date = moment.strftime("%Y-%m-%d %H:%M:%S")
    return f"arrival times are {kind} and are taken relative to the first request, {date} UTC"


def _parsed(times: pl.Series, place: Place) -> pl.Series:
    """Parse strings as numbers or dates."""
    text = times.str.strip_chars()
    numbers = text.cast(pl.Int64, strict=False)
    if numbers.null_count() > text.null_count():
        numbers = text.cast(pl.Float64, strict=False)
    if numbers.null_count() == text.null_count():
        return numbers.rename(times.name)
    iso = (
        text.str.replace(" ", "T")
        .str.replace(r"[zZ]$| UTC$|TUTC$", "+00:00")
        .str.replace(",", ".", literal=True)
    )
    parsed: pl.Series | None = None
    for form in _FORMS:
        zone = "UTC" if "z" in form else None
        dates = iso.str.to_datetime(form, time_unit="ns", time_zone=zone, strict=False)
        dates = dates.dt.replace_time_zone("UTC") if zone is None else dates
        parsed = dates if parsed is None else pl.select(pl.coalesce(parsed, dates)).to_series()
        if parsed.null_count() == text.null_count():
            return parsed.rename(times.name)
    assert parsed is not None
    at = int((parsed.is_null() & text.is_not_null()).to_numpy().argmax())
    raise TraceError(
        place(at),
        f"{times.name} is {shown(text[at])}, must be a number or a time such as 2026-11-20T09:00:00.028Z",
    )
