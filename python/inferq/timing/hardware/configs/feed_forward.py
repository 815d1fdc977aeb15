"""Feed-forward parts of the layers: dense, routed experts and shared experts, by the keys of all families."""

from __future__ import annotations

from collections.abc import Sequence

from inferq.errors import ConfigError
from inferq.timing.hardware.configs.keys import Keys
from inferq.timing.hardware.layers import Dense, Experts, FeedForward

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Keys of the number of experts."""

_ACTIVE = (
    "moe_top_k",
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_topk",
    "top_k_experts",
    "moe_k",
)
_WIDTH = ("moe_intermediate_size", "expert_ffn_hidden_size")
_DENSE_FIRST = (
    *("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_linear"),
    *("glm4_moe", "glm4_moe_lite", "glm_moe_dsa"),
)
"""Types that must state which layers have experts."""
_OWN_WIDTH = (
    *_DENSE_FIRST,
    *("qwen2_moe", "qwen3_moe", "qwen3_vl_moe_text", "qwen3_next", "qwen3_5_moe_text"),
    *("ernie4_5_moe", "lfm2_moe", "mimo_v2_flash"),
)
"""Types whose experts have another width than a dense layer."""
_SHARED = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
_SHARED_WIDTH = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
    "share_expert_dim",
    "share_expert_dims",
)
_BIASES = ("use_routing_bias", "moe_router_enable_expert_bias", "moe_use_aux_free", "use_expert_bias")


def has_experts(keys: Keys) -> bool:
    """Whether the file states a number of experts.

    Raises:
        ConfigError: keys of experts without their number.
    """
    keys.ignore(*EXPERTS)
    if any(keys.value(key) for key in EXPERTS):
        return True
    if keys.value("num_experts_per_tok") or keys.value("moe_intermediate_size"):
        key = "num_experts_per_tok" if keys.value("num_experts_per_tok") else "moe_intermediate_size"
        raise ConfigError(
            keys.where, f"{key} requires the number of experts: {', '.join(EXPERTS)} are missing"
        )
    return False


def feed_forwards(
    keys: Keys,
    layers: int,
    *,
    gated: bool = True,
    bias: bool = False,
    router_bias: bool | None = None,
    parameters: int = 0,
) -> list[FeedForward]:
    """The feed-forward part of every layer.

    Args:
        keys: keys of the file.
        layers: number of layers.
        gated: whether a third matrix gates the width.
        bias: whether the matrices of dense layers have biases.
        router_bias: whether the router has a bias per expert. Default: by the keys that state it.
        parameters: other parameters of a dense layer.
    """
    if not has_experts(keys):
        width = keys.size("intermediate_size")
        return [Dense(intermediate=width, gated=gated, bias=bias, parameters=parameters)] * layers
    sparse = sparse_layers(keys, layers)
    if router_bias is None:
        router_bias = keys.value("topk_method") == "noaux_tc" or any([keys.flag(key) for key in _BIASES])
    experts = routed_experts(keys, layers, gated=gated, router_bias=router_bias)
    if all(sparse):
        return list(experts)
    dense = Dense(intermediate=keys.size("intermediate_size"), gated=gated, bias=bias, parameters=parameters)
    return [experts[layer] if sparse[layer] else dense for layer in range(layers)]


def routed_experts(
    keys: Keys, layers: int, *, gated: bool = True, router_bias: bool = False
) -> list[Experts]:
    """The experts of every layer, as if all layers had experts."""
    count = keys.size(next((key for key in EXPERTS if keys.value(key)), EXPERTS[0]))
    active = keys.first(*_ACTIVE)
    if active is None:
        keys.require("num_experts_per_tok")
    actives = keys.sizes(active or "num_experts_per_tok", layers, 1)
    if keys.model_type in _OWN_WIDTH and keys.first(*_WIDTH) is None:
        keys.require("moe_intermediate_size")
    widths = keys.sizes(keys.first(*_WIDTH) or "intermediate_size", layers, 0)
    shared_width = keys.first(*_SHARED_WIDTH)
    if shared_width is not None:
        shared = keys.sizes(shared_width, layers, 0)
        for key in _SHARED:  # the width is of all shared experts
            keys.has(key)
    else:
        counts = keys.sizes(keys.first(*_SHARED) or _SHARED[0], layers, 0)
        shared = [number * width for number, width in zip(counts, widths, strict=True)]
    gate = shared_width == "shared_expert_intermediate_size"
    return [
        Experts(
            experts=count,
            active=actives[layer],
            intermediate=widths[layer],
            shared_intermediate=shared[layer],
            router_bias=router_bias,
            gated=gated,
            shared_gate=gate and shared[layer] > 0,
        )
        for layer in range(layers)
    ]


def sparse_layers(keys: Keys, layers: int) -> Sequence[bool]:
    """Whether each layer has experts, by the keys of DeepSeek, Qwen, ERNIE and GLM."""
    kinds = keys.words("mlp_layer_types", layers, ("dense", "sparse"))
    if keys.model_type in _DENSE_FIRST and kinds is None:
        keys.require("first_k_dense_replace")
    dense_first = keys.size("first_k_dense_replace", 0, 0)
    step = keys.value("moe_layer_freq", 1)
    interval = keys.size("moe_layer_interval", 1)
    sparse_step = keys.size("decoder_sparse_step", 1)
    start = keys.size("moe_layer_start_index", 0, 0)
    end = keys.value("moe_layer_end_index", -1)
    last = layers - 1 if end == -1 else keys.size("moe_layer_end_index", least=0)
    dense_only = set(keys.numbers("mlp_only_layers"))
    if kinds is not None:
        return [kind == "sparse" for kind in kinds]
    if isinstance(step, Sequence):
        return [bool(layer_step) for layer_step in keys.sizes("moe_layer_freq", layers, 1)]
    step = keys.size("moe_layer_freq", 1)
    return [
        layer >= dense_first
        and layer % step == 0
        and (layer + 1) % sparse_step == 0
        and (layer + 1) % interval == 0
        and start <= layer <= last
        and layer not in dense_only
        for layer in range(layers)
    ]
