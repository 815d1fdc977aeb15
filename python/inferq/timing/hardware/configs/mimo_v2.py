"""MiMo-V2: windows in most layers, with attention of other heads than in the full layers, and experts."""

from __future__ import annotations

from inferq.timing.hardware.configs.decoder import Decoder, Layer
from inferq.timing.hardware.configs.feed_forward import feed_forwards
from inferq.timing.hardware.configs.grouped_query import tied
from inferq.timing.hardware.configs.keys import Keys
from inferq.timing.hardware.layers import Attention

TYPES = ("mimo_v2_flash",)
"""The model types of this family."""


def read(keys: Keys) -> Decoder:
    """Read a decoder of this family."""
    keys.require("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")
    keys.require("head_dim", "v_head_dim", "hybrid_layer_pattern", "sliding_window")
    keys.ignore("sliding_window_size", "attention_chunk_size")  # equal to the window
    layers, window = keys.size("num_hidden_layers"), keys.size("sliding_window")
    full = _attention(keys, "", None, "add_full_attention_sink_bias")
    limited = _attention(keys, "swa_", window, "add_swa_attention_sink_bias")
    pattern = keys.sizes("hybrid_layer_pattern", layers, 0)
    return Decoder(
        layers=[
            Layer(mixers=(limited if kind else full,), feed_forward=part)
            for kind, part in zip(pattern, feed_forwards(keys, layers), strict=True)
        ],
        tied=tied(keys, False),
    )


def _attention(keys: Keys, prefix: str, window: int | None, sinks: str) -> Attention:
    """The attention of the keys that begin with `prefix`."""
    bias = keys.flag("attention_bias")
    return Attention(
        heads=keys.size(f"{prefix}num_attention_heads", keys.size("num_attention_heads")),
        kv_heads=keys.size(f"{prefix}num_key_value_heads", keys.size("num_key_value_heads")),
        head_size=keys.size(f"{prefix}head_dim", keys.size("head_dim")),
        value_size=keys.size(f"{prefix}v_head_dim", keys.size("v_head_dim")),
        window=window,
        qkv_bias=bias,
        sinks=keys.flag(sinks),
    )
