"""The models and GPUs that are known by name.

`models.json` holds what a `config.json` says, in its own keys; `gpus.json` what a datasheet says. Every entry
names its source.
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

_NOT_DESCRIBED = {
    r"gpt-?oss|gemma-?[23]": "its layers attend to all tokens and to a window in turn, where tables, "
    "rooflines and caches have one kind of attention",
    r"deepseek-(v[23]|r1$)|kimi-?k2": "it keeps one latent vector for all heads, where tables, rooflines and "
    "caches have keys and values of heads",
    r"qwen3-(next|coder-next)|qwen3\.5": "most of its layers keep a state instead of keys and values",
}
"""Families of models that people run, and what of them has no place here."""
_OWN = {
    "models": "give the model's config.json instead",
    "gpus": "give a card of your own instead: timing.Gpu(…), in a shell a TOML file of its fields",
}


@cache
def entries(kind: str) -> Mapping[str, Mapping[str, Any]]:
    """All entries of a kind, `"models"` or `"gpus"`, by name."""
    file = Path(__file__).parent / f"{kind}.json"
    read: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return read


def entry(kind: str, field: str, name: str) -> Mapping[str, Any]:
    """The entry of a name, in any case.

    Raises:
        ConfigError: an unknown name; the nearest known one is in the message.
    """
    names = entries(kind)
    plain = name.strip().lower()
    if plain not in names:
        for family, why in _NOT_DESCRIBED.items() if kind == "models" else ():
            if re.search(family, plain):
                raise ConfigError(field, f"{name} is not described: {why}; no model that is stands for it")
        longer = [one for one in names if plain and one.startswith(plain)]
        hint = f"; did you mean {' or '.join(longer)}?" if longer else nearest(name, names)
        if kind == "models" and not longer:
            # another family is no slip of the pen: gemma-3-27b is not llama-3-70b
            kin = [one for one in names if get_close_matches(_family(plain), [_family(one)], cutoff=0.7)]
            hint = nearest(name, kin) if kin else f"; known are {', '.join(names)}"
        if "; known are" in hint:
            hint = f"; {_OWN[kind]}{hint}"
        raise ConfigError(field, f"unknown name {name!r}{hint}")
    return names[plain]


def _family(name: str) -> str:
    """The letters with which the name of a model begins."""
    return name[: len(name) - len(name.lstrip("abcdefghijklmnopqrstuvwxyz"))]


def known_models() -> pl.DataFrame:
    """The models that `Engine.on` and `timing.Roofline` know by name.

    Returns:
        A row for each: `model`, `parameters`, `active_parameters` (of one token; fewer where there are
        experts), `layers`, `hidden`, `heads`, `kv_heads`, `experts`, `kv_bytes_per_token` (16-bit) and
        `source`.

    Example:
        >>> import inferq as iq
        >>> known = iq.timing.known_models()
        >>> known.filter(known["model"] == "llama-3.1-8b").select("parameters", "kv_bytes_per_token").rows()
        [(8030261248, 131072)]
    """
    from inferq.timing.hardware.model_shape import ModelShape

    rows = []
    for name, one in entries("models").items():
        shape = ModelShape.of(name)
        rows.append(
            {
                "model": name,
                "parameters": shape.parameters,
                "active_parameters": shape.active_parameters,
                "layers": shape.layers,
                "hidden": shape.hidden,
                "heads": shape.heads,
                "kv_heads": shape.kv_heads,
                "experts": shape.experts,
                "kv_bytes_per_token": shape.kv_bytes_per_token(),
                "source": one["source"],
            }
        )
    return pl.DataFrame(rows)


def known_gpus() -> pl.DataFrame:
    """The GPUs that `Engine.on` and `timing.Roofline` know by name.

    Returns:
        A row for each: `gpu`, `memory_bytes`, `bandwidth_bytes_per_s`, the dense rates `bf16_flops`,
        `fp8_flops` and `int8_flops` per second (null where the card has none), `link_bytes_per_s` in one
        direction, `nvlink` (is that link NVLink?), `busy_watts` (of the board at most) and
        `idle_watts` (of one that waits with a model loaded), both null where no source says them, and
        `source`.

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
            **{column: one.get(column) for column in (*columns, "link_bytes_per_s")},
            "nvlink": one.get("nvlink", False),
            "busy_watts": one.get("busy_watts"),
            "idle_watts": one.get("idle_watts"),
            "source": one["source"],
        }
        for name, one in entries("gpus").items()
    ]
    return pl.DataFrame(rows, infer_schema_length=None)


def near(value: object, names: list[str]) -> str:
    """A hint: names that begin like `value`, else the one that is written most like it."""
    longer = [
        name for name in dict.fromkeys(names) if isinstance(value, str) and value and name.startswith(value)
    ]
    return f"; did you mean {' or '.join(longer)}?" if longer else nearest(str(value), names)
