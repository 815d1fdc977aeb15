"""Decoders with state-space layers: Granite 4, Nemotron-H and Nemotron 3, Falcon-H1, Bamba and Jamba."""

from __future__ import annotations

from inferq.timing.hardware.configs.decoder import Decoder, Layer, head_size
from inferq.timing.hardware.configs.feed_forward import feed_forwards, routed_experts
from inferq.timing.hardware.configs.grouped_query import tied
from inferq.timing.hardware.configs.keys import Keys
from inferq.timing.hardware.layers import Attention, Dense, Experts, FeedForward, Mixer, Recurrent

TYPES = ("granitemoehybrid", "bamba", "falcon_h1", "nemotron_h", "jamba")
"""The model types of this family."""

_BYTES = {"float32": 4, "fp32": 4, "bfloat16": 2, "float16": 2, "auto": 2}
_NEMOTRON = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Layers of `hybrid_override_pattern`."""


def read(keys: Keys) -> Decoder:
    """Read a decoder of this family."""
    keys.require("hidden_size", "num_attention_heads", "vocab_size")
    keys.ignore("mlp_bias", "sliding_window")
    if keys.model_type == "nemotron_h":
        return _nemotron(keys)
    keys.require("num_hidden_layers", "intermediate_size")
    layers = keys.size("num_hidden_layers")
    default = {"granitemoehybrid": True, "jamba": True}.get(keys.model_type, False)
    attention = _attention(keys)
    if keys.model_type == "falcon_h1":
        mamba, part = _mamba2(keys), Dense(intermediate=keys.size("intermediate_size"))
        both = Layer(mixers=(attention, mamba), feed_forward=part, mixer_path="mamba")
        return Decoder(layers=[both] * layers, tied=tied(keys, default))
    if keys.model_type == "jamba":
        return Decoder(layers=_jamba(keys, layers, attention), tied=tied(keys, default))
    if keys.model_type == "granitemoehybrid":
        keys.require("layer_types")
        kinds = keys.words("layer_types", layers, ("mamba", "attention")) or []
        parts = _granite_parts(keys, layers)
        keys.ignore(*(key for key in keys.config if key.startswith("mamba_")))
    else:
        keys.require("attn_layer_indices")
        chosen = set(keys.numbers("attn_layer_indices"))
        kinds = ["attention" if layer in chosen else "mamba" for layer in range(layers)]
        parts = feed_forwards(keys, layers)
    mixers: dict[str, Mixer] = {
        "attention": attention,
        **({"mamba": _mamba2(keys)} if "mamba" in kinds else {}),
    }
    return Decoder(
        layers=[
            Layer(
                mixers=(mixers[kind],),
                feed_forward=part,
                mixer_path="self_attn" if kind == "attention" else "mamba",
            )
            for kind, part in zip(kinds, parts, strict=True)
        ],
        tied=tied(keys, default),
    )


def _attention(keys: Keys) -> Attention:
    heads = keys.size("num_attention_heads")
    bias = keys.flag("attention_bias")
    return Attention(
        heads=heads,
        kv_heads=keys.size("num_key_value_heads", heads),
        head_size=head_size(keys, heads, "head_dim", "attention_head_dim"),
        qkv_bias=bias,
        out_bias=bias,
    )


def state_bytes(keys: Keys, *names: str, default: str = "auto") -> int:
    """Bytes of a number of the state, in the format that a key states; as vLLM 0.24, else 16 bits."""
    name = keys.first(*names)
    word = str(keys.value(name) if name is not None else default).removeprefix("torch.")
    if word not in _BYTES:
        raise keys.wrong(str(name), f"must be one of {', '.join(map(repr, _BYTES))}, got {word!r}")
    return _BYTES[word]


def _mamba2(keys: Keys) -> Recurrent:
    """Mamba 2 by the keys of Granite, Bamba and Falcon-H1."""
    keys.require("mamba_n_heads", "mamba_d_state")
    heads = keys.size("mamba_n_heads")
    width = keys.size("mamba_d_ssm", keys.size("mamba_expand", 2) * keys.size("hidden_size"))
    is_falcon = keys.model_type == "falcon_h1"
    for key in ("mamba_proj_bias", "projectors_bias"):
        if keys.flag(key):
            raise keys.wrong(key, "biases of the projections are not supported; must be false")
    size = keys.value("mamba_d_head", "auto")
    if size != "auto" and heads * keys.size("mamba_d_head") != width:
        raise keys.wrong("mamba_d_head", f"{size} × {heads} heads is not the width of the state, {width}")
    return _mamba2_of(
        heads=heads,
        size=width // heads,
        groups=keys.size("mamba_n_groups", 1),
        state=keys.size("mamba_d_state"),
        kernel=keys.size("mamba_d_conv", 4),
        conv_bias=keys.flag("mamba_conv_bias", True),
        norm=not is_falcon or keys.flag("mamba_rms_norm"),
        bytes_per_value=state_bytes(keys, "mamba_ssm_dtype", "mamba_ssm_cache_dtype"),
    )


def _mamba2_of(
    *,
    heads: int,
    size: int,
    groups: int,
    state: int,
    kernel: int,
    conv_bias: bool,
    norm: bool,
    bytes_per_value: int,
) -> Recurrent:
    width = heads * size
    convolved = width + 2 * groups * state
    return Recurrent(
        kind="mamba2",
        heads=heads,
        inputs=width + convolved + heads,
        inner=width,
        parameters=convolved * (kernel + int(conv_bias)) + 3 * heads + (width if norm else 0),
        conv_values=convolved * (kernel - 1),
        state_values=width * state,
        state_bytes_per_value=bytes_per_value,
    )


def _granite_parts(keys: Keys, layers: int) -> list[FeedForward]:
    """A shared part in every layer, with or without experts next to it."""
    keys.require("shared_intermediate_size")
    if keys.value("num_local_experts"):
        return list(routed_experts(keys, layers))
    if keys.value("num_experts_per_tok"):
        keys.require("num_local_experts")
    return [Dense(intermediate=keys.size("shared_intermediate_size"))] * layers


def _jamba(keys: Keys, layers: int, attention: Attention) -> list[Layer]:
    """Mamba 1 with attention and experts at fixed intervals."""
    keys.require("mamba_d_state")
    width = keys.size("mamba_expand", 2) * keys.size("hidden_size")
    state, kernel = keys.size("mamba_d_state"), keys.size("mamba_d_conv", 4)
    rank = keys.value("mamba_dt_rank", "auto")
    rank = -(-keys.size("hidden_size") // 16) if rank == "auto" else keys.size("mamba_dt_rank")
    mamba = Recurrent(
        kind="mamba1",
        heads=width,
        inputs=2 * width,
        inner=width,
        inner_weights=width * (rank + 2 * state) + rank * width,
        parameters=width * (kernel + int(keys.flag("mamba_conv_bias", True)) + 2 + state) + rank + 2 * state,
        conv_values=width * (kernel - 1),
        state_values=width * state,
        state_bytes_per_value=state_bytes(keys, "mamba_ssm_dtype", "mamba_ssm_cache_dtype"),
    )
    dense: FeedForward = Dense(intermediate=keys.size("intermediate_size"))
    experts: list[FeedForward] = [dense] * layers
    if keys.size("num_experts", 1) > 1:
        experts = list(routed_experts(keys, layers))
    period, offset = keys.size("attn_layer_period", 8), keys.size("attn_layer_offset", 4, 0)
    step, first = keys.size("expert_layer_period", 2), keys.size("expert_layer_offset", 1, 0)
    return [
        Layer(
            mixers=(attention if layer % period == offset else mamba,),
            feed_forward=experts[layer] if layer % step == first else dense,
            mixer_path="self_attn" if layer % period == offset else "mamba",
            feed_forward_path="feed_forward",
        )
        for layer in range(layers)
    ]


def _nemotron(keys: Keys) -> Decoder:
    """Nemotron-H: each layer is one of Mamba 2, attention, a feed-forward part or experts."""
    pattern = keys.value("hybrid_override_pattern")
    if pattern is None:
        keys.require("layers_block_type")
        kinds = [str(kind) for kind in keys.items("layers_block_type")]
    else:
        kinds = [_NEMOTRON.get(letter, letter) for letter in str(pattern)]
    if unknown := sorted({kind for kind in kinds if kind not in _NEMOTRON.values()}):
        key = "layers_block_type" if pattern is None else "hybrid_override_pattern"
        raise keys.wrong(key, f"must contain only {', '.join(_NEMOTRON.values())}, got {unknown[0]!r}")
    if keys.size("num_hidden_layers", len(kinds)) != len(kinds):
        raise keys.wrong(
            "num_hidden_layers",
            f"{keys.value('num_hidden_layers')} is not the number of layers in the pattern, {len(kinds)}",
        )
    bias = keys.flag("mlp_bias")
    keys.ignore("intermediate_size", "expand", "mamba_proj_bias", "use_bias")
    made: dict[str, Layer] = {}
    if "attention" in kinds:
        made["attention"] = Layer(mixers=(_attention(keys),), feed_forward=None, norms=1, mixer_path="mixer")
    if "mamba" in kinds:
        made["mamba"] = Layer(mixers=(_nemotron_mamba(keys),), feed_forward=None, norms=1, mixer_path="mixer")
    if "mlp" in kinds:
        part = Dense(intermediate=keys.size("intermediate_size"), gated=False, bias=bias)
        made["mlp"] = Layer(mixers=(), feed_forward=part, norms=1, feed_forward_path="mixer")
    if "moe" in kinds:
        made["moe"] = Layer(
            mixers=(), feed_forward=_nemotron_experts(keys), norms=1, feed_forward_path="mixer"
        )
    return Decoder(layers=[made[kind] for kind in kinds], tied=tied(keys, False))


def _nemotron_mamba(keys: Keys) -> Recurrent:
    keys.require("mamba_num_heads", "mamba_head_dim", "ssm_state_size")
    return _mamba2_of(
        heads=keys.size("mamba_num_heads"),
        size=keys.size("mamba_head_dim"),
        groups=keys.size("n_groups", 8),
        state=keys.size("ssm_state_size"),
        kernel=keys.size("conv_kernel", 4),
        conv_bias=keys.flag("use_conv_bias", True),
        norm=True,
        bytes_per_value=state_bytes(keys, "mamba_ssm_cache_dtype", default="float32"),
    )


def _nemotron_experts(keys: Keys) -> Experts:
    keys.require("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")
    shared = keys.size("moe_shared_expert_intermediate_size", 0, 0) * keys.size("n_shared_experts", 1, 0)
    return Experts(
        experts=keys.size("n_routed_experts"),
        active=keys.size("num_experts_per_tok"),
        intermediate=keys.size("moe_intermediate_size"),
        shared_intermediate=shared,
        router_bias=True,
        gated=False,
        latent=keys.size("moe_latent_size") if keys.has("moe_latent_size") else None,
    )
