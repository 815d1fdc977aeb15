"""Parsing of option values."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterable
from typing import Any, Literal, TypeVar, get_origin

from inferq.checks import nearest
from inferq.description import Description, alternatives, kind_of, plain_name, read, read_fields
from inferq.display.text import listed
from inferq.errors import ConfigError
from inferq.inputs import parsed_json, parsed_toml, path_of, read_text
from inferq.scheduler import SCHEDULERS, Scheduler
from inferq.systems.autoscaler import SCALING_POLICIES, Autoscaler
from inferq.systems.failures import Failures
from inferq.systems.kv_cache import KvCache
from inferq.systems.overhead import Overhead
from inferq.systems.routers import ROUTERS, Router
from inferq.timing import TIMING_MODELS, PiecewiseLinear, TimingModel
from inferq.timing.hardware.catalog import entries, gpu_name
from inferq.timing.hardware.gpu import Gpu
from inferq.workload.distributions import DURATION_DISTRIBUTIONS, DurationDistribution
from inferq.workload.transforms import duration

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

D = TypeVar("D", bound=Description)

A100 = PiecewiseLinear(
    base=0.006,
    per_token=32e-6,
    knee=200,
    per_context_token=40e-9,
    per_prefill_square=650e-12,
    per_chunk_context=1.3e-9,
)
"""The preset `--timing a100`: an illustration, not a measurement."""

_AUTOSCALED = "by-queue:requests=12,min=2,max=8,startup_s=60"
_FAILING = "mtbf_s=86400,repair_s=300,retries=3, or at=600:0+900:2"

TIMING_PRESETS = {"a100": "a100, an illustration of a 7-8B model on one A100-80GB"}
"""Timing presets and their displayed names."""


def option_name(kind: type[Description]) -> str:
    """The name of a class on the command line: `vllm-v1` for `VllmV1`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()


def spelled(kinds: Iterable[type[Description]]) -> str:
    """The classes that the command line supports, listed for help."""
    return listed([option_name(kind) for kind in kinds if _is_spelled(kind)], "or")


def unspelled(kinds: Iterable[type[Description]]) -> str:
    """Classes with a required field that is a list, a table or an object, listed for help."""
    return listed(option_name(kind) for kind in kinds if not _is_spelled(kind))


def _is_spelled(kind: type[Description]) -> bool:
    missing = dataclasses.MISSING
    required = {
        field.name
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        if field.default is missing and field.default_factory is missing
    }
    return not required & {*kind.written_fields()} or all(
        any(hint in (bool, int, float, str) or get_origin(hint) is Literal for hint in hints)
        for name, hints in alternatives(kind).items()
        if name in required
    )


def description(
    option: str, text: str, kinds: tuple[type[D], ...], presets: Iterable[str] = (), **given: object
) -> D:
    """Parse `Name` or `Name:field=value,…`; `given` adds fields that are not None.

    A value without a name sets the next field in order: `Constant:0.05` is `Constant(seconds=0.05)`.
    """
    name, _, rest = text.partition(":")
    kind = kind_of(name, kinds)
    if kind is None:
        choices = [*presets, *(kind.__name__ for kind in kinds)]
        raise ConfigError(option, f"unknown name {name!r}{nearest(name, choices)}")
    names = kind.written_fields()
    fields: dict[str, object] = {}
    for place, part in enumerate(rest.split(",") if rest.strip() else ()):
        field, equals, value = part.partition("=")
        if not equals:
            if place >= len(names):
                raise ConfigError(
                    f"{option}: unexpected value {part!r}: {kind.__name__} has {len(names)} fields"
                    + (f", {', '.join(names)}" if names else "")
                )
            field, value = names[place], part
        _set(option, fields, field.strip(), _value(value))
    for field, number in given.items():
        if number is not None:
            _set(option, fields, field, number)
    return read(option, {"kind": kind.__name__, **fields}, kinds)


def timing(text: str) -> TimingModel:
    """The timing model of `--timing`."""
    if plain_name(text) == "a100":
        return A100
    plain = plain_name(gpu_name(text))
    card = next((name for name in entries("gpus") if plain_name(name).startswith(plain)), None)
    if card is not None and kind_of(text, TIMING_MODELS) is None:
        raise ConfigError("--timing", f"{text!r} is a GPU; use --model NAME --gpu {card} instead")
    return description("--timing", text, TIMING_MODELS, TIMING_PRESETS)


def preset(timing_spec: str | None, model: str | None) -> str | None:
    """The displayed name of a timing preset, or None."""
    if timing_spec is None:
        return None if model else TIMING_PRESETS["a100"]
    return TIMING_PRESETS.get(plain_name(timing_spec))


def overhead(text: str | None) -> Overhead | None:
    """The value of `--overhead`. None if unset."""
    if text is None:
        return None
    if text.strip().lower() == "none":
        return Overhead()
    fields = pairs("--overhead", text.split(","), "base_s=0.001,per_sequence_s=1e-5, or none")
    return read_fields("--overhead", {name: _value(value) for name, value in fields.items()}, Overhead)


def expert_parallel(text: str | None) -> dict[str, int | str]:
    """The value of `--expert-parallel`, a number or `all`, as an argument of `Engine.on` if it is set."""
    if text is None:
        return {}
    value = _value(text)
    return {"expert_parallel": value if isinstance(value, int) else str(value)}


def gpu(text: str) -> str | dict[str, Any]:
    """The value of `--gpu`: a name, or the fields of `timing.Gpu` from a TOML or JSON file."""
    if not text.endswith((".toml", ".json")):
        return text
    content = read_text(path_of("--gpu", text))
    try:
        fields = dict(parsed_json(content) if text.endswith(".json") else parsed_toml(content))
        Gpu.of(fields)  # errors name the file
        return fields
    except ConfigError as error:
        raise error.within(text, ": ") from None


def cache(tokens: str, block: int | None, prefix_cache: Literal["blocks", "radix", "none"] | None) -> KvCache:
    """The KV cache of `--kv-tokens`, `--block` and `--prefix-cache`."""
    kind = None if prefix_cache == "none" else prefix_cache
    return KvCache(tokens=kv_tokens(tokens), block=16 if block is None else block, prefix_cache=kind)


def scheduler(text: str | None, **given: Any) -> Scheduler | dict[str, int]:
    """The scheduler of `--scheduler`. Without it, fields that override the server's scheduler."""
    if text is None:
        return {name: number for name, number in given.items() if number is not None}
    return description("--scheduler", text, SCHEDULERS, **given)


def router(text: str) -> Router:
    """The router of `--router`."""
    return description("--router", text, ROUTERS)


def autoscaler(text: str) -> Autoscaler:
    """The autoscaler of `--autoscale`: a policy with its fields and those of the autoscaler."""
    option = "--autoscale"
    name, _, rest = text.partition(":")
    general = [field for field in Autoscaler.written_fields() if field != "policy"]
    parts = rest.split(",") if rest.strip() else []
    is_general = [part.partition("=")[0].strip() in general for part in parts]
    policy = ",".join(part for part, skip in zip(parts, is_general, strict=True) if not skip)
    fields = pairs(option, (part for part, use in zip(parts, is_general, strict=True) if use), "max=8")
    if "max" not in fields:
        raise ConfigError(option, f"requires max, the maximum number of replicas, such as {_AUTOSCALED}")
    described = {field: _value(value) for field, value in fields.items()}
    made = description(option, f"{name}:{policy}" if policy else name, SCALING_POLICIES)
    return read_fields(option, {"policy": made.to_json(), **described}, Autoscaler)


def failures(text: str) -> Failures:
    """The failures of `--failures`: fields; lists are seconds:replica joined by a plus."""
    option = "--failures"
    described: dict[str, object] = {}
    for name, value in pairs(option, text.split(","), _FAILING).items():
        if name.endswith("_s") or name == "retries":
            described[name] = _value(value)
            continue
        events = [[_value(part) for part in pair.split(":")] for pair in value.split("+")]
        if not all(len(event) == 2 and not isinstance(part, str) for event in events for part in event):
            raise ConfigError(option, f"must have the form {name}=600:0+900:2, got {name}={value}")
        described[name] = events
    return read_fields(option, described, Failures)


def think(text: str | None) -> float | DurationDistribution | None:
    """The think time of `--think`: seconds or a distribution."""
    if text is None:
        return None
    value = _value(text)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return duration("--think", value)
    return description("--think", text, DURATION_DISTRIBUTIONS)


def pairs(option: str, texts: Iterable[str], form: str, names: str = r"[^=]+") -> dict[str, str]:
    """Parse texts of the form `name=value`.

    Args:
        option: name of the option, for errors.
        texts: texts with distinct names.
        form: an example, for errors.
        names: regular expression of a name.
    """
    parsed: dict[str, str] = {}
    for text in texts:
        name, _, value = (piece.strip() for piece in text.partition("="))
        if not re.fullmatch(names, name) or not value:
            raise ConfigError(option, f"must have the form {form}, got {text!r}")
        _set(option, parsed, name, value)
    return parsed


def numbers(option: str, texts: Iterable[str], form: str, names: str = r"[^=]+") -> dict[str, float]:
    """Parse texts of the form `name=number`."""
    values: dict[str, float] = {}
    for name, text in pairs(option, texts, form, names).items():
        try:
            values[name] = float(text)
        except ValueError:
            raise ConfigError(option, f"must have the form {form}, got '{name}={text}'") from None
    return values


def columns(text: str | None) -> dict[str, str] | None:
    """The column map of `--columns`, `ours=theirs,…`."""
    if text is None:
        return None
    return pairs("--columns", text.split(","), "arrival_s=name_in_the_file")


def settings(texts: Iterable[str]) -> dict[str, Any]:
    """The fields of `--set`, by path."""
    form = "engine.scheduler.token_budget=4096"
    return {name: _field(text) for name, text in pairs("--set", texts, form, r".+\..+").items()}


def values(text: str) -> list[Any]:
    """Comma-separated values in TOML syntax, or texts without quotes."""
    parsed = _toml(f"[{text}]")
    if isinstance(parsed, list):
        return parsed
    return [_field(part.strip()) for part in text.split(",")]


def _field(text: str) -> Any:
    parsed = _toml(text)
    return text if parsed is None else parsed


def _toml(text: str) -> Any:
    """Parse a TOML value. None if it is not one."""
    try:
        tables = tomllib.loads(f"value = {text}")
    except ValueError:  # also for numbers with thousands of digits
        return None
    return tables["value"] if len(tables) == 1 else None


def cut(text: str) -> int | str:
    """A warm-up or cool-down: requests, or seconds such as `30s`."""
    return int(text) if re.fullmatch(r"\s*[0-9]{1,18}\s*", text) else text


def kv_tokens(text: str) -> int | None:
    """The value of `--kv-tokens`. None is unlimited."""
    if text.strip().lower() == "unlimited":
        return None
    try:
        return int(text.replace("_", "").replace(",", ""))
    except ValueError:
        raise ConfigError("--kv-tokens", f"must be a number of tokens or 'unlimited', got {text!r}") from None


def _set(option: str, fields: dict[str, Any], field: str, value: object) -> None:
    if field in fields:
        raise ConfigError(option, f"{field} is given twice")
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
