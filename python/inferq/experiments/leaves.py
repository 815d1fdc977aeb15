"""Nested tables flattened to values with their paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inferq.workload.workload import Workload


def requests_of(workload: Workload) -> dict[str, Any]:
    """The requests of a workload as JSON, without their source."""
    return {name: part for name, part in workload.to_json().items() if name not in ("metadata", "trace")}


def plain(value: Any) -> Any:
    """Tuples and mappings of any class as lists and dicts."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of a nested table with their paths. A list without tables is one value.

    >>> list(leaves({"engine": {"kv": {"tokens": 9}}, "mix": [{"rate": 1}, {"rate": 2}], "shares": (1, 2)}))
    [('engine.kv.tokens', 9), ('mix[0].rate', 1), ('mix[1].rate', 2), ('shares', [1, 2])]
    """
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from leaves(item, f"{path}.{name}" if path else str(name))
    elif isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value):
        for place, item in enumerate(value):
            yield from leaves(item, f"{path}[{place}]")
    else:
        yield path, plain(value)
