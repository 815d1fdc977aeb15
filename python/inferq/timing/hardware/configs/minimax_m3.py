"""MiniMax-M3: attention to the blocks that an index selects, and experts after the first layers."""

from __future__ import annotations

from typing import Any

from inferq.timing.hardware.configs.decoder import Decoder, Layer, head_size
from inferq.timing.hardware.configs.feed_forward import routed_experts
from inferq.timing.hardware.configs.grouped_query import tied
from inferq.timing.hardware.configs.keys import Keys
from inferq.timing.hardware.layers import Attention, Dense, SparseIndex

TYPES = ("minimax_m3", "minimax_m3_vl_text")
"""The model types of this family."""


def read(keys: Keys) -> Decoder:
    """Read a decoder of this family."""
    keys.require("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")
    keys.require("sparse_attention_config", "dense_intermediate_size", "num_local_experts")
    keys.ignore("moe_intermediate_size", "first_k_dense_replace")  # repeat other keys
    if keys.flag("attention_output_gate"):
        raise keys.wrong("attention_output_gate", "a gate of this attention is not supported; must be false")
    layers, heads = keys.size("num_hidden_layers"), keys.size("num_attention_heads")
    size = head_size(keys, heads)
    attention: dict[str, Any] = {
        "heads": heads,
        "kv_heads": keys.size("num_key_value_heads", heads),
        "head_size": size,
        "qk_norm": 2 * size if keys.flag("use_qk_norm", True) else 0,
    }
    sparse = keys.table("sparse_attention_config")
    index = _index(sparse)
    has_index = sparse.sizes("sparse_attention_freq", layers, 1)
    experts = routed_experts(keys, layers, router_bias=keys.flag("use_routing_bias"))
    dense = Dense(intermediate=keys.size("dense_intermediate_size"))
    has_experts = keys.sizes("moe_layer_freq", layers, 1)
    return Decoder(
        layers=[
            Layer(
                mixers=(Attention(**attention, index=index if has_index[layer] else None),),
                feed_forward=experts[layer] if has_experts[layer] else dense,
                feed_forward_path="block_sparse_moe" if has_experts[layer] else "mlp",
            )
            for layer in range(layers)
        ],
        tied=tied(keys, False),
    )


def _index(sparse: Keys) -> SparseIndex:
    """The index, whose keys vLLM caches with 16 bits."""
    sparse.require("sparse_num_index_heads", "sparse_index_dim", "sparse_topk_blocks", "sparse_block_size")
    size = sparse.size("sparse_index_dim")
    return SparseIndex(
        heads=sparse.size("sparse_num_index_heads"),
        head_size=size,
        topk=sparse.size("sparse_topk_blocks") * sparse.size("sparse_block_size"),
        key_bytes=2 * size,
    )
