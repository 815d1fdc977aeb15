"""Formats of a checkpoint, from `quantization_config` or from ModelOpt's `hf_quant_config.json`."""

from __future__ import annotations

import bisect
import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from inferq.checks import shown
from inferq.errors import ConfigError
from inferq.timing.hardware.configs.decoder import Decoder, Layer
from inferq.timing.hardware.configs.keys import Keys
from inferq.timing.hardware.formats import WEIGHT_BYTES, Checkpoint, KvType, Part, Weights
from inferq.timing.hardware.layers import Experts

METHODS = (
    "fp8",
    "fbgemm_fp8",
    "awq",
    "gptq",
    "mxfp4",
    "modelopt",
    "compressed-tensors",
    "quark",
)
"""Values of `quant_method` that are read."""

_ALGORITHMS: Mapping[str, Weights] = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8-block",
    "FP8_BLOCK_SCALES": "fp8-block",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
    "W4A8_NVFP4_FP8": "nvfp4",
    "MXFP4": "mxfp4",
    "W4A16_AWQ": "int4",
    "INT4_AWQ": "int4",
    "W4A8_AWQ": "int4",
    "INT8_SQ": "int8",
    "W8A8_SQ": "int8",
    "W8A16": "int8",
}
"""Values of ModelOpt's `quant_algo` that are read."""

_MIXED = "MIXED_PRECISION"
"""The `quant_algo` of a checkpoint that states the format of each module in `quantized_layers`."""

_KV_ALGORITHMS: Mapping[str, KvType] = {"FP8": "fp8", "INT8": "int8", "NVFP4": "nvfp4"}

_ALWAYS_16: tuple[Part, ...] = ("router", "output")
"""Parts that engines never quantize."""


def read_checkpoint(
    where: str, decoder: Decoder, hidden: int, config: Mapping[str, Any] | None
) -> Checkpoint:
    """The formats of a checkpoint, from one of the two tables; None: all matrices have 16 bits.

    Raises:
        ConfigError: an unknown method or format, with those that are known.
    """
    if config is None:
        return Checkpoint()
    table = Keys(f"{where}: quantization_config", config)
    if table.has("quantization"):
        table = table.table("quantization")
    kv_dtype = _kv_dtype(table)
    if str(table.value("quant_algo")).upper() == _MIXED:
        return _mixed(decoder, hidden, table, kv_dtype)
    weights, size, method = _format(table)
    if weights == "bf16":
        return Checkpoint(kv_dtype=kv_dtype, method=method)
    patterns = _excluded(table)
    if method == "mxfp4" and not patterns:
        patterns = ["re:^(?!.*experts)"]
    counts, sizes = _unquantized(decoder, hidden, _matcher(table, patterns))
    return _checkpoint(weights, kv_dtype, counts, sizes, size, method)


def _checkpoint(
    weights: Weights,
    kv_dtype: KvType | None,
    counts: Mapping[Part, int],
    sizes: Mapping[Part, int],
    bytes_per_weight: float | None,
    method: str,
) -> Checkpoint:
    """A checkpoint with `counts` of the `sizes` weights of each part at 16 bits."""
    sixteen = tuple(part for part, total in sizes.items() if total and counts.get(part, 0) == total)
    return Checkpoint(
        weights=weights,
        kv_dtype=kv_dtype,
        sixteen_bit=(*sixteen, *_ALWAYS_16),
        sixteen_bit_weights={part: count for part, count in counts.items() if count},
        bytes_per_weight=bytes_per_weight,
        method=method,
    )


def _mixed(decoder: Decoder, hidden: int, table: Keys, kv_dtype: KvType | None) -> Checkpoint:
    """A checkpoint of several formats: the format of most weights, with the mean bytes of all formats."""
    stated: dict[str, Weights] = {}
    layers = table.table("quantized_layers")
    for name in layers.config:
        algorithm = layers.table(name).value("quant_algo")
        if str(algorithm).upper() not in _ALGORITHMS:
            raise _unknown(layers, name, algorithm, _ALGORITHMS)
        stated[_without_prefix(name)] = _ALGORITHMS[str(algorithm).upper()]
    if not stated:
        raise table.wrong("quant_algo", f"{_MIXED} requires quantized_layers, which is missing")
    modules = sorted(stated)
    formats: dict[Weights, int] = {}
    counts: dict[Part, int] = {}
    sizes: dict[Part, int] = {}
    for number, layer in enumerate(decoder.layers):
        for part, module, weights in layer.matrices(hidden):
            word = _stated_format(f"layers.{number}.{module}", stated, modules)
            sizes[part] = sizes.get(part, 0) + weights
            if word is None:
                counts[part] = counts.get(part, 0) + weights
            else:
                formats[word] = formats.get(word, 0) + weights
        router = _router_weights(layer, hidden)
        counts["router"] = counts.get("router", 0) + router
    if not formats:
        raise table.wrong("quantized_layers", "names no layer of the decoder")
    size = sum(WEIGHT_BYTES[word] * weights for word, weights in formats.items()) / sum(formats.values())
    main = max(formats, key=lambda word: formats[word])
    checkpoint = _checkpoint(main, kv_dtype, counts, sizes, size, "modelopt")
    return replace(checkpoint, is_mixed=len(formats) > 1)


def _stated_format(name: str, stated: Mapping[str, Weights], modules: Sequence[str]) -> Weights | None:
    """The format of a matrix: its own, or that of a module around it; None for 16 bits.

    A matrix may be stored as several, such as in_proj_qkv and in_proj_z for in_proj.
    """
    words = name.split(".")
    for end in range(len(words), 2, -1):
        if (around := ".".join(words[:end])) in stated:
            return stated[around]
    place = bisect.bisect_left(modules, name)
    if place < len(modules) and modules[place].startswith(name):
        return stated[modules[place]]
    return None


def _without_prefix(name: str) -> str:
    """The name of a module from `layers.` on; the part before differs between libraries."""
    start = name.find("layers.")
    return name[start:] if start > 0 else name


def _router_weights(layer: Layer, hidden: int) -> int:
    part = layer.feed_forward
    return part.router_weights(hidden) if isinstance(part, Experts) else 0


def _format(table: Keys) -> tuple[Weights, float | None, str]:
    """Format, bytes of a weight if they differ from `WEIGHT_BYTES`, and method."""
    algorithm = table.value("quant_algo")
    named = table.has("quant_method") or "quant_algo" in table.config  # ModelOpt states null for 16 bits
    method = str(table.value("quant_method", "modelopt" if named else "")).lower()
    if method.startswith("modelopt") or algorithm is not None:
        if algorithm is None or str(algorithm).upper() in ("NONE", ""):
            return "bf16", None, method
        weights = _ALGORITHMS.get(str(algorithm).upper())
        if weights is None:
            raise _unknown(table, "quant_algo", algorithm, _ALGORITHMS)
        return weights, _group_bytes(weights, table.value("group_size"), symmetric=True), method
    if method in ("fp8", "fbgemm_fp8"):
        block = table.numbers("weight_block_size")
        if not block:
            return "fp8", None, method
        if len(block) != 2 or not all(block):
            raise table.wrong("weight_block_size", f"must have 2 positive sizes, got {shown(block)}")
        return "fp8-block", 1 + 4 / (block[0] * block[1]), method
    if method in ("awq", "gptq"):
        bits = table.value("bits", table.value("w_bit"))
        return _integer(table, bits, table.value("group_size", table.value("q_group_size")), method)
    if method == "mxfp4":
        return "mxfp4", None, method
    if method == "compressed-tensors":
        return _compressed(table)
    if method == "quark":
        weight = table.table("global_quant_config").table("weight")
        kinds: Mapping[str, Weights] = {"fp4": "mxfp4", "fp8_e4m3": "fp8", "int8": "int8"}
        dtype = str(weight.value("dtype"))
        if dtype not in kinds:
            raise _unknown(weight, "dtype", weight.value("dtype"), kinds)
        return kinds[dtype], None, method
    raise _unknown(table, "quant_method", table.value("quant_method"), METHODS)


def _compressed(table: Keys) -> tuple[Weights, float | None, str]:
    """The format of the groups of compressed-tensors, which must be one."""
    groups = table.table("config_groups")
    formats = {_group_format(groups.table(name).table("weights")) for name in groups.config}
    if len(formats) != 1:
        raise table.wrong("config_groups", f"has {len(formats)} weight formats; exactly one is supported")
    weights, size = formats.pop()
    return weights, size, "compressed-tensors"


def _group_format(group: Keys) -> tuple[Weights, float | None]:
    bits, kind, size = group.value("num_bits"), group.value("type"), group.value("group_size")
    if (bits, kind) == (8, "float"):
        is_block = group.value("strategy") == "block" or group.has("block_structure")
        return ("fp8-block", None) if is_block else ("fp8", None)
    if (bits, kind) == (4, "float"):
        return ("mxfp4", None) if size == 32 else ("nvfp4", None)
    if kind == "int" and bits in (4, 8):
        weights: Weights = "int4" if bits == 4 else "int8"
        if group.value("strategy") in ("channel", "tensor"):
            return weights, bits / 8
        return weights, _group_bytes(weights, size, symmetric=group.flag("symmetric", True))
    raise _unknown(group, "type", f"{bits}-bit {kind}", ("4 or 8-bit int or float",))


def _integer(table: Keys, bits: Any, group: Any, method: str) -> tuple[Weights, float | None, str]:
    if bits not in (4, 8):
        raise _unknown(table, "bits", bits, ("4", "8"))
    weights: Weights = "int4" if bits == 4 else "int8"
    return weights, _group_bytes(weights, group, symmetric=False), method


def _group_bytes(weights: Weights, group: Any, *, symmetric: bool) -> float | None:
    """Bytes of an integer weight with a 16-bit scale and, unless symmetric, a zero per group."""
    if weights not in ("int4", "int8"):
        return None
    bits = 4 if weights == "int4" else 8
    if not isinstance(group, int) or group < 1:
        return bits / 8
    return bits / 8 + (2 + (0 if symmetric else bits / 8)) / group


def _kv_dtype(table: Keys) -> KvType | None:
    """The KV format that a checkpoint states."""
    algorithm, scheme = table.value("kv_cache_quant_algo"), table.table("kv_cache_scheme")
    if algorithm:
        name = _KV_ALGORITHMS.get(str(algorithm).upper())
        if name is None:
            raise _unknown(table, "kv_cache_quant_algo", algorithm, _KV_ALGORITHMS)
        return name
    if scheme.config:
        kinds: Mapping[str, KvType] = {"8-bit float": "fp8", "8-bit int": "int8", "4-bit float": "nvfp4"}
        kind = f"{scheme.value('num_bits')}-bit {scheme.value('type')}"
        if kind not in kinds:
            raise _unknown(table, "kv_cache_scheme", kind, kinds)
        return kinds[kind]
    return None


def _excluded(table: Keys) -> list[str]:
    """The patterns of modules that are not quantized."""
    patterns: list[str] = []
    for key in ("modules_to_not_convert", "ignore", "exclude_modules", "exclude", "ignored_layers"):
        patterns += [str(pattern) for pattern in table.items(key)]
    return patterns


def _matcher(table: Keys, patterns: Iterable[str]) -> Callable[[int, str], bool]:
    """Whether a module of a layer is excluded.

    Patterns are names of modules or of modules that contain them, globs, or regular expressions after `re:`.
    """
    names: set[str] = set()
    globs: list[str] = []
    expressions: list[re.Pattern[str]] = []
    for pattern in patterns:
        if pattern.startswith("re:"):
            try:
                expressions.append(re.compile(pattern[3:]))
            except re.error as error:
                raise table.wrong("ignore", f"{pattern!r} is not a regular expression: {error}") from None
            continue
        plain = _without_prefix(pattern)
        if any(letter in plain for letter in "*?["):
            globs += [fnmatch.translate(plain), fnmatch.translate(f"{plain}.*")]
        else:
            names.add(plain)
    glob = re.compile("|".join(globs)) if globs else None

    def is_excluded(layer: int, module: str) -> bool:
        name = f"layers.{layer}.{module}"
        words = name.split(".")
        if any(".".join(words[:end]) in names for end in range(1, len(words) + 1)):
            return True
        if any(word in names for word in words[2:]):
            return True
        if glob is not None and (glob.match(name) or glob.match(module)):
            return True
        return any(expression.match(f"model.{name}") for expression in expressions)

    return is_excluded


def _unquantized(
    decoder: Decoder, hidden: int, is_excluded: Callable[[int, str], bool]
) -> tuple[dict[Part, int], dict[Part, int]]:
    """Weights of each part that stay at 16 bits, and all its weights."""
    counts: dict[Part, int] = {}
    sizes: dict[Part, int] = {}
    for number, layer in enumerate(decoder.layers):
        for part, module, weights in layer.matrices(hidden):
            sizes[part] = sizes.get(part, 0) + weights
            if is_excluded(number, module) or module.endswith("indexer.weights_proj"):
                counts[part] = counts.get(part, 0) + weights
        counts["router"] = counts.get("router", 0) + _router_weights(layer, hidden)
    return counts, sizes


def _unknown(table: Keys, key: str, value: Any, known: Sequence[str] | Mapping[str, Any]) -> ConfigError:
    return table.wrong(
        key,
        f"must be one of {', '.join(map(str, known))}, got {shown(value)}; "
        "convert the checkpoint, or remove quantization_config and set weights",
    )
