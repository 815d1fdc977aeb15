"""Recording of served requests as a trace for `simulate`.

While the server runs, the requests are on disk as parts, `.NAME.part-00000` and so on next to the file. The
last part is replaced once per second, until it is full. `Record.close` merges the parts into the file.
"""

from __future__ import annotations

import errno
import json
import os
import re
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from inferq._lazy import pl
from inferq.errors import ConfigError
from inferq.files import check_writable, clear, locked, replacing, writable, write_frame, write_text
from inferq.serving.fleet import FleetRequest
from inferq.simulation.live import NANOSECONDS
from inferq.systems.failures import Failures

_PART_EVENTS = 1 << 12
_PART_HASHES = 1 << 16
"""Upper limits of a part, which is written again every second until it is full."""
_MOST_UNWRITTEN = 1 << 16
"""Events in memory above which the recording ends, if the disk is full."""


class _Event(NamedTuple):
    """A row of a part: a request, or (with `cancel_s`) the cancellation of request `continues`."""

    arrival_s: float | None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    priority: int | None = None
    session_id: str | None = None
    prefix_hashes: list[int] | None = None
    prefix_block_tokens: int | None = None
    continues: int | None = None
    max_output_tokens: int | None = None
    cancel_s: float | None = None


class Record:
    """A writer of served requests to a Parquet file.

    If replicas received commands, a `.failures.json` file next to it holds the `Failures` that repeat the
    run.

    Args:
        path: the file, created by `close`.
        block: tokens per block of `prefix_hashes`.
        log: receives a line when the disk cannot be written, and when it can be again.

    Raises:
        ConfigError: the name does not end in `.parquet`, the directory does not exist, the file exists, or
            another server writes it. If a killed server left parts, they are merged into the file first.
        OSError: the file cannot be written.
    """

    def __init__(
        self, path: str | os.PathLike[str], block: int, log: Callable[[str], object] = print
    ) -> None:
        self._path, self._block, self._log = writable("record", path), block, log
        if self._path.suffix != ".parquet":
            raise ConfigError("record", f"must end in .parquet, got {str(path)!r}")
        self._failures = self._path.with_suffix(".failures.json")
        self._events: list[_Event] = []
        """Events of the last part."""
        self._parts = 0
        """Number of full parts."""
        self._written = self._requests = self._missing = 0
        self._known_failures: Failures | None = None
        self._error: OSError | None = None
        self._flushing = threading.Lock()
        with ExitStack() as stack:
            lock = self._path.with_name(f".{self._path.name}.lock")
            stack.enter_context(locked("record", self._path, lock))
            self._prepare()
            self._open = stack.pop_all()

    def _prepare(self) -> None:
        """Refuse existing files, recover parts of a killed server and check that the file can be written."""
        if self._path.exists():
            raise ConfigError("record", f"{self._path} already exists; choose another name")
        for file in (self._path, self._failures, *self._parts_on_disk()):
            clear(file)
        rows = self._merge()
        if rows:
            raise ConfigError(
                "record",
                f"{self._path} now contains the {rows} requests of an earlier server that could not write "
                "it; choose another name",
            )
        if self._failures.exists():
            raise ConfigError("record", f"{self._failures} already exists; choose another name")
        check_writable(self._path)

    def add(self, at_ns: int, sent: FleetRequest) -> None:
        """Add a request; ids are in order."""
        prompt = sent.prompt
        self._requests += 1
        self._append(
            _Event(
                arrival_s=at_ns / NANOSECONDS,
                prompt_tokens=len(prompt.ids),
                output_tokens=sent.output_tokens,
                priority=sent.priority,
                session_id=sent.session,
                prefix_hashes=prompt.hashes if prompt.continues is None else None,
                prefix_block_tokens=self._block,
                continues=prompt.continues,
                max_output_tokens=sent.max_tokens,
            )
        )

    def cancel(self, request: int, after_ns: int) -> None:
        """Record that the client of a request disconnected."""
        self._append(_Event(None, continues=request, cancel_s=after_ns / NANOSECONDS))

    def _append(self, event: _Event) -> None:
        if self._missing == 0 and len(self._events) < _MOST_UNWRITTEN:
            self._events.append(event)
            return
        if self._missing == 0:
            self._log(f"record: {self._path} ends after {self._requests - 1:,} requests; the disk is full")
        self._missing += event.arrival_s is not None

    def flush(self, failures: Failures | None) -> None:
        """Write new events and failures to disk; may run in a thread while events are added.

        After an error the events stay in memory, and the next call tries again.
        """
        with self._flushing:
            self._flush(failures)

    def _flush(self, failures: Failures | None) -> None:
        try:
            events = self._events[:]
            if failures != self._known_failures:
                assert failures is not None
                write_text(self._failures, json.dumps(failures.to_json()) + "\n")
                self._known_failures = failures
            if len(events) > self._written:
                write_frame(self._part(self._parts), _frame(events))
                self._written = len(events)
            hashes = sum(len(event.prefix_hashes or ()) for event in events)
            if len(events) >= _PART_EVENTS or hashes >= _PART_HASHES:
                self._parts += 1
                del self._events[: len(events)]
                self._written = 0
        except OSError as error:
            if self._error is None:
                self._log(f"record: {_reason(error)}; retrying every second: {self._path}")
            self._error = error
            return
        if self._error is not None:
            self._log(f"record: writing again: {self._path}")
        self._error = None

    def _part(self, number: int) -> Path:
        return self._path.with_name(f".{self._path.name}.part-{number:05d}")

    def _parts_on_disk(self) -> list[Path]:
        pattern = re.compile(rf"\.{re.escape(self._path.name)}\.part-\d+")
        return sorted(file for file in self._path.parent.iterdir() if pattern.fullmatch(file.name))

    def close(self, failures: Failures | None) -> int:
        """Write the file, unless it has no rows, and the failures; return the number of rows.

        Raises:
            OSError: the file cannot be written, and the parts remain; or requests are missing from it.
        """
        with self._open:
            self.flush(failures)
            error = self._error
            lost = self._missing
            if error is not None:
                lost += sum(event.arrival_s is not None for event in self._events[self._written :])
            missing = f"the last {lost:,} requests are not recorded" if lost else ""
            try:
                rows = self._merge()
            except OSError as failed:
                what = "; ".join(part for part in (failed.strerror, missing) if part)
                raise OSError(failed.errno, what, str(self._path)) from None
            if missing:
                number = errno.ENOSPC if error is None else error.errno or errno.EIO
                raise OSError(number, missing, str(self._path))
            return rows

    def release(self) -> None:
        """Release the file without writing it."""
        self._open.close()

    def _merge(self) -> int:
        """Merge the parts into the file and remove them; return the number of rows."""
        parts = self._parts_on_disk()
        if not parts:
            return 0
        where = f"the requests remain in {parts[0].name} …, which the next start merges"
        try:
            events = pl.scan_parquet(parts, glob=False)
            requests = events.filter(pl.col("cancel_s").is_null()).drop("cancel_s")
            cancels = events.filter(pl.col("cancel_s").is_not_null())
            cancels = cancels.select(pl.col("continues").cast(pl.UInt32).alias("row"), "cancel_s")
            rows = int(requests.select(pl.len()).collect().item())
            if cancels.select(pl.len()).collect().item():
                numbered = requests.with_row_index("row")
                requests = numbered.join(cancels, on="row", how="left", maintain_order="left").drop("row")
            if rows:
                with replacing(self._path) as part:
                    requests.sink_parquet(part)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise OSError(_number(error), f"{_reason(error)}; {where}", str(self._path)) from None
        for part in parts:
            part.unlink()
        return rows


def _frame(events: list[_Event]) -> pl.DataFrame:
    columns = dict(zip(_Event._fields, zip(*events, strict=True), strict=True))
    return pl.DataFrame(
        columns,
        schema={
            "arrival_s": pl.Float64,
            "prompt_tokens": pl.Int32,
            "output_tokens": pl.Int32,
            "priority": pl.Int64,
            "session_id": pl.String,
            "prefix_hashes": pl.List(pl.Int64),
            "prefix_block_tokens": pl.Int32,
            "continues": pl.Int32,
            "max_output_tokens": pl.Int32,
            "cancel_s": pl.Float64,
        },
    )


def _reason(error: Exception) -> str:
    """The reason of an error, without the path."""
    number = _number(error)
    return str(error).splitlines()[0] if number == errno.EIO else os.strerror(number)


def _number(error: Exception) -> int:
    """The number of an error of the operating system, also inside an error of polars; else `EIO`."""
    if isinstance(error, OSError) and error.errno not in (None, errno.EIO):
        return int(error.errno or errno.EIO)
    match = re.search(r"\(os error (\d+)\)", str(error))
    return int(match[1]) if match else errno.EIO
