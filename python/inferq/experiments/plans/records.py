"""What was run, by fleet, length and seed: in memory, and in a file from which a plan goes on."""

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
"""The fleet, how many requests, and the seed."""

_EVERY_S = 1.0
_SHARE = 20


class Records(MutableMapping[Key, tuple[float, ...]]):
    """The values of each run.

    Args:
        path: the file; None keeps them in memory alone.
        about: what all runs have in common, a text that the file must have been made with.
    """

    def __init__(self, path: Path | None, about: str) -> None:
        self._path, self._about, self._written = path, about, time.monotonic()
        self._took_s = 0.0
        self._kept: dict[Key, tuple[float, ...]] = {}
        if path is not None and path.exists():
            self._read(path)

    @property
    def is_kept(self) -> bool:
        """Whether there is a file."""
        return self._path is not None

    def __getitem__(self, key: Key) -> tuple[float, ...]:
        return self._kept[key]

    def __setitem__(self, key: Key, values: tuple[float, ...]) -> None:
        self._kept[key] = values

    def __delitem__(self, key: Key) -> None:
        del self._kept[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def write(self, *, now: bool = False) -> None:
        """Write the file whole, about once a second, or as often as takes a twentieth of the time."""
        begun = time.monotonic()
        due_s = max(_EVERY_S, _SHARE * self._took_s)
        if self._path is None or not (now or begun - self._written > due_s):
            return
        runs = [[*key, list(map(repr, values))] for key, values in self._kept.items()]
        write_text(self._path, json.dumps({"plan": self._about, "runs": runs}) + "\n")
        self._written = time.monotonic()
        self._took_s = self._written - begun

    def _read(self, path: Path) -> None:
        refuse = partial(ResultError, str(path))
        read = parsed_json(read_text(path, refuse), refuse)
        if not isinstance(read, dict) or set(read) != {"plan", "runs"}:
            raise refuse("holds no runs of a plan")
        if read["plan"] != self._about:
            raise refuse("is of another workload, SLO or other options; take another name")
        for place, row in enumerate(read["runs"]):
            try:
                key, requests, seed, values = row
                self._kept[str(key), int(requests), int(seed)] = tuple(map(float, values))
            except (TypeError, ValueError):
                raise ResultError(str(path), f"runs[{place}]: {row!r} is no run") from None
