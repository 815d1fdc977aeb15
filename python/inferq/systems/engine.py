"""Engine: one replica, made of a timing model, a scheduler and a KV cache."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from inferq.checks import not_negative, whole
from inferq.description import Description, Table, fields_in, fields_of, read, read_fields, table_of
from inferq.display.notebook import Viewed
from inferq.errors import ConfigError, Renamed
from inferq.scheduler import SCHEDULERS, ClassPriority, Scheduler
from inferq.systems.kv_cache import KvCache
from inferq.systems.overhead import Overhead
from inferq.systems.servers import CONTEXT_BYTES, Server
from inferq.timing import TIMING_MODELS, Roofline, TimingModel, TimingTable
from inferq.timing.hardware.gpu import Gpu
from inferq.timing.hardware.kv_memory import KvMemory
from inferq.timing.hardware.model_shape import KvType, ModelShape, Weights, one_of
from inferq.timing.tables.neighbors import NEIGHBORS
from inferq.timing.tables.shipped import files


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine(Viewed, Description):
    """One replica: a scheduler forms batches, a KV cache bounds them, a timing model prices them.

    `Engine.on` makes one of a model and a GPU.

    Args:
        timing: how long an iteration takes, see `inferq.timing`.
        scheduler: which requests it serves, see `inferq.scheduler`; or an object of a class of your own, see
            `inferq.Scheduler`.
        kv: the memory for keys and values.
        first_token: `"prefill"`: the iteration that completes a prompt emits the first token, as real engines
            do; `"decode"`: the first decode after it does, as the papers count.
        overhead: what the host adds to every iteration; None: nothing.
        max_model_len: tokens of the longest request, 2 or above: a prompt that leaves no room for an output
            is rejected, a longer output is cut where prompt and output reach it, as vLLM does; a finding
            counts both. None: any.
        api_s: seconds from the client to the engine (HTTP, tokenising) and back (delivering a token), at most
            1. What it is before the engine shifts all arrivals there alike and changes no wait, so that the
            sum is all that counts. It is a part of `ttft_s` and `e2e_s`, in `first_token_s` and `finish_s`
            too, and a client that waits for an answer waits for it; `admitted_s`, the queue and the timeline
            are of the engine, which a request reaches at once.

    Raises:
        ConfigError: a part of the wrong kind, an unknown convention, or parts that do not go together.

    Example:
        >>> import inferq as iq
        >>> engine = iq.Engine(timing=iq.Constant(0.02), scheduler=iq.Sarathi(), kv=iq.KvCache(tokens=10**5))
        >>> iq.Engine.from_json(engine.to_json()) == engine
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
    overhead: Overhead | None = None
    max_model_len: int | None = None
    api_s: float = 0
    made_of = Renamed("on_card")
    on_card: Mapping[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """What `Engine.on` made it of: `model`, `gpu`, `tensor_parallel` and so on, and in `explained` where
    timing and memory come from, in words; empty where they were given one by one, and in what
    `dataclasses.replace` makes."""

    def __post_init__(self) -> None:
        """Refuse a time of the API in another unit where it is written."""
        Description.__post_init__(self)
        if not_negative("api_s", self.api_s) > 1:
            raise ConfigError("api_s", f"{self.api_s:g} s looks like milliseconds; it may be 1 s at most")

    @classmethod
    def on(
        cls,
        model: ModelShape | str | Path | Mapping[str, Any],
        gpu: Gpu | str | Mapping[str, Any],
        *,
        tensor_parallel: int | None = None,
        server: str | None = None,
        scheduler: Scheduler | Mapping[str, Any] | None = None,
        gpu_memory_utilization: float | None = None,
        max_model_len: int | None = None,
        weights: Weights = "bf16",
        kv_dtype: KvType = "bf16",
        backend: str | None = None,
        timing: TimingModel | Literal["roofline"] | None = None,
        kv: KvCache | None = None,
        prefix_cache: Literal["blocks", "radix", "none"] | None = None,
        overhead: Overhead | None = None,
        api_s: float | None = None,
        first_token: Literal["prefill", "decode"] = "prefill",
    ) -> Engine:
        """An engine that serves a model on a GPU: measured times if there are any, and what memory is left.

        The timing is the shipped `TimingTable` of this model, GPU, `tensor_parallel`, backend and weights, if
        there is one and the cache has 16 bits; a model of the same shape shares its table. Else it is a
        `Roofline`. The KV cache holds what `timing.KvMemory` says of the card, in blocks of 16 tokens. Which
        it was, and how many tokens come about, says `explain()`.

        With both `timing` and `kv` given, these have no effect: `tensor_parallel`,
        `gpu_memory_utilization`, `weights`, `kv_dtype` and `backend`.

        Args:
            model: a name of `timing.known_models()`, the path of a `config.json`, a mapping with its keys, or
                a `timing.ModelShape`.
            gpu: a name of `timing.known_gpus()`, a `timing.Gpu`, or a mapping with its fields.
            tensor_parallel: GPUs of the replica; None: those of the table, shipped or given, or where there
                is none (a `Roofline` that is given does not say) the smallest power of two on which the model
                fits.
            server: what is not given is what this server does unasked on that card: `"vllm-0.11"` to
                `"vllm-0.33"` or `"sglang-0.5"`, a patch release too (`"sglang-0.5.1"`). It sets the scheduler
                and its limits, planning ahead, the share of the memory, the blocks, the prefix cache, the
                longest request, and the time of its host and of its API; `explain()` says each with its
                source, and what of that server is not simulated. None: the newest that is known,
                `"vllm-0.33"`, or with SGLang's scheduler `"sglang-0.5"`; then also a scheduler or a prefix
                cache that this server has not is taken, beside all else of it.
            scheduler: None: the server's. A table of some of its fields replaces these, a whole scheduler all
                of them. Its `token_budget` and its seats decide how much memory activations take.
            gpu_memory_utilization: share of the card's memory that the engine may use; None: the server's.
            max_model_len: tokens of the longest request, as for the class, which bound the server's limits,
                and which vLLM's cache must hold; None: the model's `max_position_embeddings`, or where no
                server is named and the cache holds less, what it holds.
            weights: how the matrices are kept, `"bf16"`, `"fp8"`, `"int8"` or `"int4"`.
            kv_dtype: numbers of the KV cache, `"bf16"`, `"fp8"` or `"int8"`.
            backend: the engine whose kernels were measured: `"vllm"`, `"sglang"` or `"trtllm"`. Tables of
                vLLM are shipped, and some of SGLang. None: the server's, or where no table of SGLang's is
                shipped, and without a server, `"vllm"`.
            timing: instead of the table or the roofline; `"roofline"`: no table, also where there is one, so
                that engines with and without a table are compared by the same clock.
            kv: instead of what the card leaves.
            prefix_cache: that of the KV cache that the card leaves, as for `KvCache`; `"none"`: none; None:
                the server's.
            overhead: what the host adds to every iteration; None: what the server's does, as far as it was
                measured; `Overhead()`: nothing.
            api_s: as for the class; None: the server's.
            first_token: as for the class.

        Raises:
            ConfigError: an unknown name, with the nearest known one; a `config.json` without the needed keys;
                a table that was measured on another number of GPUs; a model that does not fit on the card,
                with the smallest `tensor_parallel` that does; an unknown server, with the nearest known one;
                a scheduler, a prefix cache or a longest request that this server cannot have.
            OSError: a `config.json` cannot be read.

        Example:
            >>> import inferq as iq
            >>> engine = iq.Engine.on("llama-3.1-8b", "a100-80gb")
            >>> engine.kv.tokens
            461920
            >>> print(iq.Engine.on("llama-3.2-3b", "l4").explain().splitlines()[0])
            timing: Roofline('llama-3.2-3b', 'l4'): no measured table of it is shipped
            >>> iq.Engine.on("llama-3.1-8b", "h100-80gb").scheduler.token_budget
            8192
            >>> iq.Engine.on("llama-3.1-8b", "h100-80gb", server="sglang-0.5").kv.prefix_cache
            'radix'
        """
        shape, card = ModelShape.of(model), Gpu.of(gpu)
        if kv is not None and prefix_cache is not None:
            raise ConfigError("prefix_cache", "a kv is given, which says it itself")
        for name, word, known in (
            ("weights", weights, get_args(Weights)),
            ("kv_dtype", kv_dtype, get_args(KvType)),
            ("backend", backend or "vllm", _BACKENDS),
        ):
            one_of(name, word, known)
        if prefix_cache not in (None, "blocks", "radix", "none"):
            raise ConfigError("prefix_cache", f"must be 'blocks' or 'radix' or 'none', is {prefix_cache!r}")
        own = {} if scheduler is None else scheduler
        if not isinstance(own, (Scheduler, Mapping)):
            raise ConfigError("scheduler", f"must be a scheduler such as VllmV1(), is {scheduler!r}")
        served = (
            Server.newest(own.inner if isinstance(own, ClassPriority) else own, card)
            if server is None
            else Server.of(server, card)
        )
        longest = (
            shape.longest if max_model_len is None else whole("max_model_len", max_model_len, 1, 2**31 - 1)
        )
        scheduler = served.scheduler(own, longest) if isinstance(own, Mapping) else own
        inner = scheduler.inner if isinstance(scheduler, ClassPriority) else scheduler
        for name in ("token_budget", "max_seqs"):
            if getattr(inner, name, None) is not None:
                whole(f"scheduler.{name}", getattr(inner, name), 1, 2**31 - 1)
        if server is not None:
            served.check(inner, prefix_cache if kv is None else kv.prefix_cache)
        caching = served.prefix_cache if prefix_cache is None else prefix_cache
        is_sglang = served.engine == "sglang"

        def share(gpus: int | None) -> float:
            return (
                served.gpu_memory_utilization(gpus or 1)
                if gpu_memory_utilization is None
                else gpu_memory_utilization
            )

        def memory(gpus: int | None) -> KvMemory:
            return KvMemory.of(
                shape,
                card,
                tensor_parallel=gpus,
                weights=weights,
                kv_dtype=kv_dtype,
                gpu_memory_utilization=share(gpus),
                **(
                    # SGLang's share is of what is free before the weights, and leaves out activations.
                    {
                        "batched_tokens": 1,
                        "sampled_rows": 1,
                        "reserved_bytes": share(gpus) * CONTEXT_BYTES,
                        "block": 1,
                    }
                    if is_sglang
                    else {
                        "batched_tokens": getattr(inner, "token_budget", None) or 8192,
                        "sampled_rows": getattr(inner, "max_seqs", None) or 256,
                    }
                ),
            )

        asked = timing == "roofline"
        given = None if asked else timing
        if isinstance(given, str):
            raise ConfigError("timing", f"must be a timing model or 'roofline', is {given!r}")
        kernels = ("vllm", "sglang") if backend is None and is_sglang else (backend or "vllm",)
        measured: dict[int, tuple[str, str, str]] = {}
        if timing is None and kv_dtype == "bf16":
            for one in kernels:
                measured |= _measured(shape, card, one, weights)
        of_table = given.provenance.get("tensor_parallel") if isinstance(given, TimingTable) else None
        if tensor_parallel is not None and of_table not in (None, tensor_parallel):
            raise ConfigError(
                "tensor_parallel", f"{tensor_parallel}, but the timing is of {of_table}: {given!r}"
            )
        tensor_parallel = of_table if tensor_parallel is None else tensor_parallel
        if tensor_parallel is not None:
            gpus = tensor_parallel
        elif given is not None and kv is not None:
            gpus = 1  # which decides nothing
        else:
            least = memory(None).tensor_parallel
            gpus = min((shared for shared in measured if shared >= least), default=least)
        lines = []
        cache_given = kv is not None
        too_large: dict[str, int] = {}
        if given is not None:
            lines.append(f"timing: {given!r}, as given")
        elif gpus in measured:
            name, card_name, backend = measured[gpus]
            given = TimingTable.shipped(
                name, card_name, tensor_parallel=gpus, backend=backend, weights=weights
            )
            lines.append(
                f"timing: {given!r}, {_source(given)}"
                + (f"; {shape.name} has its shape" if shape.name != name else "")
            )
        else:
            given = Roofline(shape, card, gpus, weights=weights, kv_dtype=kv_dtype)
            why = "no measured table of it is shipped"
            if kv_dtype != "bf16":
                why = "what was measured keeps 16-bit numbers in the cache"
            elif measured:
                why += f" for {gpus} × {card.name}, but for {', '.join(map(str, sorted(measured)))}"
            lines.append(f"timing: {given!r}: {'as asked' if asked else why}")
        if kv is None:
            room = memory(gpus)
            kept = None if caching == "none" else caching
            kv = KvCache(tokens=room.tokens, block=room.block, prefix_cache=kept)
            lines.append(f"memory: {room.explain()}")
        else:
            lines.append(f"memory: {kv!r}, as given")
            with contextlib.suppress(ConfigError):  # a model that does not fit leaves no room
                left = memory(gpus).tokens
                if kv.tokens is not None and kv.tokens > left:
                    too_large = {"room_tokens": left}
                    lines.append(f"  the card leaves room for {left:,} tokens")
        for key in shape.unread:
            if key != "quantization_config" or weights == "bf16":
                lines.append(f"unread: {key} of {shape.name}: {_UNREAD[key]}")
        if is_sglang or longest is None or kv.tokens is None:
            longest_held = longest
        else:
            longest_held = min(longest, kv.tokens)
        if longest_held != longest and (server is not None or max_model_len is not None):
            raise ConfigError(
                "max_model_len",
                f"{served.name} does not start: the cache holds {longest_held:,} tokens on {gpus} × "
                f"{card.name}, and one request of {shape.name} may have {longest:,}; give "
                f"max_model_len={longest_held} or less, or more GPUs",
            )
        if overhead is None:
            host = served.host(shape.layers, gpus, getattr(inner, "token_budget", None))
        else:
            host = overhead
        api = served.api_s if api_s is None else api_s
        lines += served.explained(
            scheduler,
            share(gpus),
            kv,
            longest,
            host,
            api,
            {
                *(own if isinstance(own, Mapping) else ("scheduler",)),
                *(("server",) if server is not None else ()),
                *(("gpu_memory_utilization",) if gpu_memory_utilization is not None else ()),
                *(("prefix_cache",) if prefix_cache is not None else ()),
                *(("kv",) if cache_given else ()),
                *(("max_model_len",) if max_model_len is not None else ()),
                *(("overhead",) if overhead is not None else ()),
                *(("api_s",) if api_s is not None else ()),
            },
        )
        engine = cls(
            timing=given,
            scheduler=scheduler,
            kv=kv,
            first_token=first_token,
            overhead=None if host == Overhead() else host,
            max_model_len=longest_held,
            api_s=api,
        )
        measured_by = given.provenance if isinstance(given, TimingTable) else {}
        version = measured_by.get("backend_version")
        engine._made_on(
            {
                "model": shape.name,
                "gpu": card.name,
                "tensor_parallel": gpus,
                "gpu_memory_utilization": share(gpus),
                "weights": weights,
                "kv_dtype": kv_dtype,
                "kv_bytes_per_token": shape.kv_bytes_per_token(kv_dtype),
                "backend": backend or "vllm",
                "server": server or served.name,
                **({"max_model_len": longest_held} if longest_held is not None else {}),
                **({"backend_version": version} if version else {}),
                **too_large,
                **({"timing_source": of_data} if (of_data := _attribution(measured_by)) else {}),
                "explained": tuple("\n".join(lines).splitlines()),
            }
        )
        return engine

    def _made_on(self, card: Mapping[str, Any]) -> None:
        object.__setattr__(self, "on_card", Table(card, as_given=True))

    def explain(self) -> str:
        r"""Where timing, memory and settings come from, in words, and how the number of tokens comes about.

        Example:
            >>> import inferq as iq
            >>> engine = iq.Engine.on("llama-3.1-8b", "a10g", gpu_memory_utilization=0.95)
            >>> print("\n".join(engine.explain().splitlines()[:6]))
            timing: Roofline('llama-3.1-8b', 'a10g'): no measured table of it is shipped
            memory: 22.49 GiB × 0.95 = 21.36 GiB
              − weights 14.96 − activations 1.25 − everything else 1.00 = 4.15 GiB
              / 131,072 bytes a token = 34,000 tokens, in blocks of 16
            server: vllm-0.33 on a10g, the newest that is known
              token_budget 2,048: vLLM's defaults for an API server by the card's memory, in 0.33.0
        """
        parts = (
            "\n".join(self.on_card.get("explained", ())) or f"timing: {self.timing!r}\nmemory: {self.kv!r}"
        )
        if self.on_card:
            return parts
        host = "nothing" if self.overhead is None else repr(self.overhead)
        return f"{parts}\noverhead: {host}"

    def to_json(self) -> dict[str, Any]:
        """The engine as JSON-ready values, the inverse of `from_json`.

        Where `Engine.on` made it, `on` names beside the numbers what they stand for: model, GPU and how many
        share it (`tensor_parallel`), server, versions, and the source and license of a measured table.
        A scheduler of your own is shown by the name of its class, and cannot be read back.
        """
        if not self.on_card:
            return self.core_form()
        explained = list(self.on_card["explained"])
        return {"on": {**self.on_card, "explained": explained}, **self.core_form()}

    def core_form(self) -> dict[str, Any]:
        """The numbers alone, as the core reads them."""
        described = fields_of(self)
        for name, usual in (("overhead", None), ("max_model_len", None), ("api_s", 0)):
            if getattr(self, name) == usual:
                del described[name]
        return described

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> Engine:
        """The engine that a table describes, as read from JSON or TOML.

        Args:
            description: `timing` and `scheduler`, each with its `kind` and fields; `kv` with its fields, or
                the text `"unlimited"` (TOML has no null); optionally `first_token` and `overhead`. What is
                left out has its default. Or `model` and `gpu`, with the other arguments of `Engine.on`.

        Raises:
            ConfigError: an unknown or missing field or kind, named by its path with the nearest known name; a
                scheduler written in Python.

        Example:
            >>> import inferq as iq
            >>> engine = iq.Engine.from_json({
            ...     "timing": {"kind": "Constant", "seconds": 0.02},
            ...     "scheduler": {"kind": "VllmV1", "max_seqs": 64},
            ...     "kv": {"tokens": 100_000},
            ... })
            >>> engine.scheduler == iq.VllmV1(max_seqs=64)
            True
            >>> engine = iq.Engine.from_json({"model": "qwen3-8b", "gpu": "h200"})
            >>> engine == iq.Engine.on("qwen3-8b", "h200")
            True
        """
        return read_fields("engine", description, cls)

    @classmethod
    def from_elsewhere(cls, path: str, description: Mapping[str, Any]) -> Engine | None:
        """The engine of a model on a GPU; None where the parts alone are described."""
        if "on" in description:
            card = table_of(f"{path}.on", description["on"])
            engine = read_fields(path, {k: v for k, v in description.items() if k != "on"}, cls)
            lines = card.get("explained", ())
            engine._made_on({**card, "explained": tuple(map(str, lines)) if isinstance(lines, list) else ()})
            return engine
        if "model" not in description and "gpu" not in description:
            return None
        parts = dict(fields_in(path, description, _ON, ("model", "gpu"), cls.__name__))
        for name, kinds in (("timing", TIMING_MODELS), ("scheduler", SCHEDULERS)):
            is_of_server = name == "scheduler" and _lacks_kind(parts.get(name))
            if name in parts and parts[name] != "roofline" and not is_of_server:
                parts[name] = read(f"{path}.{name}", parts[name], kinds)
        for name, kind in (("kv", KvCache), ("overhead", Overhead)):
            if name in parts:
                parts[name] = read_fields(f"{path}.{name}", parts[name], kind)
        try:
            return cls.on(**parts)
        except ConfigError as error:
            raise error.within(path) from None


_ON = (
    *(
        "model",
        "gpu",
        "tensor_parallel",
        "scheduler",
        "gpu_memory_utilization",
        "weights",
        "kv_dtype",
        "backend",
    ),
    *("timing", "kv", "prefix_cache", "overhead", "first_token", "server", "max_model_len", "api_s"),
)
"""What a table may say instead of the parts of an engine: the arguments of `Engine.on`."""

_UNREAD = {
    "quantization_config": "weights have 16 bits unless weights=… says otherwise",
    "sliding_window": "attention is to all of a context, and all of it is kept",
}
"""What is assumed instead of a key that is not looked at."""

_BACKENDS = ("vllm", "sglang", "trtllm")
"""Engines whose kernels have been measured; tables of the first two are shipped."""


def _source(table: TimingTable) -> str:
    near = table.provenance.get("derived_from")
    return "measured" if near is None else f"measured on {near}, times the ratio of their rooflines"


def _attribution(provenance: Mapping[str, Any]) -> str:
    """Where a table's times come from and under which license, as that license asks."""
    told = (provenance.get(key) for key in ("source", "url", "version", "license", "attribution"))
    return "; ".join(str(one) for one in told if one)


def _lacks_kind(scheduler: object) -> bool:
    """Whether a table holds fields alone, which replace those of a server's scheduler."""
    return isinstance(scheduler, Mapping) and "kind" not in scheduler


@lru_cache(maxsize=256)
def _measured(shape: ModelShape, gpu: Gpu, backend: str, weights: str) -> Mapping[int, tuple[str, str, str]]:
    """For each number of GPUs with a shipped table: the model, the GPU and the backend to ask for it."""
    other = next((name for name in NEIGHBORS if Gpu.of(name) == gpu), None)
    card = gpu if other is None else Gpu.of(NEIGHBORS[other])
    return {
        one.tensor_parallel: (one.model, one.gpu if other is None else other, backend)
        for one in files()
        if (one.backend, one.weights) == (backend, weights)
        and ModelShape.of(one.model) == shape
        and Gpu.of(one.gpu) == card
    }
