"""The baseline: the numbers that were last accepted.

A baseline is one JSON file to be committed: by scenario what was run, and each metric with every seed. Runs
are bit-exact and numbers are written in the shortest decimals that read back the same, so that what is
unchanged gives the same bytes on any machine. Keys are sorted and a metric is one line, so that a change
reads well in a pull request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from inferq.checks import finite
from inferq.errors import ConfigError
from inferq.experiments.leaves import leaves, plain
from inferq.files import write_whole
from inferq.inputs import parsed_json, read_text

FORMAT = "inferq gate baseline, version 1"
DEFAULT_FILE = "inferq-baseline.json"

_REMEDY = "take it from version control, or remove it and make it anew"

_LONGEST = 80
"""So many characters of a value are shown where a description has changed."""

_UNEQUAL = {
    "requests_sha256": "the requests differ",
    "seeds": "the seeds differ",
    "run": "the options of the run differ",
    "slo": "the objectives differ",
    "prices": "the prices differ",
}
"""What makes two records two scenarios: their values cannot be held against each other."""


@dataclass(frozen=True, slots=True)
class Record:
    """One scenario as it was run."""

    inferq: str
    """The version that ran it."""

    requests: str
    """The workload, to be read."""

    requests_sha256: str
    """Of the requests of all seeds."""

    run: Mapping[str, Any]
    """The options of `simulate` that change what is measured."""

    seeds: tuple[int, ...]
    slo: Mapping[str, float] | None
    prices: Mapping[str, Any] | None
    """Of GPUs and tokens; None where money and energy are not looked at."""
    system: Mapping[str, Any]
    """What served the requests. It is what is under test, and may differ."""

    values: Mapping[str, tuple[float | None, ...]]
    """Of each metric, seed by seed; None where no request tells it."""

    def unlike(self, other: Record) -> str:
        """Why the values of another record cannot be held against these; empty where they can."""
        reasons = []
        for name, reason in _UNEQUAL.items():
            theirs, ours = (plain(getattr(one, name)) for one in (other, self))
            if theirs == ours:
                continue
            if name == "requests_sha256" and self.seeds != other.seeds and self.requests == other.requests:
                continue  # it is of the requests of all seeds, which differ for that reason
            if name == "requests_sha256":
                theirs, ours = other.requests, self.requests
                if theirs == ours:
                    reasons.append(
                        f"{reason}, although both are {ours}: the trace or its drawing has changed"
                    )
                    continue
            reasons.append(f"{reason}: {_brief(theirs)} there, {_brief(ours)} here")
        return "; ".join(reasons)

    def changes(self, now: Record) -> list[str]:
        """What differs in the description of the system from this record to another, a line each."""
        before, after = dict(leaves(self.system)), dict(leaves(now.system))
        lines = []
        for path in sorted({*before, *after}):
            if path not in before:
                lines.append(f"{path}: {_told(after[path])} (new)")
            elif path not in after:
                lines.append(f"{path}: {_told(before[path])} (gone)")
            elif before[path] != after[path]:
                ours, theirs = _told(before[path]), _told(after[path])
                lines.append(f"{path}: {ours} → {theirs if theirs != ours else f'{theirs}, others'}")
        return lines


def read_baseline(path: Path) -> dict[str, Record]:
    """The records in a file, by scenario.

    Raises:
        ConfigError: the file is no baseline; it names the file and the place.
        OSError: it cannot be read.
    """
    try:
        text = read_text(path)
        marks = "<<<<<<<" in text
        data = parsed_json(
            text, lambda reason: ConfigError("has the marks of a merge conflict" if marks else reason)
        )
        return _records(data)
    except ConfigError as error:
        raise ConfigError(path, f"{error}; {_REMEDY}") from None


def text_of(records: Mapping[str, Record]) -> str:
    """The file that holds these records."""
    scenarios = {
        name: {field.name: getattr(record, field.name) for field in fields(Record)}
        for name, record in records.items()
    }
    for one in scenarios.values():
        if one["prices"] is None:
            del one["prices"]
    return _written({"format": FORMAT, "scenarios": scenarios}) + "\n"


def write_baseline(path: Path, records: Mapping[str, Record]) -> bool:
    """Write the file as a whole or not at all; whether it has changed.

    Raises:
        OSError: it cannot be written; what was there is as it was.
    """
    text = text_of(records).encode("utf-8", "backslashreplace")
    if path.is_file() and path.read_bytes() == text:
        return False
    write_whole(path, text)
    return True


def _written(value: object, indent: str = "", key: str = "") -> str:
    """As JSON: a line for each entry of a table, and for each list that holds no table."""
    deeper = f"{indent}  "
    if isinstance(value, Mapping) and value:
        lines = [f"{deeper}{json.dumps(name)}: {_written(value[name], deeper)}" for name in sorted(value)]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, (list, tuple)) and any(isinstance(one, Mapping) for one in value):
        return "[\n" + ",\n".join(f"{deeper}{_written(one, deeper)}" for one in value) + f"\n{indent}]"
    return json.dumps(plain(value), sort_keys=True, allow_nan=False)


def _told(value: object) -> str:
    """A value as JSON; a long list, such as the times of a table, by how many it has."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= _LONGEST:
        return text
    return f"{_count(value):,} values" if isinstance(value, list) else f"{text[: _LONGEST - 1]}…"


def _count(value: object) -> int:
    return sum(map(_count, value)) if isinstance(value, list) else 1


def _brief(value: object) -> str:
    """A value in an error: seeds by their ends."""
    if isinstance(value, list) and len(value) > 4:
        return f"{value[0]} to {value[-1]} ({len(value)})"
    return value if isinstance(value, str) else json.dumps(value)


def _records(data: object) -> dict[str, Record]:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        version = data.get("format") if isinstance(data, dict) else None
        raise ConfigError("format", f"must be {FORMAT!r}, is {version!r}")
    scenarios = data.get("scenarios")
    if not isinstance(scenarios, dict):
        raise ConfigError("scenarios", "must be a table of scenarios by name")
    return {name: _record(f"scenarios.{name}", one) for name, one in scenarios.items()}


def _record(path: str, data: object) -> Record:
    if not isinstance(data, dict):
        raise ConfigError(path, "must be a table")
    data = {"prices": None, **data}
    for field in fields(Record):
        if field.name not in data:
            raise ConfigError(f"{path}.{field.name}", "missing")
    if unknown := sorted({*data} - {field.name for field in fields(Record)}):
        raise ConfigError(f"{path}.{unknown[0]}", "unknown")
    for name in ("inferq", "requests", "requests_sha256"):
        if not isinstance(data[name], str):
            raise ConfigError(f"{path}.{name}", "must be a text")
    for name in ("run", "system", "values", "slo", "prices"):
        if not isinstance(data[name], dict) and not (name in ("slo", "prices") and data[name] is None):
            raise ConfigError(f"{path}.{name}", "must be a table")
    seeds = data["seeds"]
    if not isinstance(seeds, list) or not all(type(seed) is int for seed in seeds) or not seeds:
        raise ConfigError(f"{path}.seeds", "must be a list of whole numbers")
    values = {name: _values(f"{path}.values.{name}", one, len(seeds)) for name, one in data["values"].items()}
    return Record(**{**data, "seeds": tuple(seeds), "values": values})


def _values(path: str, data: object, count: int) -> tuple[float | None, ...]:
    if not isinstance(data, list) or len(data) != count:
        raise ConfigError(path, f"must be a list of {count} numbers, one a seed")
    return tuple(
        None if value is None else finite(f"{path}[{place}]", value) for place, value in enumerate(data)
    )
