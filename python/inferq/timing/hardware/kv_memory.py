"""KvMemory: GPU memory left for the KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferq.checks import not_negative, whole, within
from inferq.errors import ConfigError
from inferq.timing.hardware.formats import ACTIVATION_BYTES, kv_type_of, weights_of
from inferq.timing.hardware.gpu import Gpu
from inferq.timing.hardware.layers import Attention
from inferq.timing.hardware.model_shape import ModelShape

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

    With windows or states, a token has no fixed size. Then, as in vLLM, the capacity is the number of
    requests of `max_model_len` tokens that fit, times that length. This average is too large for shorter
    requests; `is_average` states it.

    `weight_bytes` is this GPU's part of the model's weights. `activation_bytes` is the peak of a forward
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
        kv_bytes_per_token: keys, values and index of one token in the layers that store every token, on this
            GPU.
        windows: for the layers of each window or chunk: bytes of one token, and the tokens that the engine
            reserves for a request of `max_model_len`.
        state_bytes: recurrent states of a request on this GPU.
        max_model_len: maximum tokens of a request; required with windows or states.
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
    windows: tuple[tuple[int, int], ...] = ()
    state_bytes: int = 0
    max_model_len: int | None = None
    block: int = 16
    tensor_parallel: int = 1

    @classmethod
    def of(
        cls,
        model: ModelShape | str | Path | Mapping[str, Any],
        gpu: Gpu | str | Mapping[str, Any],
        *,
        tensor_parallel: int | None = None,
        expert_parallel: int = 1,
        weights: str | None = None,
        kv_dtype: str | None = None,
        gpu_memory_utilization: float = 0.9,
        batched_tokens: int = 2048,
        sampled_rows: int = 128,
        reserved_bytes: float = RESERVED_BYTES,
        block: int = 16,
        max_model_len: int | None = None,
    ) -> KvMemory:
        """Compute the memory of a model on a GPU.

        Args:
            model: a name of `timing.known_models()`, the path of a `config.json`, a mapping with its keys, or
                a `ModelShape`.
            gpu: a name of `timing.known_gpus()`, a `Gpu`, or a mapping with its fields.
            tensor_parallel: GPUs of a replica. Default: the smallest power of two that leaves room for a
                token.
            expert_parallel: GPUs or groups of GPUs that share the experts.
            weights: number format of the weight matrices, as for `Engine.on`. Default: the checkpoint's.
            kv_dtype: number format of the cache, as for `Engine.on`. Default: the checkpoint's, else 16 bits.
            gpu_memory_utilization: fraction of the memory that the engine may use.
            batched_tokens: maximum tokens of an iteration; 0: activations are not counted.
            sampled_rows: maximum requests of an iteration; 0: sampling is not counted.
            reserved_bytes: driver, CUDA context and communication library.
            block: tokens of a block.
            max_model_len: maximum tokens of a request, by which the capacity of a model with windows or
                states is averaged. Default: the model's.

        Raises:
            ConfigError: the model does not fit; the message has the weights, the memory, and the smallest
                `tensor_parallel` that fits; an unknown name; a number outside its range.
        """
        shape, card = ModelShape.of(model), Gpu.of(gpu)
        kv_type = kv_type_of(kv_dtype, shape.checkpoint)
        weights = weights_of(weights, shape.checkpoint)
        share = within("gpu_memory_utilization", gpu_memory_utilization, 0.01, 1)
        tokens = whole("batched_tokens", batched_tokens, 0, 2**31 - 1)
        rows = whole("sampled_rows", sampled_rows, 0, 2**31 - 1)
        reserved = not_negative("reserved_bytes", reserved_bytes)
        whole("block", block, 1, 2**20)
        longest = _longest(shape, max_model_len)

        def on(gpus: int) -> KvMemory:
            return cls(
                memory_bytes=card.memory_bytes,
                gpu_memory_utilization=share,
                weight_bytes=shape.weight_bytes(weights, gpus, expert_parallel),
                activation_bytes=_activation_bytes(shape, gpus, tokens, rows),
                reserved_bytes=reserved,
                kv_bytes_per_token=shape.kv_bytes_per_token(kv_type, gpus) + shape.index_bytes_per_token,
                windows=_windows(shape, kv_type, gpus, tokens, block, longest),
                state_bytes=shape.state_bytes(gpus),
                max_model_len=longest,
                block=block,
                tensor_parallel=gpus,
            )

        shares = [gpus for gpus in _shares(shape) if _divides(gpus, expert_parallel)]
        fitting = next((gpus for gpus in shares if on(gpus).tokens > 0), None)
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
    def is_average(self) -> bool:
        """Whether the capacity is an average over requests of `max_model_len` tokens."""
        return bool(self.windows or self.state_bytes)

    @property
    def request_bytes(self) -> int | None:
        """Bytes reserved for a request of `max_model_len` tokens; None without this length."""
        if self.max_model_len is None:
            return None
        blocks = -(-self.max_model_len // self.block)
        windows = sum(size * tokens for size, tokens in self.windows)
        return self.kv_bytes_per_token * blocks * self.block + windows + self.state_bytes

    @property
    def tokens(self) -> int:
        """Tokens of context that fit, in whole blocks."""
        if not self.is_average:
            return max(0, int(self.kv_bytes // (self.kv_bytes_per_token * self.block))) * self.block
        if self.max_model_len is None or self.request_bytes is None:
            raise ConfigError("max_model_len", "missing; the capacity with windows or states depends on it")
        requests = max(0.0, self.kv_bytes) / self.request_bytes
        return int(requests * self.max_model_len // self.block) * self.block

    def explain(self) -> str:
        """Report the computation of the number of tokens."""
        usable = self.memory_bytes * self.gpu_memory_utilization
        gpus = f" on each of {self.tensor_parallel} GPUs" if self.tensor_parallel > 1 else ""
        return (
            f"{_gib(self.memory_bytes)} GiB × {self.gpu_memory_utilization:g} = {_gib(usable)} GiB{gpus}\n"
            f"  − weights {_gib(self.weight_bytes)} − activations {_gib(self.activation_bytes)} "
            f"− everything else {_gib(self.reserved_bytes)} = {_gib(self.kv_bytes)} GiB\n"
            f"  / {self._size()} = {self.tokens:,} tokens, in blocks of {self.block}"
        )

    def _size(self) -> str:
        """The bytes by which the memory is divided, in words."""
        if not self.is_average:
            return f"{self.kv_bytes_per_token:,} bytes a token"
        return f"{self.request_bytes:,} bytes a request of {self.max_model_len:,} tokens × that length"


def _activation_bytes(shape: ModelShape, gpus: int, tokens: int, rows: int) -> float:
    """The peak of one forward pass on one GPU; each GPU gathers and samples logits."""
    residual = 2 * tokens * shape.hidden * ACTIVATION_BYTES
    widths = (group.feed_forward.active_width for group in shape.groups if group.feed_forward is not None)
    feed_forward = 3 * tokens * max(widths, default=0) / gpus * ACTIVATION_BYTES
    return residual + max(feed_forward, rows * shape.vocab * SAMPLING_BYTES)


def _shares(shape: ModelShape) -> list[int]:
    """The powers of two by which the heads can be divided."""
    powers = [2**power for power in range(_MOST_GPUS.bit_length())]
    return [gpus for gpus in powers if shape.splits(gpus)]


def _divides(gpus: int, expert_parallel: int) -> bool:
    return not gpus % expert_parallel or not expert_parallel % gpus


def _longest(shape: ModelShape, max_model_len: int | None) -> int | None:
    if max_model_len is None:
        return shape.max_model_len
    return whole("max_model_len", max_model_len, 1, 2**31 - 1)


def _windows(
    shape: ModelShape, kv_type: str, gpus: int, step_tokens: int, block: int, longest: int | None
) -> tuple[tuple[int, int], ...]:
    """Bytes of a token and reserved tokens of the layers of each window or chunk.

    vLLM (`SlidingWindowSpec` and `ChunkedLocalAttentionSpec` of its `kv_cache_interface.py`) reserves the
    window and the tokens of an iteration, at most `max_model_len`, in whole blocks; for a window one more
    block, because it may begin within a block.
    """
    if longest is None:
        return tuple((0, group.limit) for group in shape.groups if group.limit is not None)
    windows: dict[tuple[int, bool], int] = {}
    for group in shape.groups:
        if group.limit is not None:
            is_chunk = any(isinstance(mixer, Attention) and mixer.chunk for mixer in group.mixers)
            key = (group.limit, is_chunk)
            windows[key] = windows.get(key, 0) + shape.group_kv_bytes(group, kv_type, gpus)
    reserved = []
    for (limit, is_chunk), size in windows.items():
        tokens = min(limit + step_tokens - (0 if is_chunk else 1), longest)
        blocks = -(-tokens // block) + (0 if is_chunk else 1)
        reserved.append((size, blocks * block))
    return tuple(reserved)


def _gib(size: float) -> str:
    return f"{size / GIB:,.2f}"
