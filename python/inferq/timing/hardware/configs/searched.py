"""Llama-Nemotron: layers whose parts were chosen by a search, listed in `block_configs`."""

from __future__ import annotations

from inferq.checks import shown
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
    blocks = keys.items("block_configs")
    if len(blocks) != keys.size("num_hidden_layers"):
        raise keys.wrong(
            "block_configs", f"must have {keys.size('num_hidden_layers')} blocks, got {len(blocks)}"
        )
    layers = [
        _layer(keys, Keys(f"{keys.where}: block_configs[{place}]", block))
        for place, block in enumerate(blocks)
    ]
    return Decoder(layers=layers, tied=tied(keys, False))


def _layer(keys: Keys, block: Keys) -> Layer:
    block.require("attention", "ffn")
    attention, ffn = block.table("attention"), block.table("ffn")
    for part in (attention, ffn):
        for key in ("replace_with_linear", "sparsify", "window_length", "num_sink_tokens"):
            if value := part.value(key):
                raise part.wrong(key, f"{shown(value)} is not supported; must be null or false")
    heads, hidden = keys.size("num_attention_heads"), keys.size("hidden_size")
    mixers: tuple[Attention, ...] = ()
    if not attention.flag("no_op"):
        group = attention.size("n_heads_in_group")
        if heads % group:
            raise attention.wrong("n_heads_in_group", f"must divide the {heads} query heads, got {group}")
        mixers = (Attention(heads=heads, kv_heads=heads // group, head_size=head_size(keys, heads)),)
    dense = None
    if not ffn.flag("no_op"):
        width = int(2 * ffn.number("ffn_mult") * hidden / 3)
        dense = Dense(intermediate=-(-width // _MULTIPLE) * _MULTIPLE)
    return Layer(mixers=mixers, feed_forward=dense, norms=len(mixers) + (dense is not None))
