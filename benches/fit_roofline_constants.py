"""Constants of a roofline's optional parts, fitted to kernel times of aiconfigurator's database.

`CONSTANTS` and the factors of routed experts in `REACHED`, both of
`python/inferq/timing/models/roofline_seconds.py`, are fitted together: the mean of |ln(roofline / kernels)|
is least, and every model, GPU, size of the replica and regime counts the same. `EFFICIENCIES` stay as
`fit_roofline.py` fits them. The database is that of `inferq timing bake` and needs the same package:

    pip install 'inferq[tables]' scipy
    python benches/fit_roofline_constants.py

Left out are kernels that their backend had not tuned: block-FP8 matrices under vLLM, MXFP4 experts under
TensorRT-LLM on a B200, and the experts of Mixtral outside `MIXTRAL`.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from inferq.timing.hardware.formats import kv_type_of
from inferq.timing.hardware.gpu import Gpu
from inferq.timing.hardware.model_shape import ModelShape
from inferq.timing.models import roofline_seconds as roofline
from inferq.timing.models.roofline import EFFICIENCIES, EXCHANGES

GPUS = {
    "a100-80gb": "a100_sxm",
    "h100-80gb": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
"""The database's names of GPUs."""

LARGE = ("h100-80gb", "h200", "b200")
KERNELS: tuple[tuple[str, tuple[str, ...], tuple[str, ...], tuple[int, ...]], ...] = (
    ("Qwen/Qwen3-30B-A3B", ("a100-80gb", *LARGE), ("vllm", "sglang"), (1, 2)),
    ("Qwen/Qwen3-30B-A3B", ("l40s", "rtx-pro-6000"), ("vllm", "sglang"), (1,)),
    ("Qwen/Qwen3-30B-A3B-FP8", LARGE, ("sglang",), (1, 2)),
    ("Qwen/Qwen3-235B-A22B", LARGE, ("vllm",), (4, 8)),
    ("Qwen/Qwen3-235B-A22B-FP8", LARGE, ("sglang",), (4,)),
    ("nvidia/Qwen3-235B-A22B-NVFP4", ("b200",), ("vllm",), (2, 4, 8)),
    ("MiniMaxAI/MiniMax-M2.5", LARGE, ("sglang",), (4,)),
    ("nvidia/MiniMax-M2.5-NVFP4", ("b200",), ("vllm",), (2, 4, 8)),
    ("openai/gpt-oss-120b", LARGE, ("vllm",), (1, 2, 4)),
    ("openai/gpt-oss-20b", LARGE, ("vllm",), (1, 2, 4)),
    ("openai/gpt-oss-120b", ("h200",), ("trtllm",), (1,)),
    ("google/gemma-4-26B-A4B", LARGE, ("vllm",), (1,)),
    ("meta-llama/Llama-4-Scout-17B-16E-Instruct", LARGE, ("vllm",), (4,)),
    ("meta-llama/Llama-4-Scout-17B-16E-Instruct", LARGE, ("sglang",), (8,)),
    ("Qwen/Qwen3.5-27B", LARGE, ("sglang",), (1,)),
    ("Qwen/Qwen3.5-35B-A3B", LARGE, ("sglang",), (1,)),
    ("Qwen/Qwen3.5-397B-A17B", LARGE, ("sglang",), (8,)),
    ("nvidia/Qwen3.5-397B-A17B-NVFP4", ("b200",), ("sglang",), (2, 4, 8)),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", LARGE, ("trtllm",), (1,)),
    ("nvidia/Kimi-K2.5-NVFP4", ("b200",), ("vllm",), (2, 4, 8)),
    ("zai-org/GLM-5-FP8", LARGE, ("sglang",), (8,)),
    ("nvidia/GLM-5-NVFP4", ("b200",), ("sglang",), (2, 4, 8)),
    ("deepseek-ai/DeepSeek-V3.2", LARGE, ("sglang",), (8,)),
)
"""Models, GPUs, backends and sizes of the replica."""

MIXTRAL = {
    "mistralai/Mixtral-8x7B-v0.1": {"a100-80gb": (2, 4), "h100-80gb": (2, 4), "h200": (1, 2, 4)},
    "mistralai/Mixtral-8x22B-v0.1": {"a100-80gb": (4,), "h100-80gb": (4,), "h200": (4,)},
}
"""Mixtral with tuned experts, under SGLang."""

EIGHT_BIT_CACHES = ("DeepSeek", "GLM", "Kimi", "NVFP4")
"""Models whose cache has 8 bits in the database."""

FITTED: tuple[tuple[str, str | None], ...] = (
    *((name, None) for name in roofline.CONSTANTS),
    ("four", "experts"),
    ("four", "read"),
)
"""The constants, and the factors by number format."""

PROMPTS, CONTEXTS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192), (0, 2048, 8192)
DECODES, DECODE_CONTEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), (128, 512, 2048, 8192, 32_768)
MOST_CACHED = 2**20
"""Tokens of the largest batch of decodes."""


class Kernels(NamedTuple):
    """Kernel times of a model on a GPU."""

    model: str
    gpu: str
    tensor_parallel: int
    shape: ModelShape
    batches: np.ndarray[Any, Any]
    """Columns: tokens, sequences, context, and whether it is a prompt."""
    seconds: np.ndarray[Any, Any]
    regimes: np.ndarray[Any, Any]


def measured() -> Iterator[Kernels]:
    """The kernel times that the constants are fitted to."""
    from aiconfigurator_core.sdk.engine import EngineHandle

    logging.disable(logging.CRITICAL)
    listed = [
        (model, gpu, backend, size)
        for model, gpus, backends, sizes in KERNELS
        for gpu in gpus
        for backend in backends
        for size in sizes
    ]
    listed += [
        (model, gpu, "sglang", size)
        for model, by_gpu in MIXTRAL.items()
        for gpu, sizes in by_gpu.items()
        for size in sizes
    ]
    with tempfile.TemporaryDirectory() as scratch:
        for model, gpu, backend, size in listed:
            folder = _folder(Path(scratch), model)
            engine = EngineHandle.compile(
                str(folder), GPUS[gpu], backend, tp_size=size, moe_tp_size=size, moe_ep_size=1
            )
            rows = list(_batches(engine, ModelShape.of(folder)))
            batches, seconds, regimes = (np.array(column) for column in zip(*rows, strict=True))
            yield Kernels(model, gpu, size, ModelShape.of(folder), batches, seconds, regimes)


def _folder(scratch: Path, model: str) -> Path:
    """A folder with the configuration that the database has of a model."""
    folder = scratch / model.replace("/", "--")
    if not folder.exists():
        folder.mkdir()
        carried = importlib.resources.files("aiconfigurator_core") / "model_configs"
        for part in ("config.json", "hf_quant_config.json"):
            file = Path(str(carried / f"{folder.name}_{part}"))
            if file.is_file():
                shutil.copy(file, folder / part)
    return folder


def _batches(engine: Any, shape: ModelShape) -> Iterator[tuple[tuple[float, ...], float, str]]:
    """Batches of prompts, then of decodes, that the model's kernels were measured on.

    Attention over selected tokens was measured in modules that wait for the host in short prompts, and latent
    attention with a context in prompts from 128 tokens on.
    """
    mixers = [mixer for group in shape.groups for mixer in group.mixers]
    latent = [mixer for mixer in mixers if isinstance(mixer, roofline.LatentAttention)]
    is_sparse = any(mixer.index is not None for mixer in latent)
    for tokens in PROMPTS:
        for context in CONTEXTS:
            if tokens >= 4096 or not (is_sparse or (latent and context and tokens < 128)):
                seconds = _seconds(engine.evaluate_context_ops, batch_size=1, s=tokens, prefix=context)
                yield (
                    (tokens, 1, context, 1),
                    seconds,
                    "prompt, < 128" if tokens < 128 else "prompt, 128 to 8192",
                )
    for count in DECODES:
        for context in DECODE_CONTEXTS:
            if count * context <= MOST_CACHED:
                seconds = _seconds(engine.evaluate_generation_ops, batch_size=count, s=context + 1)
                yield (
                    (count, count, context, 0),
                    seconds,
                    "decode, 1 to 16" if count <= 16 else "decode, 32 to 512",
                )


def _seconds(evaluate: Callable[..., Any], **batch: int) -> float:
    """The sum over all operations of a phase; an index out of range ends the list."""
    total, place = 0.0, 0
    while True:
        try:
            ((_, milliseconds, _, _),) = evaluate([place], **batch)
        except ValueError as error:
            if "out of range" not in str(error):
                raise
            return total
        total, place = total + milliseconds / 1000, place + 1


def rooflines(
    kernels: Kernels, constants: Mapping[str, float], reached: Mapping[str, roofline.Reached]
) -> np.ndarray[Any, Any]:
    """Seconds of the same batches by the formula of `Roofline`."""
    kv_dtype = "fp8" if any(name in kernels.model for name in EIGHT_BIT_CACHES) else None
    checkpoint = kernels.shape.checkpoint
    parts = roofline.roofline_seconds(
        kernels.shape,
        Gpu.of(kernels.gpu),
        roofline.Layout(tensor=kernels.tensor_parallel),
        checkpoint.weights,
        kv_type_of(kv_dtype, checkpoint),
        {**constants, **EFFICIENCIES, **EXCHANGES},
        reached,
    )
    tokens, count, context, is_prompt = kernels.batches.T

    def attention(of: Callable[[str], float], limit: float, expansion_s: float = 0.0) -> np.ndarray[Any, Any]:
        filling = np.clip(limit - 1 - context, 0, tokens)
        pairs = filling * context + filling * (filling + 1) / 2
        full = tokens - filling
        pairs += np.where(full > 0, full * min(limit, 1e18), 0)
        read = np.minimum(context, limit - 1) + tokens
        chunk_s = np.maximum(
            of("chunk_compute_s_per_pair") * pairs + expansion_s * context,
            of("chunk_memory_s_per_token") * read,
        )
        each_s = max(of("decode_compute_s_per_token"), of("decode_memory_s_per_token"))
        return np.where(is_prompt > 0, chunk_s, each_s * count * np.minimum(context + 1, limit))

    seconds = parts["base_s"] + parts["all_reduce_latency_s"] + parts["all_reduce_s_per_token"] * tokens
    seconds = seconds + np.maximum(
        parts["linear_flops_s_per_token"] * tokens,
        parts["linear_weight_s"] + parts["linear_activation_s_per_token"] * tokens,
    )
    expansion_s = parts.get("chunk_compute_s_per_context_token", 0.0)
    seconds += attention(parts.__getitem__, np.inf, expansion_s)
    for window in parts["windows"]:
        seconds += attention(lambda name, part=window: getattr(part, name), window.tokens)
    for part in parts["experts"]:
        share = 1 - (1 - part.active / part.experts) ** tokens
        seconds += part.base_s + part.s_per_token * tokens + part.weight_s * share
    if "states" in parts:
        states = parts["states"]
        of_prompt = states.s_per_chunk + states.s_per_chunk_token * tokens
        seconds += np.where(is_prompt > 0, of_prompt, states.s_per_decode * count)
    return seconds


Parameters = tuple[dict[str, float], dict[str, roofline.Reached]]


def parameters(place: np.ndarray[Any, Any], reached: Mapping[str, roofline.Reached]) -> Parameters:
    """The constants and the factors by number format of a point."""
    constants, factors = dict(roofline.CONSTANTS), dict(reached)
    for (name, factor), value in zip(FITTED, np.exp(place), strict=True):
        if factor is None:
            constants[name] = float(value)
        else:
            factors[name] = dataclasses.replace(factors[name], **{factor: float(value)})
    return constants, factors


def errors(all_kernels: list[Kernels], constants: Parameters) -> list[np.ndarray[Any, Any]]:
    """roofline / kernels − 1 of every batch."""
    return [rooflines(kernels, *constants) / kernels.seconds - 1 for kernels in all_kernels]


def loss(all_kernels: list[Kernels], constants: Parameters) -> float:
    """The mean of |ln(roofline / kernels)|; models, GPUs, sizes and regimes count the same."""
    means = [
        np.abs(np.log1p(error[kernels.regimes == regime])).mean()
        for kernels, error in zip(all_kernels, errors(all_kernels, constants), strict=True)
        for regime in np.unique(kernels.regimes)
    ]
    return float(np.mean(means))


if __name__ == "__main__":
    all_kernels, reached = list(measured()), roofline.REACHED
    now = [
        roofline.CONSTANTS[name] if factor is None else getattr(reached[name], factor)
        for name, factor in FITTED
    ]
    place = np.log(now)
    for _ in range(3):
        place = minimize(
            lambda at: loss(all_kernels, parameters(at, reached)),
            place,
            method="Nelder-Mead",
            options={"maxiter": 900, "maxfev": 900, "adaptive": True},
        ).x
    for (name, factor), value, old in zip(FITTED, np.exp(place), now, strict=True):
        print(f"{name} {factor or '':8} {value:.3g}   now {old:.3g}")
    best, current = parameters(place, reached), (dict(roofline.CONSTANTS), dict(reached))
    losses = [loss(all_kernels, of) for of in (best, current)]
    print(f"{len(all_kernels)} models on GPUs: loss {losses[0]:.4f}, now {losses[1]:.4f}")
    for kernels, error in zip(all_kernels, errors(all_kernels, current), strict=True):
        shown = [
            f"{regime}: {np.median(error[kernels.regimes == regime]):+.0%}"
            for regime in np.unique(kernels.regimes)
        ]
        print(f"{kernels.model} {kernels.gpu} {kernels.tensor_parallel}: {'; '.join(shown)}")
