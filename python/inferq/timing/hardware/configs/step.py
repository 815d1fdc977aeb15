"""Step-3.5 and Step-3.7: a gate per head, windows in most layers, and experts after the first layers."""

from __future__ import annotations

from typing import Any

from inferq.checks import shown
from inferq.timing.hardware.configs.decoder import Decoder, Layer, head_size
from inferq.timing.hardware.configs.feed_forward import routed_experts
from inferq.timing.hardware.configs.grouped_query import tied, windows
from inferq.timing.hardware.configs.keys import Keys
from inferq.timing.hardware.layers import Attention, Dense

TYPES = ("step3p5", "step3p7")
"""The model types of this family."""

_FIRST_EXPERTS = 3
"""The first layer with experts if the file does not state it."""


def read(keys: Keys) -> Decoder:
    """Read a decoder of this family."""
    keys.require("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")
    keys.require("layer_types", "moe_intermediate_size")
    layers = keys.size("num_hidden_layers")
    limited = keys.table("attention_other_setting")
    heads = keys.size("num_attention_heads")
    kv_heads = keys.size(
        keys.first("num_key_value_heads", "num_attention_groups") or "num_key_value_heads", heads
    )
    size = head_size(keys, heads)
    attention: dict[str, Any] = {"head_size": size, "qk_norm": 2 * size, "gate_size": 1}
    window_heads = keys.size("num_sliding_attention_heads", limited.size("num_attention_heads", heads))
    window_kv_heads = limited.size("num_attention_groups", kv_heads)
    experts = routed_experts(keys, layers, router_bias=keys.flag("use_moe_router_bias", True))
    dense = Dense(intermediate=keys.size("intermediate_size"))
    has_experts = _has_experts(keys, layers)
    return Decoder(
        layers=[
            Layer(
                mixers=(
                    Attention(**attention, heads=heads, kv_heads=kv_heads)
                    if window is None
                    else Attention(**attention, heads=window_heads, kv_heads=window_kv_heads, window=window),
                ),
                feed_forward=experts[layer] if has_experts[layer] else dense,
            )
            for layer, window in enumerate(windows(keys, layers, "F"))
        ],
        tied=tied(keys, False),
    )


def _has_experts(keys: Keys, layers: int) -> list[bool]:
    """Whether each layer has experts, by `moe_layers_enum` ("3,4,5") or `first_k_dense_replace`."""
    listed = keys.value("moe_layers_enum")
    kinds = keys.words("mlp_layer_types", layers, ("dense", "sparse"))
    if kinds is not None:
        return [kind == "sparse" for kind in kinds]
    if listed is not None:
        chosen = set(_numbers(keys, "moe_layers_enum"))
        return [layer in chosen for layer in range(layers)]
    first = keys.size("first_k_dense_replace", _FIRST_EXPERTS, 0)
    return [layer >= first for layer in range(layers)]


def _numbers(keys: Keys, key: str) -> list[int]:
    """The integers of a list, or of a word such as "3,4,5"."""
    value = keys.value(key)
    if not isinstance(value, str):
        return keys.numbers(key)
    numbers = [word.strip() for word in value.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise keys.wrong(key, f"must be integers separated by commas, got {shown(value)}")
    return [int(number) for number in numbers]
