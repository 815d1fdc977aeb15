"""A planned fleet as a scenario in TOML, for `inferq gate`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from inferq.scenario import Scenario
from inferq.systems.engine import Engine

_ENGINE_OPTIONS = (
    *(
        "model",
        "gpu",
        "tensor_parallel",
        "expert_parallel",
        "server",
        "max_model_len",
        "gpu_memory_utilization",
    ),
    *("weights", "kv_dtype", "backend", "eager"),
)


def scenario_as_toml(scenario: Scenario, engine: Engine, comment: str) -> str:
    """The text of a scenario.

    Args:
        scenario: the scenario.
        engine: the engine of all replicas, written as arguments of `Engine.on` if these describe it fully.
        comment: first line of the text.
    """
    tables = _without_nulls(scenario.to_json())
    short = _short(engine)
    if short is not None:
        tables = _with_engine(tables, short)
    return f"# {comment}\n\n" + "\n".join(toml(tables)) + "\n"


def _without_nulls(value: Any) -> Any:
    """JSON without nulls, which TOML does not have. Unlimited KV caches and links are written by name."""
    if isinstance(value, Mapping):
        if set(value) >= {"tokens", "block"} and value["tokens"] is None:
            return "unlimited"
        if set(value) >= {"bytes_per_s", "concurrent"} and value["concurrent"] is None:
            value = {**value, "concurrent": "unlimited"}
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, (list, tuple)) else value


def _short(engine: Engine) -> dict[str, Any] | None:
    """The engine as arguments of `Engine.on`. None if they do not make the same engine."""
    given = {name: engine.on_card[name] for name in _ENGINE_OPTIONS if name in engine.on_card}
    described = {**given, "scheduler": _without_nulls(engine.scheduler.to_json())}
    if engine.kv.prefix_cache is None:
        described["prefix_cache"] = "none"
    elif "server" not in given:
        described["prefix_cache"] = engine.kv.prefix_cache
    try:
        return described if Engine.from_json(described) == engine else None
    except (TypeError, ValueError):
        return None


def _with_engine(tables: Any, short: dict[str, Any]) -> Any:
    """The tables with the short form of the engine in all places."""
    if isinstance(tables, Mapping):
        return {
            name: short if name in ("engine", "engines") else _with_engine(table, short)
            for name, table in tables.items()
        }
    return tables


def toml(table: Mapping[str, Any], path: str = "") -> Iterator[str]:
    r"""The lines of a table and its inner tables.

    >>> print("\n".join(toml({"a": 1, "b": {"c": "x", "d": [1.5, True]}})))
    a = 1
    <BLANKLINE>
    [b]
    c = "x"
    d = [1.5, true]
    """
    inner = {name: value for name, value in table.items() if isinstance(value, Mapping)}
    for name, value in table.items():
        if name not in inner:
            yield f"{_key(name)} = {_value(value)}"
    for name, inner_table in inner.items():
        here = f"{path}.{_key(name)}" if path else _key(name)
        if not inner_table or any(not isinstance(value, Mapping) for value in inner_table.values()):
            yield ""
            yield f"[{here}]"
        yield from toml(inner_table, here)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {_value(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)
