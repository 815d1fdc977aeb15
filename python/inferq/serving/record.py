"""The requests of a run that was served, as a trace that `simulate` replays."""

from __future__ import annotations

import json
import os
from pathlib import Path

from inferq._lazy import pl
from inferq.errors import ConfigError
from inferq.inputs import path_of
from inferq.serving.fleet import Ask
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
    """Rows on their way into a Parquet file, some thousand in memory.

    Where replicas were told to die, to drain or to start, a file `.failures.json` beside it has the
    `Failures` with which the run repeats.

    Args:
        path: the file, made when the record is closed; parts of it stand beside it until then.
        block: tokens of a block of `prefix_hashes`.

    Raises:
        ConfigError: a name that does not end in `.parquet`, or a file that is there.
    """

    def __init__(self, path: str | os.PathLike[str], block: int) -> None:
        self._path, self._block = path_of("record", path), block
        if self._path.suffix != ".parquet":
            raise ConfigError("record", f"must end in .parquet, is {str(path)!r}")
        self._failures = self._path.with_suffix(".failures.json")
        for file in (self._path, self._failures):
            if file.exists():
                raise ConfigError("record", f"{file} is there already")
        self._parts: list[Path] = []
        self._cancel_s: dict[int, float] = {}
        self._begin()

    def _begin(self) -> None:
        self._rows: dict[str, list[object]] = {name: [] for name in _SCHEMA}

    def add(self, at_ns: int, ask: Ask, request: int) -> None:
        """A request came. They come in the order of their ids."""
        prompt, rows = ask.prompt, self._rows
        rows["arrival_s"].append(at_ns / NANOSECONDS)
        rows["prompt_tokens"].append(len(prompt.ids))
        rows["output_tokens"].append(ask.output_tokens)
        rows["priority"].append(ask.priority)
        rows["session_id"].append(ask.session)
        rows["prefix_hashes"].append(prompt.hashes if prompt.continues is None else None)
        rows["prefix_block_tokens"].append(self._block)
        rows["continues"].append(prompt.continues)
        rows["max_output_tokens"].append(ask.most_tokens)
        if len(rows["arrival_s"]) == _ROWS:
            self._flush()

    def take_back(self, request: int, after_ns: int) -> None:
        """The client of a request went away so long after it had come."""
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
        """Write the file, if any request came, and the failures. Returns how many came."""
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
        """The rows with `cancel_s`."""
        columns = {"row": list(self._cancel_s), "cancel_s": list(self._cancel_s.values())}
        cancels = pl.LazyFrame(columns, schema={"row": pl.UInt32, "cancel_s": pl.Float64})
        numbered = frame.with_row_index("row")
        return numbered.join(cancels, on="row", how="left", maintain_order="left").drop("row")
