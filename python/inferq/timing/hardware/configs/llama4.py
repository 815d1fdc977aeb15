"""Llama 4: attention in chunks in three of four layers, and one shared expert."""

from __future__ import annotations

from inferq.timing.hardware.configs.decoder import Decoder, Layer, head_size
from inferq.timing.hardware.configs.grouped_query import tied
from inferq.timing.hardware.configs.keys import Keys
from inferq.timing.hardware.layers import Attention, Dense, Experts

TYPES = ("llama4_text",)
"""The model types of this family."""


def read(keys: Keys) -> Decoder:
    """Read a decoder of this family."""
    keys.require("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")
    keys.require("num_local_experts", "attention_chunk_size")
    layers, heads = keys.size("num_hidden_layers"), keys.size("num_attention_heads")
    width, chunk = keys.size("intermediate_size"), keys.size("attention_chunk_size")
    experts = Experts(
        experts=keys.size("num_local_experts"),
        active=keys.size("num_experts_per_tok", 1),
        intermediate=width,
        shared_intermediate=width,
    )
    dense = Dense(intermediate=keys.size("intermediate_size_mlp", 2 * width))
    size, kv_heads = head_size(keys, heads), keys.size("num_key_value_heads", heads)
    bias = keys.flag("attention_bias")
    step = keys.size("interleave_moe_layer_step", 1)
    listed = keys.numbers("moe_layers")
    sparse = set(listed) if listed else set(range(step - 1, layers, step))
    return Decoder(
        layers=[
            Layer(
                mixers=(
                    Attention(
                        heads=heads,
                        kv_heads=kv_heads,
                        head_size=size,
                        chunk=chunk if is_chunked else None,
                        qkv_bias=bias,
                        out_bias=bias,
                    ),
                ),
                feed_forward=experts if layer in sparse else dense,
                feed_forward_path="feed_forward",
                shared_path="feed_forward.shared_expert",
            )
            for layer, is_chunked in enumerate(_chunked(keys, layers))
        ],
        tied=tied(keys, False),
    )


def _chunked(keys: Keys, layers: int) -> list[bool]:
    """Whether each layer attends to a chunk: those with rotary positions."""
    listed = keys.words("layer_types", layers, ("chunked_attention", "full_attention"))
    rotary = keys.value("no_rope_layers")
    interval = keys.size("no_rope_layer_interval", 4)
    if listed is not None:
        return [kind == "chunked_attention" for kind in listed]
    if rotary:
        return [bool(layer) for layer in keys.sizes("no_rope_layers", layers, 1)]
    return [(layer + 1) % interval != 0 for layer in range(layers)]
