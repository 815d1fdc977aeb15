"""Results of the runs of a plan by fleet, length and seed, in memory and in a file for resuming."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, MutableMapping
from functools import partial
from pathlib import Path

from inferq.errors import ResultError
from inferq.files import write_text
from inferq.inputs import parsed_json, read_text

Key = tuple[str, int, int]
"""The fleet, the number of requests, and the seed."""

_EVERY_S = 1.0
_MOST_SHARE = 20


class Records(MutableMapping[Key, tuple[float, ...]]):
    """The values of each run.

    Args:
        path: the file. None keeps records in memory only.
        fingerprint: identifies the workload, SLO and options; a file with another fingerprint is refused.
    """

    def __init__(self, path: Path | None, fingerprint: str) -> None:
        self._path, self._fingerprint, self._written = path, fingerprint, time.monotonic()
        self._write_s = 0.0
        self._values: dict[Key, tuple[float, ...]] = {}
        if path is not None and path.exists():
            self._read(path)

    @property
    def has_file(self) -> bool:
        """Whether records are written to a file."""
        return self._path is not None

    def __getitem__(self, key: Key) -> tuple[float, ...]:
        return self._values[key]

    def __setitem__(self, key: Key, values: tuple[float, ...]) -> None:
        self._values[key] = values

    def __delitem__(self, key: Key) -> None:
        del self._values[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def write(self, *, now: bool = False) -> None:
        """Write the file at most once a second, and during at most a twentieth of the time."""
        begun = time.monotonic()
        due_s = max(_EVERY_S, _MOST_SHARE * self._write_s)
        if self._path is None or not (now or begun - self._written > due_s):
            return
        runs = [[*key, list(map(repr, values))] for key, values in self._values.items()]
        write_text(self._path, json.dumps({"plan": self._fingerprint, "runs": runs}) + "\n")
        self._written = time.monotonic()
        self._write_s = self._written - begun

    def _read(self, path: Path) -> None:
        refuse = partial(ResultError, str(path))
        content = parsed_json(read_text(path, refuse), refuse)
        if not isinstance(content, dict) or set(content) != {"plan", "runs"}:
            raise refuse("contains no runs of a plan")
        if content["plan"] != self._fingerprint:
            raise refuse("belongs to another workload, SLO or other options; choose another file name")
        for place, row in enumerate(content["runs"]):
            try:
                key, requests, seed, values = row
                self._values[str(key), int(requests), int(seed)] = tuple(map(float, values))
            except (TypeError, ValueError):
                raise ResultError(str(path), f"runs[{place}] is not a run: {row!r}") from None
