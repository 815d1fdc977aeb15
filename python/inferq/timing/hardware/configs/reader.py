"""The reader of a `config.json`: selects the rule of its model type and reports keys that are not used."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inferq.checks import shown, whole
from inferq.errors import ConfigError
from inferq.timing.hardware.configs import (
    gated_delta,
    gemma,
    gpt_oss,
    grouped_query,
    latent,
    lightning,
    llama4,
    mimo_v2,
    minimax_m3,
    searched,
    short_convolution,
    state_space,
    step,
    ungated,
)
from inferq.timing.hardware.configs.decoder import Decoder
from inferq.timing.hardware.configs.keys import Keys
from inferq.timing.hardware.configs.quantization import read_checkpoint
from inferq.timing.hardware.formats import Checkpoint
from inferq.timing.hardware.layers import LayerGroup

RULES: Mapping[str, Callable[[Keys], Decoder]] = {
    model_type: rule.read
    for rule in (
        grouped_query,
        gemma,
        gpt_oss,
        llama4,
        mimo_v2,
        minimax_m3,
        step,
        latent,
        gated_delta,
        state_space,
        lightning,
        short_convolution,
        searched,
        ungated,
    )
    for model_type in rule.TYPES
}
"""The rule of every model type that is read."""

_ALIASES: Mapping[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
"""Model types of architectures, for files without `model_type`."""

_WRAPPED: Mapping[str, str] = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "mistral3": "mistral",
    "kimi_k25": "kimi_k2",
    "lfm2_vl": "lfm2",
    "glm4v_moe": "glm4_moe",
}
"""Type of the decoder in a file of several parts that states none for it."""

_NOT_DECODERS: Mapping[str, str] = {
    **dict.fromkeys(
        ("t5", "mt5", "umt5", "bart", "mbart", "pegasus", "marian", "m2m_100", "whisper"),
        "an encoder-decoder model, and only decoders are supported",
    ),
    **dict.fromkeys(
        ("bert", "roberta", "xlm-roberta", "distilbert", "deberta-v2", "electra", "modernbert", "albert"),
        "an encoder that generates no tokens and has no KV cache",
    ),
    **dict.fromkeys(
        ("vit", "deit", "swin", "dinov2", "siglip", "clip", "convnext", "siglip_vision_model"),
        "a vision model that generates no tokens",
    ),
}
"""Model types that generate no tokens with a decoder alone."""

_MOST_LAYERS = 10_000

_DECODERS = ("text_config", "language_config", "llm_config")
"""Keys of the decoder in a file of several parts."""

_NAMES: Mapping[str, str] = {
    "n_embd": "hidden_size",
    "n_embed": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
}
"""Names of keys in files of GPT-2 and BLOOM, and their newer names."""

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
    },
}
"""Values of keys that files of a model type omit: the defaults of its class in transformers 5."""

_SHARED = ("tie_word_embeddings", "max_position_embeddings")
"""Keys around the decoder that hold for it unless it states them."""

_PARTS: Mapping[str, str] = {
    "vision_config": "images are not encoded, and the vision part takes no memory",
    "audio_config": "audio is not encoded, and the audio part takes no memory",
    "mm_vision_tower": "images are not encoded, and the vision part takes no memory",
}
"""Keys of parts besides the decoder, each with the assumption."""

_NEUTRAL = re.compile(
    # names, versions, types, positions
    r"_.*|auto_map|architectures|model_type|name_or_path|(torch_)?dtype|transformers_version|norm_type"
    r"|.*rope.*|.*rotary.*|position_embedding.*|max_position_embeddings|original_max.*|seq_length"
    r"|model_max_length|max_sequence_length"
    # tokens, generation and training
    r"|.*token_?(id|index)s?|.*_id|.*dropout.*|.*_pdrop|.*_drop|.*init.*|.*eps(ilon)?|.*aux_loss.*|seq_aux"
    r"|pretraining_tp|use_cache|cache_implementation|attn_implementation|.*recompute|max_length|min_length"
    r"|do_sample|early_stopping|num_beam.*|num_return_sequences|temperature|top_[kp]|typical_p|.*_penalty"
    r"|id2label|label2id|problem_type|pruned_heads|return_dict.*|remove_invalid_values|output_.*|.*_cls.*"
    r"|class_num|pool_type|chunk_size_feed_forward|moe_drop_tokens|moe_random_routing_dropped_token"
    # functions and factors without parameters
    r"|.*_act(ivation.*)?|activation.*|.*hidden_act.*|swiglu_.*|use_gemma_norm|.*softcapping|.*multiplier.*|.*_scal(e|ing|ar)(_.*)?"
    r"|scale_.*|(layernorm|moe_router|router|time_step)_.*|norm_topk_prob|.*scoring_func.*|routed_.*"
    r"|n_group|topk_group|topk_method|postnorm|post_norm|.*moe_mode|attn_temperature_tuning"
    r"|qk_norm(_type)?|use_qk_norm|use_parallel_.*|use_gated_activation|use_mamba_kernels|use_pos_enc"
    r"|residual_in_fp32|rescale_prenorm_residual|num_logits_to_keep|use_bidirectional_attention"
    r"|(mamba_)?chunk_size|ep_size|moe_shared_expert_overlap|moe_layer_num_skipped|fuse_.*|use_mixed_mlp_moe"
    r"|input_jitter_noise|full_attn_mod|interpolate_factor|n_ctx|summary_.*|task_specific_params"
    r"|layer_switch|order_of_interleaved_layers|block_(use|mlp|out)_.*|conv_use_.*|for_llm_compressor"
    # blocks for multi-token prediction, which engines load for speculative decoding alone
    r"|num_nextn_predict_layers|mtp_.*|num_mtp_modules|use_mtp|index_share_for_mtp_iteration"
    # the connection to images, audio and video
    r"|mm_.*|(image|video|vision|vit|projector|anyres)_.*|multimodal_projector_bias|spatial_merge_size"
    r"|.*_placeholder|use_unified_vision_chunk|num_media_embeds|(im|text)_(start|end)_id|ignore_index"
    r"|downsample_factor|encoder_patch_size|m(ax|in)_image_tokens|max_pixels_tolerance|m(ax|in)_tiles"
    r"|tile_size|do_image_splitting|use_image_special_tokens|use_thumbnail"
)
"""Keys that change neither time nor memory."""

_STRUCTURE: Mapping[str, str] = {
    "kv_lora_rank": "multi-head latent attention",
    "index_topk": "a sparse index",
    **dict.fromkeys(
        (
            "n_shared_experts",
            "num_shared_experts",
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
            "intermediate_size_mlp",
        ),
        "shared experts",
    ),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), "experts"),
    "linear_num_key_heads": "linear attention",
    "linear_attn_config": "linear attention",
    **dict.fromkeys(
        ("mamba_d_state", "mamba_n_heads", "mamba_num_heads", "ssm_cfg", "ssm_state_size"),
        "state-space layers",
    ),
    "is_encoder_decoder": "an encoder",
    "compress_ratios": "compressed keys and values",
    "routed_expert_hidden_size": "experts with a hidden size of their own",
    "mla_use_output_gate": "a gate of latent attention",
    "attn_res_block_size": "attention over earlier layers",
    "sparse_attention_config": "sparse attention",
    "num_kv_shared_layers": "layers that share keys and values",
    "hidden_size_per_layer_input": "inputs of each layer",
    "attention_chunk_size": "attention in chunks",
    "layer_types": "layers of different kinds",
}
"""Keys of parts that a rule must read: a file with such a part is not a model of another kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """A decoder as its `config.json` describes it: the arguments of a `ModelShape`."""

    hidden: int
    vocab: int
    groups: tuple[LayerGroup, ...]
    tied: bool
    extra_parameters: int
    max_model_len: int | None
    checkpoint: Checkpoint
    unused: Mapping[str, str]


def read_config(
    where: str, config: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None = None
) -> Description:
    """Read a `config.json`.

    Args:
        where: name of the file, for errors.
        config: its keys.
        hf_quant_config: keys of the `hf_quant_config.json` next to it.

    Raises:
        ConfigError: a model type that no rule reads, with the keys that were not understood; missing keys;
            inconsistent values.
    """
    inner, outer = _decoder_of(where, config)
    model_type = _model_type(where, inner, outer)
    stated = {key: value for key, value in _renamed(inner).items() if value is not None}
    keys = Keys(where, {**_DEFAULTS.get(model_type, {}), **stated, "model_type": model_type})
    if keys.has("num_hidden_layers"):
        whole(f"{where}: num_hidden_layers", keys.value("num_hidden_layers"), 1, _MOST_LAYERS)
    try:
        decoder = RULES[model_type](keys)
        groups = decoder.groups()
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if text.startswith(where) else f"{where}: {text}") from None
    for key, part in _STRUCTURE.items():
        if inner.get(key) and key not in keys.read:
            raise ConfigError(
                where, f"{key} is {shown(inner[key])}, but models of type {model_type!r} do not have {part}"
            )
    hidden, vocab, max_model_len = keys.size("hidden_size"), keys.size("vocab_size"), _max_model_len(keys)
    unused = {**_unused(_renamed(inner), keys.read), **_unused(outer, {*_DECODERS, *_SHARED})}
    quantization = inner.get("quantization_config") or config.get("quantization_config") or hf_quant_config
    checkpoint = read_checkpoint(where, decoder, hidden, quantization)
    if checkpoint.is_mixed:
        unused["quantized_layers"] = f"weights of several formats are computed as {checkpoint.weights}"
    return Description(
        hidden=hidden,
        vocab=vocab,
        groups=groups,
        tied=decoder.tied,
        extra_parameters=decoder.parameters,
        max_model_len=max_model_len,
        checkpoint=checkpoint,
        unused=unused,
    )


def _decoder_of(where: str, config: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The keys of the decoder, and those around them."""
    for key in _DECODERS:
        inner = config.get(key)
        if inner is None:
            continue
        if not isinstance(inner, Mapping):
            raise ConfigError(where, f"{key} must be a table, got {inner!r}")
        around = {name: value for name, value in config.items() if name != key}
        shared = {name: config[name] for name in _SHARED if name in config}
        return {**shared, **inner}, around
    return config, {}


def _model_type(where: str, inner: Mapping[str, Any], outer: Mapping[str, Any]) -> str:
    """The type of the decoder, which must have a rule."""
    stated = inner.get("model_type") or _WRAPPED.get(str(outer.get("model_type", "")))
    if stated is None:
        architectures = Keys(where, {**outer, **inner}).items("architectures")
        stated = next((_ALIASES[str(name)] for name in architectures[:1] if str(name) in _ALIASES), None)
    if stated is None and outer.get("model_type"):
        stated = outer["model_type"]
    if stated is None:
        raise ConfigError(
            where, "missing model_type; a model with the keys of a Llama has model_type = 'llama'"
        )
    model_type = _WRAPPED.get(str(stated), str(stated))
    if model_type in RULES:
        return model_type
    if reason := _NOT_DECODERS.get(model_type):
        raise ConfigError(where, f"model_type {model_type!r} is {reason}")
    if inner.get("is_encoder_decoder") or outer.get("is_encoder_decoder"):
        raise ConfigError(
            where, f"model_type {model_type!r}: is_encoder_decoder: only decoders are supported"
        )
    raise ConfigError(
        where,
        f"model_type {model_type!r} is not supported, so these keys were not understood: "
        f"{', '.join(sorted(inner))}; supported types: {', '.join(sorted(RULES))}",
    )


def _renamed(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys by the names of newer files."""
    return {
        _NAMES[key] if key in _NAMES and _NAMES[key] not in config else key: value
        for key, value in config.items()
    }


def _max_model_len(keys: Keys) -> int | None:
    """The most tokens of prompt and output."""
    name = keys.first("model_max_length", "max_position_embeddings")
    if keys.model_type != "kimi_linear":
        name = keys.first("max_position_embeddings", "model_max_length", "seq_length")
    return None if name is None else keys.size(name)


def _unused(config: Mapping[str, Any], read: set[str]) -> dict[str, str]:
    """Keys with a value that no rule uses and that may change time or memory, each with the reason."""
    unused = {}
    for key, value in config.items():
        if key in _PARTS:
            unused[key] = _PARTS[key]
        elif key in read or key == "quantization_config" or not value or _NEUTRAL.fullmatch(key):
            continue
        else:
            unused[key] = "the key is not understood"
    return unused
