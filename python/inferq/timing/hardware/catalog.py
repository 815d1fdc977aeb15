"""The catalog of known models and GPUs.

`models.json` has the keys of a `config.json`, `gpus.json` the values of a datasheet. Every entry names its
source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from inferq._lazy import pl
from inferq.checks import nearest
from inferq.errors import ConfigError

_NUMBERS = re.compile(r"\d+")
_WORDS = re.compile(r"[a-z]+")
_UNITS = re.compile(r"(?<=\d)g?b(?![a-z])")
_NEUTRAL = ("hf", "chat", "instruct")
"""Words that do not distinguish models."""
_MODELOPT = {"quant_method": "modelopt"}
_FORMATS: Mapping[str, Mapping[str, Any]] = {
    "fp8": {"quant_method": "fp8"},
    "fp8-dynamic": {"quant_method": "fp8"},
    "nvfp4": {**_MODELOPT, "quant_algo": "NVFP4"},
    "fp4": {**_MODELOPT, "quant_algo": "NVFP4"},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "gptq-int4": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "gptq-int8": {"quant_method": "gptq", "bits": 8, "group_size": 128},
    "quantized.w4a16": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "quantized.w8a8": {"quant_method": "gptq", "bits": 8},
}
"""The `quantization_config` that the ending of a name on the Hugging Face Hub stands for."""
_BLOCK_FP8 = ("qwen", "zai-org", "deepseek-ai", "minimaxai", "moonshotai")
"""Organizations that publish FP8 in blocks of 128 × 128."""
_ENDING = re.compile(
    r"-(instruct|chat|it|hf|base|pt|thinking|v0\.1|2407|0324|0528"
    r"|fp8|fp8-dynamic|nvfp4|fp4|awq|gptq-int4|gptq-int8|quantized\.w4a16|quantized\.w8a8|bf16|fp16)$"
)
"""Endings of names that change no size of a model."""
_GPU_ALIASES = {
    "a100-40gb-sxm": "a100-40gb",
    "a100-80gb-sxm": "a100-80gb",
    "a100-sxm": "a100-80gb",
    "a100-pcie": "a100-80gb-pcie",
    "h100-80gb-sxm": "h100-80gb",
    "h100-sxm": "h100-80gb",
    "h100-pcie": "h100-80gb-pcie",
    "h20-sxm": "h20",
    "h200-sxm": "h200",
    "b200-sxm": "b200",
    "b300-sxm": "b300",
    "gb200-nvl72": "gb200",
    "gb300-nvl72": "gb300",
    "rtx-pro-6000-server": "rtx-pro-6000",
    "gb10": "dgx-spark",
}
"""Other names of known GPUs, such as those of the database of measured tables; hyphens for underscores."""
_OWN = {
    "models": "use the model's config.json instead",
    "gpus": "describe your own GPU instead: timing.Gpu(…), on the command line a TOML file of its fields",
}


DOMAIN = 8
"""GPUs of a server, which its link joins unless the datasheet names another number."""


@cache
def entries(kind: str) -> Mapping[str, Mapping[str, Any]]:
    """All entries of `"models"` or `"gpus"`, by name."""
    file = Path(__file__).parent / f"{kind}.json"
    read: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return read


def gpu_name(name: str) -> str:
    """The name of a GPU in the catalog, for any spelling and alias; other names are returned unchanged.

    >>> gpu_name("b200_sxm"), gpu_name("GB200"), gpu_name("My_GPU")
    ('b200', 'gb200', 'My_GPU')
    """
    plain = name.strip().lower().replace("_", "-")
    known = _GPU_ALIASES.get(plain, plain)
    return known if known in entries("gpus") else name


def entry(kind: str, field: str, name: str) -> Mapping[str, Any]:
    """The entry of a name, in any letter case; a GPU also by an alias.

    Raises:
        ConfigError: an unknown name; the message has the nearest known one.
    """
    names = entries(kind)
    plain = (gpu_name(name) if kind == "gpus" else name).strip().lower()
    if plain not in names:
        hint = near(plain, list(names))
        if "; known names" in hint:
            names_hint = "; `inferq list models` shows the known names" if kind == "models" else hint
            hint = f"; {_OWN[kind]}{names_hint}"
        raise ConfigError(field, f"unknown name {name!r}{hint}")
    return names[plain]


def hub_config(name: str) -> tuple[str, Mapping[str, Any]] | None:
    """The catalog name of a model on the Hugging Face Hub, and its config; None for an unknown name.

    `hub` of an entry lists names with other values of some keys. Otherwise the organization and endings that
    change no size are ignored, and an ending such as `-FP8` adds the `quantization_config` that it implies:
    `Qwen/Qwen3-32B-FP8` is `qwen3-32b` with FP8 in blocks.
    """
    organization, _, plain = name.strip().lower().rpartition("/")
    if "/" in organization:
        return None
    plain = plain.removeprefix("meta-").removeprefix("nvidia-")
    added: Mapping[str, Any] = {}
    while plain not in _hub():
        ending = _ENDING.search(plain)
        if ending is None:
            return None
        word = ending.group(1)
        if word in _FORMATS:
            is_block = word == "fp8" and organization in _BLOCK_FP8
            block = {"weight_block_size": [128, 128]} if is_block else {}
            added = {"quantization_config": {**_FORMATS[word], **block}}
        plain = plain[: ending.start()]
    known, values = _hub()[plain]
    return known, {**entries("models")[known]["config"], **values, **added}


@cache
def _hub() -> Mapping[str, tuple[str, Mapping[str, Any]]]:
    """Entry and changed keys of every name of the catalog and of its `hub` names."""
    names: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for known, fields in entries("models").items():
        names[known] = (known, {})
        names |= {hub: (known, values) for hub, values in fields.get("hub", {}).items()}
    return names


def _is_misspelled(name: str, known: str) -> bool:
    """Whether a name may be a misspelling of a known one, and not the name of another model or GPU.

    Its numbers are numbers of the known name, in the same order, and both have similar words: `h100` is not
    `h200`, `gb200` is not `b200`, and `llama-4-scout` is not `llama-3-8b`.
    """
    numbers = iter(_NUMBERS.findall(known))
    if not all(number in numbers for number in _NUMBERS.findall(name)):
        return False
    words, known_words = _words(name), _words(known)
    return _have_similar(words, known_words) and _have_similar(known_words, words)


def _words(name: str) -> list[str]:
    """The words of a name, without those that do not distinguish models or GPUs."""
    return [word for word in _WORDS.findall(_UNITS.sub("", name)) if word not in _NEUTRAL]


def _have_similar(words: list[str], others: list[str]) -> bool:
    """Whether each word is, or if it is long resembles, one of the others."""
    return all(word in others or (len(word) > 2 and get_close_matches(word, others)) for word in words)


def known_gpus() -> pl.DataFrame:
    """List the GPUs that `Engine.on` and `timing.Roofline` know by name.

    Returns:
        A row for each GPU: `gpu`, `memory_bytes`, `bandwidth_bytes_per_s`, the dense rates `bf16_flops`,
        `fp8_flops`, `int8_flops` and `fp4_flops` per second (null if the GPU lacks the format),
        `link_bytes_per_s` in one direction, `nvlink` (whether that link is NVLink or Infinity Fabric),
        `domain` (GPUs that it joins), `busy_watts` (maximum of the board) and `idle_watts` (idle with a
        loaded model), both null without a source, and `source`.

    Example:
        >>> import inferq as iq
        >>> known = iq.timing.known_gpus()
        >>> known.filter(known["gpu"] == "h100-80gb").select("bf16_flops", "bandwidth_bytes_per_s").rows()
        [(989000000000000, 3350000000000)]
    """
    columns = ("memory_bytes", "bandwidth_bytes_per_s", "bf16_flops", "fp8_flops", "int8_flops", "fp4_flops")
    rows = [
        {
            "gpu": name,
            **{column: numbers.get(column) for column in (*columns, "link_bytes_per_s")},
            "nvlink": numbers.get("nvlink", False),
            "domain": numbers.get("domain", DOMAIN),
            "busy_watts": numbers.get("busy_watts"),
            "idle_watts": numbers.get("idle_watts"),
            "source": numbers["source"],
        }
        for name, numbers in entries("gpus").items()
    ]
    return pl.DataFrame(rows, infer_schema_length=None)


def near(value: object, names: list[str]) -> str:
    """A hint: names that extend `value`, else a name of which it is a misspelling, else all names."""
    plain = str(value).strip().lower()
    longer = [name for name in dict.fromkeys(names) if plain and name.startswith(f"{plain}-")]
    if longer:
        return f"; did you mean {' or '.join(longer)}?"
    similar = [name for name in names if _is_misspelled(plain, name)]
    return nearest(plain, similar) if similar else f"; known names: {', '.join(dict.fromkeys(names))}"
