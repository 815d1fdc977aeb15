"""Provenance of a table: the source of its times, as immutable JSON-ready values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferq.description import Table
from inferq.errors import ConfigError


def title(provenance: Mapping[str, Any]) -> str:
    """Model, GPUs and backend of a table; empty if its provenance lacks model or GPU."""
    model, gpu = provenance.get("model"), provenance.get("gpu")
    if not model or not gpu:
        return ""
    backend = f"{provenance.get('backend', '')} {provenance.get('backend_version') or ''}".strip()
    gpus = provenance.get("tensor_parallel", 1)
    return f"{model} on {f'{gpus} × ' if gpus != 1 else ''}{gpu}{f', {backend}' if backend else ''}"


def frozen(path: str, value: Any) -> Any:
    """Return JSON-ready values in immutable form.

    Raises:
        ConfigError: a value that JSON cannot represent.
    """
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(path, f"keys must be text, got {key!r}")
        return Table({key: frozen(f"{path}.{key}", item) for key, item in value.items()}, as_given=True)
    if isinstance(value, (list, tuple)):
        return tuple(frozen(f"{path}[{index}]", item) for index, item in enumerate(value))
    if (
        value is None
        or isinstance(value, (str, bool, int))
        or (isinstance(value, float) and value - value == 0)
    ):
        return value
    raise ConfigError(path, f"JSON cannot represent {value!r}")


def thawed(value: Any) -> Any:
    """The inverse of `frozen`, as lists and dicts."""
    if isinstance(value, Mapping):
        return {key: thawed(item) for key, item in value.items()}
    return [thawed(item) for item in value] if isinstance(value, tuple) else value
