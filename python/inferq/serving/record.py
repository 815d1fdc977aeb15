"""Recording of served requests as a trace for `simulate`."""

from __future__ import annotations

import json
import os
from pathlib import Path

from inferq._lazy import pl
from inferq.errors import ConfigError
from inferq.inputs import path_of
from inferq.serving.fleet import FleetRequest
from inferq.simulation.live import NANOSECONDS
from inferq.systems.failures import Failures

_ROWS = 1 << 14
_SCHEMA = {
    "arrival_s": "Float64",
    "prompt_tokens": "Int32",
    "output_tokens": "Int32",
    "priority": "Int64",
    "session_id": "String",
    "prefix_hashes": "List",
    "prefix_block_tokens": "Int32",
    "continues": "Int32",
    "max_output_tokens": "Int32",
}


class Record:
    """A writer of served requests to a Parquet file.

    If replicas received commands, a `.failures.json` file next to it holds the `Failures` that repeat the
    run.

    Args:
        path: the file, created on close; temporary parts are next to it.
        block: tokens per block of `prefix_hashes`.

    Raises:
        ConfigError: the name does not end in `.parquet`, or the file exists.
    """

    def __init__(self, path: str | os.PathLike[str], block: int) -> None:
        self._path, self._block = path_of("record", path), block
        if self._path.suffix != ".parquet":
            raise ConfigError("record", f"must end in .parquet, got {str(path)!r}")
        self._failures = self._path.with_suffix(".failures.json")
        for file in (self._path, self._failures):
            if file.exists():
                raise ConfigError("record", f"{file} already exists; choose another name")
        self._parts: list[Path] = []
        self._cancel_s: dict[int, float] = {}
        self._begin()

    def _begin(self) -> None:
        self._rows: dict[str, list[object]] = {name: [] for name in _SCHEMA}

    def add(self, at_ns: int, sent: FleetRequest, request: int) -> None:
        """Add a request; ids are in order."""
        prompt, rows = sent.prompt, self._rows
        rows["arrival_s"].append(at_ns / NANOSECONDS)
        rows["prompt_tokens"].append(len(prompt.ids))
        rows["output_tokens"].append(sent.output_tokens)
        rows["priority"].append(sent.priority)
        rows["session_id"].append(sent.session)
        rows["prefix_hashes"].append(prompt.hashes if prompt.continues is None else None)
        rows["prefix_block_tokens"].append(self._block)
        rows["continues"].append(prompt.continues)
        rows["max_output_tokens"].append(sent.max_tokens)
        if len(rows["arrival_s"]) == _ROWS:
            self._flush()

    def cancel(self, request: int, after_ns: int) -> None:
        """Record that the client of a request disconnected."""
        self._cancel_s[request] = after_ns / NANOSECONDS

    def _flush(self) -> None:
        part = self._path.with_name(f".{self._path.name}.part-{len(self._parts)}")
        self._frame().write_parquet(part)
        self._parts.append(part)
        self._begin()

    def _frame(self) -> pl.DataFrame:
        kinds = {
            name: pl.List(pl.Int64) if kind == "List" else getattr(pl, kind) for name, kind in _SCHEMA.items()
        }
        return pl.DataFrame(self._rows, schema=kinds)

    def close(self, failures: Failures | None) -> int:
        """Write the file, unless it has no rows, and the failures; return the number of rows."""
        if failures is not None:
            self._failures.write_text(json.dumps(failures.to_json()) + "\n")
        self._flush()
        frame = pl.scan_parquet(self._parts)
        rows = int(frame.select(pl.len()).collect().item())
        if rows:
            (self._with_cancels(frame) if self._cancel_s else frame).sink_parquet(self._path)
        for part in self._parts:
            part.unlink()
        return rows

    def _with_cancels(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """Add the column `cancel_s`."""
        columns = {"row": list(self._cancel_s), "cancel_s": list(self._cancel_s.values())}
        cancels = pl.LazyFrame(columns, schema={"row": pl.UInt32, "cancel_s": pl.Float64})
        numbered = frame.with_row_index("row")
        return numbered.join(cancels, on="row", how="left", maintain_order="left").drop("row")
