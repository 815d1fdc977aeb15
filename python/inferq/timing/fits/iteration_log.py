"""Logs of measured iterations: reading and checks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferq._lazy import np, pl
from inferq.checks import nearest
from inferq.errors import ConfigError, TraceError
from inferq.workload.columns import as_frame
from inferq.workload.traces.source import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Log = dict[str, NDArray[np.float64]]

NEEDED = ("duration_s", "prefill_tokens", "decodes", "context_tokens")
OPTIONAL = ("start_s", "prefill_squares", "prefill_products", "prefill_context")
COLUMNS = (*NEEDED, *OPTIONAL)
"""`duration_s` and `start_s` in seconds, `prefill_tokens` (Σ c over chunks), `decodes` (rows),
`context_tokens` (Σ of their contexts before the iteration), `prefill_squares` (Σ c²), `prefill_products`
(Σ c·x, x being the context of the chunk), `prefill_context` (Σ x)."""

PLAUSIBLE_S = (1e-12, 1e9)
"""Bounds on durations in any unit; the time of day in seconds is larger."""
LONGEST_MEDIAN_S = 2.0
"""Upper bound on the median duration of iterations in seconds."""
MOST_CONCURRENT = 100.0
"""Upper bound on the mean number of concurrent iterations, if durations are in seconds."""


UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
"""Units of time per second."""


def read_iterations(
    path: str | os.PathLike[str], *, columns: Mapping[str, str] | None = None, unit: str = "s"
) -> pl.DataFrame:
    r"""Read measured iterations from CSV or Parquet for `fit`.

    Args:
        path: the file, optionally compressed with gzip.
        columns: names of columns in the file, such as `{"duration_s": "step_ms", "decodes": "n_decode"}`;
            columns with the names of `fit` are read too.
        unit: unit of the times in the file: `s`, `ms`, `us` or `ns`.

    Returns:
        The columns of `fit` that the file has, with times in seconds.

    Raises:
        TraceError: an invalid file; it names the file, the problem and its row (from 0).
        ConfigError: an invalid argument.

    Example:
        >>> import inferq as iq, pathlib, tempfile
        >>> log = pathlib.Path(tempfile.mkdtemp(), "steps.csv")
        >>> _ = log.write_text("ms,prefill_tokens,decodes,context_tokens\n12.5,0,4,900\n")
        >>> iq.timing.read_iterations(log, columns={"duration_s": "ms"}, unit="ms")["duration_s"].to_list()
        [0.0125]
    """
    if not isinstance(unit, str) or unit not in UNITS:
        raise ConfigError("unit", f"unknown unit of time {unit!r}{nearest(str(unit), UNITS)}")
    if columns is not None and not isinstance(columns, Mapping):
        raise ConfigError("columns", f"must map columns of fit to columns of the file, got {columns!r}")
    source = source_of(path)
    sources = {name: name for name in COLUMNS if name in source.columns}
    sources = source.named(sources, columns, COLUMNS, "log")
    for name in NEEDED:
        if name not in sources:
            raise source.error(
                f"has no column for {name}; its columns are {', '.join(source.columns[:20])}: "
                f'set columns={{"{name}": …}}'
            )
    table = source.table(sorted(set(sources.values())))
    columns_read = {
        name: source.numbers(table[other], whole=not name.endswith("_s")).rename(name)
        for name, other in sources.items()
    }
    frame = pl.DataFrame([columns_read[name] for name in COLUMNS if name in columns_read])
    frame = frame.with_columns(pl.col(name) / UNITS[unit] for name in frame.columns if name.endswith("_s"))
    return checked_source(source, frame)


def source_of(path: str | os.PathLike[str]) -> Source:
    """Open a table file."""
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError("path", f"must be a path, got {path!r}")
    source = Source(Path(path))
    if source.kind == "json":
        raise source.error("is JSON, not a table")
    for mark in (";", "\t", "|"):
        if len(source.columns) == 1 and mark in source.columns[0]:
            raise source.error(f"must have commas between fields, got {mark!r}")
    return source


def checked_source(source: Source, frame: pl.DataFrame) -> pl.DataFrame:
    """Check the frame for `fit`, except the unit of durations, which `fit` checks."""
    try:
        checked_log(frame, check_units=False)
    except ConfigError as error:
        raise TraceError(source.path, f"{error}") from None
    return frame


def checked_log(frame: object, check_units: bool) -> Log:
    """Return the columns of a log as arrays, or raise a `ConfigError` with column and row.

    Args:
        frame: a polars or pandas frame or a dict of columns; columns not in `COLUMNS` are ignored.
        check_units: whether durations that look like milliseconds are rejected.
    """
    if not isinstance(frame, Mapping) and not hasattr(frame, "columns"):
        raise ConfigError(
            "frame", f"must be a polars or pandas frame or a dict of columns, got {type(frame).__name__}"
        )
    try:
        table = as_frame(frame)
    except TraceError as error:
        raise ConfigError("frame", f"{error}") from None
    for name in NEEDED:
        if name not in table.columns:
            raise ConfigError("frame", f"missing column {name}{nearest(name, table.columns)}")
    if table.height == 0:
        raise ConfigError("frame", "has no rows")
    log = {name: _numbers(name, table[name]) for name in COLUMNS if name in table.columns}
    _refuse(log["duration_s"] <= 0, "duration_s", log, "must be positive")
    least, most = PLAUSIBLE_S
    outside = (log["duration_s"] < least) | (log["duration_s"] > most)
    _refuse(outside, "duration_s", log, f"must be from {least:g} to {most:g} s")
    for name in log:
        if name not in ("duration_s", "start_s"):
            _refuse(log[name] < 0, name, log, "must be non-negative")
            _refuse(log[name] != log[name].round(), name, log, "must be an integer")
    empty = (log["prefill_tokens"] == 0) & (log["decodes"] == 0)
    _refuse(empty, "decodes", log, "as is prefill_tokens: an iteration must compute tokens")
    alone = (log["decodes"] == 0) & (log["context_tokens"] > 0)
    _refuse(alone, "context_tokens", log, "but the iteration has no decodes")
    for name in ("prefill_squares", "prefill_products", "prefill_context"):
        if name in log:
            without = (log["prefill_tokens"] == 0) & (log[name] > 0)
            _refuse(without, name, log, "but the iteration has no prefill_tokens")
    if "prefill_squares" in log:
        prefill, squares = log["prefill_tokens"], log["prefill_squares"]
        outside = (squares < prefill) | (squares > prefill**2)
        _refuse(outside, "prefill_squares", log, "must be Σ c², from prefill_tokens to its square")
    if check_units:
        _check_units(log)
    return log


def _numbers(name: str, series: Any) -> NDArray[np.float64]:
    if not series.dtype.is_numeric():
        raise ConfigError(name, f"must contain numbers, got {series.dtype}")
    values = series.cast(pl.Float64).to_numpy()
    wrong = ~np.isfinite(values)
    if series.null_count() or wrong.any():
        at = int((series.is_null().to_numpy() | wrong).argmax())
        raise ConfigError(f"row {at}: {name} must be a finite number, got {series[at]}")
    return np.asarray(values, dtype=np.float64)


def _refuse(wrong: NDArray[np.bool_], name: str, log: Log, rule: str) -> None:
    if wrong.any():
        at = int(wrong.argmax())
        value = f"{log[name][at]:g}"
        text = f"{rule}, got {value}" if rule.startswith("must") else f"is {value}, {rule}"
        raise ConfigError(f"row {at}: {name} {text}")


def _check_units(log: Log) -> None:
    duration_s = log["duration_s"]
    remedy = "divide them by 1000, or set check_units=False"
    median_s = float(np.median(duration_s))
    if median_s > LONGEST_MEDIAN_S:
        raise ConfigError(
            "duration_s",
            f"the median duration is {median_s:.4g} s, which looks like milliseconds: {remedy}",
        )
    if "start_s" not in log or duration_s.size < 2:
        return
    concurrent = float(duration_s.sum() / (np.ptp(log["start_s"]) + duration_s.min()))
    if concurrent > MOST_CONCURRENT:
        raise ConfigError(
            "duration_s",
            f"by start_s, {concurrent:.4g} iterations are concurrent on average, so the durations look like "
            f"milliseconds and the starts like seconds: {remedy}",
        )


_SAME_CLOCK = 0.1
"""Fraction of a duration that may extend beyond the next start."""


def overlap_note(log: Log) -> tuple[str, ...]:
    """A note if many iterations begin well before the previous one has ended."""
    if "start_s" not in log or log["start_s"].size < 2:
        return ()
    order = np.argsort(log["start_s"], kind="stable")
    start_s, duration_s = log["start_s"][order], log["duration_s"][order]
    # Durations and starts are rarely from one clock: smaller differences are noise.
    early = start_s[1:] < start_s[:-1] + duration_s[:-1] * (1 - _SAME_CLOCK) - 1e-6
    share = float(early.mean())
    if share < 0.01:
        return ()
    return (
        f"{share:.0%} of the iterations begin within the first 90 % of the previous one: the log covers "
        "several replicas, or its durations overlap.",
    )
