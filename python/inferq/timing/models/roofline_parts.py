"""Optional parts of a roofline: routed experts, limited attention, recurrent states, exchanges of experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferq.checks import nearest
from inferq.description import Description, field_names, fields_of
from inferq.errors import ConfigError


class _Part(Description):
    """Seconds of a part, without a `kind` in JSON."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return fields_of(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertsRoof(_Part):
    """Layers with routed experts.

    n tokens take `base_s + s_per_token·n + weight_s·(1 − (1 − active/experts)ⁿ)`.

    Args:
        experts: routed experts of a layer.
        active: experts that a token uses.
        ranks: batches of equal size that these experts serve: the ranks of data-parallel attention. They
            multiply the n of the share.
        s_per_token: time to compute a token, and to read and write its activations.
        weight_s: time to read all experts of these layers.
        base_s: fixed time: routing, permutation, gaps between kernels.

    Raises:
        ConfigError: a value of the wrong type. The roofline checks ranges.

    Example:
        >>> from inferq.timing import ExpertsRoof
        >>> ExpertsRoof(experts=8, active=2, s_per_token=1e-6, weight_s=0.01, base_s=0.001).ranks
        1
    """

    experts: int
    active: int
    s_per_token: float
    weight_s: float
    base_s: float
    ranks: int = 1


_WINDOW_PARTS: Mapping[str, tuple[str, ...]] = {
    "chunk": ("compute_s_per_pair", "memory_s_per_token"),
    "decode": ("compute_s_per_token", "memory_s_per_token"),
}
"""The tables of a window in the core's description, and their fields."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowRoof(_Part):
    """Layers in which a token attends to at most `tokens` tokens, itself included.

    Chunks count their exact pairs. Decodes share a limit of `tokens` each, at their mean context.

    Args:
        tokens: the limit.
        restarts: whether attention restarts at every multiple of `tokens` (Llama 4), instead of sliding.
        chunk_compute_s_per_pair: compute time per pair of a token and a token that it attends to.
        chunk_memory_s_per_token: time to read a token of the cache for a chunk.
        decode_compute_s_per_token: compute time of a decode per token that it attends to.
        decode_memory_s_per_token: time to read it.

    Raises:
        ConfigError: a value of the wrong type. The roofline checks ranges.

    Example:
        >>> from inferq.timing import WindowRoof
        >>> window = WindowRoof(
        ...     tokens=128, chunk_compute_s_per_pair=1e-9, chunk_memory_s_per_token=1e-8,
        ...     decode_compute_s_per_token=1e-9, decode_memory_s_per_token=1e-8,
        ... )
        >>> window.to_json()["decode"]
        {'compute_s_per_token': 1e-09, 'memory_s_per_token': 1e-08}
    """

    tokens: int
    restarts: bool = False
    chunk_compute_s_per_pair: float
    chunk_memory_s_per_token: float
    decode_compute_s_per_token: float
    decode_memory_s_per_token: float

    def to_json(self) -> dict[str, Any]:
        """Return the fields as the core reads them."""
        return {"tokens": self.tokens, "restarts": self.restarts, **in_tables(fields_of(self), _WINDOW_PARTS)}

    @classmethod
    def from_elsewhere(cls, path: str, description: Mapping[str, Any]) -> WindowRoof | None:
        """Read the window from `to_json()`."""
        if "chunk" not in description:
            return None
        flat = out_of_tables(path, description, _WINDOW_PARTS, ("tokens", "restarts"))
        if missing := [name for name in field_names(cls) if name != "restarts" and name not in flat]:
            raise ConfigError(f"{path}.{missing[0]}", "missing")
        return cls(**flat)


@dataclass(frozen=True, kw_only=True, slots=True)
class StateRoof(_Part):
    """Recurrent states of sequences.

    Args:
        s_per_decode: time to read and write the states of a decode.
        s_per_chunk: time to read and write the states of the request of a chunk.
        s_per_chunk_token: time of the recurrence per token of a chunk.

    Raises:
        ConfigError: a value of the wrong type. The roofline checks ranges.

    Example:
        >>> from inferq.timing import StateRoof
        >>> StateRoof(s_per_decode=1e-6, s_per_chunk=1e-6, s_per_chunk_token=1e-8).to_json()
        {'s_per_decode': 1e-06, 's_per_chunk': 1e-06, 's_per_chunk_token': 1e-08}
    """

    s_per_decode: float
    s_per_chunk: float
    s_per_chunk_token: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeRoof(_Part):
    """All-to-all exchange of tokens between experts on different GPUs.

    Args:
        latency_s: total latency of all exchanges of an iteration.
        s_per_token: time to send the activations of a token, in all layers and both ways.

    Raises:
        ConfigError: a value of the wrong type. The roofline checks ranges.

    Example:
        >>> from inferq.timing import ExchangeRoof
        >>> ExchangeRoof(latency_s=1e-3, s_per_token=1e-6).latency_s
        0.001
    """

    latency_s: float
    s_per_token: float


def in_tables(flat: Mapping[str, Any], parts: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """The fields `part_name` of a description as tables of their parts."""
    return {part: {name: flat[f"{part}_{name}"] for name in names} for part, names in parts.items()}


def out_of_tables(
    path: str, table: Mapping[str, Any], parts: Mapping[str, tuple[str, ...]], others: tuple[str, ...]
) -> dict[str, Any]:
    """The inverse of `in_tables`; fields of `others` stay as they are.

    Raises:
        ConfigError: an unknown field, named by its path.
    """
    flat: dict[str, Any] = {}
    for key, part in table.items():
        if key in others:
            flat[key] = part
            continue
        if key not in parts:
            raise ConfigError(path, f"unknown field {key!r}{nearest(str(key), (*parts, *others))}")
        if not isinstance(part, Mapping):
            raise ConfigError(f"{path}.{key}", f"must be a table of fields, got {part!r}")
        for name, value in part.items():
            if name not in parts[key]:
                raise ConfigError(f"{path}.{key}", f"unknown field {name!r}{nearest(str(name), parts[key])}")
            flat[f"{key}_{name}"] = value
    return flat
