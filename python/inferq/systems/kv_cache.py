"""KvCache: the paged memory for keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from inferq.description import Description, fields_of

BLOCK = 16
"""Default tokens of a block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedLayers(Description):
    """Equal layers of a model in a `KvGroups`.

    Args:
        layers: number of layers, at least 1.
        window: tokens of the sliding window, at least 2. None: every token is kept.
        state: whether the layers keep one state per request instead of keys and values (Mamba, linear
            attention).
        token_bytes: bytes of one token in one layer, in any unit: only ratios matter. Layers with fewer bytes
            have longer blocks, so that all pages are equal.

    Example:
        >>> import inferq as iq
        >>> iq.CachedLayers(layers=12, window=128).to_json()
        {'layers': 12, 'window': 128, 'state': False, 'token_bytes': 1}
    """

    layers: int
    window: int | None = None
    state: bool = False
    token_bytes: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return the layers as JSON-ready values."""
        return fields_of(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class KvGroups(Description):
    """The layers of a model whose layers keep different amounts, grouped as in vLLM.

    Layers of one kind form groups of equal size. A request has a block table per group, and all groups take
    blocks from one pool. Blocks that leave a window are freed. A prefix hit needs all groups.

    Let f and m be the layers of the rarest and of the most frequent kind. A group has m layers if m < 1.5·f,
    otherwise f.

    Source: vLLM 0.33.0, `v1/core/kv_cache_utils.py` and `v1/core/kv_cache_coordinator.py`.

    Args:
        kinds: the layers, in order of the first layer of each kind. Full attention is required. Windows and
            states exclude each other.
        retention_interval: distance in tokens of the places at which windows and states stay cached
            (`prefix_cache_retention_interval`). 0: only the last block boundary of each prompt, and the end
            of a prefix that other requests share. None: every block boundary.
        saves_states_in_rows: whether kernels can store a state inside a row (GDN, Mamba2). Otherwise a row
            ends at each state.

    Raises:
        ConfigError: no full attention, windows next to states, or `token_bytes` that do not divide the
            largest.

    Example:
        >>> import inferq as iq
        >>> full, sliding = iq.CachedLayers(layers=12), iq.CachedLayers(layers=12, window=128)
        >>> iq.KvCache(tokens=500_000, groups=iq.KvGroups(kinds=[full, sliding])).groups.kinds[1].window
        128
    """

    kinds: Sequence[CachedLayers]
    retention_interval: int | None = 0
    saves_states_in_rows: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the layers as JSON-ready values."""
        return {**fields_of(self), "kinds": [kind.to_json() for kind in self.kinds]}


@dataclass(frozen=True, kw_only=True, slots=True)
class KvCache(Description):
    """The paged memory for keys and values.

    The capacity is `tokens // block` blocks. Blocks are allocated when a batch is formed and freed when the
    request ends or is preempted. A request whose longest context exceeds the capacity is rejected at arrival.

    Source: vLLM's paged cache and SGLang's radix tree; with `block=1` the token-wise memory of nie2026 and
    ao2025.

    Args:
        tokens: capacity in tokens, at least one block. None: no limit, see `KvCache.unlimited`.
        block: tokens of a block, from 1 to 1,048,576.
        prefix_cache: `"blocks"`: prefix caching as in vLLM. A request reuses whole computed blocks of the
            longest common prefix, see the prefix columns of `Workload`. A block stays cached after its last
            request ends, until its memory is needed; the least recently released block is evicted first.
            `"radix"`: prefix caching as in SGLang, for pages of `block` tokens in a radix tree. Tokens are
            cached after the iteration that computes them, cached pages are not stored twice, and whole runs
            are evicted, the least recently used first. None: no prefix caching.
        groups: the layers of a model with sliding windows or states, see `KvGroups`. A block then holds
            `block` tokens of the widest layers of one group, so a token takes a block in every group.
            Supported by `VllmV1` without speculation. None: every layer keeps every token.

    Raises:
        ConfigError: a number outside these ranges, an unknown prefix cache, or groups with
            `prefix_cache="radix"`.

    Example:
        >>> import inferq as iq
        >>> iq.KvCache(tokens=432_000).to_json()
        {'tokens': 432000, 'block': 16, 'prefix_cache': None}
    """

    part: ClassVar[str | None] = "kv"

    tokens: int | None
    block: int = BLOCK
    prefix_cache: Literal["blocks", "radix"] | None = None
    groups: KvGroups | None = None

    @classmethod
    def unlimited(cls) -> KvCache:
        """Create a cache without limit.

        Example:
            >>> import inferq as iq
            >>> iq.KvCache.unlimited().tokens is None
            True
        """
        return cls(tokens=None)

    @property
    def whole_tokens(self) -> int | None:
        """Tokens of its whole blocks; None: no limit."""
        return None if self.tokens is None else self.tokens // self.block * self.block

    @classmethod
    def from_text(cls, text: str) -> KvCache | None:
        """Read `"unlimited"`, because TOML has no null."""
        return cls.unlimited() if text == "unlimited" else None

    def to_json(self) -> dict[str, Any]:
        """Return the cache as JSON-ready values."""
        fields = fields_of(self)
        if self.groups is None:
            del fields["groups"]
        return fields
