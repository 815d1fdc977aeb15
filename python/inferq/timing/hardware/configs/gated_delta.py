"""Qwen3-Next and Qwen3.5: gated delta nets in three of four layers, gated attention in the fourth."""

from __future__ import annotations

from inferq.timing.hardware.configs.decoder import Decoder, Layer, head_size
from inferq.timing.hardware.configs.feed_forward import feed_forwards
from inferq.timing.hardware.configs.grouped_query import tied
from inferq.timing.hardware.configs.keys import Keys
from inferq.timing.hardware.configs.state_space import state_bytes
from inferq.timing.hardware.layers import Attention, Recurrent

TYPES = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
"""The model types of this family."""


def read(keys: Keys) -> Decoder:
    """Read a decoder of this family."""
    keys.require(
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "head_dim",
        "num_key_value_heads",
    )
    keys.require("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim")
    keys.require("linear_value_head_dim", "linear_conv_kernel_dim")
    layers, heads, size = (
        keys.size("num_hidden_layers"),
        keys.size("num_attention_heads"),
        head_size(keys, keys.size("num_attention_heads")),
    )
    bias = keys.flag("attention_bias")
    attention = Attention(
        heads=heads,
        kv_heads=keys.size("num_key_value_heads", heads),
        head_size=size,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=2 * size,
        gate_size=size if keys.flag("attn_output_gate", True) else 0,
    )
    delta = _delta(keys)
    keys.ignore("intermediate_size", "full_attention_interval")
    interval = keys.size("full_attention_interval", 4)
    listed = keys.words("layer_types", layers, ("linear_attention", "full_attention"))
    full = [
        kind == "full_attention" if listed else (layer + 1) % interval == 0
        for layer, kind in enumerate(listed or [""] * layers)
    ]
    return Decoder(
        layers=[
            Layer(
                mixers=(attention if is_full else delta,),
                feed_forward=part,
                mixer_path="self_attn" if is_full else "linear_attn",
                shared_path="mlp.shared_expert",
            )
            for is_full, part in zip(full, feed_forwards(keys, layers), strict=True)
        ],
        tied=tied(keys, False),
    )


def _delta(keys: Keys) -> Recurrent:
    heads, size = keys.size("linear_num_value_heads"), keys.size("linear_value_head_dim")
    key_width = keys.size("linear_num_key_heads") * keys.size("linear_key_head_dim")
    width, kernel = heads * size, keys.size("linear_conv_kernel_dim")
    convolved = 2 * key_width + width
    return Recurrent(
        kind="gated_delta",
        heads=heads,
        inputs=convolved + width + 2 * heads,
        inner=width,
        parameters=convolved * kernel + 2 * heads + size,
        conv_values=convolved * (kernel - 1),
        state_values=heads * size * keys.size("linear_key_head_dim"),
        state_bytes_per_value=state_bytes(keys, "mamba_ssm_dtype"),
    )
