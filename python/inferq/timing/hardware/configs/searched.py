"""Llama-Nemotron: layers whose parts were chosen by a search, listed in `block_configs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferq.timing.hardware.configs.decoder import Decoder, Layer, head_size
from inferq.timing.hardware.configs.grouped_query import tied
from inferq.timing.hardware.configs.keys import Keys
from inferq.timing.hardware.layers import Attention, Dense

TYPES = ("nemotron-nas", "deci")
"""The model types of this family."""

_MULTIPLE = 256
"""Widths of the feed-forward part are rounded up to a multiple of this number."""


def read(keys: Keys) -> Decoder:
    """Read a decoder of this family."""
    keys.require("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "block_configs")
    keys.ignore("attention_bias", "mlp_bias")
    blocks = keys.value("block_configs")
    if len(blocks) != keys.size("num_hidden_layers"):
        raise keys.wrong(
            "block_configs", f"must have {keys.size('num_hidden_layers')} blocks, got {len(blocks)}"
        )
    return Decoder(layers=[_layer(keys, block) for block in blocks], tied=tied(keys, False))


def _layer(keys: Keys, block: Mapping[str, Any]) -> Layer:
    attention, ffn = block["attention"], block["ffn"]
    for part in (attention, ffn):
        for key in ("replace_with_linear", "sparsify", "window_length", "num_sink_tokens"):
            if part.get(key):
                raise keys.wrong(f"block_configs: {key}", f"{part[key]!r} is not supported")
    heads, hidden = keys.size("num_attention_heads"), keys.size("hidden_size")
    mixers: tuple[Attention, ...] = ()
    if not attention.get("no_op"):
        kv_heads = heads // int(attention["n_heads_in_group"])
        mixers = (Attention(heads=heads, kv_heads=kv_heads, head_size=head_size(keys, heads)),)
    part = None
    if not ffn.get("no_op"):
        width = int(2 * ffn["ffn_mult"] * hidden / 3)
        part = Dense(intermediate=-(-width // _MULTIPLE) * _MULTIPLE)
    return Layer(mixers=mixers, feed_forward=part, norms=len(mixers) + (part is not None))
