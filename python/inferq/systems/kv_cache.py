"""KvCache: the paged memory for keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from inferq.description import Description, fields_of

BLOCK = 16
"""Default tokens of a block."""


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

    Raises:
        ConfigError: a number outside these ranges, or an unknown prefix cache.

    Example:
        >>> import inferq as iq
        >>> iq.KvCache(tokens=432_000).to_json()
        {'tokens': 432000, 'block': 16, 'prefix_cache': None}
    """

    part: ClassVar[str | None] = "kv"

    tokens: int | None
    block: int = BLOCK
    prefix_cache: Literal["blocks", "radix"] | None = None

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
        return fields_of(self)
