"""Disaggregated: prefill replicas, decode replicas, and the link between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from inferq.description import Description, fields_in, fields_of, plain, read, read_fields
from inferq.errors import ConfigError
from inferq.systems.cluster import MOST_REPLICAS
from inferq.systems.engine import Engine
from inferq.systems.routers import ROUTERS, LeastRequests, RoundRobin, Router

_LEAST_S = 5e-19
"""Half an attosecond, which rounds to 0."""


@dataclass(frozen=True, slots=True)
class Link(Description):
    """The link between prefill and decode replicas.

    The transfer of `t` tokens of context takes `latency_s + t·bytes_per_token / bytes_per_s`, with the
    quotient rounded down to a whole attosecond. Transfers begin in the order of completed prompts.

    Source: the KV transfer of bari2025 Alg. 5, line 9 (DistServe); the paper does not define its time.

    Args:
        latency_s: latency of a transfer in seconds, 0 or above.
        bytes_per_s: bytes per second of engine transfer, above 0.
        bytes_per_token: KV bytes of a token, 0 or above. Default: those of the prefill engine's model, if
            `Engine.on` created it.
        concurrent: maximum concurrent transfers over the whole link, 1 or above, each with `bytes_per_s`;
            further transfers wait, first come, first served. Default: 1, so that all transfers share the
            bandwidth. None, in TOML `"unlimited"`: no limit, so that transfers never wait.

    Raises:
        ConfigError: a number outside these ranges, or a latency that rounds to 0 although it is not 0.

    Example:
        Llama-3-8B has 131,072 KV bytes per token; a prompt of 1,000 tokens over 25 GB/s takes 5.2 ms:

        >>> import inferq as iq
        >>> iq.Link(0.0001, 25e9, 131_072).to_json()
        {'latency_s': 0.0001, 'bytes_per_s': 25000000000.0, 'bytes_per_token': 131072, 'concurrent': 1}

        For a known model they are the default:

        >>> engine = iq.Engine.on("llama-3-8b", "h100-80gb")
        >>> link = iq.Link(latency_s=0.0001, bytes_per_s=25e9)
        >>> iq.Disaggregated(prefill=(engine, 1), decode=(engine, 1), link=link).link.bytes_per_token
        131072
    """

    latency_s: float
    bytes_per_s: float
    bytes_per_token: float | None = None
    concurrent: int | Literal["unlimited"] | None = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.concurrent == "unlimited":
            object.__setattr__(self, "concurrent", None)
        Description.__post_init__(self)
        for name in ("latency_s", "bytes_per_s", "bytes_per_token"):
            if (getattr(self, name) or 0) < 0:
                raise ConfigError(name, f"must be non-negative, got {getattr(self, name)!r}")
        if 0 < self.latency_s <= _LEAST_S:
            raise ConfigError("latency_s", f"must be 0 or at least an attosecond, got {self.latency_s!r}")
        if self.bytes_per_s == 0:
            raise ConfigError("bytes_per_s", "must be positive, got 0")
        if self.concurrent == 0:
            raise ConfigError("concurrent", "must be a positive integer or None, got 0")

    def to_json(self) -> dict[str, Any]:
        """Return the link as JSON-ready values."""
        return fields_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregated(Description):
    """Prefill/decode disaggregation: prefill replicas, decode replicas, and a link for the context.

    A prefill replica serves a request until its prompt is complete. The request then releases its sequence
    slot. Its context crosses the link, during which its blocks remain allocated, and it arrives at a decode
    replica with engine pending token. A request that ends with its prompt is not transferred.

    Whole prompts, engine at a time, as in the source: `VllmV0(max_seqs=1)` with a token budget above the
    longest prompt. Chunked prompts: `Sarathi`. Replicas are numbered from 0, prefill replicas first. A
    scheduler written in Python is copied (`copy.deepcopy`) for every replica.

    Engines of `Engine.on` without `first_token` emit the first token on the decode side, after the transfer,
    as clients of vLLM, Dynamo and llm-d receive it. `first_token="prefill"` emits it when the prompt
    completes.

    Source: bari2025 App. E.3, Alg. 5 (DistServe).

    Args:
        prefill: the prefill engine and its number of replicas, 1 or above.
        decode: the decode engine and its number of replicas, 1 or above.
        link: the time of a transfer.
        prefill_router: selects the prefill replica of an arrival.
        decode_router: selects the decode replica of a request at the end of its transfer.

    Raises:
        ConfigError: a part of the wrong type, no replica, or different `first_token` conventions; it names
            the field. In `simulate`, a request that fits on a prefill replica and on no decode replica.

    Example:
        The prompt takes [0, 1), the transfer of 10 tokens 0.5 s, and each further token 1 s:

        >>> import inferq as iq
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
        >>> link = iq.Link(latency_s=0.4, bytes_per_s=100, bytes_per_token=1)
        >>> split = iq.Disaggregated(prefill=(engine, 1), decode=(engine, 1), link=link)
        >>> workload = {"arrival_s": [0.0], "prompt_tokens": [10], "output_tokens": [3]}
        >>> iq.simulate(workload, split).requests.select("first_token_s", "handoff_s", "finish_s").rows()
        [(1.0, 0.5, 3.5)]
    """

    name_of_kind: ClassVar[str] = "disaggregated"

    prefill: tuple[Engine, int]
    decode: tuple[Engine, int]
    link: Link
    prefill_router: Router = field(default=RoundRobin())
    decode_router: Router = field(default=LeastRequests())

    def __post_init__(self) -> None:
        """Check the parts."""
        for name in ("prefill", "decode"):
            object.__setattr__(self, name, _side(name, getattr(self, name)))
        object.__setattr__(self, "link", _priced(self.link, self.prefill[0]))
        for name in ("prefill_router", "decode_router"):
            router = plain(name, getattr(self, name), (Router,))
            router.to_json()  # type: ignore[attr-defined]  # a router
        self._choose_first_token()
        theirs, ours = self.prefill[0].first_token, self.decode[0].first_token
        if theirs != ours:
            raise ConfigError(
                "decode",
                f"first_token is {ours!r}, but {theirs!r} for prefill; set the same convention for both",
            )

    def _choose_first_token(self) -> None:
        """Set the convention of engines that leave it open: the other side's, or else `"decode"`."""
        sides = {"prefill": self.prefill, "decode": self.decode}
        given = [engine.first_token for engine, _ in sides.values() if not engine.first_token_is_default]
        chosen: dict[int, Engine] = {}  # one object for both sides if they share an engine
        for name, (engine, replicas) in sides.items():
            if engine.first_token_is_default:
                engine = chosen.setdefault(
                    id(engine), engine.with_first_token(given[0] if given else "decode")
                )
                object.__setattr__(self, name, (engine, replicas))

    def to_json(self) -> dict[str, Any]:
        """Return the system as JSON-ready values with a `kind`; the inverse of `from_json`."""
        return {
            "kind": "Disaggregated",
            **{
                name: {"engine": side[0].to_json(), "replicas": side[1]}
                for name, side in (("prefill", self.prefill), ("decode", self.decode))
            },
            "link": self.link.to_json(),
            "prefill_router": self.prefill_router.to_json(),
            "decode_router": self.decode_router.to_json(),
        }

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> Disaggregated:
        """Read the system from a table of JSON or TOML.

        Args:
            description: `prefill` and `decode`, tables with `engine` (as for `Engine.from_json`) and
                optionally `replicas`; `link` with its fields; optionally `prefill_router` and
                `decode_router`, tables with a `kind`, or names.

        Raises:
            ConfigError: an unknown, missing or wrong field, named by its path; a scheduler or a router
                written in Python.

        Example:
            >>> import inferq as iq
            >>> kv = iq.KvCache(tokens=100_000)
            >>> engine = iq.Engine(timing=iq.Constant(0.02), scheduler=iq.Sarathi(), kv=kv)
            >>> link = iq.Link(0.001, 25e9, 131_072)
            >>> split = iq.Disaggregated(prefill=(engine, 2), decode=(engine, 3), link=link)
            >>> iq.Disaggregated.from_json(split.to_json()) == split
            True
        """
        return read_disaggregated("disaggregated", description)


def _priced(link: Link, engine: Engine) -> Link:
    """The link with the KV bytes of a token, by default the engine's."""
    plain("link", link, (Link,))
    if link.bytes_per_token is not None:
        return link
    if "kv_bytes_per_token" not in engine.on_card:
        raise ConfigError(
            "link.bytes_per_token",
            "missing, and the prefill engine has no known model: set the KV bytes of a token, or create the "
            "engine with Engine.on",
        )
    return replace(link, bytes_per_token=engine.on_card["kv_bytes_per_token"])


def _side(name: str, value: object) -> tuple[Engine, int]:
    """An engine and its number of replicas."""
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise ConfigError(name, f"must be a pair (engine, replicas), got {_short(value)}")
    engine, replicas = plain(f"{name}[0]", value[0], (Engine,)), plain(f"{name}[1]", value[1], (int,))
    assert isinstance(engine, Engine) and isinstance(replicas, int)
    if not 1 <= replicas <= MOST_REPLICAS:
        raise ConfigError(f"{name}[1]", f"replicas must be from 1 to {MOST_REPLICAS}, got {replicas}")
    return engine, replicas


def _short(value: object) -> str:
    return f"an {type(value).__name__} only" if isinstance(value, Engine) else repr(value)


def read_disaggregated(path: str, description: object) -> Disaggregated:
    """Read the system from a table; errors name the place below `path`."""
    required = ("prefill", "decode", "link")
    routers = ("prefill_router", "decode_router")
    table = fields_in(path, description, (*required, *routers), required, "Disaggregated")
    parts: dict[str, Any] = {"link": read_fields(f"{path}.link", table["link"], Link)}
    for name in ("prefill", "decode"):
        here = f"{path}.{name}"
        side = fields_in(here, table[name], ("engine", "replicas"), ("engine",))
        parts[name] = (read_fields(f"{here}.engine", side["engine"], Engine), side.get("replicas", 1))
    for name in routers:
        if name in table:
            parts[name] = read(f"{path}.{name}", table[name], ROUTERS)
    try:
        return Disaggregated(**parts)
    except ConfigError as error:
        raise error.within(path) from None
