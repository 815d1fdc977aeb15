"""Seconds of every part of a roofline, from the layer groups of a model and the datasheet of a GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from inferq.checks import whole
from inferq.display.text import listed
from inferq.errors import ConfigError
from inferq.timing.hardware.formats import ACTIVATION_BYTES, KV_BYTES, KvType, Part, Weights
from inferq.timing.hardware.gpu import Gpu
from inferq.timing.hardware.layers import Attention, Dense, Experts, LatentAttention, LayerGroup, Recurrent
from inferq.timing.hardware.model_shape import ModelShape
from inferq.timing.models.roofline_parts import ExchangeRoof, ExpertsRoof, StateRoof, WindowRoof

CONSTANTS: Mapping[str, float] = MappingProxyType(
    {
        "expert_flops_efficiency": 0.89,
        "expert_bandwidth_efficiency": 0.92,
        "expert_activation_efficiency": 0.25,
        "expert_layer_s": 20e-6,
        "sparse_flops_efficiency": 0.37,
        "sparse_bandwidth_efficiency": 0.21,
        "scan_flops_efficiency": 0.021,
        "latent_layer_s": 30e-6,
        "quantize_s": 12e-6,
    }
)
"""Constants of parts that a dense model with 16-bit weights lacks.

`benches/fit_roofline_constants.py` fits them together to kernel times of the database from which the tables
are sampled, and lists its models. All are rounded to two digits:

- experts: fraction of the rate in computing, and of the bandwidth in reading weights and in moving
  activations, which are gathered and scattered by row; seconds per layer for routing;
- attention over selected tokens: fraction of the 16-bit rate on prompts, and of the bandwidth;
- fraction of the 16-bit rate that a recurrence reaches on prompts, at 6 operations per number of the state;
- seconds per layer with latent attention: the absorbed products, and more kernels. The database gives 36 µs;
  30 µs fits TPOT best on every second `tune` run without speculation of DeepSeek-R1 and Kimi-K2.5;
- seconds per layer to quantize activations.
"""

SPARSE_HEADS = 64
"""Heads of a GPU to which the kernels of attention over selected tokens pad prompts (FlashMLA)."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The fractions of the 16-bit efficiencies that a number format reaches.

    Args:
        dense: of the rate of the matrices of a layer.
        experts: of the rate of routed experts.
        read: of the bandwidth in reading routed experts.
    """

    dense: float = 1.0
    experts: float = 1.0
    read: float = 1.0


REACHED: Mapping[str, Reached] = MappingProxyType(
    {
        "bf16": Reached(),
        "fp8": Reached(dense=0.80),
        "int8": Reached(dense=0.80),
        "fp4": Reached(dense=0.64),
        "four": Reached(dense=0.82, experts=0.39, read=0.76),
        "eight": Reached(dense=0.67, experts=0.39, read=0.76),
    }
)
"""By the format in which weights are computed. `"four"` and `"eight"` are weights of 4 and 8 bits that the
kernel expands to 16 bits.

`"fp8"`, `"int8"` and `"fp4"`: Qwen3-8B at 8,192 tokens in the kernel database, on H100, H200, B200 and L40S.
FP8 is 1.4 to 1.7 times as fast as 16 bits, NVFP4 2.6 times. `"four"`: with Marlin on an A100, prompts of
Llama-2-7B take 1.09 to 1.17 times as long as with 16 bits, and of 13B 1.11 to 1.21 times (HandH1998/QQQ,
issue 15); its experts are those of gpt-oss in the kernel database. `"eight"`: Qwen3-8B on an H100 under
SGLang takes 1.49 times the 16-bit time at 8,192 tokens in the kernel database; its experts are those of
`"four"`.
"""


def reached_key(card: Gpu, weights: Weights) -> str:
    """The key of `REACHED` for weights on a GPU."""
    rate = card.computed_in(weights)
    if rate != "bf16" or weights == "bf16":
        return rate
    return "four" if weights in ("int4", "mxfp4", "nvfp4") else "eight"


@dataclass(frozen=True, slots=True)
class Layout:
    """GPUs of a replica.

    Args:
        tensor: GPUs that share a layer's attention and dense parts.
        data: ranks of attention, each with a batch of its own; experts are shared by all.
        expert: groups of GPUs among which whole experts are distributed, of all `tensor · data` GPUs.
    """

    tensor: int = 1
    data: int = 1
    expert: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of the replica."""
        return self.tensor * self.data

    def check(self, shape: ModelShape) -> None:
        """Reject GPUs that cannot share the heads or the experts.

        Raises:
            ConfigError: a number that is not positive, or does not divide heads, experts or GPUs.
        """
        shape.check_tensor_parallel(self.tensor)
        whole("data_parallel", self.data, 1, 1024)
        shape.check_expert_parallel(self.tensor, self.expert)
        if self.gpus % self.expert:
            divisors = [count for count in range(1, self.gpus + 1) if not self.gpus % count]
            raise ConfigError(
                "expert_parallel",
                f"{self.expert} does not divide the {self.gpus} GPUs; use {listed(map(str, divisors), 'or')}",
            )


@dataclass(slots=True)
class _Attended:
    """Operations and bytes of attention on one GPU, of all layers with one limit."""

    pair_flops: float = 0.0
    decode_flops: float = 0.0
    bytes_per_token: float = 0.0
    sparse_pair_flops: float = 0.0
    sparse_bytes_per_token: float = 0.0
    """The same of kernels that select tokens one by one."""


@dataclass(slots=True)
class _Work:
    """Work of one GPU in an iteration."""

    flops_s: float = 0.0
    """Seconds per token at an efficiency of 1, of matrices other than experts."""
    weight_bytes: float = 0.0
    activation_values: float = 0.0
    quantized_layers: int = 0
    full: _Attended = field(default_factory=_Attended)
    expansion_flops: float = 0.0
    index_flops: float = 0.0
    limited: dict[tuple[int, bool], _Attended] = field(default_factory=lambda: defaultdict(_Attended))
    state_bytes: float = 0.0
    state_values: float = 0.0
    latent_layers: int = 0
    all_reduces: int = 0
    exchanges: int = 0
    exchanged_values: float = 0.0
    experts: dict[tuple[int, int], _Experts] = field(default_factory=lambda: defaultdict(_Experts))


@dataclass(slots=True)
class _Experts:
    """Work of one GPU in the layers with the same numbers of experts."""

    layers: int = 0
    weights: float = 0.0
    active_weights: float = 0.0
    activation_values: float = 0.0


def roofline_seconds(
    shape: ModelShape,
    card: Gpu,
    layout: Layout,
    weights: Weights,
    kv_dtype: KvType,
    settings: Mapping[str, float],
    reached: Mapping[str, Reached] = REACHED,
) -> dict[str, Any]:
    """Compute the fields of a `Roofline`.

    Args:
        shape: the model.
        card: the GPU.
        layout: GPUs of a replica.
        weights: number format of the quantized matrices.
        kv_dtype: number format of the KV cache.
        settings: values of `EFFICIENCIES`, `EXCHANGES` and `CONSTANTS`.
        reached: factors by number format.

    Raises:
        ConfigError: GPUs that cannot share heads or experts.
    """
    layout.check(shape)
    work = _Work()
    for group in shape.groups:
        _add_matrices(work, shape, group, card, layout, weights, reached)
        _add_experts(work, shape, group, layout)
        _add_mixers(work, group, layout, kv_dtype)
        _add_exchanges(work, shape, group, layout)
    work.weight_bytes += shape.output_weights * ACTIVATION_BYTES / layout.tensor

    bandwidth = card.bandwidth_bytes_per_s
    read, read_kv = (
        settings["bandwidth_efficiency"] * bandwidth,
        settings["kv_bandwidth_efficiency"] * bandwidth,
    )
    attention_flops = settings["attention_flops_efficiency"] * card.bf16_flops
    link_name, step_name = (
        ("link_efficiency", "link_step_s") if card.nvlink else ("pcie_efficiency", "pcie_step_s")
    )
    link = settings[link_name] * card.link_bytes_per_s
    ring = 2 * (layout.tensor - 1)
    sent_bytes = work.all_reduces * shape.hidden * ACTIVATION_BYTES * ring / layout.tensor
    hop_s = settings["exchange_s"] + (layout.data - 1) * settings[step_name]
    index_s = work.index_flops / (
        settings["attention_flops_efficiency"] * (card.fp8_flops or card.bf16_flops)
    )

    sparse_flops = settings["sparse_flops_efficiency"] * card.bf16_flops
    sparse_read = settings["sparse_bandwidth_efficiency"] * bandwidth

    def attended(part: _Attended, more_s: float = 0.0) -> dict[str, float]:
        memory_s = part.bytes_per_token / read_kv
        selected_s = part.sparse_bytes_per_token / sparse_read
        return {
            "chunk_compute_s_per_pair": part.pair_flops / attention_flops
            + part.sparse_pair_flops / sparse_flops
            + more_s,
            "chunk_memory_s_per_token": memory_s + selected_s,
            "decode_compute_s_per_token": part.decode_flops / attention_flops + more_s,
            "decode_memory_s_per_token": memory_s + selected_s,
        }

    base_s = work.quantized_layers * settings["quantize_s"]
    base_s += shape.layers * settings["layer_s"]
    base_s += work.latent_layers * settings["latent_layer_s"]
    values: dict[str, Any] = {
        "linear_flops_s_per_token": work.flops_s / settings["flops_efficiency"],
        "linear_weight_s": work.weight_bytes / read,
        "linear_activation_s_per_token": work.activation_values * ACTIVATION_BYTES / read,
        **attended(work.full, index_s),
        "all_reduce_latency_s": work.all_reduces * (settings["exchange_s"] + ring * settings[step_name]),
        "all_reduce_s_per_token": sent_bytes / link,
        "base_s": base_s,
    }
    if work.expansion_flops:
        expansion_s = work.expansion_flops / (settings["flops_efficiency"] * card.bf16_flops)
        values["chunk_compute_s_per_context_token"] = expansion_s
    values["experts"] = tuple(
        _experts(part, experts, active, shape, card, layout, weights, settings, reached)
        for (experts, active), part in work.experts.items()
    )
    values["windows"] = tuple(
        WindowRoof(tokens=tokens, restarts=restarts, **attended(part))
        for (tokens, restarts), part in work.limited.items()
    )
    if work.state_bytes:
        state_s = 2 * work.state_bytes / read_kv
        scan_s = 6 * work.state_values / (settings["scan_flops_efficiency"] * card.bf16_flops)
        values["states"] = StateRoof(s_per_decode=state_s, s_per_chunk=state_s, s_per_chunk_token=scan_s)
    if work.exchanges:
        values["exchange"] = ExchangeRoof(
            latency_s=work.exchanges * hop_s,
            s_per_token=work.exchanged_values * ACTIVATION_BYTES / link,
        )
    return values


def quantized_share(shape: ModelShape, part: Part, weights: Weights) -> float:
    """The fraction of the matrices of a part that have the given format; the rest has 16 bits."""
    quantized, unquantized = shape.stored_weights(weights).get(part, (0, 0))
    return quantized / (quantized + unquantized) if quantized else 0.0


def _add_matrices(
    work: _Work,
    shape: ModelShape,
    group: LayerGroup,
    card: Gpu,
    layout: Layout,
    weights: Weights,
    reached: Mapping[str, Reached],
) -> None:
    """Add the matrices other than experts, and the activations that they read and write."""
    hidden, tensor = shape.hidden, layout.tensor
    kind = reached_key(card, weights)
    parts: dict[Part, float] = defaultdict(float)
    for mixer in group.mixers:
        own = mixer.weights(hidden) + mixer.replicated_weights(hidden, tensor)
        parts[mixer.part] += own / tensor
    feed_forward = group.feed_forward
    if isinstance(feed_forward, Dense):
        parts["dense"] += feed_forward.weights(hidden) / tensor
    elif isinstance(feed_forward, Experts):
        parts["shared_experts"] += feed_forward.shared_weights(hidden) / tensor
        parts["router"] += feed_forward.router_weights(hidden)  # every GPU has the router
    quantizes = False
    for part, count in parts.items():
        share = quantized_share(shape, part, weights)
        quantizes |= (
            share > 0 and kind in ("fp8", "int8", "fp4") and part in ("attention", "recurrent", "dense")
        )
        slow = (1 - share) / card.bf16_flops
        fast = share / (card.flops(weights) * reached[kind].dense)
        work.flops_s += group.layers * 2 * count * (slow + fast)
        bytes_each = share * shape.checkpoint.weight_bytes(weights) + (1 - share) * ACTIVATION_BYTES
        work.weight_bytes += group.layers * count * bytes_each
    work.quantized_layers += group.layers * quantizes
    work.activation_values += group.layers * _activations(group, hidden, tensor)


def _activations(group: LayerGroup, hidden: int, tensor: int) -> float:
    """Numbers of activations of one token that the kernels of a layer, except experts, use on one GPU.

    Each matrix reads its input and writes its output; two norms read and write the residual and its sum; the
    gate reads two widths and writes one.
    """
    values: float = 8 * hidden
    for mixer in group.mixers:
        values += 2 * hidden
        if isinstance(mixer, Attention):
            query = mixer.heads * mixer.head_size / tensor
            copies = max(1, mixer.kv_heads // tensor)
            values += 2 * query + copies * (mixer.head_size + mixer.values)
        elif isinstance(mixer, LatentAttention):
            heads = mixer.heads / tensor
            values += (mixer.q_rank or 0) + mixer.kv_values_per_token
            values += heads * (mixer.nope_size + mixer.rope_size + mixer.value_size)
        else:
            values += (mixer.inputs + mixer.inner) / tensor
    feed_forward = group.feed_forward
    if isinstance(feed_forward, Dense):
        values += 2 * hidden + 6 * feed_forward.intermediate / tensor
    elif isinstance(feed_forward, Experts) and feed_forward.shared_intermediate:
        values += 2 * hidden + 6 * feed_forward.shared_intermediate / tensor
    return values


def _add_experts(work: _Work, shape: ModelShape, group: LayerGroup, layout: Layout) -> None:
    """Add the routed experts: each GPU has 1/GPUs of them, and computes the tokens of all ranks."""
    part = group.feed_forward
    if not isinstance(part, Experts):
        return
    own = work.experts[part.experts, part.active]
    own.layers += group.layers
    own.weights += group.layers * part.experts * part.expert_weights(shape.hidden) / layout.gpus
    own.active_weights += group.layers * part.active * part.expert_weights(shape.hidden) / layout.tensor
    width = part.intermediate * layout.expert / layout.gpus
    pairs = layout.data * part.active / layout.expert
    own.activation_values += group.layers * pairs * (2 * (part.latent or shape.hidden) + 6 * width)


def _experts(
    part: _Experts,
    experts: int,
    active: int,
    shape: ModelShape,
    card: Gpu,
    layout: Layout,
    weights: Weights,
    settings: Mapping[str, float],
    reached: Mapping[str, Reached],
) -> ExpertsRoof:
    kind = reached_key(card, weights) if quantized_share(shape, "experts", weights) > 0 else "bf16"
    bytes_each = ACTIVATION_BYTES if kind == "bf16" else shape.checkpoint.weight_bytes(weights)
    rate = card.bf16_flops if kind == "bf16" else card.flops(weights)
    flops = settings["expert_flops_efficiency"] * reached[kind].experts * rate
    bandwidth = settings["expert_bandwidth_efficiency"] * reached[kind].read * card.bandwidth_bytes_per_s
    moved = settings["expert_activation_efficiency"] * card.bandwidth_bytes_per_s
    return ExpertsRoof(
        experts=experts,
        active=active,
        ranks=layout.data,
        s_per_token=2 * part.active_weights / flops + part.activation_values * ACTIVATION_BYTES / moved,
        weight_s=part.weights * bytes_each / bandwidth,
        base_s=part.layers * settings["expert_layer_s"],
    )


def _add_mixers(work: _Work, group: LayerGroup, layout: Layout, kv_dtype: KvType) -> None:
    """Add the attention and the states of a group."""
    layers, tensor = group.layers, layout.tensor
    for mixer in group.mixers:
        if isinstance(mixer, Recurrent):
            work.state_bytes += layers * mixer.state_bytes / min(tensor, mixer.kv_splits)
            work.state_values += layers * mixer.state_values / min(tensor, mixer.kv_splits)
            continue
        pieces = max(1, mixer.kv_splits // tensor) / mixer.kv_splits
        kv_bytes = layers * mixer.kv_values_per_token * pieces * KV_BYTES[kv_dtype]
        if isinstance(mixer, LatentAttention):
            work.latent_layers += layers
        if isinstance(mixer, LatentAttention) and mixer.index is not None:
            # Sparse kernels work on the latent vectors of the selected tokens, in prompts as well.
            part = work.limited[mixer.index.topk, False]
            part.sparse_pair_flops += (
                layers * mixer.decode_flops * max(1 / tensor, SPARSE_HEADS / mixer.heads)
            )
            part.sparse_bytes_per_token += kv_bytes
            part.decode_flops += layers * mixer.decode_flops / tensor
            work.full.bytes_per_token += layers * mixer.index_bytes_per_token
            if not mixer.index.shared:
                work.index_flops += layers * 2 * mixer.index.heads * mixer.index.head_size
            continue
        if isinstance(mixer, LatentAttention):
            expanded = mixer.heads * (mixer.nope_size + mixer.value_size)
            work.expansion_flops += layers * 2 * mixer.kv_rank * expanded / tensor
        limit = (
            None
            if mixer.limit is None
            else (mixer.limit, isinstance(mixer, Attention) and mixer.chunk is not None)
        )
        part = work.full if limit is None else work.limited[limit]
        part.pair_flops += layers * mixer.pair_flops / tensor
        part.decode_flops += layers * mixer.decode_flops / tensor
        part.bytes_per_token += kv_bytes


def _add_exchanges(work: _Work, shape: ModelShape, group: LayerGroup, layout: Layout) -> None:
    """Add the exchanges of a group: an all-reduce after each part, or an all-to-all around experts.

    Without data-parallel attention every GPU has all tokens, so experts on different GPUs need only the
    all-reduce, as in vLLM (`use_all2all_kernels` requires `dp_size > 1`) and SGLang (`--moe-a2a-backend
    none`).
    """
    sums = (1 if group.mixers else 0) + (1 if group.feed_forward is not None else 0)
    if layout.data > 1 and isinstance(group.feed_forward, Experts):
        sums -= 1
        work.exchanges += 2 * group.layers
        copies = min(group.feed_forward.active, layout.data - 1)
        work.exchanged_values += 2 * group.layers * copies * shape.hidden
    if layout.tensor > 1:
        work.all_reduces += sums * group.layers
