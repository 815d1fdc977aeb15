"""KvCache: the memory for keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from inferq.description import Description, fields_of


@dataclass(frozen=True, kw_only=True, slots=True)
class KvCache(Description):
    """The memory for keys and values, in blocks of tokens.

    The capacity is `tokens // block` blocks. Blocks are taken when a batch is formed and freed when the
    request leaves or is preempted. A request whose largest context needs more blocks than there are is
    rejected at arrival.

    Source: vLLM's paged cache and SGLang's radix tree; with `block=1` the token-wise memory of nie2026 and
    ao2025.

    Args:
        tokens: capacity in tokens, at least one block; None sets no limit, see `KvCache.unlimited`.
        block: tokens of one block, from 1 to 1,048,576.
        prefix_cache: `"blocks"`: a request uses whole blocks that others have computed, as in vLLM: those
            with which both prompts begin, see the columns about prefixes in `Workload`. A block stays known
            after its last request has left, until it is needed for something else, the least recently left
            first. `"radix"`: the same for pages of `block` tokens in a tree of runs, as in SGLang: what an
            iteration computes is known after it, pages that were known already are not kept twice, and runs
            are forgotten whole, the least recently used first.
            None: every request computes all of its prompt.

    Raises:
        ConfigError: a number outside these ranges, or an unknown prefix cache.

    Example:
        >>> import inferq as iq
        >>> iq.KvCache(tokens=432_000).to_json()
        {'tokens': 432000, 'block': 16, 'prefix_cache': None}
    """

    part: ClassVar[str | None] = "kv"

    tokens: int | None
    block: int = 16
    prefix_cache: Literal["blocks", "radix"] | None = None

    @classmethod
    def unlimited(cls) -> KvCache:
        """A cache that never runs short.

        Example:
            >>> import inferq as iq
            >>> iq.KvCache.unlimited().tokens is None
            True
        """
        return cls(tokens=None)

    @property
    def whole_tokens(self) -> int | None:
        """Tokens of its whole blocks; None without a limit."""
        return None if self.tokens is None else self.tokens // self.block * self.block

    @classmethod
    def from_text(cls, text: str) -> KvCache | None:
        """`"unlimited"`, as TOML has no null."""
        return cls.unlimited() if text == "unlimited" else None

    def to_json(self) -> dict[str, Any]:
        """The cache as JSON-ready values."""
        return fields_of(self)
