"""The directory of a run while it goes on, so that nothing finished is ever lost.

    manifest.json             what is here: rows written, the parts, whether the run is over
    scenario.json             what was run, as `Result.scenario`
    requests/part-00000.parquet …  the rows of `requests`, 1,048,576 in each part but the last
    workload.parquet          the requests as they came, where they were in memory as a whole
    tbt.parquet, timeline.parquet, …, findings.json, totals.json   written at the end

Every file is written under another name, forced to the disk and then given its own, and the manifest names a
part only once it is there. So whatever ends a run, a crash of the machine included, the manifest tells the
truth and each part that it names can be read.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from inferq._lazy import NDArray, np, pl
from inferq.errors import ConfigError
from inferq.results.tables import FRAMES, STATUSES, Columns, RunTables, arrays, as_frame

PART_ROWS = 2**20
"""Rows of a part."""

_GROUP_ROWS = 2**17
"""Rows of a row group, the least that a reader must take at once."""


class Store:
    """The directory of one run, from its beginning to its end."""

    def __init__(
        self,
        out: str | os.PathLike[str],
        scenario: str,
        *,
        rows: int | None = None,
        workload: Path | None = None,
    ) -> None:
        """Take a directory for a run; see `simulate` for what is refused.

        Args:
            out: the directory.
            scenario: JSON that says what is run.
            rows: of the workload, where they are known before the run.
            workload: the path of the file that holds it, where it is scanned.
        """
        self.place = Path(out)
        earlier = _earlier(self.place, scenario)
        self._manifest: dict[str, Any] = {
            "inferq": json.loads(scenario)["inferq"],
            "scenario_sha256": _sha256(scenario),
            "complete": False,
            "rows": rows,
            "written": 0,
            "workload": None if workload is None else str(workload.resolve()),
            "parts": [],
        }
        if earlier is None:
            for left in self.place.glob("*.parquet"):
                left.unlink()
        else:
            self._manifest.update({name: earlier[name] for name in ("written", "parts")})
        self.statuses = [0] * len(STATUSES)
        """Requests by status, in the order of `STATUSES`."""
        self._pending: list[dict[str, NDArray[Any]]] = []
        self._pending_rows = 0
        self._part = 0
        self.names: Mapping[str, Sequence[str]] = {}
        """What the codes in a column of `requests` stand for."""
        (self.place / "requests").mkdir(parents=True, exist_ok=True)
        for left in (*self.place.glob("*.new"), *self.place.glob("requests/*.new")):
            left.unlink()
        _write_text(self.place / "scenario.json", scenario + "\n")
        self._write_manifest()

    def take(self, columns: Columns) -> None:
        """Take the next rows of `requests`, in order of their ids."""
        columns = arrays(columns)
        counts = np.bincount(columns["status"], minlength=len(STATUSES)).tolist()
        self.statuses = [before + count for before, count in zip(self.statuses, counts, strict=True)]
        self._pending.append(columns)
        self._pending_rows += next(iter(columns.values())).size
        while self._pending_rows >= PART_ROWS:
            pending = {name: np.concatenate([one[name] for one in self._pending]) for name in columns}
            self._write({name: column[:PART_ROWS] for name, column in pending.items()})
            self._pending = [{name: column[PART_ROWS:].copy() for name, column in pending.items()}]
            self._pending_rows -= PART_ROWS

    def _write(self, columns: Columns) -> None:
        """Write a part, or find that an earlier run of this scenario has written the same."""
        number, rows = self._part, int(next(iter(columns.values())).size)
        self._part += 1
        file = f"requests/part-{number:05}.parquet"
        digest = hashlib.sha256()
        for name, column in columns.items():
            digest.update(name.encode())
            digest.update(column.tobytes())
        part = {"file": file, "first": number * PART_ROWS, "rows": rows, "sha256": digest.hexdigest()}
        parts = self._manifest["parts"]
        if number < len(parts):
            if parts[number] != part:
                raise ConfigError(
                    "out",
                    f"{self.place / file} holds other rows than this run gives: what runs is not what "
                    "ran there (has a policy written in Python changed?); take another directory",
                )
            return
        self.frame(file, as_frame(columns, self.names))
        parts.append(part)
        self._manifest["written"] += rows
        self._write_manifest()

    def frame(self, file: str, frame: pl.DataFrame) -> None:
        """Write a frame; row groups are small enough to be read one by one."""
        path = self.place / file
        _write(
            path,
            lambda to: frame.write_parquet(
                to, compression="zstd", compression_level=1, row_group_size=_GROUP_ROWS
            ),
        )

    def finish(self, tables: RunTables) -> None:
        """Write what is left of the rows and everything else, and say that the run is over."""
        if self._pending_rows or not self._part:
            names = self._pending[0]
            self._write({name: np.concatenate([one[name] for one in self._pending]) for name in names})
        self._pending = []
        for name in FRAMES:
            if tables.has(name):
                self.frame(f"{name}.parquet", tables.frame(name))
        work = tables.work
        self._json("findings.json", tables.findings)
        totals = {
            "classes": tables.classes,
            "statuses": self.statuses,
            "totals": tables.totals,
            "tbt_totals": tables.tbt_totals,
            "work": None if work is None else {name: column.tolist() for name, column in work.items()},
            "drained": list(map(int, tables.drained)),
        }
        self._json("totals.json", totals)
        self.complete()

    def complete(self) -> None:
        """Say that the run is over and everything is here."""
        self._manifest["complete"] = True
        self._write_manifest()

    def _json(self, file: str, value: Any) -> None:
        _write_text(self.place / file, json.dumps(value, indent=2) + "\n")

    def _write_manifest(self) -> None:
        self._json("manifest.json", self._manifest)


def manifest(place: Path) -> dict[str, Any] | None:
    """What a directory says of itself; None where no run is in it.

    Raises:
        ConfigError: its manifest is none.
    """
    try:
        text = (place / "manifest.json").read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        record = json.loads(text)
        {record[name] for name in ("complete", "rows", "written", "scenario_sha256", "workload")}
        [(part["file"], part["first"], part["rows"]) for part in record["parts"]]
    except (ValueError, KeyError, TypeError):
        raise ConfigError("out", f"{place / 'manifest.json'} is no manifest of a run") from None
    return dict(record)


def _earlier(place: Path, scenario: str) -> dict[str, Any] | None:
    """The manifest of the same run where it was stopped; a `ConfigError` for all else that is in the way."""
    record = manifest(place)
    if record is None:
        if place.is_dir() and any(place.iterdir()):
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
    lost = [part["file"] for part in record["parts"] if not (place / part["file"]).is_file()]
    if lost:
        raise ConfigError(
            "out", f"{place} holds {which}, {came}, and {lost[0]} is missing: remove the directory"
        )
    warnings.warn(f"out: {place} holds {which}, {came}: they stay, and it is run again", stacklevel=6)
    return record


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _write_text(path: Path, text: str) -> None:
    _write(path, lambda to: to.write(text.encode()))


class _Noted(io.RawIOBase):
    """A file that remembers what went wrong: polars says it in words of its own."""

    file: IO[bytes]
    error: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        pass


def _write(path: Path, fill: Callable[[Any], object]) -> None:
    """Write a file so that it is there in full or not at all.

    Raises:
        OSError: naming the file; what was there before is still there.
    """
    new = path.with_name(path.name + ".new")
    noted = _Noted()
    try:
        with new.open("wb") as file:
            noted.file = file
            fill(noted)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        new.unlink(missing_ok=True)
        cause = noted.error or error
        number = cause.errno if isinstance(cause, OSError) and cause.errno else errno.EIO
        what = str(cause) if number == errno.EIO else os.strerror(number)
        raise OSError(number, f"{what}; what was written before stays", str(path)) from error
