"""Option groups: dataclasses whose fields are options of several commands, described by their docstrings."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast, get_type_hints

from inferq.checks import whole
from inferq.cli import options
from inferq.cli.arguments import option
from inferq.description import plain_name, read_fields
from inferq.errors import ConfigError
from inferq.scheduler import SCHEDULERS, Scheduler, VllmV1
from inferq.systems.autoscaler import SCALING_POLICIES
from inferq.systems.cluster import MOST_REPLICAS, Cluster
from inferq.systems.engine import Engine
from inferq.systems.routers import ROUTERS
from inferq.timing import TIMING_MODELS
from inferq.workload.trace_options import TraceOptions
from inferq.workload.traces.read_trace import read_trace
from inferq.workload.workload import Workload

_PARALLEL = ("tensor_parallel", "expert_parallel", "data_parallel", "pipeline_parallel")

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Only:
    """The fields of a group that a command accepts."""

    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TraceFormat:
    """How to read a trace.

    Args:
        format: Format of the trace. Default: detected from the content.
        columns: Column names of a table or fields of JSON, such as
            arrival_s=ts,prompt_tokens=usage.prompt_tokens.
        tokenizer: A tokenizer.json to count the tokens of texts.
        tokens_per_word: Count tokens as words times this ratio.
        time_unit: Unit of arrival times in a table or log: s, ms, us or ns. Default: s.
    """

    format: str | None = None
    columns: str | None = None
    tokenizer: Path | None = None
    tokens_per_word: float | None = None
    time_unit: str | None = None

    def read(self, file: Path) -> Workload:
        """Read a trace."""
        return read_trace(
            file,
            self.format,
            columns=options.columns(self.columns),
            tokenizer=self.tokenizer,
            tokens_per_word=self.tokens_per_word,
            time_unit=self.time_unit,
        )


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The engine of each replica.

    Args:
        model: Model name (see inferq list models), or a config.json. --model and --gpu determine timing and
            KV cache.
        gpu: GPU name (see inferq list gpus), or a TOML file with the fields of timing.Gpu.
        tensor_parallel: Tensor-parallel size. Default: the smallest size with a measured table.
        expert_parallel: Number of groups of these GPUs among which experts are divided, or all for
            one GPU each. Default: 1.
        enable_expert_parallel: The same as --expert-parallel all.
        data_parallel: Data-parallel ranks. Only 1 is supported; --replicas adds independent replicas.
        pipeline_parallel: Pipeline stages. Only 1 is supported.
        server: Server version whose defaults apply to unset options: vllm-0.11 to vllm-0.33, or sglang-0.5.
            Default: the latest version.
        scheduler: Scheduling policy, with fields: Sarathi:order=spf. {schedulers}. Policies with list or
            table fields ({other_schedulers}) require a scenario. Default: vllm-v1, or the policy of --server.
        token_budget: Token budget of an iteration. Default: the scheduler's.
        max_seqs: Maximum number of running sequences. Default: the scheduler's.
        max_model_len: Maximum tokens of a request. Default: the model's.
        weights: Data type of the weights: bf16, fp8, fp8-block, nvfp4, mxfp4, int8, int4, or a name such as
            awq. Default: the checkpoint's.
        kv_dtype: Data type of the KV cache: bf16, fp8, nvfp4 or int8. Default: the checkpoint's, else bf16.
        gpu_memory_utilization: Share of GPU memory for the engine. Default: the server's.
        kv_tokens: KV cache capacity in tokens, or unlimited. Default: free GPU memory; 432000 without
            --model.
        block: Tokens per KV cache block. Default: the server's; 16 without --model.
        prefix_cache: Prefix caching: blocks (hash-based, vLLM), radix (SGLang) or none. Default: the
            server's; none without --model.
        timing: Timing model: {timings}; for example Constant:0.05,
            PiecewiseLinear:base=0.006,per_token=3.2e-5, TimingTable:model=qwen3-8b,gpu=h200 or
            TimingTable:FILE. Default: measured table of --model; without it a100, an illustration of a 7-8B
            model on one A100-80GB.
        backend: Kernels of the measured table: vllm, sglang or trtllm. Default: the server's.
        overhead: Host time per iteration, such as base_s=0.001,per_sequence_s=1e-5,overlapped=true, or none.
            Default: the server's.
        eager: No CUDA graphs: the host launches every kernel.
        first_token: Iteration that yields the first token: prefill, or decode for one iteration later.
            Default: prefill; decode for disaggregated pools.
    """

    model: str | None = None
    gpu: str | None = None
    tensor_parallel: int | None = None
    expert_parallel: str | None = None
    enable_expert_parallel: bool = False
    data_parallel: int | None = None
    pipeline_parallel: int | None = None
    server: str | None = None
    scheduler: str | None = None
    token_budget: int | None = None
    max_seqs: int | None = None
    max_model_len: int | None = None
    weights: str | None = None
    kv_dtype: str | None = None
    gpu_memory_utilization: float | None = None
    kv_tokens: str | None = None
    block: int | None = None
    prefix_cache: str | None = None
    timing: str | None = None
    backend: str | None = None
    overhead: str | None = None
    eager: bool = False
    first_token: str | None = None

    def engine(self) -> Engine:
        """The engine: of a model on a GPU, or an illustration.

        Raises:
            ConfigError: an option is wrong or conflicts with another one; it names the option.
        """
        if self.model is None and self.gpu is None:
            return self._illustration()
        return self._on_gpu()

    @property
    def _cache_kind(self) -> Literal["blocks", "radix", "none"] | None:
        return cast("Literal['blocks', 'radix', 'none'] | None", self.prefix_cache)  # checked by the engine

    @property
    def _first_token(self) -> Literal["prefill", "decode"] | None:
        return cast("Literal['prefill', 'decode'] | None", self.first_token)  # checked by the engine

    def _scheduler(self) -> Scheduler | dict[str, int]:
        return options.scheduler(self.scheduler, token_budget=self.token_budget, max_seqs=self.max_seqs)

    def _on_gpu_only(self) -> dict[str, Any]:
        names = ("weights", "kv_dtype", "gpu_memory_utilization", "backend")
        return {
            **{name: value for name in names if (value := getattr(self, name)) is not None},
            **{name: value for name in _PARALLEL if (value := getattr(self, name)) is not None},
            **({"eager": True} if self.eager else {}),
            **({"expert_parallel": self._expert_parallel} if self._expert_parallel else {}),
        }

    @property
    def _expert_parallel(self) -> str | None:
        if self.enable_expert_parallel and self.expert_parallel not in (None, "all"):
            raise ConfigError(
                "--enable-expert-parallel",
                f"conflicts with --expert-parallel {self.expert_parallel}; use one",
            )
        return "all" if self.enable_expert_parallel else self.expert_parallel

    def _illustration(self) -> Engine:
        if given := [*(("server",) if self.server else ()), *self._on_gpu_only()]:
            raise ConfigError(f"--{given[0].replace('_', '-')}", "requires --model and --gpu")
        scheduler = self._scheduler()
        return Engine(
            timing=options.A100 if self.timing is None else options.timing(self.timing),
            scheduler=scheduler
            if isinstance(scheduler, Scheduler)
            else read_fields("--scheduler", scheduler, VllmV1),
            kv=options.cache(self.kv_tokens or "432000", self.block, self._cache_kind),
            first_token=self._first_token or "prefill",
            max_model_len=self.max_model_len,
            overhead=options.overhead(self.overhead),
        )

    def _on_gpu(self) -> Engine:
        if self.model is None:
            raise ConfigError("--gpu", "requires --model")
        if self.gpu is None:
            raise ConfigError("--model", "requires --gpu")
        name = plain_name(self.timing or "")
        if name in options.TIMING_PRESETS:
            raise ConfigError("--timing", f"{self.timing} cannot be combined with --model and --gpu")
        if self.kv_tokens is None and self.block is not None:
            raise ConfigError("--block", "requires --kv-tokens; free GPU memory is divided into blocks of 16")
        own_cache = None
        if self.kv_tokens is not None:
            block = {} if self.block is None else {"block": self.block}
            own_cache = {"tokens": options.kv_tokens(self.kv_tokens), **block}
        timing = None if self.timing is None or name == "roofline" else options.timing(self.timing)
        return Engine.on(
            self.model,
            options.gpu(self.gpu),
            server=self.server,
            max_model_len=self.max_model_len,
            scheduler=self._scheduler(),
            **self._on_gpu_only() | options.expert_parallel(self._expert_parallel),
            timing="roofline" if name == "roofline" else timing,
            kv=own_cache,
            prefix_cache=self._cache_kind,
            first_token=self._first_token,
            overhead=options.overhead(self.overhead),
        )


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """Replicas of the engine behind a router.

    Args:
        replicas: Number of replicas behind the router.
        router: Routing policy, with fields: prefix-affinity:weight=4. {routers}. Default: round-robin.
        autoscale: Autoscaling policy ({autoscalers}) with its fields and min, max, startup_s, every_s and
            cooldown_s, such as by-queue:requests=12,min=2,max=8,startup_s=60.
        failures: Replica failures: mtbf_s=86400,repair_s=300,retries=3, or at=600:0+900:2 (seconds:replica).
    """

    replicas: int | None = None
    router: str | None = None
    autoscale: str | None = None
    failures: str | None = None

    def system(self, engine: Engine) -> Engine | Cluster:
        """The engine alone, or a cluster if an option is set."""
        if self.replicas is not None:
            whole("--replicas", self.replicas, 1, MOST_REPLICAS)
        scaler = None if self.autoscale is None else options.autoscaler(self.autoscale)
        failures = None if self.failures is None else options.failures(self.failures)
        if self.replicas is None and scaler is None and failures is None:
            if self.router is not None:
                raise ConfigError("--router", "requires --replicas")
            return engine
        router = options.router(self.router or "round-robin")
        try:
            return Cluster(
                engine, replicas=self.replicas, router=router, autoscaler=scaler, failures=failures
            )
        except ConfigError as error:
            raise error.within("--", "") from None


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of the simulation.

    Args:
        seed: Seed of all random numbers.
        horizon: End the run at this time in seconds.
        warmup: Exclude the first requests (500) or seconds (30s) from metrics.
        cooldown: Exclude the last requests (500) or seconds (30s) from metrics.
        max_in_flight: Maximum concurrent requests; the client delays further requests.
    """

    seed: int = 0
    horizon: float | None = None
    warmup: str = "0"
    cooldown: str = "0"
    max_in_flight: int | None = None

    def as_options(self) -> dict[str, Any]:
        """Arguments of `simulate`."""
        return {
            "seed": self.seed,
            "horizon_s": self.horizon,
            "warmup": options.cut(self.warmup),
            "cooldown": options.cut(self.cooldown),
            "max_in_flight": self.max_in_flight,
        }


PANELS: Mapping[type[Any], str] = {
    TraceFormat: "Trace format",
    TraceOptions: "Workload",
    EngineOptions: "Engine",
    FleetOptions: "Fleet",
    RunOptions: "Simulation",
}
"""Heading of each group in help."""

_METAVARS = {
    **{"format": "NAME", "columns": "OURS=THEIRS,…", "tokenizer": "FILE", "tokens_per_word": "RATIO"},
    **{"time_unit": "UNIT", "head": "N", "output_tokens": "N", "rate": "R", "request_rate": "R"},
    **{"burstiness": "B", "concurrency": "N", "ramp_s": "SECONDS", "speed": "F", "think": "SECONDS|SPEC"},
    **{"model": "NAME|FILE", "gpu": "NAME|FILE", "tensor_parallel": "N", "server": "NAME"},
    **{"expert_parallel": "N|all", "data_parallel": "N", "pipeline_parallel": "N"},
    **{"scheduler": "SPEC", "token_budget": "N", "max_seqs": "N", "max_model_len": "N", "weights": "TYPE"},
    **{"kv_dtype": "TYPE", "gpu_memory_utilization": "SHARE", "kv_tokens": "N", "block": "N"},
    **{"prefix_cache": "KIND", "timing": "SPEC", "backend": "NAME", "overhead": "FIELD=VALUE,…"},
    **{"first_token": "WHEN", "replicas": "N", "router": "SPEC", "autoscale": "SPEC"},
    **{"failures": "FIELD=VALUE,…", "seed": "N", "horizon": "SECONDS", "warmup": "CUT", "cooldown": "CUT"},
    "max_in_flight": "N",
}
_NAMES = {
    "ramp_s": ("--ramp",),
    "deltas": ("--deltas",),
    "spread": ("--spread",),
    "tensor_parallel": ("--tensor-parallel", "--tp"),
    "expert_parallel": ("--expert-parallel", "--ep"),
    "data_parallel": ("--data-parallel", "--dp"),
    "pipeline_parallel": ("--pipeline-parallel", "--pp"),
    "eager": ("--eager", "--enforce-eager"),
}
"""Options whose name differs from the field."""
_TEXTS: Mapping[str, Callable[[str | None], Any]] = {"think": options.think}
"""Fields that the command line parses from a text."""


def _words() -> dict[str, str]:
    """Lists of names in help texts."""
    return {
        "schedulers": options.spelled(SCHEDULERS),
        "other_schedulers": options.unspelled(SCHEDULERS),
        "routers": options.spelled(ROUTERS),
        "timings": options.spelled(TIMING_MODELS),
        "autoscalers": options.spelled(SCALING_POLICIES),
    }


def documented(group: type[Any]) -> dict[str, str]:
    """The help text of each field, from the section `Args` of the docstring."""
    section = inspect.cleandoc(group.__doc__ or "").partition("Args:\n")[2]
    texts = re.split(r"^    (\w+): ", section, flags=re.MULTILINE)[1:]
    words = _words()
    return {
        name: " ".join(text.split()).format_map(words).replace("`", "")
        for name, text in zip(texts[::2], texts[1::2], strict=True)
    }


def expanded(function: F) -> F:
    """Replace each parameter whose type is an option group by one option per field.

    A parameter annotated as `Annotated[Group, Only(("name", …))]` has options for these fields only.
    """
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, tuple[type[Any], tuple[str, ...]]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        group = getattr(hint, "__origin__", hint)
        if group not in PANELS:
            parameters.append(parameter.replace(annotation=hint, kind=parameter.KEYWORD_ONLY))
            continue
        only = next((mark.names for mark in getattr(hint, "__metadata__", ())), None)
        names = tuple(field.name for field in dataclasses.fields(group) if only is None or field.name in only)
        groups[parameter.name] = (group, names)
        parameters += _parameters(group, names)

    @functools.wraps(function)
    def command(**values: Any) -> Any:
        for name, (group, fields) in groups.items():
            given = {field: values.pop(field) for field in fields}
            for field in _TEXTS.keys() & given.keys():
                given[field] = _TEXTS[field](given[field])
            values[name] = group(**given)
        return function(**values)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return cast("F", command)


def _parameters(group: type[Any], names: tuple[str, ...]) -> list[inspect.Parameter]:
    """The parameters of the options of a group."""
    helps, hints = documented(group), get_type_hints(group)
    parameters = []
    for field in dataclasses.fields(group):
        if field.name in names:
            hint = (str | None) if field.name in _TEXTS else hints[field.name]
            typed = Annotated[
                hint,  # type: ignore[valid-type]
                option(
                    _METAVARS.get(field.name),
                    helps[field.name],
                    *_NAMES.get(field.name, ()),
                    panel=PANELS[group],
                ),
            ]
            parameters.append(
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=typed
                )
            )
    return parameters
