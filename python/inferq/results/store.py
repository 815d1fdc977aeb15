"""The directory of a run while it goes on, so that nothing finished is ever lost.

    manifest.json             what is here: rows written, the parts, whether the run is over
    scenario.json             what was run, as `Result.scenario`
    requests/part-00000.parquet …  the rows of `requests`, 1,048,576 in each part but the last
    workload.parquet          the requests as they came, where they were in memory as a whole
    itl.parquet, timeline.parquet, …, findings.json, totals.json   written at the end

`Result.write` leaves the same of a run that was in memory, with `requests.parquet` as its only part.

Parts are written on a thread of their own, one at a time, while the run goes on to the next. Every file is
written under another name, forced to the disk and then given its own, and the manifest names a part only
once it is there. So whatever ends a run, a crash of the machine included, the manifest tells the truth and
each part that it names can be read. While a run goes on it holds the directory alone (`.lock`). What is
read back is held against the bytes and hashes in the manifest, and that against a hash of itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from inferq import inputs
from inferq._lazy import np, pl
from inferq.checks import shown
from inferq.errors import ConfigError, ResultError
from inferq.files import locked, write_frame, write_text
from inferq.inputs import parquet_height, parsed_json, path_of, read_text, sha256_of_file
from inferq.results.finding import KINDS, Finding
from inferq.results.tables import (
    FRAMES,
    PART_ROWS,
    STATUSES,
    Columns,
    RunTables,
    StoredColumns,
    as_frame,
)

_GROUP_ROWS = 2**17
"""Rows of a row group, the least that a reader must take at once."""

_LOCK = ".lock"
_FIRST = re.compile(rf"requests|{re.escape(_LOCK)}.*|\.manifest\.json\..*\.part")
"""What can lie in a directory before its manifest does."""


class Store:
    """The directory of one run, from its beginning to its end."""

    def __init__(
        self,
        out: str | os.PathLike[str],
        scenario: str,
        writer: Executor,
        *,
        rows: int | None = None,
        workload: Path | None = None,
    ) -> None:
        """Take a directory for a run; see `simulate` for what is refused.

        Args:
            out: the directory.
            scenario: JSON that says what is run.
            writer: the one thread that writes parts.
            rows: of the workload, where they are known before the run.
            workload: the path of the file that holds it, where it is scanned.
        """
        self.place = path_of("out", out, "directory")
        earlier = _earlier(self.place, scenario)
        self._manifest: dict[str, Any] = {
            "inferq": json.loads(scenario)["inferq"],
            "scenario_sha256": _sha256(scenario),
            "complete": False,
            "rows": rows,
            "written": 0,
            "workload": None if workload is None else str(workload.resolve()),
            "parts": [],
            "files": {},
        }
        if earlier is not None:
            kept = {part["file"]: earlier["files"][part["file"]] for part in earlier["parts"]}
            self._manifest.update(written=earlier["written"], parts=earlier["parts"], files=kept)
        self.statuses = [0] * len(STATUSES)
        """Requests by status, in the order of `STATUSES`."""
        self._writer, self._writing = writer, Future[None]()
        self._writing.set_result(None)
        self._frames: list[pl.DataFrame] = []
        """Rows that wait until there are as many as a part has."""
        self._part = 0
        self.names: Mapping[str, Sequence[str]] = {}
        """What the codes in a column of `requests` stand for."""
        self._write_manifest()
        if earlier is None:
            for left in self.place.glob("*.parquet"):
                left.unlink()
        (self.place / "requests").mkdir(exist_ok=True)
        for file in (*self.place.glob(".*.part"), *self.place.glob("requests/.*.part")):
            file.unlink(missing_ok=True)
        self._text("scenario.json", scenario + "\n")

    @classmethod
    @contextmanager
    def opened(
        cls,
        out: str | os.PathLike[str],
        scenario: str,
        *,
        rows: int | None = None,
        workload: Path | None = None,
    ) -> Iterator[Store]:
        """The directory of a run, held until the run is over; the other arguments are those of the class.

        Raises:
            ConfigError: another process writes into it.
        """
        place = path_of("out", out, "directory")
        place.mkdir(parents=True, exist_ok=True)
        with locked("out", place, place / _LOCK), ThreadPoolExecutor(1, "inferq-parts") as writer:
            yield cls(place, scenario, writer, rows=rows, workload=workload)

    def take(self, columns: Columns) -> None:
        """Take the next rows of `requests`, in order of their ids."""
        frame = as_frame(columns, self.names)
        counts = np.bincount(columns["status"], minlength=len(STATUSES)).tolist()
        self.statuses = [before + count for before, count in zip(self.statuses, counts, strict=True)]
        waiting = sum(one.height for one in self._frames)
        while waiting + frame.height >= PART_ROWS:
            self._frames.append(frame.head(PART_ROWS - waiting))
            frame, waiting = frame.slice(PART_ROWS - waiting), 0
            self._hand_over()
        self._frames.append(frame)

    def _hand_over(self) -> None:
        """Let what waits be written as a part, once the part before it is."""
        part, self._frames = pl.concat(self._frames), []
        self.wait()
        self._writing = self._writer.submit(self._write, part)

    def wait(self) -> None:
        """Wait until what was handed over is on the disk.

        Raises:
            ConfigError, OSError: it could not be written.
        """
        self._writing.result()

    def _write(self, frame: pl.DataFrame) -> None:
        """Write a part, or find that an earlier run of this scenario has written the same."""
        number, self._part = self._part, self._part + 1
        file, parts = f"requests/part-{number:05}.parquet", self._manifest["parts"]
        if number < len(parts):
            there = pl.read_parquet(self.place / file)
            if there.schema != frame.schema or not there.equals(frame):
                raise ConfigError(
                    "out",
                    f"{self.place / file} holds other rows than this run gives: what runs is not what "
                    "ran there (has a policy written in Python changed?); take another directory",
                )
            return
        about = self._write_frame(file, frame)
        part = {"file": file, "first": number * PART_ROWS, "rows": frame.height, "sha256": about["sha256"]}
        parts.append(part)
        self._manifest["written"] += frame.height
        self._write_manifest()

    def frame(self, file: str, frame: pl.DataFrame) -> None:
        """Write a frame beside the parts."""
        self.wait()
        self._write_frame(file, frame)

    def _write_frame(self, file: str, frame: pl.DataFrame) -> dict[str, Any]:
        """Write a frame; row groups are small enough to be read one by one."""
        about = self._manifest["files"][file] = write_frame(
            self.place / file, frame, compression="zstd", compression_level=1, row_group_size=_GROUP_ROWS
        )
        return about

    def finish(self, tables: RunTables, findings_of: Callable[[Columns], list[Finding]]) -> None:
        """Write the remaining rows and all other files, and mark the run as complete.

        Args:
            tables: of the run.
            findings_of: computes the findings of the run from its rows of `requests`.
        """
        if any(one.height for one in self._frames) or not self._part:
            self._hand_over()
        self.wait()
        for name in FRAMES:
            if tables.has(name):
                self.frame(f"{name}.parquet", tables.frame(name))
        parts = self._manifest["parts"]
        rows = StoredColumns([self.place / part["file"] for part in parts], self._manifest)
        self._json("findings.json", [finding.to_json() for finding in findings_of(rows)])
        self._json("totals.json", totals_of(tables, self.statuses))
        self.complete()

    def complete(self) -> None:
        """Say that the run is over and everything is here."""
        self._manifest["complete"] = True
        self._write_manifest()

    def _json(self, file: str, value: Any) -> None:
        self._text(file, json.dumps(value, indent=2) + "\n")

    def _text(self, file: str, text: str) -> None:
        write_text(self.place / file, text)
        self._manifest["files"][file] = about(self.place / file)

    def _write_manifest(self) -> None:
        write_text(self.place / "manifest.json", manifest_text(self._manifest))


WHOLE = "requests.parquet"
"""The only part of a run that was in memory, and was written when it was over."""


def totals_of(tables: RunTables, statuses: Sequence[int]) -> dict[str, Any]:
    """The content of `totals.json`."""
    work = tables.work
    return {
        "classes": tables.classes,
        "statuses": list(statuses),
        "totals": tables.totals,
        "itl_totals": tables.itl_totals,
        "work": None if work is None else {name: column.tolist() for name, column in work.items()},
        "drained": list(map(int, tables.drained)),
    }


def about(path: Path) -> dict[str, Any]:
    """What the manifest says of a file that is there, as `frame_into` of one that it writes."""
    return {"bytes": path.stat().st_size, "sha256": sha256_of_file(path)}


def manifest_text(record: Mapping[str, Any]) -> str:
    """The content of `manifest.json`."""
    return json.dumps({**record, "sha256": _sha256(json.dumps(record))}, indent=2) + "\n"


def whole_manifest(scenario: str, rows: int, files: Mapping[str, Mapping[str, Any]]) -> str:
    """The manifest of a run that was in memory, whose requests are one file."""
    part = {"file": WHOLE, "first": 0, "rows": rows, "sha256": files[WHOLE]["sha256"]}
    return manifest_text(
        {
            "inferq": json.loads(scenario)["inferq"],
            "scenario_sha256": _sha256(scenario),
            "complete": True,
            "rows": rows,
            "written": rows,
            "workload": None,
            "parts": [part],
            "files": dict(files),
        }
    )


def manifest(place: Path) -> dict[str, Any] | None:
    """What a directory says of itself; None where no run is in it.

    Raises:
        ResultError: its manifest is damaged; it names the field.
    """
    path = place / "manifest.json"
    try:
        text = read_text(path, partial(ResultError, path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    record = parsed_json(text, partial(ResultError, path), constants=False)
    _check(path, record, _MANIFEST)
    written = 0
    for place_of_part, part in enumerate(record["parts"]):
        field = f"parts[{place_of_part}]"
        _check(path, part, _PART, field)
        alone = len(record["parts"]) == 1 and part["file"] == WHOLE
        expected = (WHOLE if alone else f"requests/part-{place_of_part:05}.parquet", written)
        for name, value in zip(("file", "first"), expected, strict=True):
            if part[name] != value:
                raise ResultError(path, f"{field}.{name}: must be {value!r}, is {part[name]!r}")
        if part["file"] not in record["files"]:
            raise ResultError(path, f"files: has no {part['file']}")
        written += part["rows"]
    for file, about in record["files"].items():
        _check(path, about, _FILE, f"files.{file}")
        if not _NAME.fullmatch(file):
            raise ResultError(path, f"files: {file!r} is no name of a file of a run")
    if record["written"] != written:
        raise ResultError(path, f"written: is {record['written']:,}, and its parts have {written:,} rows")
    if record["complete"] and not record["parts"]:
        raise ResultError(path, "parts: a run that is over has one at least")
    own = record.pop("sha256")
    if own != _sha256(json.dumps(record)):
        raise ResultError(path, "sha256: the manifest is not as the run wrote it")
    return dict(record)


def check_file(place: Path, record: Mapping[str, Any], file: str) -> Path:
    """The path of a file of a run, whose bytes are those that the run wrote.

    Raises:
        ResultError: it is missing or has changed; it names the file.
    """
    path = place / file
    if file not in record["files"]:
        raise ResultError(place / "manifest.json", f"files: has no {file}")
    about = record["files"][file]
    try:
        size = inputs.check_file(path, partial(ResultError, path))
        digest = sha256_of_file(path) if size == about["bytes"] else ""
    except OSError as error:
        raise ResultError(path, _reason(error)) from None
    if size != about["bytes"]:
        raise ResultError(path, f"has {size:,} bytes, the run wrote {about['bytes']:,}")
    if digest != about["sha256"]:
        raise ResultError(path, "is not as the run wrote it: its SHA-256 is not that of the manifest")
    return path


def read_json(place: Path, file: str, shape: Shape) -> Any:
    """The content of a JSON file of a run, checked field by field; whole it is held against the manifest."""
    path = place / file
    try:
        value = parsed_json(
            read_text(path, partial(ResultError, path), _MOST_JSON), partial(ResultError, path)
        )
    except OSError as error:
        raise ResultError(path, _reason(error)) from None
    _check(path, value, shape)
    return value


def read_findings(place: Path) -> list[Finding]:
    """The findings of a run.

    Raises:
        ResultError: the file is damaged; it names the field.
    """
    findings = []
    for index, parts in enumerate(read_json(place, "findings.json", FINDINGS)):
        if parts["kind"] not in KINDS:
            raise ResultError(place / "findings.json", f"[{index}].kind: unknown kind {parts['kind']!r}")
        findings.append(Finding.from_json(parts))
    return findings


def read_scenario(place: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """What was run, which must be what the manifest says."""
    path = place / "scenario.json"
    scenario: dict[str, Any] = read_json(place, path.name, dict)
    _check(path, scenario.get("run"), dict, "run")
    if _sha256(read_text(path).removesuffix("\n")) != record["scenario_sha256"]:
        raise ResultError(path, "is not the scenario whose scenario_sha256 the manifest has")
    return scenario


def check_all(place: Path, record: Mapping[str, Any], totals: Mapping[str, Any]) -> None:
    """Hold the totals of a run against its rows, and all of its files against the manifest.

    Raises:
        ResultError: they do not fit; it names the file, and the field where it has some.
    """
    path, statuses, classes = place / "totals.json", totals["statuses"], totals["classes"]
    # Before replicas could die no request was lost, and none of them was counted.
    if len(statuses) not in (len(STATUSES) - 1, len(STATUSES)) or sum(statuses) != record["written"]:
        raise ResultError(path, f"statuses: must count {record['written']:,} requests, is {statuses}")
    if len(totals["itl_totals"]) != len(classes) or len(set(classes)) != len(classes) or not classes:
        raise ResultError(path, f"itl_totals: must have an entry for each of the classes {classes}")
    for file in record["files"]:
        check_file(place, record, file)
    for part in record["parts"]:
        file = place / part["file"]
        rows = parquet_height(file, partial(ResultError, file))
        if rows != part["rows"]:
            raise ResultError(file, f"holds {rows:,} rows, the manifest says {part['rows']:,}")


Shape = Any
"""A type, or a pattern; several, of which one fits; `[shape]`, a list; shapes by key, or `{str: shape}`."""

_WHOLE, _TEXT, _HASH = int, str, re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[a-z_]+\.(parquet|json)|rows-[0-9a-f]{16}\.parquet|requests/part-\d{5,}\.parquet")
_MOST_JSON = 1 << 30
_MANIFEST: Shape = {
    "inferq": _TEXT,
    "scenario_sha256": _HASH,
    "complete": bool,
    "rows": (_WHOLE, None),
    "written": _WHOLE,
    "workload": (_TEXT, None),
    "parts": list,
    "files": dict,
    "sha256": _HASH,
}
_PART: Shape = {"file": _TEXT, "first": _WHOLE, "rows": _WHOLE, "sha256": _HASH}
_FILE: Shape = {"bytes": _WHOLE, "sha256": _HASH}
TOTALS: Shape = {
    "classes": [_TEXT],
    "statuses": [_WHOLE],
    "totals": {str: (_WHOLE, float)},
    "itl_totals": [{"count": _WHOLE, "sum_as": (_WHOLE, _TEXT), "max_s": (_WHOLE, float, None)}],
    "work": ({str: [_WHOLE]}, None),
    "drained": [_WHOLE],
}
FINDINGS: Shape = [
    {"kind": _TEXT, "severity": _TEXT, "message": _TEXT, "data": {str: (_WHOLE, float, _TEXT)}},
]


def _check(path: Path, value: Any, shape: Shape, field: str = "") -> None:
    """A `ResultError` naming file and field where a value has another shape; none is a number below 0."""
    at = f"{field}." if field else ""
    if isinstance(shape, tuple):
        kinds = [one for one in shape if _is_of(value, one)]
        if not kinds:
            _refuse(path, field, " or ".join(map(_called, shape)), value)
        _check(path, value, kinds[0], field)
    elif not _is_of(value, shape):
        _refuse(path, field, _called(shape), value)
    elif isinstance(shape, re.Pattern):
        if not shape.fullmatch(value):
            _refuse(path, field, "a SHA-256", value)
    elif shape is _WHOLE and value < 0:
        _refuse(path, field, "a whole number, 0 or above", value)
    elif isinstance(shape, list):
        for place, one in enumerate(value):
            _check(path, one, shape[0], f"{field}[{place}]")
    elif isinstance(shape, dict) and str in shape:
        for name, one in value.items():
            _check(path, one, shape[str], f"{at}{name}")
    elif isinstance(shape, dict):
        for name, inner in shape.items():
            if name not in value:
                raise ResultError(path, f"{at}{name}: missing")
            _check(path, value[name], inner, f"{at}{name}")
        for name in value:
            if name not in shape:
                raise ResultError(path, f"{at}{name}: unknown")


def _is_of(value: Any, shape: Shape) -> bool:
    return type(value) is _kind_of(shape)  # True is no whole number here


def _kind_of(shape: Shape) -> Any:
    if shape is None or isinstance(shape, (list, dict)):
        return type(shape)
    return str if isinstance(shape, re.Pattern) else shape


def _called(shape: Shape) -> str:
    names = {int: "a whole number", str: "a text", bool: "true or false", float: "a number"}
    names |= {list: "a list", dict: "a table", type(None): "null"}
    return names[_kind_of(shape)]


def _refuse(path: Path, field: str, wanted: str, value: Any) -> NoReturn:
    raise ResultError(path, f"{field}{': ' if field else ''}must be {wanted}, is {shown(value)}")


def _reason(error: OSError) -> str:
    return "is missing" if isinstance(error, FileNotFoundError) else error.strerror or str(error)


def _earlier(place: Path, scenario: str) -> dict[str, Any] | None:
    """The manifest of the same run where it was stopped; a `ConfigError` for all else that is in the way."""
    record = manifest(place)
    if record is None:
        if place.is_dir() and not all(_FIRST.fullmatch(one.name) for one in place.iterdir()):
            raise ConfigError("out", f"{place} is not empty, and no run is in it; take an empty directory")
        return None
    if not record["complete"] and not record["parts"]:
        return None  # it failed before anything was there that could be lost
    same = record["scenario_sha256"] == _sha256(scenario)
    which = "this very run" if same else "a run of another scenario"
    if record["complete"]:
        how = f"read it with iq.Result.read({str(place)!r}), or take another directory"
        rows = f"{record['written']:,} requests"
        raise ConfigError("out", f"{place} holds {which}, finished, with {rows}: {how}")
    of_all = "" if record["rows"] is None else f" of {record['rows']:,}"
    came = f"which was stopped after {record['written']:,}{of_all} requests"
    if not same:
        raise ConfigError("out", f"{place} holds {which}, {came}: take another directory, or remove this one")
    for part in record["parts"]:
        try:
            check_file(place, record, part["file"])
        except ResultError as error:
            what = f"{error}; it holds {which}, {came}: remove the directory"
            raise ResultError(what) from None
    warnings.warn(f"out: {place} holds {which}, {came}: they stay, and it is run again", stacklevel=8)
    return record


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
