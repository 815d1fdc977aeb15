"""gpt-oss: attention sinks, a window in every second layer, and experts with biases."""

from __future__ import annotations

from dataclasses import replace

from inferq.timing.hardware.configs.decoder import Decoder, Layer, head_size
from inferq.timing.hardware.configs.feed_forward import routed_experts
from inferq.timing.hardware.configs.grouped_query import tied, windows
from inferq.timing.hardware.configs.keys import Keys
from inferq.timing.hardware.layers import Attention

TYPES = ("gpt_oss",)
"""The model types of this family."""


def read(keys: Keys) -> Decoder:
    """Read a decoder of this family."""
    keys.require("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")
    keys.require("num_local_experts", "sliding_window", "head_dim", "num_key_value_heads")
    layers, heads = keys.size("num_hidden_layers"), keys.size("num_attention_heads")
    keys.ignore("experts_per_token", "initial_context_length")
    bias = keys.flag("attention_bias", True)
    kv_heads, size = keys.size("num_key_value_heads", heads), head_size(keys, heads)
    experts = [replace(part, bias=True) for part in routed_experts(keys, layers, router_bias=True)]
    return Decoder(
        layers=[
            Layer(
                mixers=(
                    Attention(
                        heads=heads,
                        kv_heads=kv_heads,
                        head_size=size,
                        window=window,
                        qkv_bias=bias,
                        out_bias=bias,
                        sinks=True,
                    ),
                ),
                feed_forward=part,
            )
            for window, part in zip(windows(keys, layers, "SF"), experts, strict=True)
        ],
        tied=tied(keys, False),
    )
