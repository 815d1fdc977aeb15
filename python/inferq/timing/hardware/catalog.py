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

_UNSUPPORTED = {
    r"gpt-?oss|gemma-?[23]": "its layers alternate between full and sliding-window attention; tables, "
    "rooflines and caches support one kind of attention",
    r"deepseek-(v[23]|r1$)|kimi-?k2": "it has multi-head latent attention; tables, rooflines and caches "
    "require keys and values per head",
    r"qwen3-(next|coder-next)|qwen3\.5": "most of its layers have a state in place of keys and values",
}
"""Popular model families that are not supported, with the reason."""
_NUMBERS = re.compile(r"\d+")
_WORDS = re.compile(r"[a-z]+")
_UNITS = re.compile(r"(?<=\d)g?b(?![a-z])")
_NEUTRAL = ("hf", "chat", "instruct")
"""Words that do not distinguish models."""
_OWN = {
    "models": "use the model's config.json instead",
    "gpus": "describe your own GPU instead: timing.Gpu(…), on the command line a TOML file of its fields",
}


@cache
def entries(kind: str) -> Mapping[str, Mapping[str, Any]]:
    """All entries of `"models"` or `"gpus"`, by name."""
    file = Path(__file__).parent / f"{kind}.json"
    read: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return read


def entry(kind: str, field: str, name: str) -> Mapping[str, Any]:
    """The entry of a name, in any letter case.

    Raises:
        ConfigError: an unknown name; the message has the nearest known one.
    """
    names = entries(kind)
    plain = name.strip().lower()
    if plain not in names:
        for family, reason in _UNSUPPORTED.items() if kind == "models" else ():
            if re.search(family, plain):
                raise ConfigError(field, f"{name} is not supported: {reason}; no known model replaces it")
        hint = near(plain, list(names))
        if "; known names" in hint:
            hint = f"; {_OWN[kind]}{hint}"
        raise ConfigError(field, f"unknown name {name!r}{hint}")
    return names[plain]


def _is_misspelled(name: str, known: str) -> bool:
    """Whether a name may be a misspelling of a known one, and not the name of another model or GPU.

    Its numbers are numbers of the known name, in the same order, and both have similar words: `h20` is not
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
        `fp8_flops` and `int8_flops` per second (null if the GPU lacks the format), `link_bytes_per_s` in one
        direction, `nvlink` (whether that link is NVLink), `busy_watts` (maximum of the board) and
        `idle_watts` (idle with a loaded model), both null without a source, and `source`.

    Example:
        >>> import inferq as iq
        >>> known = iq.timing.known_gpus()
        >>> known.filter(known["gpu"] == "h100-80gb").select("bf16_flops", "bandwidth_bytes_per_s").rows()
        [(989000000000000, 3350000000000)]
    """
    columns = ("memory_bytes", "bandwidth_bytes_per_s", "bf16_flops", "fp8_flops", "int8_flops")
    rows = [
        {
            "gpu": name,
            **{column: numbers.get(column) for column in (*columns, "link_bytes_per_s")},
            "nvlink": numbers.get("nvlink", False),
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
