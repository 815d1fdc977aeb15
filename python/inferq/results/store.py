"""Storage of a run in a directory, in parts that survive an interrupted run.

    manifest.json             rows written, parts, files, and whether the run is complete
    scenario.json             as `Result.scenario`
    requests/part-00000.parquet …  rows of `requests`, 1,048,576 in each part except the last
    workload.parquet          the drawn requests, if they were in memory
    itl.parquet, timeline.parquet, …, findings.json, totals.json   written at the end

`Result.write` creates the same files for a run in memory, with `requests.parquet` as the only part.

A thread writes one part at a time while the run computes the next. Every file is written under a temporary
name, synced and renamed, and the manifest lists a part only after that. So the manifest is correct and its
parts are readable even after a crash of the machine. A running simulation locks the directory (`.lock`).
Readers compare sizes and hashes with the manifest, and the manifest with its own hash.
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
"""Rows of a row group, the smallest unit of a read."""

_LOCK = ".lock"
_FIRST = re.compile(rf"requests|{re.escape(_LOCK)}.*|\.manifest\.json\..*\.part")
"""Files that may exist in a directory before its manifest."""


class Store:
    """The directory of one run."""

    def __init__(
        self,
        out: str | os.PathLike[str],
        scenario: str,
        writer: Executor,
        *,
        rows: int | None = None,
        workload: Path | None = None,
    ) -> None:
        """Prepare a directory for a run; `simulate` documents the errors.

        Args:
            out: the directory.
            scenario: the scenario as JSON.
            writer: the executor with the thread that writes parts.
            rows: rows of the workload, if known before the run.
            workload: the file of a scanned workload.
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
            files = {part["file"]: earlier["files"][part["file"]] for part in earlier["parts"]}
            self._manifest.update(written=earlier["written"], parts=earlier["parts"], files=files)
        self.statuses = [0] * len(STATUSES)
        """Requests by status, in the order of `STATUSES`."""
        self._writer, self._writing = writer, Future[None]()
        self._writing.set_result(None)
        self._frames: list[pl.DataFrame] = []
        """Rows of the next part."""
        self._part = 0
        self.names: Mapping[str, Sequence[str]] = {}
        """Names of the codes in columns of `requests`."""
        self._write_manifest()
        if earlier is None:
            for file in self.place.glob("*.parquet"):
                file.unlink()
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
        """The directory of a run, locked until the run ends; for the arguments see the class.

        Raises:
            ConfigError: another process writes into the directory.
        """
        place = path_of("out", out, "directory")
        place.mkdir(parents=True, exist_ok=True)
        with locked("out", place, place / _LOCK), ThreadPoolExecutor(1, "inferq-parts") as writer:
            yield cls(place, scenario, writer, rows=rows, workload=workload)

    def take(self, columns: Columns) -> None:
        """Add the next rows of `requests`, in order of their ids."""
        frame = as_frame(columns, self.names)
        counts = np.bincount(columns["status"], minlength=len(STATUSES)).tolist()
        self.statuses = [before + count for before, count in zip(self.statuses, counts, strict=True)]
        waiting = sum(part.height for part in self._frames)
        while waiting + frame.height >= PART_ROWS:
            self._frames.append(frame.head(PART_ROWS - waiting))
            frame, waiting = frame.slice(PART_ROWS - waiting), 0
            self._hand_over()
        self._frames.append(frame)

    def _hand_over(self) -> None:
        """Write the waiting rows as a part, after the previous part."""
        part, self._frames = pl.concat(self._frames), []
        self.wait()
        self._writing = self._writer.submit(self._write, part)

    def wait(self) -> None:
        """Wait until the last part is on disk.

        Raises:
            ConfigError, OSError: the part could not be written.
        """
        self._writing.result()

    def _write(self, frame: pl.DataFrame) -> None:
        """Write a part, or check that it equals the part of an earlier run of this scenario."""
        number, self._part = self._part, self._part + 1
        file, parts = f"requests/part-{number:05}.parquet", self._manifest["parts"]
        if number < len(parts):
            stored = pl.read_parquet(self.place / file)
            if stored.schema != frame.schema or not stored.equals(frame):
                raise ConfigError(
                    "out",
                    f"{self.place / file} differs from the rows of this run, so the system has changed (a "
                    "policy written in Python?); use another directory",
                )
            return
        about = self._write_frame(file, frame)
        part = {"file": file, "first": number * PART_ROWS, "rows": frame.height, "sha256": about["sha256"]}
        parts.append(part)
        self._manifest["written"] += frame.height
        self._write_manifest()

    def frame(self, file: str, frame: pl.DataFrame) -> None:
        """Write a frame next to the parts."""
        self.wait()
        self._write_frame(file, frame)

    def _write_frame(self, file: str, frame: pl.DataFrame) -> dict[str, Any]:
        """Write a frame in small row groups."""
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
        if any(part.height for part in self._frames) or not self._part:
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
        """Mark the run as complete."""
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
"""The only part of a run that was written from memory."""


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
    """The entry of an existing file in the manifest; `frame_into` returns it for new files."""
    return {"bytes": path.stat().st_size, "sha256": sha256_of_file(path)}


def manifest_text(record: Mapping[str, Any]) -> str:
    """The content of `manifest.json`."""
    return json.dumps({**record, "sha256": _sha256(json.dumps(record))}, indent=2) + "\n"


def whole_manifest(scenario: str, rows: int, files: Mapping[str, Mapping[str, Any]]) -> str:
    """The manifest of a run in memory, with one file of requests."""
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
    """The manifest of a directory; None without a run.

    Raises:
        ResultError: a damaged manifest; the error names the field.
    """
    path = place / "manifest.json"
    try:
        text = read_text(path, partial(ResultError, path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    record = parsed_json(text, partial(ResultError, path), constants=False)
    _check(path, record, _MANIFEST)
    written = 0
    for number, part in enumerate(record["parts"]):
        field = f"parts[{number}]"
        _check(path, part, _PART, field)
        is_whole = len(record["parts"]) == 1 and part["file"] == WHOLE
        expected = (WHOLE if is_whole else f"requests/part-{number:05}.parquet", written)
        for name, value in zip(("file", "first"), expected, strict=True):
            if part[name] != value:
                raise ResultError(path, f"{field}.{name}: must be {value!r}, got {part[name]!r}")
        if part["file"] not in record["files"]:
            raise ResultError(path, f"files: {part['file']} is missing")
        written += part["rows"]
    for file, about in record["files"].items():
        _check(path, about, _FILE, f"files.{file}")
        if not _NAME.fullmatch(file):
            raise ResultError(path, f"files: {file!r} is not a file of a run")
    if record["written"] != written:
        raise ResultError(path, f"written: is {record['written']:,}, but the parts have {written:,} rows")
    if record["complete"] and not record["parts"]:
        raise ResultError(path, "parts: a complete run has at least one part")
    own = record.pop("sha256")
    if own != _sha256(json.dumps(record)):
        raise ResultError(path, "sha256: the manifest was changed after the run")
    return dict(record)


def check_file(place: Path, record: Mapping[str, Any], file: str) -> Path:
    """The path of a file of a run after a check of its size and hash.

    Raises:
        ResultError: the file is missing or was changed; the error names it.
    """
    path = place / file
    if file not in record["files"]:
        raise ResultError(place / "manifest.json", f"files: {file} is missing")
    about = record["files"][file]
    try:
        size = inputs.check_file(path, partial(ResultError, path))
        digest = sha256_of_file(path) if size == about["bytes"] else ""
    except OSError as error:
        raise ResultError(path, _reason(error)) from None
    if size != about["bytes"]:
        raise ResultError(path, f"has {size:,} bytes, but the run wrote {about['bytes']:,}")
    if digest != about["sha256"]:
        raise ResultError(path, "was changed after the run: its SHA-256 differs from the manifest")
    return path


def read_json(place: Path, file: str, shape: Shape) -> Any:
    """The content of a JSON file of a run, checked field by field."""
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
    """The scenario of a run, checked against the manifest."""
    path = place / "scenario.json"
    scenario: dict[str, Any] = read_json(place, path.name, dict)
    _check(path, scenario.get("run"), dict, "run")
    if _sha256(read_text(path).removesuffix("\n")) != record["scenario_sha256"]:
        raise ResultError(path, "differs from the scenario_sha256 in the manifest")
    return scenario


def check_all(place: Path, record: Mapping[str, Any], totals: Mapping[str, Any]) -> None:
    """Check the totals of a run against its rows, and all of its files against the manifest.

    Raises:
        ResultError: a difference; the error names the file and the field.
    """
    path, statuses, classes = place / "totals.json", totals["statuses"], totals["classes"]
    # Runs of versions without replica failures have no count of lost requests.
    if len(statuses) not in (len(STATUSES) - 1, len(STATUSES)) or sum(statuses) != record["written"]:
        raise ResultError(path, f"statuses: must sum to {record['written']:,} requests, got {statuses}")
    if len(totals["itl_totals"]) != len(classes) or len(set(classes)) != len(classes) or not classes:
        raise ResultError(path, f"itl_totals: must have one entry per class of {classes}")
    for file in record["files"]:
        check_file(place, record, file)
    for part in record["parts"]:
        file = place / part["file"]
        rows = parquet_height(file, partial(ResultError, file))
        if rows != part["rows"]:
            raise ResultError(file, f"has {rows:,} rows, but the manifest has {part['rows']:,}")


Shape = Any
"""A type or a pattern; a tuple of alternatives; `[shape]` for a list; shapes by key, or `{str: shape}`."""

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
    """Raise a `ResultError` that names file and field if a value has another shape or is negative."""
    at = f"{field}." if field else ""
    if isinstance(shape, tuple):
        matches = [alternative for alternative in shape if _is_of(value, alternative)]
        if not matches:
            _refuse(path, field, " or ".join(map(_name, shape)), value)
        _check(path, value, matches[0], field)
    elif not _is_of(value, shape):
        _refuse(path, field, _name(shape), value)
    elif isinstance(shape, re.Pattern):
        if not shape.fullmatch(value):
            _refuse(path, field, "a SHA-256", value)
    elif shape is _WHOLE and value < 0:
        _refuse(path, field, "a non-negative integer", value)
    elif isinstance(shape, list):
        for index, item in enumerate(value):
            _check(path, item, shape[0], f"{field}[{index}]")
    elif isinstance(shape, dict) and str in shape:
        for name, item in value.items():
            _check(path, item, shape[str], f"{at}{name}")
    elif isinstance(shape, dict):
        for name, inner in shape.items():
            if name not in value:
                raise ResultError(path, f"{at}{name}: missing")
            _check(path, value[name], inner, f"{at}{name}")
        for name in value:
            if name not in shape:
                raise ResultError(path, f"{at}{name}: unknown")


def _is_of(value: Any, shape: Shape) -> bool:
    return type(value) is _kind_of(shape)  # bool is not int here


def _kind_of(shape: Shape) -> Any:
    if shape is None or isinstance(shape, (list, dict)):
        return type(shape)
    return str if isinstance(shape, re.Pattern) else shape


def _name(shape: Shape) -> str:
    names = {int: "an integer", str: "a text", bool: "true or false", float: "a number"}
    names |= {list: "a list", dict: "a table", type(None): "null"}
    return names[_kind_of(shape)]


def _refuse(path: Path, field: str, expected: str, value: Any) -> NoReturn:
    raise ResultError(path, f"{field}{': ' if field else ''}must be {expected}, got {shown(value)}")


def _reason(error: OSError) -> str:
    return "is missing" if isinstance(error, FileNotFoundError) else error.strerror or str(error)


def _earlier(place: Path, scenario: str) -> dict[str, Any] | None:
    """The manifest of the same run if it was interrupted; raise a `ConfigError` for any other content."""
    record = manifest(place)
    if record is None:
        if place.is_dir() and not all(_FIRST.fullmatch(file.name) for file in place.iterdir()):
            raise ConfigError("out", f"{place} is not empty and contains no run; use an empty directory")
        return None
    if not record["complete"] and not record["parts"]:
        return None  # it failed before the first part
    same = record["scenario_sha256"] == _sha256(scenario)
    run = "this run" if same else "a run of another scenario"
    if record["complete"]:
        how = f"read it with iq.Result.read({str(place)!r}), or use another directory"
        rows = f"{record['written']:,} requests"
        raise ConfigError("out", f"{place} contains {run}, complete with {rows}: {how}")
    of_all = "" if record["rows"] is None else f" of {record['rows']:,}"
    progress = f"interrupted after {record['written']:,}{of_all} requests"
    if not same:
        raise ConfigError("out", f"{place} contains {run}, {progress}: use another directory, or remove it")
    for part in record["parts"]:
        try:
            check_file(place, record, part["file"])
        except ResultError as error:
            raise ResultError(f"{error}; {run} was {progress}: remove the directory") from None
    warnings.warn(f"out: {place} contains {run}, {progress}; it is resumed", stacklevel=8)
    return record


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
