"""Arrival times as people keep them: seconds, milliseconds, times of day, counted from 1970 or not."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from inferq._lazy import np, pl
from inferq.checks import shown
from inferq.errors import ConfigError, TraceError
from inferq.workload.columns import Place, row

UNITS: Mapping[str, int] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""How many of each unit make a second."""

EPOCH_S = 1e9
"""Numbers from here on are taken to count from 1970: in seconds they are later than September 2001."""

_FORMS = (
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%dT%H:%M%#z",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%d",
)


def of_frame(frame: pl.DataFrame) -> tuple[pl.DataFrame, str | None]:
    """A frame of Python's with its arrivals in seconds; texts of numbers stay, to be refused later."""
    if "arrival_s" not in frame.columns:
        return frame, None
    times = frame["arrival_s"]
    if times.dtype == pl.String and times.cast(pl.Float64, strict=False).null_count() == times.null_count():
        return frame, None
    seconds, told = in_seconds(times)
    return frame.with_columns(seconds.rename("arrival_s")), told


def in_seconds(
    times: pl.Series, unit: str | None = None, place: Place = row, *, ordered: bool = True
) -> tuple[pl.Series, str | None]:
    """A column of arrival times as seconds, and what was done to it where a reader should know.

    Args:
        times: numbers, datetimes, or texts of either.
        unit: `"s"`, `"ms"`, `"us"` or `"ns"`; None: seconds, and for numbers that count from 1970 what fits.
        place: names a row in an error.
        ordered: whether the first row is the earliest; else the earliest is looked for.

    Raises:
        ConfigError: an unknown unit.
        TraceError: a text that is neither a number nor a time; it names the row.
    """
    if unit is not None and unit not in UNITS:
        raise ConfigError("time_unit", f"must be 's', 'ms', 'us' or 'ns', is {unit!r}")
    if times.dtype == pl.String:
        times = _parsed(times, place)
    if times.dtype == pl.Date:
        times = times.cast(pl.Datetime("ns"))
    if isinstance(times.dtype, pl.Datetime):
        if unit is not None:
            raise ConfigError("time_unit", f"{times.name} holds times of day, which have a unit of their own")
        whole = (
            times.dt.replace_time_zone(None)
            if times.dtype.time_zone is None
            else times.dt.convert_time_zone("UTC")
        )
        nanoseconds = whole.cast(pl.Datetime("ns")).to_physical()
        begin = _first(nanoseconds, ordered) or 0
        return _since(nanoseconds, begin, 10**9), _told("times of day", begin / 1e9)
    if not times.dtype.is_numeric() or times.null_count():
        return times, None  # which is told where the column is checked
    first = _first(times, ordered)
    known = unit or (_of_epoch(first) if first is not None and EPOCH_S <= first < 1e20 else "s")
    parts = UNITS[known]
    if first is not None and EPOCH_S <= first / parts < 1e11:
        return _since(times, first, parts), _told(f"counted from 1970 in {known}", first / parts)
    if parts == 1:
        return times, None
    return _since(times, 0, parts), None


def _of_epoch(number: float) -> str:
    """The unit in which a number is a time of this age: seconds have ten digits, and so on."""
    return "s" if number < 1e11 else "ms" if number < 1e14 else "us" if number < 1e17 else "ns"


def _first(times: pl.Series, ordered: bool) -> float | int | None:
    if not times.len():
        return None
    first = times[0] if ordered else times.min()
    return first if isinstance(first, (int, float)) else None


def _since(times: pl.Series, first: float | int | None, parts: int) -> pl.Series:
    """Seconds since `first`; numpy divides, polars would multiply by the rounded inverse."""
    return pl.Series(times.name, (times - (first or 0)).to_numpy().astype(np.float64) / parts)


def _told(how: str, first_s: float) -> str:
    moment = datetime.datetime.fromtimestamp(first_s, tz=datetime.timezone.utc)
    when = moment.strftime("%Y-%m-%d %H:%M:%S")
    return f"arrival times are {how} and are taken relative to the first request, {when} UTC"


def _parsed(times: pl.Series, place: Place) -> pl.Series:
    """Texts as numbers, or as times of day."""
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
    found: pl.Series | None = None
    for form in _FORMS:
        zone = "UTC" if "z" in form else None
        one = iso.str.to_datetime(form, time_unit="ns", time_zone=zone, strict=False)
        one = one.dt.replace_time_zone("UTC") if zone is None else one
        found = one if found is None else pl.select(pl.coalesce(found, one)).to_series()
        if found.null_count() == text.null_count():
            return found.rename(times.name)
    assert found is not None
    at = int((found.is_null() & text.is_not_null()).to_numpy().argmax())
    raise TraceError(
        place(at),
        f"{times.name} is {shown(text[at])}, must be a number, or a time such as 2026-11-20T09:00:00.028Z",
    )
