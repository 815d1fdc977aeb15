"""The baseline: the last accepted values.

A baseline is a JSON file to commit. It contains, by scenario, what was run and each metric for every seed.
Runs are bit-exact and numbers are written in the shortest exact decimals, so unchanged results give the same
bytes on any machine. Keys are sorted and a metric is one line, for readable diffs.
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

_REMEDY = "restore it from version control, or remove and recreate it"

_LONGEST = 80
"""Maximum characters of a value in a list of changes."""

_UNEQUAL = {
    "requests_sha256": "the requests differ",
    "seeds": "the seeds differ",
    "run": "the options of the run differ",
    "slo": "the objectives differ",
    "prices": "the prices differ",
}
"""Fields that must be equal for a comparison of values."""


@dataclass(frozen=True, slots=True)
class Record:
    """One scenario as run."""

    inferq: str
    """The version of inferq."""

    requests: str
    """The workload, for readers."""

    requests_sha256: str
    """Digest of the requests of all seeds."""

    run: Mapping[str, Any]
    """Options of `simulate` that affect metrics."""

    seeds: tuple[int, ...]
    slo: Mapping[str, float] | None
    prices: Mapping[str, Any] | None
    """Prices of GPUs and tokens, or None."""
    system: Mapping[str, Any]
    """The system under test, which may differ."""

    values: Mapping[str, tuple[float | None, ...]]
    """Values of each metric by seed. None if missing."""

    def unlike(self, other: Record) -> str:
        """The reason why the values of another record are not comparable. Empty if they are."""
        reasons = []
        for name, reason in _UNEQUAL.items():
            theirs, ours = (plain(getattr(record, name)) for record in (other, self))
            if theirs == ours:
                continue
            if name == "requests_sha256" and self.seeds != other.seeds and self.requests == other.requests:
                continue  # the digest covers all seeds, which differ
            if name == "requests_sha256":
                theirs, ours = other.requests, self.requests
                if theirs == ours:
                    reasons.append(f"{reason}, although both are {ours}: the trace or random numbers changed")
                    continue
            reasons.append(f"{reason}: {_brief(theirs)} in the baseline, {_brief(ours)} now")
        return "; ".join(reasons)

    def changes(self, now: Record) -> list[str]:
        """Differences of the description of the system, one line each."""
        before, after = dict(leaves(self.system)), dict(leaves(now.system))
        lines = []
        for path in sorted({*before, *after}):
            if path not in before:
                lines.append(f"{path}: {_shown(after[path])} (new)")
            elif path not in after:
                lines.append(f"{path}: {_shown(before[path])} (removed)")
            elif before[path] != after[path]:
                old, new = _shown(before[path]), _shown(after[path])
                lines.append(f"{path}: {old} → {new if new != old else f'{new}, changed'}")
        return lines


def read_baseline(path: Path) -> dict[str, Record]:
    """Read the records of a file, by scenario.

    Raises:
        ConfigError: the file is not a baseline; it names the file and the place.
        OSError: it cannot be read.
    """
    try:
        text = read_text(path)
        has_conflict = "<<<<<<<" in text
        data = parsed_json(
            text, lambda reason: ConfigError("contains a merge conflict" if has_conflict else reason)
        )
        return _records(data)
    except ConfigError as error:
        raise ConfigError(path, f"{error}; {_REMEDY}") from None


def text_of(records: Mapping[str, Record]) -> str:
    """The text of a baseline."""
    scenarios = {
        name: {field.name: getattr(record, field.name) for field in fields(Record)}
        for name, record in records.items()
    }
    for record in scenarios.values():
        if record["prices"] is None:
            del record["prices"]
    return _json({"format": FORMAT, "scenarios": scenarios}) + "\n"


def write_baseline(path: Path, records: Mapping[str, Record]) -> bool:
    """Write the file atomically, and return whether it changed.

    Raises:
        OSError: it cannot be written; the old file is unchanged.
    """
    text = text_of(records).encode("utf-8", "backslashreplace")
    if path.is_file() and path.read_bytes() == text:
        return False
    write_whole(path, text)
    return True


def _json(value: object, indent: str = "") -> str:
    """JSON with one line per entry of a table, and per list without tables."""
    deeper = f"{indent}  "
    if isinstance(value, Mapping) and value:
        lines = [f"{deeper}{json.dumps(name)}: {_json(value[name], deeper)}" for name in sorted(value)]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value):
        return "[\n" + ",\n".join(f"{deeper}{_json(item, deeper)}" for item in value) + f"\n{indent}]"
    return json.dumps(plain(value), sort_keys=True, allow_nan=False)


def _shown(value: object) -> str:
    """A value as JSON; a long list by its number of values."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= _LONGEST:
        return text
    return f"{_count(value):,} values" if isinstance(value, list) else f"{text[: _LONGEST - 1]}…"


def _count(value: object) -> int:
    return sum(map(_count, value)) if isinstance(value, list) else 1


def _brief(value: object) -> str:
    """A value in an error; a range of seeds by its ends."""
    if isinstance(value, list) and len(value) > 4:
        return f"{value[0]} to {value[-1]} ({len(value)})"
    return value if isinstance(value, str) else json.dumps(value)


def _records(data: object) -> dict[str, Record]:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        version = data.get("format") if isinstance(data, dict) else None
        raise ConfigError("format", f"must be {FORMAT!r}, got {version!r}")
    scenarios = data.get("scenarios")
    if not isinstance(scenarios, dict):
        raise ConfigError("scenarios", "must be a table of scenarios by name")
    return {name: _record(f"scenarios.{name}", record) for name, record in scenarios.items()}


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
        raise ConfigError(f"{path}.seeds", "must be a list of integers")
    values = {
        name: _values(f"{path}.values.{name}", numbers, len(seeds))
        for name, numbers in data["values"].items()
    }
    return Record(**{**data, "seeds": tuple(seeds), "values": values})


def _values(path: str, data: object, count: int) -> tuple[float | None, ...]:
    if not isinstance(data, list) or len(data) != count:
        raise ConfigError(path, f"must be a list of {count} numbers, one per seed")
    return tuple(
        None if value is None else finite(f"{path}[{place}]", value) for place, value in enumerate(data)
    )
