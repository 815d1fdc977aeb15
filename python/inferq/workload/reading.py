"""Workloads from descriptions: the JSON of `Workload.to_json`, and the shorter forms of TOML."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from inferq.checks import nearest
from inferq.description import read, table_of
from inferq.errors import ConfigError
from inferq.workload.distributions import (
    ARRIVAL_PROCESSES,
    DURATION_DISTRIBUTIONS,
    LENGTH_DISTRIBUTIONS,
    DurationDistribution,
    Empirical,
    LengthDistribution,
)
from inferq.workload.generated import Origin
from inferq.workload.rows import RowStore
from inferq.workload.trace_options import TraceOptions
from inferq.workload.traces.read_trace import read_trace
from inferq.workload.transforms import duration
from inferq.workload.workload import Workload


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


_READING = ("trace", *_parameters(read_trace)[1:], "sha256")
_CHANGES = tuple(field.name for field in fields(TraceOptions))
_SYNTHETIC = (*_parameters(Workload.synthetic), "classes")
_SESSIONS = _parameters(Workload.sessions)
_MIX = ("mix", "requests")
_ROWS = ("data", "rows", "columns", "sha256")
_ON_ALL = ("prefix", "patience", "metadata", "transforms")

TRANSFORMS = (
    *(
        "at_rate",
        "speed",
        "spread",
        "accumulate_turns",
        "window",
        "head",
        "sample",
        "resample",
        "with_arrivals",
        "with_prompts",
        "with_outputs",
    ),
    *(
        "with_classes",
        "with_think",
        "with_session_arrivals",
        "closed_loop",
        "at_once",
        "open_loop",
        "with_patience",
        "with_prefix",
        "split",
        "concat",
    ),
)
"""Transforms of a workload: methods of `Workload`."""


def read_workload(
    path: str,
    description: object,
    store: RowStore,
    notes: list[str],
    *,
    requests: int | None = None,
    jobs: bool = False,
) -> Workload:
    """Read a workload from a table.

    Args:
        path: path of the table, for errors.
        description: the table.
        store: locations of files and rows.
        notes: receives a sentence for each change of a trace.
        requests: default number of requests of a synthetic workload.
        jobs: whether rows are jobs of a network, which need no lengths.

    Raises:
        ConfigError: a field is unknown, missing or wrong; it names the path.
        TraceError: a trace or its rows are wrong.
        OSError: a trace in it cannot be read.
    """
    table = table_of(path, description)
    if "trace" in table:
        table_of(path, table, (*_READING, *_CHANGES, *_ON_ALL))
        changes = {name: table[name] for name in _CHANGES if name in table}
        if "think" in table:
            changes["think"] = _duration(f"{path}.think", table["think"])
        trace = _trace(path, table, store)
        needs = () if "transforms" in table else ("arrival_s",) if jobs else ("arrival_s", "output_tokens")
        workload = TraceOptions(**changes).apply(trace, notes, needs)
    elif "mix" in table:
        table_of(path, table, (*_MIX, *_ON_ALL))
        workload = _mix(path, table, store, notes, jobs)
    elif "sessions" in table:
        table_of(path, table, (*_SESSIONS, *_ON_ALL))
        workload = _sessions(path, table)
    elif "data" in table or "sha256" in table:
        table_of(path, table, (*_ROWS, *_ON_ALL))
        metadata = dict(table_of(f"{path}.metadata", table.get("metadata", {})))
        workload = Workload._of(store.rows(path, table), metadata=metadata)
    else:
        others = () if "requests" in table else ("trace", "mix", "sessions", "data")
        table_of(path, table, (*others, *_SYNTHETIC, *_ON_ALL))
        workload = _synthetic(path, table, store, requests, jobs or "transforms" in table)
    if "prefix" in table:
        prefix = table_of(f"{path}.prefix", table["prefix"], ("text", "tokens"), ("text", "tokens"))
        workload = _made(f"{path}.prefix", workload.with_prefix, **prefix)
    if "patience" in table:
        workload = workload.with_patience(_duration(f"{path}.patience", table["patience"]))
    steps = table.get("transforms", [])
    if not isinstance(steps, list):
        raise ConfigError(f"{path}.transforms", f"must be a list of tables, got {steps!r}")
    for place, step in enumerate(steps):
        workload = _transformed(workload, f"{path}.transforms[{place}]", step, store)
    return workload


def _made(path: str, make: Callable[..., Any], *arguments: Any, **fields: Any) -> Any:
    """Call a function; errors name the path."""
    try:
        return make(*arguments, **fields)
    except ConfigError as error:
        raise error.within(path) from None


def _transformed(workload: Workload, path: str, description: object, store: RowStore) -> Workload:
    """Apply one transform, a table with its name as `kind` and its arguments."""
    table = dict(table_of(path, description))
    kind = table.pop("kind", None)
    if kind not in TRANSFORMS:
        raise ConfigError(f"{path}.kind", f"unknown transform {kind!r}{nearest(str(kind), TRANSFORMS)}")
    method = getattr(Workload, kind)
    parameters = [entry for entry in inspect.signature(method).parameters.values() if entry.name != "self"]
    names = [entry.name for entry in parameters] + (["part"] if kind == "split" else [])
    needed = [
        entry.name
        for entry in parameters
        if entry.default is entry.empty and entry.kind is not entry.VAR_POSITIONAL
    ]
    table_of(path, table, names, needed)
    arguments = {name: _argument(f"{path}.{name}", name, value, store) for name, value in table.items()}
    others, part = arguments.pop("others", ()), arguments.pop("part", 0)
    changed = _made(path, method, workload, *others, **arguments)
    if kind != "split":
        return changed  # type: ignore[no-any-return]  # a workload
    if part not in (0, 1):
        raise ConfigError(f"{path}.part", f"must be 0 or 1, got {part!r}")
    return changed[part]  # type: ignore[no-any-return]


def _argument(path: str, name: str, value: Any, store: RowStore) -> Any:
    """An argument of a transform: a value, a column, a distribution, or workloads to merge."""
    if name == "others":
        if not isinstance(value, list):
            raise ConfigError(path, f"must be a list of workloads, got {value!r}")
        return [read_workload(f"{path}[{at}]", table, store, []) for at, table in enumerate(value)]
    if name == "end_s" and value is None:
        return math.inf
    if not isinstance(value, Mapping) or (name == "classes" and not {"values", "sha256"} & set(value)):
        return value
    if "values" in value:
        return value["values"]
    if "sha256" in value:
        return store.rows(path, value).to_series(0)
    if name == "arrivals":
        return read(path, value, ARRIVAL_PROCESSES)
    if name in ("prompts", "outputs"):
        kinds: tuple[type[Any], ...] = (*LENGTH_DISTRIBUTIONS, Empirical)
        return read(path, value, kinds)
    return read(path, value, DURATION_DISTRIBUTIONS)


def _synthetic(
    path: str, table: Mapping[str, Any], store: RowStore, requests: int | None, jobs: bool
) -> Workload:
    """A workload of distributions. `jobs` need no lengths."""
    for name in ("requests", "arrivals"):
        if name not in table and (name == "arrivals" or requests is None):
            raise ConfigError(
                f"{path}.{name}", "missing; a workload requires trace, or requests and distributions"
            )
    parts: dict[str, Any] = {"arrivals": read(f"{path}.arrivals", table["arrivals"], ARRIVAL_PROCESSES)}
    if "lengths" in table:
        here, lengths = f"{path}.lengths", table_of(f"{path}.lengths", table["lengths"])
        if "kind" in lengths:
            parts["lengths"] = read(here, lengths, (Empirical,))
        else:
            table_of(here, lengths, _READING)
            parts["lengths"] = Empirical(_trace(here, lengths, store).frame)
    for name in ("prompt", "output"):
        if name in table:
            parts[name] = read(f"{path}.{name}", table[name], LENGTH_DISTRIBUTIONS)
        elif "lengths" not in table and (not jobs or "prompt" in table or "output" in table):
            raise ConfigError(f"{path}.{name}", "missing")
    drawn: Workload = _made(path, Workload.synthetic, requests=table.get("requests", requests), **parts)
    if "classes" in table:
        drawn = _made(path, drawn.with_classes, table_of("classes", table["classes"]))
    return drawn


def _sessions(path: str, table: Mapping[str, Any]) -> Workload:
    """A workload of sessions."""
    table_of(path, table, None, ("arrivals", "turns", "prompt", "output", "think"))
    parts = {name: value for name, value in table.items() if name not in _ON_ALL}
    parts["arrivals"] = read(f"{path}.arrivals", table["arrivals"], ARRIVAL_PROCESSES)
    for name in ("turns", "prompt", "output"):
        parts[name] = _length(f"{path}.{name}", table[name])
    parts["think"] = _duration(f"{path}.think", table["think"])
    return _made(path, Workload.sessions, **parts)  # type: ignore[no-any-return]


def _mix(path: str, table: Mapping[str, Any], store: RowStore, notes: list[str], jobs: bool) -> Workload:
    """A mix of classes. `jobs` need no lengths."""
    requests = table.get("requests")
    parts = {}
    for name, part in table_of(f"{path}.mix", table["mix"]).items():
        own: list[str] = []
        # If the mix has a total, the number of each part does not matter.
        least = None if requests is None else 1
        parts[name] = read_workload(f"{path}.mix.{name}", part, store, own, requests=least, jobs=jobs)
        notes += [f"class {name}: {note}" for note in own]
    return _made(path, Workload.mix, parts, requests=requests)  # type: ignore[no-any-return]


def _length(path: str, value: object) -> int | LengthDistribution:
    """A number of tokens, or a distribution."""
    return read(path, value, LENGTH_DISTRIBUTIONS) if isinstance(value, Mapping) else value  # type: ignore[return-value]


def _duration(path: str, value: object) -> float | DurationDistribution:
    """Seconds, or a distribution."""
    if isinstance(value, Mapping):
        return read(path, value, DURATION_DISTRIBUTIONS)
    return duration(path, value)


def _trace(path: str, table: Mapping[str, Any], store: RowStore) -> Workload:
    """Read the trace of a table. If the table has a SHA-256, the requests must match it."""
    for name in ("trace", "tokenizer"):
        if not isinstance(table.get(name, ""), str):
            raise ConfigError(f"{path}.{name}", f"must be the name of a file, got {table[name]!r}")
    table_of(path, table, None, ("trace",))
    columns, recorded = table.get("columns"), "sha256" in table
    file = store.path(table["trace"], recorded=recorded)
    frame = store.find(str(table["sha256"])) if recorded else None
    if frame is not None:
        how = {name: table[name] for name in _READING if name in table and name != "sha256"}
        # The metadata of a record lists the transforms too, which are applied again.
        metadata = {name: value for name, value in table.get("metadata", {}).items() if name != "changes"}
        return Workload._of(frame, metadata=metadata, origin=Origin(how, frame))
    trace = read_trace(
        file,
        table.get("format"),
        columns=None if columns is None else table_of(f"{path}.columns", columns),
        tokenizer=store.path(table["tokenizer"], recorded=recorded) if "tokenizer" in table else None,
        tokens_per_word=table.get("tokens_per_word"),
        time_unit=table.get("time_unit"),
        **{name: table.get(name) for name in ("clients", "start_s", "end_s", "rate_factor")},
    )
    if recorded and trace.to_json()["sha256"] != table["sha256"]:
        raise ConfigError(f"{path}.sha256", f"{table['trace']} contains other requests than this record")
    return trace
