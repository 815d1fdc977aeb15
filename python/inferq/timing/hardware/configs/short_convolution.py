"""LFM2: short convolutions in most layers, attention in some."""

from __future__ import annotations

from inferq.timing.hardware.configs.decoder import Decoder, Layer, head_size
from inferq.timing.hardware.configs.feed_forward import routed_experts
from inferq.timing.hardware.configs.grouped_query import tied
from inferq.timing.hardware.configs.keys import Keys
from inferq.timing.hardware.layers import Attention, Dense, FeedForward, Recurrent

TYPES = ("lfm2", "lfm2_moe")
"""The model types of this family."""


def read(keys: Keys) -> Decoder:
    """Read a decoder of this family."""
    keys.require("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    layers, heads, hidden = (
        keys.size(name) for name in ("num_hidden_layers", "num_attention_heads", "hidden_size")
    )
    size = head_size(keys, heads)
    attention = Attention(
        heads=heads,
        kv_heads=keys.size("num_key_value_heads", heads),
        head_size=size,
        qk_norm=2 * size,
    )
    kernel, bias = keys.size("conv_L_cache", 3), int(keys.flag("conv_bias"))
    convolution = Recurrent(
        kind="short_conv",
        heads=hidden,
        inputs=3 * hidden,
        inner=hidden,
        parameters=hidden * kernel + bias * 5 * hidden,
        conv_values=hidden * (kernel - 1),
    )
    full = _full(keys, layers)
    keys.ignore("conv_dim", "conv_dim_out", "block_dim", "num_heads", "layer_types", "full_attn_idxs")
    parts: list[FeedForward] = [Dense(intermediate=_width(keys))] * layers
    if keys.model_type == "lfm2_moe":
        experts = routed_experts(keys, layers, router_bias=keys.flag("use_expert_bias", True))
        dense = keys.size("num_dense_layers", 0, 0)
        parts = [*parts[:dense], *experts[dense:]]
    return Decoder(
        layers=[
            Layer(
                mixers=(attention if is_full else convolution,),
                feed_forward=part,
                mixer_path="self_attn" if is_full else "conv",
                feed_forward_path="feed_forward",
            )
            for is_full, part in zip(full, parts, strict=True)
        ],
        tied=tied(keys, True),
    )


def _full(keys: Keys, layers: int) -> list[bool]:
    listed = keys.words("layer_types", layers, ("conv", "full_attention"))
    if listed is not None:
        return [kind == "full_attention" for kind in listed]
    keys.require("full_attn_idxs")
    full = set(keys.numbers("full_attn_idxs"))
    return [layer in full for layer in range(layers)]


def _width(keys: Keys) -> int:
    """Width of the feed-forward part: two thirds of the stated width, scaled and rounded up."""
    width = keys.size(keys.first("block_ff_dim", "intermediate_size") or "intermediate_size")
    keys.has("intermediate_size")
    if keys.model_type == "lfm2_moe" or not keys.flag("block_auto_adjust_ff_dim", True):
        return width
    width = 2 * width // 3
    if keys.has("block_ffn_dim_multiplier"):
        width = int(keys.number("block_ffn_dim_multiplier") * width)
    multiple = keys.size("block_multiple_of", 256)
    return -(-width // multiple) * multiple
