"""MiniMax-Text-01 and MiniMax-M1: lightning attention in seven of eight layers, and experts."""

from __future__ import annotations

from inferq.timing.hardware.configs.decoder import Decoder, Layer, head_size
from inferq.timing.hardware.configs.feed_forward import feed_forwards
from inferq.timing.hardware.configs.grouped_query import tied
from inferq.timing.hardware.configs.keys import Keys
from inferq.timing.hardware.layers import Attention, Recurrent

TYPES = ("minimax_m1", "minimax_text_01", "minimax")
"""The model types of this family."""


def read(keys: Keys) -> Decoder:
    """Read a decoder of this family."""
    keys.require("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")
    layers, heads = keys.size("num_hidden_layers"), keys.size("num_attention_heads")
    size = head_size(keys, heads)
    width = heads * size
    attention = Attention(heads=heads, kv_heads=keys.size("num_key_value_heads", heads), head_size=size)
    linear = Recurrent(
        kind="lightning",
        heads=heads,
        inputs=4 * width,
        inner=width,
        parameters=width,
        state_values=heads * size * size,
    )
    keys.ignore("sliding_window", "shared_intermediate_size")
    listed = keys.words("layer_types", layers, ("linear_attention", "full_attention"))
    if listed is None:
        keys.require("attn_type_list")
        full = [bool(kind) for kind in keys.sizes("attn_type_list", layers, 1)]
    else:
        full = [kind == "full_attention" for kind in listed]
    return Decoder(
        layers=[
            Layer(
                mixers=(attention if is_full else linear,),
                feed_forward=part,
                feed_forward_path="block_sparse_moe",
            )
            for is_full, part in zip(full, feed_forwards(keys, layers), strict=True)
        ],
        tied=tied(keys, False),
    )
