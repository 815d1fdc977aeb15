"""Decoders of two feed-forward matrices, and norms with biases: GPT-2, GPT-NeoX, OPT, BLOOM, Phi, Falcon."""

from __future__ import annotations

from inferq.timing.hardware.configs.decoder import Decoder, Layer, head_size
from inferq.timing.hardware.configs.grouped_query import tied
from inferq.timing.hardware.configs.keys import Keys
from inferq.timing.hardware.layers import Attention, Dense

TYPES = ("gpt2", "gpt_neox", "opt", "bloom", "phi", "falcon")
"""The model types of this family."""

_UNTIED = ("gpt_neox", "phi")


def read(keys: Keys) -> Decoder:
    """Read a decoder of this family."""
    kind = keys.model_type
    keys.require("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    bias = keys.flag({"opt": "enable_bias", "falcon": "bias"}.get(kind, "attention_bias"), kind != "falcon")
    attention = Attention(
        heads=heads,
        kv_heads=_kv_heads(keys, heads),
        head_size=head_size(keys, heads),
        qkv_bias=bias,
        out_bias=bias,
    )
    width = keys.first("intermediate_size", "ffn_dim", "ffn_hidden_size")
    part = Dense(
        intermediate=4 * hidden if width is None else keys.size(width),
        gated=False,
        bias=bias,
    )
    layer = Layer(mixers=(attention,), feed_forward=part, norms=2 * _norms(keys))
    return Decoder(
        layers=[layer] * keys.size("num_hidden_layers"),
        tied=tied(keys, kind not in _UNTIED),
        parameters=hidden + _outside(keys, hidden),
    )


def _kv_heads(keys: Keys, heads: int) -> int:
    """Key-value heads: by the keys of Falcon, or all heads."""
    if keys.model_type != "falcon":
        return keys.size("num_key_value_heads", heads)
    many, several = keys.flag("multi_query", True), keys.flag("new_decoder_architecture")
    stated = keys.first("num_kv_heads", "n_head_kv")
    if several:
        return heads if stated is None else keys.size(stated)
    return 1 if many else heads


def _norms(keys: Keys) -> int:
    """Norms of a layer; attention and feed-forward part of Phi and of Falcon-7B share one."""
    if keys.model_type == "phi":
        return 1
    if keys.model_type != "falcon":
        return 2
    is_parallel = keys.flag("parallel_attn", True)
    if keys.flag("new_decoder_architecture"):
        return keys.size("num_ln_in_parallel_attn", 2)
    return 1 if is_parallel else 2


def _outside(keys: Keys, hidden: int) -> int:
    """Learned positions, the norm of BLOOM's embedding and the bias of Phi's output layer."""
    if keys.model_type == "gpt2":
        return keys.size("max_position_embeddings") * hidden
    if keys.model_type == "opt":
        if keys.size("word_embed_proj_dim", hidden) != hidden:
            raise keys.wrong("word_embed_proj_dim", "a width other than hidden_size is not supported")
        return (keys.size("max_position_embeddings") + 2) * hidden
    if keys.model_type == "bloom":
        return 2 * hidden
    return keys.size("vocab_size") if keys.model_type == "phi" else 0
