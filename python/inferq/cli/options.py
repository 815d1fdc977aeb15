"""The texts on a command line, and what they stand for."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, cast, get_origin

from inferq.checks import nearest
from inferq.description import Description, alternatives, kind_of, plain_name, read, read_fields
from inferq.display.text import listed
from inferq.errors import ConfigError
from inferq.inputs import parsed_json, parsed_toml, path_of, read_text
from inferq.scheduler import SCHEDULERS, Scheduler, VllmV1
from inferq.systems.autoscaler import SCALING_POLICIES, Autoscaler
from inferq.systems.engine import Engine
from inferq.systems.failures import Failures
from inferq.systems.kv_cache import KvCache
from inferq.systems.overhead import Overhead
from inferq.systems.routers import ROUTERS, Router
from inferq.timing import TIMING_MODELS, PiecewiseLinear, TimingModel
from inferq.timing.hardware.catalog import entries
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
"""What `--timing a100` means. An illustration, not a measurement: those are in timing tables."""

_AUTOSCALED = "by-queue:requests=12,min=2,max=8,startup_s=60"
_FAILING = "mtbf_s=86400,repair_s=300,retries=3, or at=600:0+900:2"

TIMING_PRESETS = {"a100": "a100, an illustration: roughly a 7-8B model on one A100-80GB"}
"""The timing models with a name of their own, and how they are called on screen."""


def option_name(kind: type[Description]) -> str:
    """How a command line spells a description: `VllmV1` as `vllm-v1`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()


def spelled(kinds: Iterable[type[Description]]) -> str:
    """The descriptions that a command line can name, listed for a help text."""
    return listed([option_name(kind) for kind in kinds if _is_spelled(kind)], "or")


def unspelled(kinds: Iterable[type[Description]]) -> str:
    """The others, which have a field that must be given and is a list, a table or a description."""
    return listed(option_name(kind) for kind in kinds if not _is_spelled(kind))


def _is_spelled(kind: type[Description]) -> bool:
    missing = dataclasses.MISSING
    required = {
        field.name
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]  # all are dataclasses
        if field.default is missing and field.default_factory is missing
    }
    return not required & {*kind.written_fields()} or all(
        any(option in (bool, int, float, str) or get_origin(option) is Literal for option in options)
        for name, options in alternatives(kind).items()
        if name in required
    )


def description(
    option: str, text: str, kinds: tuple[type[D], ...], presets: Iterable[str] = (), **given: object
) -> D:
    """The description that `text` spells, `Name` or `Name:field=value,…`, and the `given` fields but None.

    A value without a name is the next field in order, so `Constant:0.05` is `Constant(seconds=0.05)`.
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
                    f"{option}: {part!r} is one value too many; {kind.__name__} has {len(names)}"
                    + (f": {', '.join(names)}" if names else "")
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
    card = next((name for name in entries("gpus") if plain_name(name).startswith(plain_name(text))), None)
    if card is not None and kind_of(text, TIMING_MODELS) is None:
        raise ConfigError(
            "--timing", f"{text!r} is a GPU: give --model NAME --gpu {card} instead of --timing"
        )
    return description("--timing", text, TIMING_MODELS, TIMING_PRESETS)


def preset(timing_spec: str | None, model: str | None) -> str | None:
    """What the timing of a replay is called on screen where it has a name of its own."""
    if timing_spec is None:
        return None if model else TIMING_PRESETS["a100"]
    return TIMING_PRESETS.get(plain_name(timing_spec))


def engine(
    model: str | None,
    gpu: str | None,
    tensor_parallel: int | None,
    *,
    timing_spec: str | None,
    kv_spec: str | None,
    block: int | None,
    prefix_cache: str | None,
    server: str | None,
    max_model_len: int | None,
    on_card: Mapping[str, Any],
    scheduler: Scheduler | dict[str, int],
    first_token: str,
    overhead: Overhead | None,
) -> Engine:
    """The engine of a replay: of a model on a GPU, or of an illustration; what is given goes before both."""
    when = cast("Literal['prefill', 'decode']", first_token)  # checked where the engine is made
    kept = cast("Literal['blocks', 'radix', 'none'] | None", prefix_cache)  # likewise
    is_roofline = model is not None and plain_name(timing_spec or "") == "roofline"
    spelt = None if timing_spec is None or is_roofline else timing(timing_spec)
    if model is None and gpu is None:
        asked = {"--server": server}
        asked |= {f"--{name.replace('_', '-')}": value for name, value in on_card.items()}
        for option, given in asked.items():
            if given is not None:
                raise ConfigError(option, "of which model on which GPU? Give --model and --gpu too")
        if tensor_parallel is not None:
            raise ConfigError("--tensor-parallel", "GPUs of which model? Give --model and --gpu too")
        return Engine(
            timing=spelt or A100,
            scheduler=scheduler
            if isinstance(scheduler, Scheduler)
            else read_fields("--scheduler", scheduler, VllmV1),
            kv=cache("432000" if kv_spec is None else kv_spec, block, kept),
            first_token=when,
            max_model_len=max_model_len,
            overhead=overhead,
        )
    if model is None:
        raise ConfigError("--gpu", "it serves which model? Give --model too")
    if gpu is None:
        raise ConfigError("--model", "it runs on which GPU? Give --gpu too")
    if timing_spec is not None and plain_name(timing_spec) in TIMING_PRESETS:
        raise ConfigError(
            "--timing",
            f"{timing_spec} is {TIMING_PRESETS[plain_name(timing_spec)]}, and --model and --gpu say {model} "
            f"on {gpu}: leave --timing out, or --model and --gpu",
        )
    if kv_spec is None and block is not None:
        raise ConfigError("--block", "what the GPU leaves comes in blocks of 16; give --kv-tokens too")
    return Engine.on(
        model,
        card(gpu),
        tensor_parallel=tensor_parallel,
        server=server,
        max_model_len=max_model_len,
        scheduler=scheduler,
        **{name: value for name, value in on_card.items() if value is not None},
        timing="roofline" if is_roofline else spelt,
        kv=None if kv_spec is None else cache(kv_spec, block, kept),
        prefix_cache=kept if kv_spec is None else None,
        first_token=when,
        overhead=overhead,
    )


def host(text: str | None) -> Overhead | None:
    """The overhead of `--overhead`: its fields, or none; None where nothing is said."""
    if text is None:
        return None
    if text.strip().lower() == "none":
        return Overhead()
    fields = pairs("--overhead", text.split(","), "base_s=0.001,per_sequence_s=1e-5, or none")
    return read_fields("--overhead", {name: _value(value) for name, value in fields.items()}, Overhead)


def card(text: str) -> str | dict[str, Any]:
    """The GPU of `--gpu`: its name, or the fields of `timing.Gpu` in a TOML or JSON file."""
    if not text.endswith((".toml", ".json")):
        return text
    content = read_text(path_of("--gpu", text))
    try:
        fields = dict(parsed_json(content) if text.endswith(".json") else parsed_toml(content))
        Gpu.of(fields)  # whose errors name the file
        return fields
    except ConfigError as error:
        raise error.within(text, ": ") from None


def cache(tokens: str, block: int | None, prefix_cache: Literal["blocks", "radix", "none"] | None) -> KvCache:
    """The KV cache of `--kv-tokens`, `--block` and `--prefix-cache`."""
    kept = None if prefix_cache == "none" else prefix_cache
    return KvCache(tokens=kv_tokens(tokens), block=16 if block is None else block, prefix_cache=kept)


def scheduler(text: str | None, **given: Any) -> Scheduler | dict[str, int]:
    """The scheduler of `--scheduler`; without it the fields that replace those of the server's."""
    if text is None:
        return {name: number for name, number in given.items() if number is not None}
    return description("--scheduler", text, SCHEDULERS, **given)


def router(text: str) -> Router:
    """The router of `--router`, in any spelling."""
    return description("--router", text, ROUTERS)


def autoscaler(text: str) -> Autoscaler:
    """The autoscaler of `--autoscale`: a policy with its fields, and among them those of the autoscaler."""
    option = "--autoscale"
    name, _, rest = text.partition(":")
    own = [field for field in Autoscaler.written_fields() if field != "policy"]
    parts = rest.split(",") if rest.strip() else []
    is_own = [part.partition("=")[0].strip() in own for part in parts]
    policy = ",".join(part for part, its in zip(parts, is_own, strict=True) if not its)
    fields = pairs(option, (part for part, its in zip(parts, is_own, strict=True) if its), "max=8")
    if "max" not in fields:
        raise ConfigError(option, f"how many replicas at most? Add max=8, as in {_AUTOSCALED}")
    described = {field: _value(value) for field, value in fields.items()}
    made = description(option, f"{name}:{policy}" if policy else name, SCALING_POLICIES)
    return read_fields(option, {"policy": made.to_json(), **described}, Autoscaler)


def failures(text: str) -> Failures:
    """The failures of `--failures`: their fields, lists as seconds:replica with a plus between them."""
    option = "--failures"
    described: dict[str, object] = {}
    for name, value in pairs(option, text.split(","), _FAILING).items():
        if name.endswith("_s") or name == "retries":
            described[name] = _value(value)
            continue
        told = [[_value(one) for one in pair.split(":")] for pair in value.split("+")]
        if not all(len(pair) == 2 and not isinstance(one, str) for pair in told for one in pair):
            raise ConfigError(option, f"{name}={value} is not of the form {name}=600:0+900:2")
        described[name] = told
    return read_fields(option, described, Failures)


def think(text: str | None) -> float | DurationDistribution | None:
    """The think time of `--think`: seconds, or a distribution of them."""
    if text is None:
        return None
    value = _value(text)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return duration("--think", value)
    return description("--think", text, DURATION_DISTRIBUTIONS)


def pairs(option: str, texts: Iterable[str], form: str, names: str = r"[^=]+") -> dict[str, str]:
    """What texts of the form `name=value` spell.

    Args:
        option: named in errors.
        texts: each with a name of its own.
        form: an example, for errors.
        names: the pattern of a name.
    """
    spelled: dict[str, str] = {}
    for text in texts:
        name, _, value = (piece.strip() for piece in text.partition("="))
        if not re.fullmatch(names, name) or not value:
            raise ConfigError(option, f"{text!r} is not of the form {form}")
        _set(option, spelled, name, value)
    return spelled


def numbers(option: str, texts: Iterable[str], form: str, names: str = r"[^=]+") -> dict[str, float]:
    """The same where the values are numbers."""
    values: dict[str, float] = {}
    for name, text in pairs(option, texts, form, names).items():
        try:
            values[name] = float(text)
        except ValueError:
            raise ConfigError(option, f"'{name}={text}' is not of the form {form}") from None
    return values


def columns(text: str | None) -> dict[str, str] | None:
    """The column map of `--columns`, `ours=theirs,…`."""
    if text is None:
        return None
    return pairs("--columns", text.split(","), "arrival_s=name_in_the_file")


def settings(texts: Iterable[str]) -> dict[str, Any]:
    """The fields that `--set` gives to a scenario, by their paths."""
    form = "engine.scheduler.token_budget=4096"
    return {name: _field(text) for name, text in pairs("--set", texts, form, r".+\..+").items()}


def values(text: str) -> list[Any]:
    """Values with commas between them, each as TOML writes it, or a text without quotes."""
    parsed = _toml(f"[{text}]")
    if isinstance(parsed, list):
        return parsed
    return [_field(part.strip()) for part in text.split(",")]


def _field(text: str) -> Any:
    parsed = _toml(text)
    return text if parsed is None else parsed


def _toml(text: str) -> Any:
    """What a text means as a value of TOML; None where it is none."""
    try:
        tables = tomllib.loads(f"value = {text}")
    except ValueError:  # of its own kind, and of numbers with thousands of digits
        return None
    return tables["value"] if len(tables) == 1 else None


def cut(text: str) -> int | str:
    """A warm-up or cool-down: a number of requests, or seconds as in `30s`."""
    return int(text) if re.fullmatch(r"\s*[0-9]{1,18}\s*", text) else text


def kv_tokens(text: str) -> int | None:
    """The capacity of `--kv-tokens`; None where it is unlimited."""
    if text.strip().lower() == "unlimited":
        return None
    try:
        return int(text.replace("_", "").replace(",", ""))
    except ValueError:
        raise ConfigError("--kv-tokens", f"must be a number of tokens or 'unlimited', is {text!r}") from None


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
