"""KvMemory: GPU memory left for the KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from inferq.checks import not_negative, whole, within
from inferq.errors import ConfigError
from inferq.timing.hardware.gpu import Gpu
from inferq.timing.hardware.model_shape import ACTIVATION_BYTES, KvType, ModelShape, Weights, one_of

GIB = 2**30
RESERVED_BYTES = 1 * GIB
"""Memory of the driver, the CUDA context and the communication library. Logs of vLLM show 0.16 GiB outside
PyTorch for one H100 (pull request 12126) and 1.79 GiB (10511), plus 0.4 GiB that `nvidia-smi` counts and a
process never sees."""

SAMPLING_BYTES = 40
"""Bytes of a logit during sampling: sorted values and indices, probabilities and their sums, at 32 and 64
bits. The peak of 1.26 GiB in vLLM's log of Llama-3-8B (pull request 10511), equal for one GPU and two, is 256
requests times 128,256 words times 41 bytes."""

_MOST_GPUS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class KvMemory:
    """The memory of one GPU of a replica.

    The KV cache has `memory_bytes·gpu_memory_utilization − weight_bytes − activation_bytes −
    reserved_bytes`, divided by the KV bytes of a token, rounded down to whole blocks. Every GPU of a replica
    holds a share of every token, so this is the capacity of the replica.

    `weight_bytes` is the model's weights divided by the GPUs. `activation_bytes` is the peak of a forward
    pass: two times the residual of `batched_tokens` tokens, and the larger of their feed-forward part (its
    three widths, a token's experts together) and the sampling of `sampled_rows` requests at 40 bytes a logit.

    Source: vLLM's rule at start: total memory times `gpu_memory_utilization`, minus weights, minus memory
        outside PyTorch, minus the peak of a profiling run.

    Args:
        memory_bytes: memory of the GPU.
        gpu_memory_utilization: fraction of it that the engine may use.
        weight_bytes: weights on this GPU.
        activation_bytes: peak of the activations.
        reserved_bytes: driver, CUDA context and communication library.
        kv_bytes_per_token: keys and values of one token on this GPU.
        block: tokens of a block.
        tensor_parallel: GPUs of the replica.

    Example:
        >>> import inferq as iq
        >>> memory = iq.timing.KvMemory.of("llama-3.1-8b", "a100-80gb")
        >>> print(memory.explain())
        80.00 GiB × 0.9 = 72.00 GiB
          − weights 14.96 − activations 0.64 − everything else 1.00 = 55.40 GiB
          / 131,072 bytes a token = 453,824 tokens, in blocks of 16
    """

    memory_bytes: float
    gpu_memory_utilization: float
    weight_bytes: float
    activation_bytes: float
    reserved_bytes: float
    kv_bytes_per_token: int
    block: int = 16
    tensor_parallel: int = 1

    @classmethod
    def of(
        cls,
        model: ModelShape | str | Path | Mapping[str, Any],
        gpu: Gpu | str | Mapping[str, Any],
        *,
        tensor_parallel: int | None = None,
        weights: Weights = "bf16",
        kv_dtype: KvType = "bf16",
        gpu_memory_utilization: float = 0.9,
        batched_tokens: int = 2048,
        sampled_rows: int = 128,
        reserved_bytes: float = RESERVED_BYTES,
        block: int = 16,
    ) -> KvMemory:
        """Compute the memory of a model on a GPU.

        Args:
            model: a name of `timing.known_models()`, the path of a `config.json`, a mapping with its keys, or
                a `ModelShape`.
            gpu: a name of `timing.known_gpus()`, a `Gpu`, or a mapping with its fields.
            tensor_parallel: GPUs of a replica. Default: the smallest power of two that leaves room for a
                token.
            weights: number format of the weight matrices, `"bf16"`, `"fp8"`, `"int8"` or `"int4"`.
            kv_dtype: number format of the cache, `"bf16"`, `"fp8"` or `"int8"`.
            gpu_memory_utilization: fraction of the memory that the engine may use.
            batched_tokens: maximum tokens of an iteration.
            sampled_rows: maximum requests of an iteration.
            reserved_bytes: driver, CUDA context and communication library.
            block: tokens of a block.

        Raises:
            ConfigError: the model does not fit; the message has the weights, the memory, and the smallest
                `tensor_parallel` that fits; an unknown name; a number outside its range.
        """
        shape, card = ModelShape.of(model), Gpu.of(gpu)
        one_of("kv_dtype", kv_dtype, get_args(KvType))
        share = within("gpu_memory_utilization", gpu_memory_utilization, 0.01, 1)
        tokens = whole("batched_tokens", batched_tokens, 1, 2**31 - 1)
        rows = whole("sampled_rows", sampled_rows, 1, 2**31 - 1)
        reserved = not_negative("reserved_bytes", reserved_bytes)
        whole("block", block, 1, 2**20)
        all_weights = shape.weight_bytes(weights)

        def on(gpus: int) -> KvMemory:
            return cls(
                memory_bytes=card.memory_bytes,
                gpu_memory_utilization=share,
                weight_bytes=all_weights / gpus,
                activation_bytes=_activation_bytes(shape, gpus, tokens, rows),
                reserved_bytes=reserved,
                kv_bytes_per_token=shape.kv_bytes_per_token(kv_dtype, gpus),
                block=block,
                tensor_parallel=gpus,
            )

        fitting = next((gpus for gpus in _shares(shape) if on(gpus).tokens > 0), None)
        if tensor_parallel is None and fitting is not None:
            return on(fitting)
        memory = on(tensor_parallel or 1)
        if memory.tokens > 0:
            return memory
        other = memory.activation_bytes + reserved
        advice = "no number of GPUs fits" if fitting is None else f"tensor_parallel={fitting} fits"
        raise ConfigError(
            "tensor_parallel",
            f"{shape.name} does not fit on {memory.tensor_parallel} × {card.name}: each GPU needs "
            f"{_gib(memory.weight_bytes)} GiB for weights and {_gib(other)} GiB for activations and "
            f"everything else, and {_gib(share * card.memory_bytes)} of {_gib(card.memory_bytes)} GiB may be "
            f"used; {advice}",
        )

    @property
    def kv_bytes(self) -> float:
        """Bytes left for keys and values, negative if the model does not fit."""
        used = self.weight_bytes + self.activation_bytes + self.reserved_bytes
        return self.memory_bytes * self.gpu_memory_utilization - used

    @property
    def tokens(self) -> int:
        """Tokens of context that fit, in whole blocks."""
        return max(0, int(self.kv_bytes // (self.kv_bytes_per_token * self.block))) * self.block

    def explain(self) -> str:
        """Report the computation of the number of tokens."""
        usable = self.memory_bytes * self.gpu_memory_utilization
        gpus = f" on each of {self.tensor_parallel} GPUs" if self.tensor_parallel > 1 else ""
        return (
            f"{_gib(self.memory_bytes)} GiB × {self.gpu_memory_utilization:g} = {_gib(usable)} GiB{gpus}\n"
            f"  − weights {_gib(self.weight_bytes)} − activations {_gib(self.activation_bytes)} "
            f"− everything else {_gib(self.reserved_bytes)} = {_gib(self.kv_bytes)} GiB\n"
            f"  / {self.kv_bytes_per_token:,} bytes a token = {self.tokens:,} tokens, "
            f"in blocks of {self.block}"
        )


def _activation_bytes(shape: ModelShape, gpus: int, tokens: int, rows: int) -> float:
    """The peak of one forward pass on one GPU; each GPU gathers and samples logits."""
    residual = 2 * tokens * shape.hidden * ACTIVATION_BYTES
    feed_forward = 3 * tokens * shape.active_experts * shape.intermediate / gpus * ACTIVATION_BYTES
    return residual + max(feed_forward, rows * shape.vocab * SAMPLING_BYTES)


def _shares(shape: ModelShape) -> list[int]:
    """The powers of two by which the heads can be divided."""
    powers = [2**power for power in range(_MOST_GPUS.bit_length())]
    fits = [gpus for gpus in powers if shape.heads % gpus == 0]
    return [gpus for gpus in fits if shape.kv_heads % gpus == 0 or gpus % shape.kv_heads == 0]


def _gib(size: float) -> str:
    return f"{size / GIB:,.2f}"
