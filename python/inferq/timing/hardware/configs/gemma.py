"""Gemma: tied embeddings, norms before and after each part, and sliding windows in most layers."""

from __future__ import annotations

from typing import Any

from inferq.timing.hardware.configs.decoder import Decoder, Layer
from inferq.timing.hardware.configs.grouped_query import tied, windows
from inferq.timing.hardware.configs.keys import Keys
from inferq.timing.hardware.layers import Attention, Dense, Experts, FeedForward

TYPES = ("gemma", "gemma2", "gemma3_text", "gemma4_text")
"""The model types of this family."""


def read(keys: Keys) -> Decoder:
    """Read a decoder of this family."""
    kind = keys.model_type
    keys.require("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")
    keys.require("head_dim")
    if kind != "gemma":
        keys.require("sliding_window")
    layers = keys.size("num_hidden_layers")
    keys.ignore("vocab_size_per_layer_input")
    heads, size = keys.size("num_attention_heads"), keys.size("head_dim")
    attention: dict[str, Any] = {
        "heads": heads,
        "kv_heads": keys.size("num_key_value_heads", heads),
        "head_size": size,
        "qkv_bias": keys.flag("attention_bias"),
        "out_bias": keys.flag("attention_bias"),
        "qk_norm": 2 * size if kind in ("gemma3_text", "gemma4_text") else 0,
    }
    full = attention
    part: FeedForward = Dense(intermediate=keys.size("intermediate_size"))
    norms = 2 if kind == "gemma" else 4
    if kind == "gemma4_text":
        full = _global_attention(keys, attention)
        _refuse_shared(keys)
        if keys.flag("enable_moe_block"):
            part, norms = _experts(keys), 7
    pattern = {"gemma": "F", "gemma2": "SF"}.get(kind, "SSSSSF")
    return Decoder(
        layers=[
            Layer(
                mixers=(Attention(**(full if window is None else attention), window=window),),
                feed_forward=part,
                norms=norms,
                experts_path="experts",
                shared_path="mlp",
                parameters=1 if kind == "gemma4_text" else 0,  # layer_scalar
            )
            for window in windows(keys, layers, pattern)
        ],
        tied=tied(keys, True),
    )


def _global_attention(keys: Keys, attention: dict[str, Any]) -> dict[str, Any]:
    """The attention of Gemma 4's layers without a window, which have wider and fewer heads."""
    size = keys.size("global_head_dim", attention["head_size"])
    shared = keys.flag("attention_k_eq_v")
    kv_heads = keys.size("num_global_key_value_heads", attention["kv_heads"])
    return {
        **attention,
        "head_size": size,
        "kv_heads": kv_heads if shared else attention["kv_heads"],
        "qk_norm": 2 * size,
        "keys_as_values": shared,
    }


def _experts(keys: Keys) -> Experts:
    """Experts next to a dense part, which every token uses."""
    count = keys.size("num_experts")
    return Experts(
        experts=count,
        active=keys.size("top_k_experts"),
        intermediate=keys.size("moe_intermediate_size"),
        shared_intermediate=keys.size("intermediate_size"),
        parameters=keys.size("hidden_size") + count,  # scales of the router's input and output
    )


def _refuse_shared(keys: Keys) -> None:
    for key in ("num_kv_shared_layers", "hidden_size_per_layer_input", "use_double_wide_mlp"):
        if keys.value(key):
            raise keys.wrong(
                key, "layers that share keys and values, or have inputs of their own, are not supported"
            )
