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
        longer = [known for known in names if plain and known.startswith(plain)]
        hint = f"; did you mean {' or '.join(longer)}?" if longer else nearest(name, names)
        if kind == "models" and not longer:
            # Another family is not a typing error: gemma-3-27b is not llama-3-70b.
            related = [
                known for known in names if get_close_matches(_family(plain), [_family(known)], cutoff=0.7)
            ]
            hint = nearest(name, related) if related else f"; known names: {', '.join(names)}"
        if "; known names" in hint:
            hint = f"; {_OWN[kind]}{hint}"
        raise ConfigError(field, f"unknown name {name!r}{hint}")
    return names[plain]


def _family(name: str) -> str:
    """The leading letters of a model's name."""
    return name[: len(name) - len(name.lstrip("abcdefghijklmnopqrstuvwxyz"))]


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
    """A hint: names that begin with `value`, else the nearest name."""
    longer = [
        name for name in dict.fromkeys(names) if isinstance(value, str) and value and name.startswith(value)
    ]
    return f"; did you mean {' or '.join(longer)}?" if longer else nearest(str(value), names)
