"""A planned fleet as a scenario in TOML, to be committed and held by `inferq gate`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from inferq.scenario import Scenario
from inferq.systems.engine import Engine

if TYPE_CHECKING:
    from inferq.experiments.plans.fleet_plan import FleetPlan

_OF_CARD = (
    *(
        "model",
        "gpu",
        "tensor_parallel",
        "server",
        "max_model_len",
        "gpu_memory_utilization",
        "weights",
        "kv_dtype",
    ),
    "backend",
)
_TOLERANCE = "5%"


def scenario_as_toml(plan: FleetPlan) -> str:
    """The text; see `FleetPlan.toml`."""
    fleet = plan.fleet
    if fleet is None:
        return ""
    answer = plan.answer
    assert answer is not None
    gate: dict[str, Any] = {
        "seeds": 1 if plan.exact else len(plan.seeds),
        "tolerance": dict.fromkeys(plan.slo.limits, _TOLERANCE),
    }
    if plan.priced is not None:
        gate["tolerance"]["cost_per_million_output_tokens"] = _TOLERANCE
        gate["prices"] = plan.priced.to_json()
    described = Scenario(plan.workload, fleet, dict(plan.prober.options), gate if plan.slo.limits else None)
    tables = _told(described.to_json())
    short = _short(answer.candidate.engine)
    if short is not None:
        tables = _with_engine(tables, short)
    head = f"# {plan.findings[0]}.\n\n"
    return head + "\n".join(toml(tables)) + "\n"


def _told(value: Any) -> Any:
    """JSON without nulls, which TOML has not; the cache without an end has a name of its own."""
    if isinstance(value, Mapping):
        if set(value) >= {"tokens", "block"} and value["tokens"] is None:
            return "unlimited"
        return {name: _told(one) for name, one in value.items() if one is not None}
    return [_told(one) for one in value] if isinstance(value, (list, tuple)) else value


def _short(engine: Engine) -> dict[str, Any] | None:
    """The engine as the arguments of `Engine.on`, where these make the same one."""
    given = {name: engine.on_card[name] for name in _OF_CARD if name in engine.on_card}
    described = {**given, "scheduler": _told(engine.scheduler.to_json())}
    if engine.kv.prefix_cache is None:
        described["prefix_cache"] = "none"
    elif "server" not in given:
        described["prefix_cache"] = engine.kv.prefix_cache
    try:
        return described if Engine.from_json(described) == engine else None
    except (TypeError, ValueError):
        return None


def _with_engine(tables: Any, short: dict[str, Any]) -> Any:
    """The tables with the engine in its short form, wherever it stands."""
    if isinstance(tables, Mapping):
        return {
            name: short if name in ("engine", "engines") else _with_engine(one, short)
            for name, one in tables.items()
        }
    return tables


def toml(table: Mapping[str, Any], path: str = "") -> Iterator[str]:
    r"""The lines of a table and of those within it.

    >>> print("\n".join(toml({"a": 1, "b": {"c": "x", "d": [1.5, True]}})))
    a = 1
    <BLANKLINE>
    [b]
    c = "x"
    d = [1.5, true]
    """
    inner = {name: one for name, one in table.items() if isinstance(one, Mapping)}
    for name, one in table.items():
        if name not in inner:
            yield f"{_key(name)} = {_value(one)}"
    for name, one in inner.items():
        here = f"{path}.{_key(name)}" if path else _key(name)
        if not one or any(not isinstance(value, Mapping) for value in one.values()):
            yield ""
            yield f"[{here}]"
        yield from toml(one, here)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {_value(one)}" for name, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)
