"""Number formats of weights and KV caches, and the formats of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, cast, get_args

from inferq.errors import ConfigError

Weights = Literal["bf16", "fp8", "fp8-block", "nvfp4", "mxfp4", "int8", "int4"]
KvType = Literal["bf16", "fp8", "nvfp4", "int8"]
Part = Literal["attention", "recurrent", "dense", "experts", "shared_experts", "router", "output"]
"""Matrices that a checkpoint may store in different formats."""

PARTS: tuple[Part, ...] = get_args(Part)

WEIGHT_BYTES: Mapping[str, float] = MappingProxyType(
    {
        "bf16": 2.0,
        "fp8": 1.0,
        "fp8-block": 1.0 + 4 / 128**2,
        "nvfp4": 0.5 + 1 / 16,
        "mxfp4": 0.5 + 1 / 32,
        "int8": 1.0,
        "int4": 0.5 + 2.5 / 128,
    }
)
"""Bytes of a weight of the linear layers, scales included: `fp8-block` with a 32-bit scale per 128 × 128
weights, `nvfp4` with an 8-bit scale per 16, `mxfp4` with one per 32, `int4` with a 16-bit scale and a 4-bit
zero per 128 (AWQ, GPTQ)."""

KV_BYTES: Mapping[str, float] = MappingProxyType({"bf16": 2, "fp8": 1, "nvfp4": 0.5 + 1 / 16, "int8": 1})
"""Bytes of a number in the KV cache, scales included."""

ACTIVATION_BYTES = 2
"""Activations, embeddings, norms and biases stay at 16 bits, whatever the weights are."""

CHECKPOINT = ("auto", "compressed-tensors", "modelopt", "quark", "none")
"""Values of `--quantization` and `--dtype` that select the format of the checkpoint."""

_WEIGHT_NAMES: Mapping[str, Weights] = {
    **dict.fromkeys(("bfloat16", "float16", "fp16", "half", "w16a16"), "bf16"),
    **dict.fromkeys(
        ("fp8_e4m3", "float8", "float8_e4m3fn", "fp8-dynamic", "fp8-tensor", "fp8-channel"), "fp8"
    ),
    **dict.fromkeys(("modelopt_fp8", "fbgemm_fp8", "w8a8_fp8", "fp8_pb_wo"), "fp8"),
    **dict.fromkeys(("fp8_block", "fp8-block128", "blockwise_fp8", "deepseek_fp8"), "fp8-block"),
    **dict.fromkeys(("modelopt_fp4", "fp4", "nvfp4_awq", "w4a4_nvfp4"), "nvfp4"),
    **dict.fromkeys(("mx-fp4", "mxfp4_moe"), "mxfp4"),
    **dict.fromkeys(("w8a8", "w8a8_int8", "w8a16", "smoothquant", "experts_int8", "int8_wo"), "int8"),
    **dict.fromkeys(("awq", "gptq", "awq_marlin", "gptq_marlin", "auto_gptq", "auto_awq", "w4a16"), "int4"),
    **dict.fromkeys(("int4_wo", "w4a16_awq", "moe_wna16"), "int4"),
}
_KV_NAMES: Mapping[str, KvType] = {
    **dict.fromkeys(("bfloat16", "float16", "fp16", "half"), "bf16"),
    **dict.fromkeys(("fp8_e4m3", "fp8_e5m2", "float8", "float8_e4m3fn", "fp8_ds_mla", "fp8_inc"), "fp8"),
    **dict.fromkeys(("fp4", "fp4_e2m1"), "nvfp4"),
    "int8_per_token_head": "int8",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """The number formats of a model as it is stored.

    Args:
        weights: format of the quantized matrices; `"bf16"` if no matrix is quantized.
        kv_dtype: format of the KV cache that the checkpoint states; None if it states none.
        sixteen_bit: parts of which no matrix is quantized, of `"attention"`, `"recurrent"`, `"dense"`,
            `"experts"`, `"shared_experts"`, `"router"` and `"output"`.
        sixteen_bit_weights: number of unquantized weights of each part, also of partly quantized parts.
        bytes_per_weight: bytes of a quantized weight with its scales. Default: `WEIGHT_BYTES[weights]`.
        method: `quant_method` of the file.
        is_mixed: whether the quantized matrices have several formats; `weights` is that of most of them, and
            `bytes_per_weight` their mean.
    """

    weights: Weights = "bf16"
    kv_dtype: KvType | None = None
    sixteen_bit: tuple[Part, ...] = ()
    sixteen_bit_weights: Mapping[Part, int] = field(default_factory=dict, hash=False)
    bytes_per_weight: float | None = None
    method: str | None = None
    is_mixed: bool = False

    def weight_bytes(self, weights: Weights) -> float:
        """Bytes of a weight in a format, with the checkpoint's own scales if it is the checkpoint's."""
        if weights == self.weights and self.bytes_per_weight is not None:
            return self.bytes_per_weight
        return WEIGHT_BYTES[weights]


def weights_of(name: str | None, checkpoint: Checkpoint, field: str = "weights") -> Weights:
    """The weight format of a name, in the words of vLLM, SGLang and the Hugging Face Hub.

    None, `"auto"` and names of containers such as `"compressed-tensors"` select the checkpoint's format;
    `"fp8"` selects the blocks of a checkpoint with FP8 in blocks.

    Raises:
        ConfigError: an unknown name, with the known formats.
    """
    plain = _plain(field, name, get_args(Weights))
    if plain in (None, *CHECKPOINT):
        return checkpoint.weights
    weights = _WEIGHT_NAMES.get(plain, plain)
    if weights not in WEIGHT_BYTES:
        raise _unknown(field, name, get_args(Weights), ("awq", "gptq", "float16", "auto"))
    if weights == "fp8" and checkpoint.weights == "fp8-block":
        return "fp8-block"
    return cast(Weights, weights)


def kv_type_of(name: str | None, checkpoint: Checkpoint, field: str = "kv_dtype") -> KvType:
    """The KV format of a name. None and `"auto"`: the checkpoint's, else `"bf16"`.

    Raises:
        ConfigError: an unknown name, with the known formats.
    """
    plain = _plain(field, name, get_args(KvType))
    if plain in (None, "auto"):
        return checkpoint.kv_dtype or "bf16"
    kv_dtype = _KV_NAMES.get(plain, plain)
    if kv_dtype not in KV_BYTES:
        raise _unknown(field, name, get_args(KvType), ("fp8_e4m3", "float16", "auto"))
    return cast(KvType, kv_dtype)


def _plain(field: str, name: object, names: tuple[str, ...]) -> str | None:
    if name is None:
        return None
    if not isinstance(name, str):
        raise _unknown(field, name, names, ())
    return name.strip().lower()


def _unknown(field: str, name: object, names: tuple[str, ...], also: tuple[str, ...]) -> ConfigError:
    aliases = f" or a name such as {', '.join(map(repr, also))}" if also else ""
    return ConfigError(field, f"must be one of {', '.join(map(repr, names))}{aliases}, got {name!r}")
