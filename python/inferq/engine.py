"""What is one replica made of? A timing model, a scheduler and a KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from inferq.description import Description, fields_of, read_fields
from inferq.errors import ConfigError
from inferq.pool import Pool
from inferq.scheduler import SCHEDULERS, Scheduler
from inferq.scheduler.written import UNREADABLE
from inferq.timing import TIMING_MODELS, TimingModel


@dataclass(frozen=True, kw_only=True, slots=True)
class KvCache(Description):
    """The memory for keys and values, in blocks of tokens.

    The capacity is `tokens // block` blocks. Blocks are taken when a batch is formed and freed when the
    request leaves or is preempted. A request whose largest context needs more blocks than there are is
    rejected at arrival.

    Source: vLLM's paged cache; with `block=1` the token-wise memory of nie2026 and ao2025.

    Args:
        tokens: capacity in tokens, at least one block; None sets no limit, see `KvCache.unlimited`.
        block: tokens of one block, from 1 to 1,048,576.
        prefix_cache: only None so far: no request reuses the context of another.

    Raises:
        ConfigError: a number outside these ranges, or a prefix cache that this version does not have.

    Example:
        >>> import inferq as iq
        >>> iq.KvCache(tokens=432_000).describe()
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

    def describe(self) -> dict[str, Any]:
        """The cache as JSON-ready values."""
        return fields_of(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine(Description):
    """One replica: a scheduler forms batches, a KV cache bounds them, a timing model prices them.

    Args:
        timing: how long an iteration takes, see `inferq.timing`.
        scheduler: which requests it serves, see `inferq.scheduler`; or an object of a class of your own, see
            `inferq.Scheduler`.
        kv: the memory for keys and values.
        first_token: `"prefill"`: the iteration that completes a prompt emits the first token, as real engines
            do; `"decode"`: the first decode after it does, as the papers count.

    Raises:
        ConfigError: a part of the wrong kind, an unknown convention, or parts that do not go together.

    Example:
        >>> import inferq as iq
        >>> engine = iq.Engine(timing=iq.Constant(0.02), scheduler=iq.Sarathi(), kv=iq.KvCache(tokens=10**5))
        >>> iq.Engine.from_description(engine.describe()) == engine
        True
    """

    part: ClassVar[str | None] = "engine"
    name_of_kind: ClassVar[str] = "engine"
    parts: ClassVar[Mapping[str, tuple[type[Any], ...]]] = {
        "timing": TIMING_MODELS,
        "scheduler": (*SCHEDULERS, Scheduler),
        "kv": (KvCache,),
    }

    timing: TimingModel
    scheduler: Scheduler
    kv: KvCache
    first_token: Literal["prefill", "decode"] = "prefill"

    def describe(self) -> dict[str, Any]:
        """The engine as JSON-ready values, the inverse of `from_description`.

        A scheduler of your own is shown by the name of its class, and cannot be read back.
        """
        return fields_of(self)

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Engine:
        """The engine that a table describes, as read from JSON or TOML.

        Args:
            description: `timing` and `scheduler`, each with its `kind` and fields; `kv` with its fields, or
                the text `"unlimited"` (TOML has no null); optionally `first_token`. What is left out has its
                default.

        Raises:
            ConfigError: an unknown or missing field or kind, named by its path with the nearest known name; a
                scheduler written in Python.

        Example:
            >>> import inferq as iq
            >>> engine = iq.Engine.from_description({
            ...     "timing": {"kind": "Constant", "seconds": 0.02},
            ...     "scheduler": {"kind": "VllmV1", "max_seqs": 64},
            ...     "kv": {"tokens": 100_000},
            ... })
            >>> engine.scheduler == iq.VllmV1(max_seqs=64)
            True
        """
        if isinstance(description, Mapping):
            scheduler = description.get("scheduler")
            if isinstance(scheduler, Mapping) and scheduler.get("kind") == "Python":
                raise ConfigError(f"engine.scheduler: {UNREADABLE}")
            if description.get("kv") == "unlimited":
                description = {**description, "kv": {"tokens": None}}
        return read_fields("engine", description, cls)

    def pools(self) -> tuple[Pool, ...]:
        """The engine as the core runs it: one replica that everything goes to."""
        return (Pool((self,), (1,), ("",)),)
