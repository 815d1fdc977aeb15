"""Trace files (Parquet, CSV or JSON, optionally compressed) and their errors."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from inferq._lazy import pl
from inferq.checks import nearest, shown
from inferq.errors import ConfigError, TraceError
from inferq.inputs import check_file, json_value, parquet_schema, read_bytes, read_parquet
from inferq.workload.columns import Place, row
from inferq.workload.traces.token_counters import Counter

_HEAD_BYTES = 1 << 16
_SAMPLED_RECORDS = 100
"""Number of records that determine the fields of a JSON file."""
_MOST_REASON = 200
"""Maximum characters of an error of polars, which may contain all columns."""
_MOST_TEXT = 1 << 30
"""Maximum bytes of a JSON file, which needs many times as much memory."""
_MOST_UNPACKED = 64 << 20
"""Uncompressed bytes that any compressed file may have."""
_MOST_RATIO = 25
"""Maximum compression ratio of larger files; traces have ratios from 3 to 10."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Result of a reader: unchecked columns of a workload, and what it left out."""

    frame: pl.DataFrame
    place: Place = row
    """Names the place in the file of a row of `frame`, for errors."""
    rows_left_out: dict[str, int] = field(default_factory=dict)
    columns_left_out: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of reading, except the path."""

    columns: Mapping[str, str] | None = None
    counter: Counter | None = None
    """Token counter, set only for formats that contain text."""
    time_unit: str | None = None
    """Unit of arrival times; see `inferq.workload.clock`."""

    def count(self, texts: list[str]) -> list[int]:
        """Return the tokens of each text."""
        assert self.counter is not None
        return self.counter.count(texts)


@dataclass(frozen=True, slots=True)
class Format:
    """Trace format: how to detect it and how to read it."""

    name: str
    fits: Callable[[Source], bool]
    read: Callable[[Source, Options], Reading]
    counts_text: bool = False
    """Whether it contains text whose tokens must be counted."""
    maps_columns: bool = False
    """Whether it is a table whose columns the user may map."""
    kinds: tuple[str, ...] = ("json",)
    """File types of the format."""


class Source:
    """Uncompressed content of a file, with its kind: `parquet`, `csv` or `json`.

    Errors name rows of a table from 0, lines of a JSONL file from 1, entries of a JSON list from 0.
    """

    def __init__(self, path: Path) -> None:
        """Read the first bytes; the rest is read on demand."""
        self.path = path
        try:
            self._size = check_file(path, self.error)
            with path.open("rb") as file:
                head = file.read(_HEAD_BYTES)
        except FileNotFoundError as error:
            raise self.error("no such file") from error
        except IsADirectoryError as error:
            raise self.error("is not a file") from error
        except OSError as error:
            raise self.error(error.strerror or str(error)) from error
        self._packed = head.startswith(b"\x1f\x8b")
        self._head = self._unpack(_HEAD_BYTES) if self._packed else head
        if not self._head.strip():
            raise self.error("is empty; a trace must have rows of requests")
        self.kind = self._kind()

    def error(self, message: str) -> TraceError:
        """Return an error that names this file."""
        return TraceError(self.path, f"{message}")

    def _unpack(self, most: int) -> bytes:
        """Return the first uncompressed bytes of a gzip file."""
        try:
            with gzip.open(self.path) as file:
                return file.read(most)
        except EOFError as error:
            raise self.error("is a truncated gzip file; download or compress it again") from error
        except (OSError, zlib.error) as error:
            raise self.error(f"is a damaged gzip file ({error})") from error

    @cached_property
    def _unpacked(self) -> bytes:
        """Uncompressed content, limited because a few bytes may unpack to gigabytes."""
        most = max(_MOST_UNPACKED, _MOST_RATIO * self._size)
        content = self._unpack(most + 1)
        if len(content) > most:
            raise self.error(
                f"has {self._size:,} bytes and unpacks to more than {most:,}: decompress it first"
            )
        return content

    def _kind(self) -> str:
        if self._head.startswith(b"PAR1"):
            return "parquet"
        if b"\0" in self._head:
            raise self.error("is neither Parquet nor text (it contains a zero byte)")
        try:
            start = self._head.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            # The last character may be cut because only the first bytes were read.
            if error.start < len(self._head) - 3 or len(self._head) < _HEAD_BYTES:
                raise self.error(f"is neither Parquet nor UTF-8 text (byte {error.start})") from error
            start = self._head[: error.start].decode("utf-8-sig")
        return "json" if start.lstrip()[:1] in ("{", "[") else "csv"

    def named(
        self, default: dict[str, str], columns: Mapping[str, str] | None, known: Collection[str], table: str
    ) -> dict[str, str]:
        """Return the file's column for each column of a `table`: the user's `columns`, then `default`."""
        for name, other in (columns or {}).items():
            if name not in known:
                raise ConfigError(
                    "columns", f"{name!r} is not a column of a {table}{nearest(str(name), known)}"
                )
            if other not in self.columns:
                raise self.error(f"has no column {other!r}{nearest(str(other), self.columns)}")
        return {**default, **(columns or {})}

    @cached_property
    def text(self) -> str:
        """Complete file as text."""
        data = self._unpacked if self._packed else read_bytes(self.path, self.error, _MOST_TEXT)
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise self.error(f"is not UTF-8 text (byte {error.start})") from error

    @cached_property
    def columns(self) -> list[str]:
        """Names of the columns of a table, or of the fields of JSON records, with dots for nested fields."""
        if self.kind == "json":
            return list(self._fields)
        if self.kind == "csv":
            head = self._head.decode("utf-8-sig", errors="ignore")
            line = head.splitlines()[0]
            end = head[len(line) : len(line) + 1]
            if end not in ("", "\r", "\n"):
                raise self.error(f"rows end in U+{ord(end):04X}; they must end in a line feed (U+000A)")
            names = next(csv.reader([line]), [])
        else:
            names = list(parquet_schema(self._unpacked if self._packed else self.path, self.error))
        return names

    def table(self, names: list[str]) -> pl.DataFrame:
        """Return the named columns. Columns of CSV are strings, with null for empty fields.

        Columns of JSON are fields such as `usage.prompt_tokens`, null in records without the field.
        """
        for name in names:
            if self.columns.count(name) > 1:
                raise self.error(f"has more than one column {name}; rename or drop the others")
            if name not in self.columns:
                raise self.error(f"has no column {name}; it has {', '.join(self.columns[:20])}")
        if self.kind == "json":
            return pl.DataFrame([self._field(name) for name in names])
        if self.kind == "parquet":
            return read_parquet(self._unpacked if self._packed else self.path, self.error, names)
        frame = self._csv(names)
        height = frame.height
        while height and len(self.columns) > 1 and all(value is None for value in frame.row(height - 1)):
            height -= 1  # blank lines at the end
        if not height:
            raise self.error("has a header but no rows; each request must be a row")
        return frame.head(height).select(names)

    @cached_property
    def place(self) -> Place:
        """Names a row in an error."""
        return self.records[1] if self.kind == "json" else row

    @cached_property
    def _fields(self) -> dict[str, tuple[str, ...]]:
        """Keys of the scalar fields in the first records, by dotted name."""
        fields: dict[str, tuple[str, ...]] = {}
        for entry in self.records[0][:_SAMPLED_RECORDS]:
            _gather(entry, (), fields)
        return fields

    def _field(self, name: str) -> pl.Series:
        """Return a field of every record, null for records without it."""
        values = [_inside(entry, self._fields[name]) for entry in self.records[0]]
        place = self.records[1]
        for at, value in enumerate(values):
            if isinstance(value, (bool, dict)):
                raise self.error(f"{place(at)}: {name} is {_kind_of(value)}, must be a number or string")
            if isinstance(value, int) and abs(value) >= 2**63:
                raise self.error(f"{place(at)}: {name} is {value}, must fit into 64 bits")
        kinds = {type(value) for value in values if value is not None}
        if len(kinds) > 1 and kinds <= {int, float}:
            return pl.Series(name, values, dtype=pl.Float64, strict=False)
        if len(kinds) > 1:
            wrong = next(
                at
                for at, value in enumerate(values)
                if value is not None and type(value) is not type(values[0])
            )
            raise self.error(
                f"{place(wrong)}: {name} is {_kind_of(values[wrong])}, must be {_kind_of(values[0])} as in "
                f"{place(0)}"
            )
        return pl.Series(name, values)

    def _csv(self, names: list[str]) -> pl.DataFrame:
        content: Any = io.BytesIO(self._unpacked) if self._packed else self.path
        try:
            return pl.read_csv(content, columns=names, infer_schema=False, glob=False)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            self._check_fields()
            reason = str(error).splitlines()[0]
            brief = reason if len(reason) <= _MOST_REASON else f"{reason[:_MOST_REASON]}…"
            raise self.error(f"cannot be read as CSV: {brief}") from error

    def _check_fields(self) -> None:
        """Raise an error for the first row of a CSV file with more fields than the header."""
        try:
            for at, fields in enumerate(csv.reader(io.StringIO(self.text, newline=""))):
                if at and len(fields) > len(self.columns):
                    raise self.error(
                        f"row {at - 1}: has {len(fields)} fields, must have {len(self.columns)} as the header"
                    )
        except csv.Error as error:
            raise self.error(f"is not CSV: {error}") from error

    @cached_property
    def records(self) -> tuple[list[dict[str, Any]], Place]:
        """Objects of a JSON list or JSONL file, and a function that names one in an error."""
        text = self.text.strip()
        first, _, rest = text.partition("\n")
        if text.startswith("{") and rest:
            try:
                json.loads(first)
            except (ValueError, RecursionError):
                pass  # an object over several lines, or a wrong first line; both are handled below
            else:
                return self._lines()
        try:
            whole = json_value(text, constants=False)
        except json.JSONDecodeError as error:
            line = error.lineno + self.text[: self.text.index(text[0])].count("\n")
            raise self.error(f"line {line}: invalid JSON: {error.msg}; correct this line") from error
        except (ValueError, RecursionError) as error:
            raise self.error(f"invalid JSON: {error}") from error
        entries = whole if isinstance(whole, list) else [whole]
        if not entries:
            raise self.error("is an empty list")
        for at, entry in enumerate(entries):
            if not isinstance(entry, dict):
                raise self.error(f"entry {at}: is {_kind_of(entry)}, must be an object")
        return entries, lambda at: f"entry {at}"

    def _lines(self) -> tuple[list[dict[str, Any]], Place]:
        entries: list[dict[str, Any]] = []
        numbers: list[int] = []
        for number, line in enumerate(self.text.split("\n"), start=1):
            if not line.strip():
                continue
            try:
                entry = json_value(line, constants=False)
            except (ValueError, RecursionError) as error:
                raise self.error(
                    f"line {number}: invalid JSON: {getattr(error, 'msg', error)}; correct or drop this line"
                ) from error
            if not isinstance(entry, dict):
                raise self.error(f"line {number}: is {_kind_of(entry)}, must be an object")
            entries.append(entry)
            numbers.append(number)
        return entries, lambda at: f"line {numbers[at]}"

    @cached_property
    def keys(self) -> set[str]:
        """Keys of the first record of a JSON file; empty for a table."""
        return set(self.records[0][0]) if self.kind == "json" else set()

    def values(self, key: str, kind: type | tuple[type, ...]) -> list[Any]:
        """Return a field of every record after checking its type."""
        entries, place = self.records
        values = []
        for at, entry in enumerate(entries):
            if key not in entry:
                raise self.error(f"{place(at)}: {key} is missing")
            value = entry[key]
            if not isinstance(value, kind) or isinstance(value, bool):
                required = _KINDS.get(kind if isinstance(kind, type) else float, "a number")
                raise self.error(f"{place(at)}: {key} is {_kind_of(value)}, must be {required}")
            if isinstance(value, int) and abs(value) >= 2**63:
                raise self.error(f"{place(at)}: {key} is {value}, must fit into 64 bits")
            values.append(value)
        return values

    def lengths(self, key: str) -> pl.Series:
        """Return a numeric field of every record."""
        values = self.values(key, (int, float))
        kind = pl.Int64 if all(isinstance(value, int) for value in values) else pl.Float64
        return pl.Series(key, values, dtype=kind, strict=False)

    def numbers(self, series: pl.Series, whole: bool) -> pl.Series:
        """Return a column as numbers. Strings of a CSV file are parsed; an error names a wrong one."""
        if series.dtype != pl.String:
            return series
        text = series.str.strip_chars()
        parsed: pl.Series = text.cast(pl.Int64 if whole else pl.Float64, strict=False)
        wrong = parsed.is_null() & text.is_not_null()
        if wrong.any():
            # "12.0" is an integer too; the column check reports fractions.
            parsed = text.cast(pl.Float64, strict=False)
            wrong = parsed.is_null() & text.is_not_null()
        if wrong.any():
            at = int(wrong.to_numpy().argmax())
            raise self.error(f"{self.place(at)}: {series.name} is {shown(series[at])}, must be a number")
        return parsed

    def since_first(self, nanoseconds: pl.Series, place: Place) -> pl.Series:
        """Return seconds since the first row, from sorted integer nanoseconds."""
        wrong = nanoseconds.diff().fill_null(0) < 0
        if wrong.any():
            at = int(wrong.to_numpy().argmax())
            raise self.error(
                f"{place(at)}: {nanoseconds.name} is before that of {place(at - 1)}: sort rows by arrival"
            )
        # numpy divides; polars would multiply by the rounded inverse.
        return pl.Series("arrival_s", (nanoseconds - nanoseconds[0]).to_numpy() / 1e9)


def _gather(entry: Mapping[str, Any], above: tuple[str, ...], fields: dict[str, tuple[str, ...]]) -> None:
    for key, value in entry.items():
        if isinstance(value, dict) and value:
            _gather(value, (*above, key), fields)
        else:
            fields.setdefault(".".join((*above, key)), (*above, key))


def _inside(entry: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        if not isinstance(entry, dict):
            return None
        entry = entry.get(key)
    return entry


_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}


def _kind_of(value: object) -> str:
    return _KINDS.get(type(value), "a number")
