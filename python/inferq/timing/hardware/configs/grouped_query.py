"""Decoders with grouped-query attention in every layer: Llama, Qwen, Mistral, GLM-4.5, OLMo, Cohere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from inferq.checks import shown
from inferq.timing.hardware.configs.decoder import Decoder, Layer, head_size
from inferq.timing.hardware.configs.feed_forward import feed_forwards
from inferq.timing.hardware.configs.keys import Keys
from inferq.timing.hardware.layers import Attention


@dataclass(frozen=True, kw_only=True, slots=True)
class Style:
    """The differences between model types of this family; defaults are those of Llama.

    Args:
        qkv_bias: whether queries, keys and values have biases, or the key that states it.
        out_bias: the same for the output projection.
        qk_norm: width of the norms of queries and keys: one head, or all heads.
        qk_norm_key: key that states whether these norms exist.
        norms: norms of a layer.
        norm_bias: whether norms have biases.
        tied: whether the output layer is the embedding if the file does not state it.
        gated: whether the feed-forward part has a gate.
        mlp_bias: whether the feed-forward part has biases, or the key that states it.
        mlp_parameters: other parameters of the feed-forward part.
        router_bias: whether the router has a bias per expert. Default: by the keys that state it.
        requires: keys that the file must state, because their default is not that of Llama.
        windows: default pattern of sliding windows: `"F"` for a full layer, `"S"` for a window, repeated.
            Qwen has windows only if `use_sliding_window` is true.
        feed_forward_path: module of the feed-forward part in the checkpoint.
    """

    qkv_bias: bool | str = "attention_bias"
    out_bias: bool | str = False
    qk_norm: Literal["head", "width"] | None = None
    qk_norm_key: str | None = None
    norms: int = 2
    norm_bias: bool = False
    tied: bool = False
    gated: bool = True
    mlp_bias: bool | str = "mlp_bias"
    mlp_parameters: int = 0
    router_bias: bool | None = None
    requires: tuple[str, ...] = ()
    windows: str = "S"
    feed_forward_path: str = "mlp"


_KV_HEADS = ("num_key_value_heads",)
_HEADS = ("num_key_value_heads", "head_dim")
_LLAMA = Style(out_bias="attention_bias")
_QWEN2 = Style(qkv_bias=True, windows="F", requires=_KV_HEADS)
_QWEN3 = Style(out_bias="attention_bias", qk_norm="head", requires=_HEADS, windows="F")
_OLMO = Style(out_bias="attention_bias", qk_norm="width", windows="SSSF")
TYPES: Mapping[str, Style] = {
    "llama": _LLAMA,
    "mistral": Style(qkv_bias=False, requires=_KV_HEADS),
    "ministral": Style(qkv_bias=False),
    "ministral3": Style(qkv_bias=False),
    "mixtral": Style(qkv_bias=False, requires=_KV_HEADS, feed_forward_path="block_sparse_moe"),
    "qwen2": _QWEN2,
    "qwen2_moe": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "mimo": Style(),
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "qwen3_vl_moe_text": _QWEN3,
    "phi3": Style(qkv_bias=False),
    "phimoe": Style(out_bias="attention_bias", norm_bias=True),
    "granite": _LLAMA,
    "granitemoe": Style(out_bias="attention_bias", tied=True),
    "smollm3": Style(out_bias="attention_bias", tied=True, windows="F"),
    "seed_oss": Style(out_bias="attention_out_bias", requires=_HEADS),
    "apertus": Style(
        out_bias="attention_bias", qk_norm="head", gated=False, mlp_parameters=2, mlp_bias="mlp_bias"
    ),
    "cohere": Style(
        out_bias="attention_bias", qk_norm="width", qk_norm_key="use_qk_norm", norms=1, tied=True
    ),
    "cohere2": Style(
        out_bias="attention_bias", norms=1, tied=True, windows="SSSF", requires=("sliding_window",)
    ),
    "exaone4": Style(qkv_bias=False, qk_norm="head", windows="SSSF"),
    "olmo2": _OLMO,
    "olmo3": _OLMO,
    "olmoe": _OLMO,
    "ernie4_5": Style(qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias", tied=True),
    "ernie4_5_moe": Style(qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias", tied=True),
    "glm4": Style(norms=4),
    "glm4_moe": Style(requires=_KV_HEADS, qk_norm="head", qk_norm_key="use_qk_norm", router_bias=True),
    "hunyuan": Style(out_bias="attention_bias", qk_norm="head", qk_norm_key="use_qk_norm"),
    "hunyuan_v1_dense": Style(out_bias="attention_bias", qk_norm="head"),
    "hunyuan_v1_moe": Style(out_bias="attention_bias", qk_norm="head"),
    "minimax_m2": Style(
        requires=_HEADS,
        qkv_bias=False,
        qk_norm="width",
        qk_norm_key="use_qk_norm",
        feed_forward_path="block_sparse_moe",
    ),
    "starcoder2": Style(
        qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias", norm_bias=True, gated=False, tied=True
    ),
    "nemotron": Style(out_bias="attention_bias", norm_bias=True, gated=False),
}
"""The model types of this family."""


def read(keys: Keys) -> Decoder:
    """Read a decoder of this family."""
    style = TYPES[keys.model_type]
    _refuse_unsupported(keys)
    required = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    width = () if keys.has("moe_intermediate_size") else ("intermediate_size",)
    keys.require(*required, *width, *style.requires)
    layers, heads = keys.size("num_hidden_layers"), keys.size("num_attention_heads")
    kv_heads = keys.size("num_key_value_heads", heads)
    size = head_size(keys, heads, "head_dim", "attention_head_dim")
    qk_norm = 0
    if style.qk_norm is not None and (style.qk_norm_key is None or keys.flag(style.qk_norm_key)):
        qk_norm = 2 * size if style.qk_norm == "head" else (heads + kv_heads) * size
    attention: dict[str, Any] = {
        "heads": heads,
        "kv_heads": kv_heads,
        "head_size": size,
        "qkv_bias": switch(keys, style.qkv_bias),
        "out_bias": switch(keys, style.out_bias),
        "qk_norm": qk_norm,
    }
    parts = feed_forwards(
        keys,
        layers,
        gated=style.gated,
        bias=switch(keys, style.mlp_bias),
        router_bias=style.router_bias,
        parameters=style.mlp_parameters,
    )
    keys.ignore("intermediate_size", "max_window_layers", "sliding_window", "cla_share_factor", "dense_list")
    keys.ignore("mlp_only_layers", "decoder_sparse_step", "org_vocab_size")
    norms = style.norms * (2 if style.norm_bias else 1)
    limits = windows(keys, layers, style.windows)
    return Decoder(
        layers=[
            Layer(
                mixers=(Attention(**attention, window=limit),),
                feed_forward=part,
                norms=norms,
                feed_forward_path=style.feed_forward_path,
            )
            for limit, part in zip(limits, parts, strict=True)
        ],
        tied=tied(keys, style.tied),
        parameters=(keys.size("hidden_size") if style.norm_bias else 0)
        + (keys.size("vocab_size") if keys.flag("lm_head_bias") else 0),
    )


def _refuse_unsupported(keys: Keys) -> None:
    """Reject kinds of attention that files of this family can state."""
    if not all(keys.numbers("attn_type_list")):
        raise keys.wrong("attn_type_list", "layers with linear attention are not supported in this type")
    for key in ("use_cla", "use_mla"):
        if keys.flag(key):
            raise keys.wrong(key, "this kind of attention is not supported; must be false")


def tied(keys: Keys, default: bool) -> bool:
    """Whether the output layer is the embedding."""
    for key in ("tie_word_embeddings", "tie_embedding", "use_embedding_sharing"):
        if keys.has(key):
            return keys.flag(key)
    return default


def switch(keys: Keys, key: bool | str) -> bool:
    """A fixed value, or the value of a key."""
    return keys.flag(key) if isinstance(key, str) else key


def windows(keys: Keys, layers: int, default: str) -> list[int | None]:
    """The sliding window of every layer; None for layers that attend to all tokens.

    The layers with a window are listed in `layer_types`, or follow `sliding_window_pattern` (a period, or a
    word of L and G), or `max_window_layers` (Qwen), or the default pattern of the model type.
    """
    types = ("full_attention", "sliding_attention", "attention")
    listed = keys.words("layer_types", layers, types)
    key = keys.first("sliding_window_pattern", "_sliding_window_pattern") or "sliding_window_pattern"
    pattern = keys.value(key)
    window, used = keys.value("sliding_window"), keys.value("use_sliding_window")
    first = keys.size("max_window_layers", least=0) if keys.has("max_window_layers") else None
    if not window or used is False:
        if listed is not None and "sliding_attention" in listed:
            raise keys.wrong("sliding_window", "missing, but layer_types contains 'sliding_attention'")
        return [None] * layers
    size = keys.size("sliding_window")
    if size >= keys.size("max_position_embeddings", 2**31 - 1):
        return [None] * layers
    if listed is not None:
        return [size if kind == "sliding_attention" else None for kind in listed]
    if used and first is not None:
        return [size if layer >= first else None for layer in range(layers)]
    if isinstance(pattern, str) and pattern:
        word = pattern.upper().replace("L", "S").replace("G", "F")
        if not set(word) <= {"S", "F"}:
            raise keys.wrong(key, f"must be an integer or a word of L and G, got {shown(pattern)}")
    elif pattern is not None and pattern != "":
        period = keys.size(key)
        return [size if (layer + 1) % period else None for layer in range(layers)]
    else:
        word = default
    return [size if word[layer % len(word)] == "S" else None for layer in range(layers)]
