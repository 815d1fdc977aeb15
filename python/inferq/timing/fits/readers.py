"""Measured iterations, read from files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from inferq._lazy import pl
from inferq.errors import ConfigError, TraceError
from inferq.timing.fits.iteration_log import COLUMNS, NEEDED, checked_log
from inferq.workload.columns import nearest
from inferq.workload.traces.source import Source

UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
"""How many of a unit of time make a second."""


def read_iterations(
    path: str | os.PathLike[str], *, columns: Mapping[str, str] | None = None, unit: str = "s"
) -> pl.DataFrame:
    r"""Read measured iterations from CSV or Parquet, as `fit` takes them.

    Args:
        path: the file, also packed with gzip.
        columns: which column of the file fills which, as `{"duration_s": "step_ms", "decodes": "n_decode"}`;
            others that have the names of `fit` are taken too.
        unit: of the times in the file: `s`, `ms`, `us` or `ns`.

    Returns:
        Those of the columns of `fit` that the file has, times in seconds.

    Raises:
        TraceError: naming the file and what is wrong with it, with its row (from 0).
        ConfigError: naming the argument.

    Example:
        >>> import inferq as iq, pathlib, tempfile
        >>> log = pathlib.Path(tempfile.mkdtemp(), "steps.csv")
        >>> _ = log.write_text("ms,prefill_tokens,decodes,context_tokens\n12.5,0,4,900\n")
        >>> iq.timing.read_iterations(log, columns={"duration_s": "ms"}, unit="ms")["duration_s"].to_list()
        [0.0125]
    """
    if not isinstance(unit, str) or unit not in UNITS:
        raise ConfigError("unit", f"{unit!r} is no unit of time{nearest(str(unit), UNITS)}")
    if columns is not None and not isinstance(columns, Mapping):
        raise ConfigError("columns", f"must map columns of fit to columns of the file, not {columns!r}")
    source = source_of(path)
    wanted = {name: name for name in COLUMNS if name in source.columns}
    for name, other in (columns or {}).items():
        if name not in COLUMNS:
            raise ConfigError("columns", f"{name!r} is no column of a log{nearest(str(name), COLUMNS)}")
        if other not in source.columns:
            raise source.error(f"has no column {other!r}{nearest(str(other), source.columns)}")
        wanted[name] = other
    for name in NEEDED:
        if name not in wanted:
            raise source.error(
                f"has no column for {name}; it has {', '.join(source.columns[:20])}: "
                f'name it with columns={{"{name}": …}}'
            )
    table = source.table(sorted(set(wanted.values())))
    filled = {
        name: source.numbers(table[other], whole=not name.endswith("_s")).rename(name)
        for name, other in wanted.items()
    }
    frame = pl.DataFrame([filled[name] for name in COLUMNS if name in filled])
    frame = frame.with_columns(pl.col(name) / UNITS[unit] for name in frame.columns if name.endswith("_s"))
    return checked_source(source, frame)


def source_of(path: str | os.PathLike[str]) -> Source:
    """The table in a file."""
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError("path", f"must be a path, not {path!r}")
    source = Source(Path(path))
    if source.kind == "json":
        raise source.error("is json, not a table")
    for mark in (";", "\t", "|"):
        if len(source.columns) == 1 and mark in source.columns[0]:
            raise source.error(f"its fields are separated by {mark!r}, must be by commas")
    return source


def checked_source(source: Source, frame: pl.DataFrame) -> pl.DataFrame:
    """The frame, if `fit` could take it; durations in the wrong unit are left for `fit` to find."""
    try:
        checked_log(frame, check_units=False)
    except ConfigError as error:
        raise TraceError(source.path, f"{error}") from None
    return frame
