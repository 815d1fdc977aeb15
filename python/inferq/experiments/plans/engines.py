"""Engines of a plan, grouped into families that share their theoretical bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import product
from typing import Any, NamedTuple

from inferq.errors import ConfigError
from inferq.scheduler import Scheduler
from inferq.systems.engine import Engine
from inferq.timing.hardware.gpu import Gpu

_BATCH_LIMITS = ("token_budget", "max_seqs")
"""Limits of a batch. An engine with larger limits can form every batch of one with smaller limits."""
_MOST_CHECKED = 64
"""If a limit makes no engine, families of up to this size are checked member by member."""


class Misfit(NamedTuple):
    """A combination of choices that makes no engine, and the reason."""

    labels: Mapping[str, str]
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """Engines on one type of GPU that differ only in the limits of a batch."""

    gpu: str
    """The name of the GPU in `Prices`."""
    gpus: int
    """GPUs of one replica."""
    largest: Engine | None
    """An engine that can form every batch of the members. None if no such engine is known."""
    members: int
    batch_limits: str
    """The largest limits of a batch, as text. Empty for a family of one engine."""


@dataclass(frozen=True, eq=False)
class EngineChoice:
    """One combination of choices that determines an engine, which is made on first use."""

    family: Family
    labels: Mapping[str, str]
    """The choice on each axis."""
    make: Callable[[], Engine]

    @cached_property
    def engine(self) -> Engine:
        """The engine.

        Raises:
            ConfigError: the choices do not make an engine.
        """
        return self.make()


@dataclass(frozen=True, slots=True, eq=False)
class Engines:
    """All engines of a plan."""

    choices: tuple[EngineChoice, ...]
    families: tuple[Family, ...]
    misfits: tuple[Misfit, ...]
    axes: tuple[str, ...]


def given(engines: Any) -> Engines:
    """Engines made by the user, each a family of its own."""
    named = engines if isinstance(engines, Mapping) else {"engine": engines}
    if not named:
        raise ConfigError("engines", "must contain at least one engine")
    choices = []
    for name, engine in named.items():
        if not isinstance(engine, Engine):
            raise ConfigError(f"engines.{name}", f"must be an Engine, got {engine!r}")
        gpu, gpus = engine.on_card.get("gpu", str(name)), int(engine.on_card.get("tensor_parallel", 1))
        family = Family(gpu, gpus, engine, 1, "")
        choices.append(EngineChoice(family, {"engine": str(name)}, partial(_same, engine)))
    return Engines(tuple(choices), tuple(choice.family for choice in choices), (), ("engine",))


def _same(engine: Engine) -> Engine:
    return engine


def on_gpus(
    model: Any,
    gpus: Sequence[Gpu],
    sizes: Sequence[int],
    schedulers: Sequence[Any],
    caches: Sequence[Any],
    options: Mapping[str, Any],
) -> Engines:
    """The engines of a model, in the order of the axes; impossible combinations are misfits.

    For each family two engines are made: the one with the largest batches, and the one with the smallest,
    which leaves the most memory for the KV cache. If both fit, every member fits.
    """

    def make(gpu: Gpu, size: int, cache: Any, scheduler: Any) -> Engine:
        try:
            return Engine.on(
                model, gpu, tensor_parallel=size, scheduler=scheduler, prefix_cache=cache, **options
            )
        except TypeError as error:
            raise ConfigError("engine_options", str(error)) from None

    words: dict[str, list[str]] = {
        "gpu": [gpu.name for gpu in gpus],
        "tensor_parallel": [str(size) for size in sizes],
        "scheduler": [
            "default" if scheduler is None else _scheduler_label(scheduler) for scheduler in schedulers
        ],
        "cache": ["default" if cache is None else str(cache) for cache in caches],
    }
    families: list[Family] = []
    family_at: dict[tuple[int, ...], Family] = {}
    misfits: dict[tuple[int, ...], str] = {}
    groups = _grouped(schedulers)
    for c, s, k in product(range(len(gpus)), range(len(sizes)), range(len(caches))):
        for places in groups:
            largest, reasons = _fitting(
                [schedulers[p] for p in places], partial(make, gpus[c], sizes[s], caches[k])
            )
            fitting = []
            for p, reason in zip(places, reasons, strict=True):
                if reason is None:
                    fitting.append(p)
                else:
                    misfits[c, s, p, k] = reason
            if fitting:
                limits = "" if len(fitting) == 1 or largest is None else _batch_limits(largest.scheduler)
                families.append(Family(gpus[c].name, sizes[s], largest, len(fitting), limits))
                family_at.update({(c, s, p, k): families[-1] for p in fitting})

    def labels(place: tuple[int, ...]) -> dict[str, str]:
        return {axis: words[axis][n] for axis, n in zip(words, place, strict=True)}

    return Engines(
        tuple(
            EngineChoice(family, labels(place), partial(make, gpus[c], sizes[s], caches[k], schedulers[p]))
            for place, family in sorted(family_at.items(), key=lambda item: item[0])
            for c, s, p, k in [place]
        ),
        tuple(families),
        tuple(Misfit(labels(place), misfits[place]) for place in sorted(misfits)),
        tuple(words),
    )


def _grouped(schedulers: Sequence[Any]) -> list[list[int]]:
    """Group the places of schedulers that differ only in the limits of a batch."""
    groups: dict[object, list[int]] = {}
    for place, scheduler in enumerate(schedulers):
        groups.setdefault(_without_limits(scheduler), []).append(place)
    return list(groups.values())


def _without_limits(scheduler: Any) -> object:
    """A scheduler without its batch limits. A scheduler written in Python is equal only to itself."""
    if isinstance(scheduler, Scheduler) and not scheduler.is_user_defined():
        values = {field.name: getattr(scheduler, field.name) for field in fields(scheduler)}  # type: ignore[arg-type]
    elif isinstance(scheduler, Mapping):
        values = dict(sorted(scheduler.items()))
    else:
        return id(scheduler)
    simple = (int, float, str, type(None))
    return type(scheduler), tuple(
        (name, name in _integer_limits(values) or (value if isinstance(value, simple) else id(value)))
        for name, value in values.items()
    )


def _integer_limits(values: Mapping[str, Any]) -> list[str]:
    """The batch limits that are given as integers."""
    return [name for name in _BATCH_LIMITS if isinstance(values.get(name), int)]


def _extreme(schedulers: Sequence[Any], which: Callable[..., int]) -> Any:
    """A scheduler with the largest (`max`) or smallest (`min`) value of each batch limit."""
    first = schedulers[0]
    if isinstance(first, Mapping):
        names = _integer_limits(first)
        return {**first, **{name: which(scheduler[name] for scheduler in schedulers) for name in names}}
    names = _integer_limits({name: getattr(first, name, None) for name in _BATCH_LIMITS})
    return replace(
        first, **{name: which(getattr(scheduler, name) for scheduler in schedulers) for name in names}
    )


def _fitting(
    schedulers: Sequence[Any], make: Callable[[Any], Engine]
) -> tuple[Engine | None, list[str | None]]:
    """The largest engine of a family, and for each member the reason why it makes no engine, or None."""
    if len(schedulers) == 1:
        try:
            return make(schedulers[0]), [None]
        except ConfigError as error:
            return None, [str(error)]
    reasons: list[str] = []
    ends: list[Engine] = []
    for which in (max, min):
        try:
            ends.append(make(_extreme(schedulers, which)))
        except (ConfigError, TypeError) as error:
            reasons.append(str(error))
    if not reasons:
        most, least = ends
        has_more_room = least.kv.tokens is None or (most.kv.tokens or 0) < least.kv.tokens
        return (replace(most, kv=least.kv) if has_more_room else most), [None] * len(schedulers)
    if len(schedulers) <= _MOST_CHECKED:
        misfits = [_fitting([scheduler], make)[1][0] for scheduler in schedulers]
        fit = [scheduler for scheduler, reason in zip(schedulers, misfits, strict=True) if reason is None]
        is_partial = 0 < len(fit) < len(schedulers)
        return (_fitting(fit, make)[0] if is_partial else None), misfits
    return None, [reasons[-1] if len(reasons) == 2 else None] * len(schedulers)


def _scheduler_label(scheduler: Scheduler | Mapping[str, Any]) -> str:
    if isinstance(scheduler, Mapping):
        return ", ".join(f"{name}={value}" for name, value in scheduler.items())
    return repr(scheduler)


def _batch_limits(scheduler: Scheduler) -> str:
    limits = {name: getattr(scheduler, name, None) for name in _BATCH_LIMITS}
    return ", ".join(f"{name}={value:,}" for name, value in limits.items() if isinstance(value, int))
