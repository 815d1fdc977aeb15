"""The engine of a measured server, as a function of its row.

Published settings are used. Missing ones are the defaults of that version of the server on that GPU, as far
as known. They are listed as assumptions, as are features that are not simulated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from inferq.checks import shown
from inferq.errors import ConfigError
from inferq.experiments.validation.measured_run import MeasuredRun
from inferq.scheduler import Scheduler, Sglang, VllmV1
from inferq.systems.engine import Engine
from inferq.systems.kv_cache import KvCache
from inferq.systems.servers import Server
from inferq.timing.hardware.catalog import entries, hub_config
from inferq.timing.hardware.formats import KvType, Weights, kv_type_of, weights_of
from inferq.timing.hardware.gpu import Gpu
from inferq.timing.hardware.launches import launches
from inferq.timing.hardware.model_shape import ModelShape

_BLOCK = 16
_MOST_DIGITS = 9
"""Maximum digits of a number in a version."""
_ENDINGS = re.compile(r"-(hf|instruct|chat|base|it|bf16|fp16|v0\.1)$")


@dataclass(slots=True)
class Assumptions:
    """Assumed settings of a run: value and reason by setting."""

    settings: dict[str, tuple[str, str]] = field(default_factory=dict)

    def assume(self, setting: str, value: object, reason: str) -> Any:
        """Record an assumption and return its value."""
        self.settings[setting] = (str(value), reason)
        return value


def engine_for(run: MeasuredRun, assumptions: Assumptions) -> Engine:
    """The engine of a run.

    Args:
        run: the published settings.
        assumptions: receives each setting that was not published.

    Raises:
        TraceError: a setting is not supported; it names row and column.
    """
    _refuse_unsupported(run)
    for column, reason in run.uncertain.items():
        assumptions.assume(column, getattr(run, column, None) or "default", reason)
    shape, card = _shape(run), _card(run)
    server = _server(run)
    if version_of(run) is None:
        newest = {"vllm": "vllm-0.33", "sglang": "sglang-0.5"}[server]
        assumptions.assume(
            "engine_version", newest.partition("-")[2], "not published; the latest known version"
        )
    weights = _weights(run, shape, assumptions)
    caching = _prefix_cache(run, server, assumptions)
    scheduler: Scheduler = (_vllm if server == "vllm" else _sglang)(run, card, assumptions)
    gpus = run.tp
    if gpus is None:
        gpus = assumptions.assume("tp", 1, "not published")
    kv_dtype = _kv_dtype(run, shape, assumptions)
    kv = _kv(run, server, caching)
    release = release_of(run, card)
    budget = getattr(scheduler, "token_budget", None)
    eager = launches(shape, gpus) if run.eager else None
    overhead = release.host(shape.layers, gpus, budget, eager)
    if getattr(scheduler, "async_scheduling", False):
        overhead = replace(overhead, overlapped=True)
    assumptions.assume("overhead", f"{overhead!r}", f"{release.name}: {release.source('host')}")
    api_s = 0.0 if run.requests is not None else release.api_s
    log = "the log of requests is assumed to be the engine's" if run.requests is not None else ""
    assumptions.assume("api_s", f"{api_s:g}", log or f"{release.name}: {release.source('api_s')}")
    memory: dict[str, Any] = {"prefix_cache": caching or "none"} if kv is None else {"kv": kv.to_json()}
    if kv is None:
        memory["gpu_memory_utilization"] = _gpu_memory_utilization(run, release, gpus, assumptions)
    if run.max_model_len is not None:
        capacity = None if kv is None else kv.tokens
        memory["max_model_len"] = min(run.max_model_len, capacity or run.max_model_len)
    try:
        engine = Engine.on(
            shape,
            card,
            tensor_parallel=gpus,
            expert_parallel=run.ep or 1,
            scheduler=scheduler,
            weights=weights,
            kv_dtype=kv_dtype,
            overhead=overhead,
            api_s=api_s,
            **memory,
        )
    except ConfigError as error:
        raise run.wrong("model", str(error)) from None
    if run.kv_blocks is None:
        assumptions.assume(
            "kv_blocks", f"{(engine.kv.tokens or 0) // _BLOCK:,}", "free GPU memory after the weights"
        )
    _not_simulated(run, server, assumptions)
    return engine


def _refuse_unsupported(run: MeasuredRun) -> None:
    """Refuse deployments that one simulated replica cannot represent."""
    if run.replicas not in (None, 1):
        raise run.wrong("replicas", f"must be 1 (fleets are not supported), got {run.replicas}")
    if run.disaggregated:
        raise run.wrong("disaggregated", "must be 0 (prefill/decode disaggregation is not supported)")
    if run.pp not in (None, 1):
        raise run.wrong("pp", f"must be 1 (pipeline parallelism is not supported), got {run.pp}")
    if run.dp not in (None, 1):
        raise run.wrong("dp", f"must be 1 (data-parallel attention is not supported), got {run.dp}")
    if is_speculative(run):
        raise run.wrong(
            "speculation",
            f"must be none (a table has no draft lengths and acceptance rates), got {run.speculation!r}",
        )


def is_speculative(run: MeasuredRun) -> bool:
    """Whether the run used speculative decoding, or probably did."""
    return run.speculation not in (None, "none", "likely none", "unknown")


def timing_of(engine: Engine) -> str:
    """The timing model of an engine, as text."""
    explained = engine.on_card.get("explained", ())
    return next(
        (line.removeprefix("timing: ") for line in explained if line.startswith("timing: ")),
        repr(engine.timing),
    )


def version_of(run: MeasuredRun) -> tuple[int, ...] | None:
    """The release of the server as numbers, or None."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", run.engine_version or "")
    if match is None:
        return None
    parts = match[1].split(".")
    if max(map(len, parts)) > _MOST_DIGITS:
        raise run.wrong(
            "engine_version", f"must be a version such as 0.11.0, got {shown(run.engine_version)}"
        )
    return tuple(map(int, parts))


def release_of(run: MeasuredRun, card: Gpu) -> Server:
    """The latest known server version up to that of the run. Default: the latest."""
    program, version = _server(run), version_of(run)
    name = Server.until(program, version or (10**6,))
    return Server(name, version or Server.of(name, card).version, card)


def _server(run: MeasuredRun) -> Literal["vllm", "sglang"]:
    words = (run.engine or "").lower().split()
    for server in ("vllm", "sglang"):
        if words and words[0] == server:
            return server
    raise run.wrong("engine", f"must be vllm or sglang, got {run.engine!r}")


def _shape(run: MeasuredRun) -> ModelShape:
    if run.model is None:
        raise run.wrong("model", "is empty")
    name = run.model
    if hub_config(name) is None:
        name = name.split("/")[-1].lower().removeprefix("meta-")
        while _ENDINGS.search(name) and name not in entries("models"):
            name = _ENDINGS.sub("", name)
        if name not in entries("models") and Path(run.model).exists():
            name = run.model
    try:
        return ModelShape.of(name)
    except ConfigError as error:
        raise run.wrong("model", error.message) from None


def _card(run: MeasuredRun) -> Gpu:
    if run.gpu is None:
        raise run.wrong("gpu", "is empty")
    try:
        return Gpu.of(run.gpu)
    except ConfigError as error:
        raise run.wrong("gpu", error.message) from None


def _weights(run: MeasuredRun, shape: ModelShape, assumptions: Assumptions) -> Weights:
    if run.dtype is None:
        assumptions.assume("dtype", shape.checkpoint.weights, "not published; the format of the checkpoint")
    try:
        return weights_of(run.dtype, shape.checkpoint, "dtype")
    except ConfigError as error:
        raise run.wrong("dtype", error.message) from None


def _kv_dtype(run: MeasuredRun, shape: ModelShape, assumptions: Assumptions) -> KvType:
    try:
        kv_dtype = kv_type_of(run.kv_dtype, shape.checkpoint)
    except ConfigError as error:
        raise run.wrong("kv_dtype", error.message) from None
    if run.kv_dtype is None:
        assumptions.assume("kv_dtype", kv_dtype, "not published; the format of the checkpoint, else bf16")
    return kv_dtype


def _prefix_cache(
    run: MeasuredRun, server: str, assumptions: Assumptions
) -> Literal["blocks", "radix"] | None:
    own: Literal["blocks", "radix"] = "blocks" if server == "vllm" else "radix"
    if run.prefix_cache is None:
        assumptions.assume("prefix_cache", own, f"the default of {server}")
        return own
    if run.prefix_cache == "none":
        return None
    if run.prefix_cache != own:
        raise run.wrong("prefix_cache", f"must be {own} or none for {server}, got {run.prefix_cache!r}")
    return own


def _vllm(run: MeasuredRun, card: Gpu, assumptions: Assumptions) -> VllmV1:
    """VLLM's scheduler with its defaults for an API server on this GPU."""
    version = version_of(run)
    release = "vllm-0.33" if version is None else Server.until("vllm", version)
    limits = Server.of(release, card).limits()
    reason = f"vLLM's default for an API server on {card.name}"
    seqs = run.max_num_seqs or assumptions.assume("max_num_seqs", limits["max_seqs"], reason)
    budget = run.max_num_batched_tokens
    if budget is None:
        budget = limits["token_budget"]
        if run.max_model_len is not None:
            budget = min(budget, seqs * run.max_model_len)
        assumptions.assume("max_num_batched_tokens", budget, reason)
    if run.max_num_seqs is None:
        seqs = min(seqs, budget)
    reserves = version is None or version >= (0, 19)
    assumptions.assume(
        "reserve_full_prompt",
        "on" if reserves else "off",
        "scheduler_reserve_full_isl, in vLLM since 0.19",
    )
    is_async = version is None or version >= (0, 14)
    if run.async_scheduling is None:
        assumptions.assume("async_scheduling", "on" if is_async else "off", "vLLM's default since 0.14")
    else:
        is_async = bool(run.async_scheduling)
    if is_async:
        assumptions.assume("pause_s", 0.001, "the engine loop of vLLM sleeps 1 ms since 0.14")
    return VllmV1(
        token_budget=budget,
        max_seqs=seqs,
        reserve_full_prompt=reserves,
        async_scheduling=is_async,
        pause_s=0.001 if is_async else 0.0,
    )


def _sglang(run: MeasuredRun, card: Gpu, assumptions: Assumptions) -> Sglang:
    """SGLang's scheduler with its defaults on this GPU."""
    chunk = run.max_num_batched_tokens or assumptions.assume(
        "max_num_batched_tokens",
        release_of(run, card).limits()["chunk_tokens"],
        f"SGLang's chunked_prefill_size on {card.name}",
    )
    seqs = run.max_num_seqs or assumptions.assume(
        "max_num_seqs", 2048, "SGLang's minimum of max_running_requests"
    )
    ignore = "ignore_eos" in (run.output_law or "")
    return Sglang(chunk_tokens=chunk, max_seqs=seqs, ignore_eos=ignore, overlap=True)


def _kv(run: MeasuredRun, server: str, caching: Literal["blocks", "radix"] | None) -> KvCache | None:
    """The KV cache if its blocks are published."""
    if run.kv_blocks is None:
        return None
    # vLLM reserves one block.
    own = 1 if server == "vllm" else 0
    return KvCache(tokens=_BLOCK * max(1, run.kv_blocks - own), block=_BLOCK, prefix_cache=caching)


def _gpu_memory_utilization(run: MeasuredRun, release: Server, gpus: int, assumptions: Assumptions) -> float:
    if run.gpu_mem_util is not None:
        return run.gpu_mem_util
    share, source = release.gpu_memory_utilization(gpus), release.source("gpu_memory_utilization")
    return float(assumptions.assume("gpu_mem_util", share, f"{release.name}: {source}"))


def _not_simulated(run: MeasuredRun, server: str, assumptions: Assumptions) -> None:
    if server == "sglang":
        assumptions.assume("overlap", "on", "SGLang's default")
    if run.kv_offload is not None:
        assumptions.assume("kv_offload", "none", f"{run.kv_offload} in the run; not supported")
    if run.chunked_prefill == 0:
        assumptions.assume("chunked_prefill", 1, "off in the run; not supported")
