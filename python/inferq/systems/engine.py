"""Engine: one replica with a timing model, a scheduler and a KV cache."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from inferq.checks import not_negative
from inferq.description import Description, Table, fields_in, fields_of, read, read_fields, table_of
from inferq.display.notebook import Viewed
from inferq.elsewhere import names_of_other_tools
from inferq.errors import ConfigError
from inferq.scheduler import SCHEDULERS, Scheduler
from inferq.systems.kv_cache import KvCache
from inferq.systems.on_gpu import OnGpu
from inferq.systems.overhead import Overhead
from inferq.timing import TIMING_MODELS, TimingModel
from inferq.timing.hardware.formats import kv_type_of, weights_of
from inferq.timing.hardware.gpu import Gpu
from inferq.timing.hardware.model_shape import ModelShape


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine(Viewed, Description):
    """One replica: a scheduler forms batches, a KV cache limits them, a timing model computes their time.

    `Engine.on` creates the engine for a model and a GPU.

    Args:
        timing: duration of an iteration, see `inferq.timing`.
        scheduler: order and size of batches, see `inferq.scheduler`; or an object of your own class, see
            `inferq.Scheduler`.
        kv: the KV cache.
        first_token: `"prefill"`: the iteration that completes a prompt emits the first token, as in real
            engines; `"decode"`: the first decode after it emits the first token, as papers count.
        overhead: host time added to every iteration. None: no host time.
        max_model_len: maximum tokens of prompt and output, 2 or above. A prompt that leaves no room for an
            output is rejected; a longer output is cut at the limit, as in vLLM; a finding counts both. None:
            no limit.
        api_s: seconds from the client to the engine (HTTP, tokenization) and back (delivery of a token), at
            most 1. It is included in `ttft_s`, `e2e_s`, `first_token_s` and `finish_s`, and a closed-loop
            client waits for it. `admitted_s`, the queue and the timeline are measured at the engine, where a
            request arrives immediately: a delay in front of the engine shifts all arrivals alike and changes
            no wait.

    Raises:
        ConfigError: a part of the wrong type, an unknown convention, or parts that do not fit together.

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
    on_card: Mapping[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """What `Engine.on` used: `model`, `gpu`, `tensor_parallel` and so on, and in `explained` the sources of
    timing, memory and settings. Empty if the parts were given directly, and after `dataclasses.replace`."""
    first_token_is_default: bool = field(default=False, init=False, compare=False, repr=False)
    """Whether `Engine.on` chose `first_token`, so that `Disaggregated` may choose it."""

    def __post_init__(self) -> None:
        """Reject an API time in milliseconds."""
        Description.__post_init__(self)
        if not_negative("api_s", self.api_s) > 1:
            raise ConfigError("api_s", f"{self.api_s:g} s looks like milliseconds; the maximum is 1 s")

    @classmethod
    @names_of_other_tools
    def on(
        cls,
        model: ModelShape | str | Path | Mapping[str, Any],
        gpu: Gpu | str | Mapping[str, Any],
        *,
        tensor_parallel: int | None = None,
        expert_parallel: int | Literal["all"] = 1,
        data_parallel: int = 1,
        pipeline_parallel: int = 1,
        server: str | None = None,
        scheduler: Scheduler | Mapping[str, Any] | None = None,
        gpu_memory_utilization: float | None = None,
        max_model_len: int | None = None,
        weights: str | None = None,
        kv_dtype: str | None = None,
        backend: str | None = None,
        timing: TimingModel | Literal["roofline"] | None = None,
        kv: KvCache | Mapping[str, Any] | None = None,
        prefix_cache: Literal["blocks", "radix", "none"] | None = None,
        overhead: Overhead | None = None,
        eager: bool = False,
        api_s: float | None = None,
        first_token: Literal["prefill", "decode"] | None = None,
    ) -> Engine:
        """Create the engine that serves a model on a GPU, with measured times and the memory left for KV.

        The timing is the shipped `TimingTable` of this model, GPU, `tensor_parallel`, backend and weights, if
        one exists and the cache has 16 bits; models of the same shape share a table. Otherwise it is a
        `Roofline`. `timing.KvMemory` computes the KV cache size, in blocks of 16 tokens. `explain()` reports
        the source of both.

        If both `timing` and `kv` are given, `tensor_parallel`, `gpu_memory_utilization`, `weights`,
        `kv_dtype` and `backend` have no effect.

        Args:
            model: a name of `timing.known_models()`, the path of a `config.json`, a mapping with its keys, or
                a `timing.ModelShape`.
            gpu: a name of `timing.known_gpus()` or an alias (`"h100_sxm"`), a `timing.Gpu`, or a mapping with
                its fields.
            tensor_parallel: GPUs of the replica, which share every layer. Default: the number in the given or
                shipped table, or else (also for a given `Roofline`) the smallest power of two on which the
                model fits.
            expert_parallel: number of groups of these GPUs among which the experts are divided; within a
                group, the GPUs share each expert. It divides `tensor_parallel` and the number of experts.
                `"all"`: every GPU is a group (`--enable-expert-parallel` of vLLM).
            data_parallel: ranks with their own attention. Only 1 is supported: `Cluster` has independent
                replicas.
            pipeline_parallel: stages of layers. Only 1 is supported.
            server: source of all unset options: `"vllm-0.11"` to `"vllm-0.33"` or `"sglang-0.5"`, also with a
                patch release (`"sglang-0.5.1"`). It sets the scheduler and its limits, async scheduling,
                memory utilization, block size, prefix cache, longest request, and the times of host and API.
                `explain()` reports each with its source. Default: the latest known, `"vllm-0.33"`, or
                `"sglang-0.5"` with SGLang's scheduler; a scheduler or prefix cache that this server lacks is
                then accepted.
            scheduler: a scheduler, or a table of fields that override the server's. Default: the server's.
                Its `token_budget` and `max_seqs` determine the memory for activations.
            gpu_memory_utilization: fraction of GPU memory that the engine may use. Default: the server's.
            max_model_len: maximum tokens of a request, as for the class; the server's limits depend on it,
                and vLLM's cache must hold it. Default: the model's `max_position_embeddings`, or the size of
                the cache if that is smaller and no server is named.
            weights: number format of the weight matrices: `"bf16"`, `"fp8"` (a scale per matrix or channel),
                `"fp8-block"` (per 128 × 128 weights), `"nvfp4"`, `"mxfp4"`, `"int8"`, `"int4"`, or a name of
                vLLM or the Hub such as `"awq"` and `"auto"`. Default: the format of the checkpoint, whose
                parts at 16 bits stay there.
            kv_dtype: number format of the KV cache: `"bf16"`, `"fp8"`, `"nvfp4"` or `"int8"`. Default: the
                format that the checkpoint states, else `"bf16"`.
            backend: engine whose kernels were measured: `"vllm"`, `"sglang"` or `"trtllm"`. Tables of vLLM
                are shipped, and some of SGLang. Default: the server's, or `"vllm"` if no SGLang table is
                shipped.
            timing: replaces the table or roofline. `"roofline"`: use no table, so that engines with and
                without a table are compared by the same model.
            kv: KV cache size: a `KvCache`, or a table of its fields. Unset fields are the server's, also
                the `block` and `prefix_cache` of `KvCache(tokens=…)`. Default: the memory left.
            prefix_cache: prefix cache, as for `KvCache`; `"none"` disables it. Default: the server's.
            overhead: host time added to every iteration; `Overhead()` disables it. Default: the server's, as
                far as it was measured.
            eager: no CUDA graphs (`--enforce-eager` of vLLM, `--disable-cuda-graph` of SGLang): the host
                launches every kernel, which limits the speed of small batches. It has no effect on a given
                `overhead`.
            api_s: as for the class. Default: the server's.
            first_token: as for the class. Default: `"prefill"`; in a `Disaggregated`, `"decode"`, because
                clients of vLLM, Dynamo and llm-d receive the first token from the decode side.

        Raises:
            ConfigError: an unknown model, GPU or server, with the nearest known name; a `config.json` without
                a required key; a table measured on another number of GPUs; a model that does not fit on the
                GPU, with the smallest `tensor_parallel` that fits; GPUs that cannot share the heads or the
                experts equally; data or pipeline parallelism; a scheduler, a prefix cache or a longest
                request that the named server does not support.
            OSError: a `config.json` cannot be read.

        Example:
            >>> import inferq as iq
            >>> engine = iq.Engine.on("llama-3.1-8b", "a100-80gb")
            >>> engine.kv.tokens
            461920
            >>> print(iq.Engine.on("llama-3.2-3b", "l4").explain().partition(";")[0])
            timing: Roofline('llama-3.2-3b', 'l4'): no measured table is shipped
            >>> iq.Engine.on("llama-3.1-8b", "h100-80gb").scheduler.token_budget
            8192
            >>> iq.Engine.on("llama-3.1-8b", "h100-80gb", server="sglang-0.5").kv.prefix_cache
            'radix'
        """
        shape = ModelShape.of(model)
        on_gpu = OnGpu(
            shape=shape,
            gpu=Gpu.of(gpu),
            tensor_parallel=tensor_parallel,
            expert_parallel=expert_parallel,
            data_parallel=data_parallel,
            pipeline_parallel=pipeline_parallel,
            server=server,
            scheduler=scheduler,
            gpu_memory_utilization=gpu_memory_utilization,
            max_model_len=max_model_len,
            weights=weights_of(weights, shape.checkpoint),
            kv_dtype=kv_type_of(kv_dtype, shape.checkpoint),
            backend=backend,
            timing=timing,
            kv=kv,
            prefix_cache=prefix_cache,
            overhead=overhead,
            eager=eager,
            api_s=api_s,
        )
        engine = cls(**on_gpu.parts(), first_token=first_token or "prefill")
        engine._record(on_gpu.provenance())
        object.__setattr__(engine, "first_token_is_default", first_token is None)
        return engine

    def with_first_token(self, first_token: Literal["prefill", "decode"]) -> Engine:
        """Return the same engine with another convention of the first token."""
        engine = replace(self, first_token=first_token)
        engine._record(self.on_card)
        return engine

    def _record(self, origin: Mapping[str, Any]) -> None:
        object.__setattr__(self, "on_card", Table(origin, as_given=True))

    def explain(self) -> str:
        r"""Report the sources of timing, memory and settings, and the computation of the KV cache size.

        Example:
            >>> import inferq as iq
            >>> engine = iq.Engine.on("llama-3.1-8b", "a10g", gpu_memory_utilization=0.95)
            >>> print("\n".join(engine.explain().splitlines()[1:5]))
            memory: 22.49 GiB × 0.95 = 21.36 GiB
              − weights 14.96 − activations 1.25 − everything else 1.00 = 4.15 GiB
              / 131,072 bytes a token = 34,000 tokens, in blocks of 16
            model: llama-3.1-8b, 8.03 B parameters, 8.03 B active, stored as bf16
        """
        if self.on_card:
            return "\n".join(self.on_card["explained"])
        host = "none" if self.overhead is None else repr(self.overhead)
        return f"timing: {self.timing!r}\nmemory: {self.kv!r}\noverhead: {host}"

    def to_json(self) -> dict[str, Any]:
        """Return the engine as JSON-ready values, the inverse of `from_json`.

        If `Engine.on` created the engine, `on` holds the source of the numbers: model, GPU,
        `tensor_parallel`, server, versions, and the source and license of a measured table. A scheduler of
        your own is written as the name of its class and cannot be read back.
        """
        if not self.on_card:
            return self.core_form()
        explained = list(self.on_card["explained"])
        return {"on": {**self.on_card, "explained": explained}, **self.core_form()}

    def core_form(self) -> dict[str, Any]:
        """Return the numbers alone, as the core reads them."""
        described = fields_of(self)
        for name, default in (("overhead", None), ("max_model_len", None), ("api_s", 0)):
            if getattr(self, name) == default:
                del described[name]
        return described

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> Engine:
        """Read the engine from a table of JSON or TOML.

        Args:
            description: `timing` and `scheduler`, each with its `kind` and fields; `kv` with its fields, or
                the text `"unlimited"` (TOML has no null); optionally `first_token` and `overhead`. Or `model`
                and `gpu`, with the other arguments of `Engine.on`.

        Raises:
            ConfigError: an unknown or missing field or kind, with its path and the nearest known name; a
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
        """Read the engine of a model on a GPU; None if the description has the parts only."""
        if "on" in description:
            origin = table_of(f"{path}.on", description["on"])
            engine = read_fields(path, {k: v for k, v in description.items() if k != "on"}, cls)
            lines = origin.get("explained", ())
            engine._record({**origin, "explained": tuple(map(str, lines)) if isinstance(lines, list) else ()})
            return engine
        if "model" not in description and "gpu" not in description:
            return None
        names = list(inspect.signature(cls.on).parameters)
        parts = dict(fields_in(path, description, names, ("model", "gpu"), cls.__name__))
        for name, kinds in (("timing", TIMING_MODELS), ("scheduler", SCHEDULERS)):
            overrides = name == "scheduler" and _lacks_kind(parts.get(name))
            if name in parts and parts[name] != "roofline" and not overrides:
                parts[name] = read(f"{path}.{name}", parts[name], kinds)
        for name, kind in (("kv", KvCache), ("overhead", Overhead)):
            if name in parts:
                given, parts[name] = parts[name], read_fields(f"{path}.{name}", parts[name], kind)
                if name == "kv" and isinstance(given, Mapping):
                    parts[name] = given  # unset fields are the server's
        try:
            return cls.on(**parts)
        except ConfigError as error:
            raise error.within(path) from None


def _lacks_kind(scheduler: object) -> bool:
    """Whether a table holds only fields that override those of the server's scheduler."""
    return isinstance(scheduler, Mapping) and "kind" not in scheduler
