"""Descriptions as nested tables: the requests of a workload, and each value with its path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inferq.workload.workload import Workload


def requests_of(workload: Workload) -> dict[str, Any]:
    """The requests of a workload as JSON, without where they were read from."""
    return {name: part for name, part in workload.to_json().items() if name not in ("metadata", "trace")}


def plain(value: Any) -> Any:
    """Tuples and tables of any class as what JSON reads back."""
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """The values of a nested table with their paths; a list without tables is one value.

    >>> list(leaves({"engine": {"kv": {"tokens": 9}}, "mix": [{"rate": 1}, {"rate": 2}], "shares": (1, 2)}))
    [('engine.kv.tokens', 9), ('mix[0].rate', 1), ('mix[1].rate', 2), ('shares', [1, 2])]
    """
    if isinstance(value, Mapping) and value:
        for name, one in value.items():
            yield from leaves(one, f"{path}.{name}" if path else str(name))
    elif isinstance(value, (list, tuple)) and any(isinstance(one, Mapping) for one in value):
        for place, one in enumerate(value):
            yield from leaves(one, f"{path}[{place}]")
    else:
        yield path, plain(value)
