"""What do the texts on a command line mean?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from inferq.description import Description, nearest, read
from inferq.errors import ConfigError
from inferq.router import ROUTERS, Router
from inferq.timing import TIMING_MODELS, PiecewiseLinear, TimingModel

D = TypeVar("D", bound=Description)

A100 = PiecewiseLinear(
    base=0.006,
    per_token=32e-6,
    knee=200,
    per_context_token=40e-9,
    per_prefill_square=650e-12,
    per_chunk_context=1.3e-9,
)
"""What `--timing a100` means. An illustration, not a measurement: those are in timing tables."""

TIMING_PRESETS = {"a100": "a100, an illustration: roughly a 7-8B model on one A100-80GB"}
"""The timing models with a name of their own, and how they are called on screen."""


def plain_name(text: str) -> str:
    """A name without case, hyphens and underscores: `vllm-v1` and `VllmV1` are one."""
    return text.strip().lower().replace("-", "").replace("_", "")


def description(
    option: str, text: str, kinds: tuple[type[D], ...], presets: Iterable[str] = (), **given: object
) -> D:
    """The description that `text` spells, `Name` or `Name:field=value,…`, and the `given` fields but None.

    A value without a name is the next field in order, so `Constant:0.05` is `Constant(seconds=0.05)`.
    """
    name, _, rest = text.partition(":")
    by_name = {plain_name(kind.__name__): kind for kind in kinds}
    if plain_name(name) not in by_name:
        known = [*presets, *(kind.__name__ for kind in kinds)]
        raise ConfigError(f"{option}: unknown name {name!r}{nearest(name, known)}")
    kind = by_name[plain_name(name)]
    names = kind.written_fields()
    fields: dict[str, object] = {}
    for place, part in enumerate(rest.split(",") if rest.strip() else ()):
        field, equals, value = part.partition("=")
        if not equals:
            if place >= len(names):
                raise ConfigError(
                    f"{option}: {part!r} is one value too many; {kind.__name__} has {len(names)}"
                )
            field, value = names[place], part
        _set(option, fields, field.strip(), _value(value))
    for field, number in given.items():
        if number is not None:
            _set(option, fields, field, number)
    return read(option, {"kind": kind.__name__, **fields}, kinds)


def timing(text: str) -> TimingModel:
    """The timing model of `--timing`: a preset or a description."""
    if plain_name(text) == "a100":
        return A100
    return description("--timing", text, TIMING_MODELS, TIMING_PRESETS)


def router(text: str) -> Router:
    """The router of `--router`, in any spelling."""
    return description("--router", text, ROUTERS)


def columns(text: str | None) -> dict[str, str] | None:
    """The column map of `--columns`, `ours=theirs,…`."""
    if text is None:
        return None
    mapped: dict[str, Any] = {}
    for part in text.split(","):
        ours, equals, theirs = (piece.strip() for piece in part.partition("="))
        if not (ours and equals and theirs):
            raise ConfigError(f"--columns: {part!r} is not of the form arrival_s=name_in_the_file")
        _set("--columns", mapped, ours, theirs)
    return mapped


def cut(text: str) -> int | str:
    """A warm-up or cool-down: a number of requests, or seconds as in `30s`."""
    return int(text) if text.strip().isdecimal() else text


def kv_tokens(text: str) -> int | None:
    """The capacity of `--kv-tokens`; None where it is unlimited."""
    if text.strip().lower() == "unlimited":
        return None
    try:
        return int(text.replace("_", "").replace(",", ""))
    except ValueError:
        raise ConfigError(f"--kv-tokens: must be a number of tokens or 'unlimited', is {text!r}") from None


def _set(option: str, fields: dict[str, Any], field: str, value: object) -> None:
    if field in fields:
        raise ConfigError(f"{option}: {field} is given twice")
    fields[field] = value


def _value(text: str) -> object:
    text = text.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
