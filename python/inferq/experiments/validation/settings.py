"""The engine that stands for a measured server: its settings are a function of the row, in this one place.

What a row says is taken. What it does not say is what that version of that server does unasked on that card,
as far as it is known, and is listed as assumed; so is what inferq does not simulate.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from inferq.errors import ConfigError
from inferq.experiments.validation.measured_run import MeasuredRun
from inferq.experiments.validation.taken import share_of
from inferq.scheduler import Scheduler, Sglang, VllmV1
from inferq.systems.engine import Engine
from inferq.systems.kv_cache import KvCache
from inferq.systems.servers import CONTEXT_BYTES, Server, sglang_share
from inferq.timing.hardware.catalog import entries
from inferq.timing.hardware.gpu import Gpu
from inferq.timing.hardware.model_shape import ModelShape
from inferq.timing.tables.shipped import files

_BLOCK = 16
_ENDINGS = re.compile(r"-(hf|instruct|chat|base|it|bf16|fp16|v0\.\d|2\d{3})$")


@dataclass(slots=True)
class Assumed:
    """What was assumed for a run, by setting: the value and why."""

    settings: dict[str, tuple[str, str]] = field(default_factory=dict)

    def take(self, setting: str, value: object, why: str) -> Any:
        """Note a value, and give it back."""
        self.settings[setting] = (str(value), why)
        return value


def engine_for(run: MeasuredRun, assumed: Assumed) -> Engine:
    """The engine of a run.

    Args:
        run: what was published of the server.
        assumed: gets a line for each setting that was not.

    Raises:
        TraceError: a setting that inferq has not, naming row and column.
    """
    for column, value in (("pp", run.pp), ("dp", run.dp)):
        if value not in (None, 1):
            raise run.wrong(column, f"{value}: one replica without pipelines is simulated")
    shape, card = _shape(run), _card(run)
    server = _server(run)
    if version_of(run) is None:
        newest = {"vllm": "vllm-0.33", "sglang": "sglang-0.5"}[server]
        assumed.take("engine_version", newest.partition("-")[2], "not said: the newest that is known")
    weights = _weights(run, assumed)
    caching = _prefix_cache(run, server, assumed)
    scheduler: Scheduler = (_vllm if server == "vllm" else _sglang)(run, card, assumed)
    gpus = run.tp
    if gpus is None:
        gpus = assumed.take("tp", 1, "not said")
    kv = _kv(run, shape, card, gpus, server, weights, caching, assumed)
    release = release_of(run, card)
    budget = getattr(scheduler, "token_budget", None)
    host = release.host(shape.layers, gpus, budget)
    assumed.take("overhead", f"{host!r}", f"{release.name}: {release.source('host')}")
    api_s = 0.0 if run.requests is not None else release.api_s
    why = "its log of requests is taken to be the engine's own" if run.requests is not None else ""
    assumed.take("api_s", f"{api_s:g}", why or f"{release.name}: {release.source('api_s')}")
    backend = server if _has_table(shape, card, gpus, server) else "vllm"
    memory: dict[str, Any] = {"kv": kv} if kv is not None else {"prefix_cache": caching or "none"}
    if kv is None:
        memory["gpu_memory_utilization"] = _gpu_memory_utilization(run, assumed)
    if run.max_model_len is not None:
        held = None if kv is None else kv.tokens
        memory["max_model_len"] = min(run.max_model_len, held or run.max_model_len)
    try:
        engine = Engine.on(
            shape,
            card,
            tensor_parallel=gpus,
            scheduler=scheduler,
            weights=weights,
            backend=backend,
            overhead=host,
            api_s=api_s,
            **memory,
        )
    except ConfigError as error:
        raise run.wrong("model", str(error)) from None
    if run.kv_blocks is None:
        assumed.take(
            "kv_blocks", f"{(engine.kv.tokens or 0) // _BLOCK:,}", "what the card leaves beside the model"
        )
    _not_simulated(run, server, assumed)
    return engine


def clock_of(engine: Engine) -> str:
    """Which clock an engine has, in words."""
    explained = engine.on_card.get("explained", ())
    return next(
        (line.removeprefix("timing: ") for line in explained if line.startswith("timing: ")),
        repr(engine.timing),
    )


def version_of(run: MeasuredRun) -> tuple[int, ...] | None:
    """The release of the server as numbers; None where it is not said."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", run.engine_version or "")
    return tuple(int(part) for part in found[1].split(".")) if found else None


def release_of(run: MeasuredRun, card: Gpu) -> Server:
    """The newest known server that is no newer than that of a run; the newest where it is not said."""
    program, version = _server(run), version_of(run)
    name = Server.until(program, version or (10**6,))
    return Server(name, version or Server.of(name, card).version, card)


def _server(run: MeasuredRun) -> Literal["vllm", "sglang"]:
    words = (run.engine or "").lower().split()
    for server in ("vllm", "sglang"):
        if words and words[0] == server:
            return server
    raise run.wrong("engine", f"must be vllm or sglang, is {run.engine!r}")


def _shape(run: MeasuredRun) -> ModelShape:
    if run.model is None:
        raise run.wrong("model", "is empty")
    name = run.model
    if name.strip().lower() not in entries("models"):
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


def _weights(run: MeasuredRun, assumed: Assumed) -> Literal["bf16", "fp8"]:
    if run.dtype is None:
        assumed.take("dtype", "bf16", "not said: 16 bits a weight")
    if run.dtype in (None, "bf16", "fp16", "bfloat16", "float16", "auto"):
        return "bf16"
    if run.dtype == "fp8":
        return "fp8"
    raise run.wrong("dtype", f"must be bf16, fp16 or fp8, is {run.dtype!r}")


def _prefix_cache(run: MeasuredRun, server: str, assumed: Assumed) -> Literal["blocks", "radix"] | None:
    own: Literal["blocks", "radix"] = "blocks" if server == "vllm" else "radix"
    if run.prefix_cache is None:
        assumed.take("prefix_cache", own, f"the default of {server}")
        return own
    if run.prefix_cache == "none":
        return None
    if run.prefix_cache != own:
        raise run.wrong("prefix_cache", f"must be {own} or none under {server}, is {run.prefix_cache!r}")
    return own


def _vllm(run: MeasuredRun, card: Gpu, assumed: Assumed) -> VllmV1:
    """The scheduler of vLLM with its defaults for an API server on this card."""
    version = version_of(run)
    release = "vllm-0.33" if version is None else Server.until("vllm", version)
    limits = Server.of(release, card).limits()
    why = f"vLLM's default for an API server on {card.name}"
    seqs = run.max_num_seqs or assumed.take("max_num_seqs", limits["max_seqs"], why)
    budget = run.max_num_batched_tokens
    if budget is None:
        budget = limits["token_budget"]
        if run.max_model_len is not None:
            budget = min(budget, seqs * run.max_model_len)
        assumed.take("max_num_batched_tokens", budget, why)
    if run.max_num_seqs is None:
        seqs = min(seqs, budget)
    whole = version is None or version >= (0, 19)
    assumed.take(
        "reserve_full_prompt",
        "on" if whole else "off",
        "scheduler_reserve_full_isl, which vLLM has since 0.19",
    )
    ahead = version is None or version >= (0, 14)
    assumed.take("async_scheduling", "on" if ahead else "off", "vLLM plans ahead by default since 0.14")
    if ahead:
        assumed.take("pause_s", 0.001, "the engine loop of vLLM sleeps 1 ms since 0.14")
    return VllmV1(
        token_budget=budget,
        max_seqs=seqs,
        reserve_full_prompt=whole,
        async_scheduling=ahead,
        pause_s=0.001 if ahead else 0.0,
    )


def _sglang(run: MeasuredRun, card: Gpu, assumed: Assumed) -> Sglang:
    """SGLang's scheduler with its defaults on this card."""
    chunk = run.max_num_batched_tokens or assumed.take(
        "max_num_batched_tokens",
        release_of(run, card).limits()["chunk_tokens"],
        f"SGLang's chunked_prefill_size on {card.name}",
    )
    seqs = run.max_num_seqs or assumed.take(
        "max_num_seqs", 2048, "the least that SGLang takes for max_running_requests"
    )
    ignore = "ignore_eos" in (run.output_law or "")
    return Sglang(chunk_tokens=chunk, max_seqs=seqs, ignore_eos=ignore, overlap=True)


def _kv(
    run: MeasuredRun,
    shape: ModelShape,
    card: Gpu,
    gpus: int,
    server: str,
    weights: Literal["bf16", "fp8"],
    caching: Literal["blocks", "radix"] | None,
    assumed: Assumed,
) -> KvCache | None:
    """The cache, where it is said, or where it is not left to `KvMemory`."""
    if run.kv_blocks is not None:
        # vLLM keeps one block for itself.
        own = 1 if server == "vllm" else 0
        return KvCache(tokens=_BLOCK * max(1, run.kv_blocks - own), block=_BLOCK, prefix_cache=caching)
    if server == "vllm":
        return None
    share = run.gpu_mem_util
    if share is None and (published := share_of(run)) is not None:
        share = assumed.take(
            "gpu_mem_util",
            published,
            "taken on rows of this publisher where the cache is full (SGLang 0.5.1)",
        )
    share = share or assumed.take(
        "gpu_mem_util",
        sglang_share(card, gpus, version_of(run)),
        "mem_fraction_static, from the rules in SGLang's server_args.py",
    )
    room = (card.memory_bytes - CONTEXT_BYTES) * share - shape.weight_bytes(weights) / gpus
    tokens = int(room // shape.kv_bytes_per_token("bf16", gpus))
    if tokens < 1:
        raise run.wrong("tp", f"{shape.name} leaves no room for keys and values on {gpus} × {card.name}")
    # SGLang's pages have one token.
    return KvCache(tokens=tokens, block=1, prefix_cache=caching)


def _gpu_memory_utilization(run: MeasuredRun, assumed: Assumed) -> float:
    if run.gpu_mem_util is not None:
        return run.gpu_mem_util
    version = version_of(run)
    share = 0.92 if version is None or version >= (0, 20) else 0.9
    return float(assumed.take("gpu_mem_util", share, "vLLM's default: 0.92 since 0.20, 0.90 before"))


def _has_table(shape: ModelShape, card: Gpu, gpus: int, backend: str) -> bool:
    return any(
        (one.gpu, one.tensor_parallel, one.backend) == (card.name, gpus, backend)
        and ModelShape.of(one.model) == shape
        for one in files()
    )


def _not_simulated(run: MeasuredRun, server: str, assumed: Assumed) -> None:
    if server == "sglang":
        assumed.take("overlap", "on", "SGLang plans a step ahead unless told not to")
    if run.kv_offload is not None:
        assumed.take("kv_offload", "none", f"{run.kv_offload} in the run, not simulated")
    if run.chunked_prefill == 0:
        assumed.take("chunked_prefill", 1, "off in the run, not simulated")
