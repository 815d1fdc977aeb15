"""Decoders with multi-head latent attention: DeepSeek V2 to V3.2, Kimi K2, GLM-5 and Kimi-Linear."""

from __future__ import annotations

from inferq.timing.hardware.configs.decoder import Decoder, Layer
from inferq.timing.hardware.configs.feed_forward import feed_forwards
from inferq.timing.hardware.configs.grouped_query import tied
from inferq.timing.hardware.configs.keys import Keys
from inferq.timing.hardware.layers import LatentAttention, Mixer, Recurrent, SparseIndex

TYPES = (
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "kimi_k2",
    "kimi_linear",
)
"""The model types of this family."""

_SPARSE = ("deepseek_v32", "glm_moe_dsa")
_CORRECTED = ("deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_k2", "kimi_linear")
"""Types whose router has a correction bias per expert, unless `topk_method` states another one."""


def read(keys: Keys) -> Decoder:
    """Read a decoder of this family."""
    keys.require("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")
    keys.require("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    layers = keys.size("num_hidden_layers")
    keys.ignore("num_key_value_heads", "head_dim", "qk_head_dim")  # follow from the ranks
    keys.ignore("index_topk_freq", "index_topk_pattern", "index_skip_topk_offset")  # in indexer_types
    mixers: list[Mixer] = [latent(keys, index) for index in _indexes(keys, layers)]
    if keys.model_type == "kimi_linear":
        mixers = _with_linear_layers(keys, mixers)
    method = keys.value("topk_method", "noaux_tc")
    parts = feed_forwards(keys, layers, router_bias=keys.model_type in _CORRECTED and method == "noaux_tc")
    return Decoder(
        layers=[Layer(mixers=(mixer,), feed_forward=part) for mixer, part in zip(mixers, parts, strict=True)],
        tied=tied(keys, False),
    )


def latent(keys: Keys, index: SparseIndex | None = None) -> LatentAttention:
    """The latent attention of a layer."""
    return LatentAttention(
        heads=keys.size("num_attention_heads"),
        q_rank=keys.size("q_lora_rank") if keys.has("q_lora_rank") else None,
        kv_rank=keys.size("kv_lora_rank"),
        nope_size=keys.size("qk_nope_head_dim"),
        rope_size=keys.size("qk_rope_head_dim"),
        value_size=keys.size("v_head_dim"),
        index=index,
    )


def _indexes(keys: Keys, layers: int) -> list[SparseIndex | None]:
    """The sparse index of every layer; `indexer_types` states the layers that share an earlier selection."""
    kinds = keys.words("indexer_types", layers, ("full", "shared"))
    if keys.model_type not in _SPARSE:
        return [None] * layers
    keys.require("index_n_heads", "index_head_dim", "index_topk")
    keys.words("layer_types", layers, ("deepseek_sparse_attention",))
    heads, size, topk = (keys.size(f"index_{name}") for name in ("n_heads", "head_dim", "topk"))
    return [
        SparseIndex(heads=heads, head_size=size, topk=topk, shared=kind == "shared")
        for kind in kinds or ["full"] * layers
    ]


def _with_linear_layers(keys: Keys, mixers: list[Mixer]) -> list[Mixer]:
    """Replace the layers that `linear_attn_config` lists by Kimi delta attention."""
    keys.require("linear_attn_config")
    linear = keys.table("linear_attn_config")
    linear.require("num_heads", "head_dim", "short_conv_kernel_size", "kda_layers")
    heads, size = linear.size("num_heads"), linear.size("head_dim")
    kernel, width = linear.size("short_conv_kernel_size"), linear.size("num_heads") * linear.size("head_dim")
    delta = Recurrent(
        kind="kda",
        heads=heads,
        inputs=3 * width + 2 * size + heads,
        inner=width,
        inner_weights=2 * size * width,
        parameters=3 * width * kernel + width + heads + size,
        conv_values=3 * width * (kernel - 1),
        state_values=heads * size * size,
        state_bytes_per_value=4,
    )
    chosen = set(linear.numbers("kda_layers"))  # counted from 1
    return [delta if layer + 1 in chosen else mixer for layer, mixer in enumerate(mixers)]
