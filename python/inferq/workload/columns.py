"""Columns of a workload and their checks.

`COLUMNS` is the specification and `checked` applies it. It checks whole columns at a time, so a million rows
take milliseconds; it searches for the row of an error only if there is one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

from inferq._lazy import np, pl
from inferq.checks import nearest
from inferq.errors import ConfigError, TraceError
from inferq.workload.prefixes import paired

MOST_TOKENS = 2**31 - 1
"""Upper limit of a prompt, an output and their sum."""

MOST_SECONDS = 9e9
"""Upper limit of arrivals, about 285 years: whole nanoseconds must fit into 64 bits."""


class ArrowTable(Protocol):
    """A frame with the Arrow C stream interface, such as those of polars, pyarrow and DuckDB."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the frame as an Arrow stream."""


class PandasTable(Protocol):
    """A pandas frame."""

    @property
    def iloc(self) -> Any:
        """Rows by number."""


Table: TypeAlias = "pl.LazyFrame | ArrowTable | PandasTable | Mapping[str, Any] | Sequence[Mapping[str, Any]]"
"""Data that `Workload` accepts."""

Place = Callable[[int], str]
"""Names a row in an error: `row 17`, or the line of the file."""


@dataclass(frozen=True, slots=True)
class Column:
    """Type of a column: its kind, its minimum, and whether values may be null."""

    kind: str
    least: int = 0
    nullable: bool = True

    @property
    def most(self) -> int:
        """Maximum of an integer column."""
        return 2**63 - 1 if self.kind == "priority" else MOST_TOKENS


COLUMNS: dict[str, Column] = {
    "arrival_s": Column("seconds", nullable=False),
    "prompt_tokens": Column("tokens", least=1, nullable=False),
    "output_tokens": Column("tokens", least=1, nullable=False),
    "class": Column("class", nullable=False),
    "priority": Column("priority", least=-(2**63), nullable=False),
    "session_id": Column("identity"),
    "turn": Column("whole"),
    "think_s": Column("seconds"),
    "prefix_hashes": Column("list"),
    "prefix_block_tokens": Column("tokens", least=1),
    "prefix_parts": Column("any list"),
    "continues": Column("whole"),
    "max_output_tokens": Column("tokens", least=1),
    "accepted": Column("list"),
    "proposal_rate": Column("share", nullable=False),
    "patience_s": Column("seconds"),
    "cancel_s": Column("seconds"),
    "ttft_slo_s": Column("seconds"),
    "itl_slo_s": Column("seconds"),
}
"""Columns of a workload in the order of its frame."""

ALIASES = {"tbt_slo_s": "itl_slo_s"}
"""Other tools' names of columns, accepted when a frame or table is read."""


def row(index: int) -> str:
    """Return the name of a frame's row in an error."""
    return f"row {index}"


def as_series(name: str, values: object) -> pl.Series:
    """Return `values` as a polars column, or raise a `TraceError` with its name."""
    if isinstance(values, pl.Series):
        return values.rename(name)
    try:
        return pl.Series(name, values)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
        if isinstance(values, (list, tuple)) and all(
            value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
            for value in values
        ):
            return pl.Series(name, values, dtype=pl.Float64, strict=False)
        if name == "prefix_parts" and isinstance(values, (list, tuple)):
            return paired(values)
        raise TraceError(name, f"cannot be read as a column: {str(error).splitlines()[0]}") from error


def as_frame(data: object) -> pl.DataFrame:
    """Convert polars, pandas or Arrow frames, mappings of columns or lists of mappings to a polars frame."""
    if isinstance(data, pl.DataFrame):
        return data
    if isinstance(data, pl.LazyFrame):
        return data.collect()
    if hasattr(data, "__arrow_c_stream__") and not hasattr(data, "iloc"):  # pyarrow, DuckDB and others
        return pl.DataFrame(data)  # without a copy
    if isinstance(data, (list, tuple)) and data and all(isinstance(entry, Mapping) for entry in data):
        names = list(dict.fromkeys(name for entry in data for name in entry))
        return as_frame({name: [entry.get(name) for entry in data] for name in names})
    if isinstance(data, (str, os.PathLike)):
        raise ConfigError(
            "workload", f"must be a table, got a path: read it with iq.read_trace({str(data)!r})"
        )
    if isinstance(data, Mapping):
        series = [as_series(str(name), values) for name, values in data.items()]
    elif hasattr(data, "columns") and hasattr(
        data, "iloc"
    ):  # pandas, read without its own conversion library
        series = [as_series(str(name), _of_pandas(data[name])) for name in data.columns]  # type: ignore[index]
    else:
        raise ConfigError(
            "workload",
            "must be a frame of polars, pandas or pyarrow, a dict of columns or a list of dicts, got "
            f"{type(data).__name__}",
        )
    heights = {column.name: column.len() for column in series}
    if len(set(heights.values())) > 1:
        raise TraceError(
            f"columns differ in length: {', '.join(f'{name} {n}' for name, n in heights.items())}"
        )
    return pl.DataFrame(series)


def _of_pandas(column: Any) -> object:
    values = column.to_numpy()
    if values.dtype.kind == "f":
        return pl.Series(values).fill_nan(None)  # NaN is a missing value in pandas
    if values.dtype != object:
        return values
    missing = column.isna().to_numpy()
    return [
        None if is_missing else value
        for value, is_missing in zip(values.tolist(), missing.tolist(), strict=True)
    ]


def with_own_names(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with aliases of columns replaced by our names.

    Raises:
        TraceError: the frame has a column under both names.
    """
    renames = {name: column for name, column in ALIASES.items() if name in frame.columns}
    for alias, column in renames.items():
        if column in frame.columns:
            raise TraceError(f"columns {alias} and {column} are the same column; drop one of them")
    return frame.rename(renames)


def checked(frame: pl.DataFrame, place: Place = row, first: int = 0) -> pl.DataFrame:
    """Return the frame with canonical types and column order.

    Args:
        frame: any subset of `COLUMNS`, also under the names in `ALIASES`.
        place: names a row in an error.
        first: number of the first row, if the frame is a part of a workload.

    Raises:
        TraceError: a value is wrong; it names the first such row and the column.
    """
    frame = with_own_names(frame)
    for name in frame.columns:
        if name not in COLUMNS:
            raise TraceError(f"unknown column {name}{nearest(name, COLUMNS)}")
    if frame.height == 0:
        raise TraceError("no rows: a workload has at least one request")
    ordered = [name for name in COLUMNS if name in frame.columns]
    frame = frame.select(_canonical(name, frame[name], place) for name in ordered)
    if "arrival_s" in ordered:
        check_sorted(frame["arrival_s"], place)
    if "prompt_tokens" in ordered and "output_tokens" in ordered:
        _check_total(frame, place)
    if "output_tokens" in ordered and "max_output_tokens" in ordered:
        wrong = (frame["output_tokens"] > frame["max_output_tokens"]).fill_null(False).to_numpy()
        if wrong.any():
            at = int(wrong.argmax())
            output, most = frame["output_tokens"][at], frame["max_output_tokens"][at]
            raise TraceError(
                place(at), f"output_tokens is {output}, must be at most max_output_tokens, {most}"
            )
    if "continues" in ordered:
        _check_continues(frame["continues"], place, first)
    return frame


def class_names(frame: pl.DataFrame) -> list[str] | None:
    """Return the classes of a canonical frame in the order of their codes; None without a column `class`."""
    if "class" not in frame.columns:
        return None
    return cast("pl.Enum", frame["class"].dtype).categories.to_list()


def check_sorted(arrivals: pl.Series, place: Place = row) -> None:
    """Raise a `TraceError` unless arrivals are sorted, finite and non-negative."""
    values = arrivals.to_numpy()
    # NaN fails every comparison and an infinity can only be last, so three tests cover all cases.
    if values[0] >= 0 and bool((values[1:] >= values[:-1]).all()) and values[-1] < MOST_SECONDS:
        return
    wrong = ~((values >= 0) & (values < MOST_SECONDS))
    if wrong.any():
        at = int(wrong.argmax())
        raise TraceError(place(at), f"arrival_s is {values[at]}, must be from 0 to below {MOST_SECONDS:g} s")
    at = int((values[1:] < values[:-1]).argmax()) + 1
    raise TraceError(
        place(at),
        f"arrival_s is {values[at]}, before the {values[at - 1]} of {place(at - 1)}: "
        "sort the rows by arrival_s",
    )


def _canonical(name: str, series: pl.Series, place: Place) -> pl.Series:
    column = COLUMNS[name]
    if series.dtype.is_decimal():
        series = _of_decimals(name, series, column, place)
    if not column.nullable and series.null_count():
        at = int(series.is_null().to_numpy().argmax())
        raise TraceError(place(at), f"{name} is null")
    if series.dtype == pl.Null:
        empty = {"seconds": pl.Float64(), "tokens": pl.Int32(), "whole": pl.Int32(), "identity": pl.String()}
        nulls: pl.Series = series.cast(empty.get(column.kind, pl.List(pl.Int64)))
        return nulls
    if column.kind == "seconds":
        return _seconds(name, series, column, place)
    if column.kind == "share":
        return _shares(name, series, place)
    if column.kind in ("tokens", "whole", "priority"):
        return _whole(name, series, column, place)
    if column.kind == "class":
        return _classes(name, series)
    if column.kind == "identity":
        if series.dtype.is_integer():
            return series
        if series.dtype in (pl.String, pl.Categorical, pl.Enum):
            text: pl.Series = series.cast(pl.String)
            return text
        raise _type_error(name, series, "strings or integers")
    if isinstance(series.dtype, pl.Array):  # polars infers an array from lists of equal length
        series = series.cast(pl.List(series.dtype.inner))
    if isinstance(series.dtype, pl.List) and (column.kind == "any list" or series.dtype.inner.is_integer()):
        return series
    raise _type_error(name, series, "lists" if column.kind == "any list" else "lists of integers")


def _of_decimals(name: str, series: pl.Series, column: Column, place: Place) -> pl.Series:
    """Convert decimals from databases to floats, or to integers if the column requires them."""
    floats = series.cast(pl.Float64)
    if column.kind not in ("tokens", "whole", "priority", "identity", "class"):
        return floats
    whole = series.cast(pl.Int64, strict=False)
    wrong = (whole.is_null() | (whole.cast(pl.Float64) != floats)) & series.is_not_null()
    if wrong.any():
        at = int(wrong.to_numpy().argmax())
        raise TraceError(place(at), f"{name} is {series[at]}, must be an integer")
    return whole


def _type_error(name: str, series: pl.Series, required: str) -> TraceError:
    return TraceError(name, f"must contain {required}, got {series.dtype}")


def _seconds(name: str, series: pl.Series, column: Column, place: Place) -> pl.Series:
    if not series.dtype.is_numeric():
        raise _type_error(name, series, "seconds as numbers")
    values: pl.Series = series.cast(pl.Float64).rechunk()
    if name == "arrival_s":
        return values  # `check_sorted` checks the range too
    wrong = (~(values.is_finite() & (values >= column.least))).fill_null(False)
    if not wrong.any():
        return values
    at = int(wrong.to_numpy().argmax())
    raise TraceError(place(at), f"{name} is {values[at]}, must be a finite, non-negative number of seconds")


def _shares(name: str, series: pl.Series, place: Place) -> pl.Series:
    if not series.dtype.is_numeric():
        raise _type_error(name, series, "numbers from 0 to 1")
    values: pl.Series = series.cast(pl.Float64).rechunk()
    wrong = ~values.is_between(0, 1)
    if wrong.any():
        at = int(wrong.to_numpy().argmax())
        raise TraceError(place(at), f"{name} is {values[at]}, must be from 0 to 1")
    return values


def _whole(name: str, series: pl.Series, column: Column, place: Place) -> pl.Series:
    if not series.dtype.is_numeric():
        raise _type_error(name, series, "integers")
    if not series.dtype.is_integer():
        wrong = (~(series.is_finite() & (series.floor() == series))).fill_null(False).to_numpy()
        if wrong.any():
            at = int(wrong.argmax())
            raise TraceError(place(at), f"{name} is {series[at]}, must be an integer")
    low, high = series.min(), series.max()
    if low is not None and (low < column.least or high > column.most):  # type: ignore[operator]
        at = int(((series < column.least) | (series > column.most)).fill_null(False).to_numpy().argmax())
        limit = f"at least {column.least}" if series[at] < column.least else f"at most {column.most}"
        raise TraceError(place(at), f"{name} is {series[at]}, must be {limit}")
    values: pl.Series = series.cast(pl.Int64 if column.kind == "priority" else pl.Int32).rechunk()
    return values


def _classes(name: str, series: pl.Series) -> pl.Series:
    if isinstance(series.dtype, pl.Enum):
        return series
    if series.dtype not in (pl.String, pl.Categorical) and not series.dtype.is_integer():
        raise _type_error(name, series, "names")
    texts = series.cast(pl.String)
    # Sorted, so that neither the order of rows nor a cut changes the order of classes.
    named: pl.Series = texts.cast(pl.Enum(texts.unique().sort()))
    return named


def _check_total(frame: pl.DataFrame, place: Place) -> None:
    prompts: np.ndarray[Any, Any] = frame["prompt_tokens"].to_numpy()
    outputs: np.ndarray[Any, Any] = frame["output_tokens"].to_numpy()
    if int(prompts.max()) + int(outputs.max()) <= MOST_TOKENS:
        return
    wrong = prompts.astype("int64") + outputs > MOST_TOKENS
    if wrong.any():
        at = int(wrong.argmax())
        raise TraceError(
            place(at),
            f"prompt_tokens + output_tokens is {int(prompts[at]) + int(outputs[at])}, "
            f"must be at most {MOST_TOKENS}",
        )


def _check_continues(series: pl.Series, place: Place, first: int) -> None:
    rows = pl.int_range(first, first + series.len(), eager=True)
    wrong = (series >= rows).fill_null(False).to_numpy()
    if wrong.any():
        at = int(wrong.argmax())
        raise TraceError(place(at), f"continues is {series[at]}, must be the number of an earlier row")


def quantities(frame: pl.DataFrame, reused: pl.Series | None = None) -> pl.DataFrame:
    """Summarize lengths, gaps, rate and reuse, one row each: the result of `Workload.describe`.

    Args:
        frame: canonical requests.
        reused: tokens of each prompt that an unlimited cache contains; None if unknown.
    """
    lengths = [name for name in ("prompt_tokens", "output_tokens") if name in frame.columns]
    columns: list[tuple[str, np.ndarray[Any, Any]]] = [(name, frame[name].to_numpy()) for name in lengths]
    arrivals = frame["arrival_s"].to_numpy() if "arrival_s" in frame.columns else np.empty(0)
    if reused is not None:
        columns.append(("reused_tokens", reused.to_numpy()))
    if arrivals.size > 1:
        columns.append(("gap_s", np.diff(arrivals)))
    rows: list[tuple[str, int, Any]] = []
    for name, values in columns:
        mean = float(values.mean())
        cv = float(values.std()) / mean if mean else None
        percentiles = np.percentile(values, [50, 90, 99]).tolist()
        rows.append((name, values.size, (mean, cv, *percentiles, float(values.min()), float(values.max()))))
    if arrivals.size > 1 and arrivals[-1] > arrivals[0]:
        rate = (arrivals.size - 1) / float(arrivals[-1] - arrivals[0])
        rows.append(("rate_per_s", arrivals.size, (rate, *[None] * 6)))
    if reused is not None:
        share = float(reused.sum()) / float(frame["prompt_tokens"].cast(pl.Int64).sum())
        rows.append(("reused_share", frame.height, (share, *[None] * 6)))
    numbers = dict.fromkeys(("mean", "cv", "p50", "p90", "p99", "min", "max"), pl.Float64)
    return pl.DataFrame(
        [(name, count, *values) for name, count, values in rows],
        schema={"column": pl.String, "count": pl.Int64, **numbers},
        orient="row",
    )


def sha256(frame: pl.DataFrame) -> str:
    """Return the SHA-256 of names and values, independent of the memory layout."""
    return sha256_of(frame.height, frame.columns, lambda name: iter([frame[name]]))


def sha256_of(rows: int, names: Iterable[str], column: Callable[[str], Iterator[pl.Series]]) -> str:
    """Return the SHA-256 of columns that are read part by part, possibly several times."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}:{rows}:".encode())
        if next(column(name)).dtype.is_numeric():
            for part in column(name):
                digest.update(part.is_null().to_numpy().tobytes())
            for part in column(name):
                values = part.fill_null(0).to_numpy()
                digest.update(values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes())
        else:
            for place, part in enumerate(column(name)):
                listed = json.dumps(part.to_list())
                digest.update(f"{', ' if place else '['}{listed[1:-1]}".encode())
            digest.update(b"]")
    return digest.hexdigest()
