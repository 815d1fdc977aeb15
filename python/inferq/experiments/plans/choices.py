"""The axes of a plan, and the candidates that are their product."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from inferq.checks import whole
from inferq.errors import ConfigError
from inferq.experiments.plans.candidate import Candidate
from inferq.scheduler import Scheduler
from inferq.systems.cluster import MOST_REPLICAS
from inferq.systems.disaggregated import Link
from inferq.systems.engine import Engine
from inferq.systems.routers import LeastRequests, Router
from inferq.timing.hardware.catalogue import entries
from inferq.timing.hardware.gpu import Gpu
from inferq.timing.hardware.model_shape import ModelShape
from inferq.timing.tables.shipped import files

TENSOR_PARALLEL = (1, 2, 4, 8)
TOGETHER = "together"
NETWORK_BYTES_PER_S = 50e9
"""A 400 Gb/s network port for each GPU, as NVIDIA's datasheet of the DGX H100 has it."""

_SET_BY_AXES = ("model", "gpu", "tensor_parallel", "scheduler", "prefix_cache")


class Misfit(NamedTuple):
    """A choice that makes no engine, and why."""

    labels: Mapping[str, str]
    why: str


@dataclass(frozen=True, slots=True)
class Choices:
    """What there is to choose from."""

    candidates: tuple[Candidate, ...]
    misfits: tuple[Misfit, ...]
    units: tuple[int, ...]
    """How many units a fleet may have, in order."""
    notes: tuple[str, ...]
    """What was assumed where nothing was said."""

    @property
    def varied(self) -> list[str]:
        """The axes on which candidates differ."""
        first = self.candidates[0].labels
        return [axis for axis in first if any(one.labels[axis] != first[axis] for one in self.candidates)]


def choices_of(
    *,
    model: Any,
    gpus: Any,
    tensor_parallel: Any,
    schedulers: Any,
    caches: Any,
    engines: Any,
    engine_options: Any,
    pools: Any,
    link: Any,
    routers: Any,
    replicas: Any,
) -> Choices:
    """The candidates of a plan, in the order of the axes; the arguments are those of `inferq.plan`.

    Raises:
        ConfigError: an axis without a choice or with one that is wrong, one that does not go with the
            others, or a grid in which nothing fits; it names the axis.
    """
    ways = [_split(place, one) for place, one in enumerate(_axis("pools", pools, (TOGETHER,)))]
    misfits: list[Misfit] = []
    notes: list[str] = []
    sent = _axis("routers", routers, (LeastRequests(),))
    for place, router in enumerate(sent):
        if not isinstance(router, Router):
            raise ConfigError(f"routers[{place}]", f"must be a router such as LeastRequests(), is {router!r}")
    if engines is not None:
        for name, given in (
            *(("model", model), ("gpus", gpus), ("tensor_parallel", tensor_parallel)),
            *(("schedulers", schedulers), ("caches", caches), ("engine_options", engine_options or None)),
        ):
            if given is not None:
                raise ConfigError(name, "engines are given, which say it themselves")
        made = _given(engines)
    elif model is None:
        raise ConfigError("model", "what is to be served? Give a model, or engines")
    else:
        made, misfits, notes = _on_cards(
            model, gpus, tensor_parallel, schedulers, caches, dict(engine_options or {})
        )
    if not made:
        raise ConfigError("gpus", f"nothing fits: {'; '.join(dict.fromkeys(one.why for one in misfits))}")
    if any(ratio is not None for _, ratio in ways):
        link, note = _link(link, model)
        notes.append(note)
    elif link is not None:
        raise ConfigError("link", "no pools are apart; give pools such as '1:2'")
    candidates = tuple(
        Candidate(
            place,
            {**labels, "pools": way, "router": repr(router)},
            engine,
            card,
            size,
            router,
            ratio,
            link if ratio is not None else None,
        )
        for place, ((labels, engine, card, size), (way, ratio), router) in enumerate(
            product(made, ways, sent)
        )
    )
    return Choices(candidates, tuple(misfits), _units(replicas), tuple(notes))


def _axis(name: str, given: Any, default: tuple[Any, ...]) -> tuple[Any, ...]:
    """The choices on an axis, one alone too."""
    if given is None:
        return default
    alone = isinstance(given, (str, Path, Mapping)) or not isinstance(given, Iterable)
    choices = (given,) if alone else tuple(given)
    if not choices:
        raise ConfigError(name, "there is nothing to choose from")
    if any(one == other for place, one in enumerate(choices[:1000]) for other in choices[:place]):
        raise ConfigError(name, "one choice is there twice")
    return choices


def _split(place: int, text: object) -> tuple[str, tuple[int, int] | None]:
    """What one way to divide a fleet is called, and its ratio."""
    if text == TOGETHER:
        return TOGETHER, None
    found = re.fullmatch(r"\s*(\d{1,5})\s*:\s*(\d{1,5})\s*", text) if isinstance(text, str) else None
    if found is None or "0" in (found[1].lstrip("0") or "0", found[2].lstrip("0") or "0"):
        raise ConfigError(
            f"pools[{place}]", f"must be 'together' or replicas that prefill and decode, '1:2'; is {text!r}"
        )
    return f"{int(found[1])}:{int(found[2])}", (int(found[1]), int(found[2]))


def _units(replicas: Any) -> tuple[int, ...]:
    """The sizes that a fleet may have."""
    if replicas is None:
        return tuple(range(1, 1025))
    sizes = (replicas,) if isinstance(replicas, int) else tuple(replicas)
    if not sizes:
        raise ConfigError("replicas", "there is nothing to choose from")
    return tuple(sorted({whole("replicas", one, 1, MOST_REPLICAS) for one in sizes}))


Made = tuple[Mapping[str, str], Engine, str, int]


def _given(engines: Any) -> list[Made]:
    """Engines that a user has made."""
    named = engines if isinstance(engines, Mapping) else {"engine": engines}
    if not named:
        raise ConfigError("engines", "there is nothing to choose from")
    made: list[Made] = []
    for name, engine in named.items():
        if not isinstance(engine, Engine):
            raise ConfigError(f"engines.{name}", f"must be Engine(…), is {engine!r}")
        card, size = engine.on_card.get("gpu", str(name)), int(engine.on_card.get("tensor_parallel", 1))
        made.append(({"engine": str(name)}, engine, card, size))
    return made


def _on_cards(
    model: Any, gpus: Any, tensor_parallel: Any, schedulers: Any, caches: Any, options: dict[str, Any]
) -> tuple[list[Made], list[Misfit], list[str]]:
    """The engines of a model on cards, those that cannot be, and what was assumed."""
    for name in options:
        if name in _SET_BY_AXES:
            raise ConfigError(f"engine_options.{name}", "is an axis of the plan")
    shape, notes = ModelShape.of(model), []
    if gpus is None:
        measured = {one.gpu for one in files() if ModelShape.of(one.model) == shape}
        cards: tuple[Any, ...] = tuple(name for name in entries("gpus") if name in measured)
        cards = cards or tuple(entries("gpus"))
        notes.append(f"cards: {', '.join(cards)}, {'those with measured tables' if measured else 'all'}")
    else:
        cards = _axis("gpus", gpus, ())
    sizes = tuple(
        whole("tensor_parallel", one, 1, 1024)
        for one in _axis("tensor_parallel", tensor_parallel, TENSOR_PARALLEL)
    )
    plans = _axis("schedulers", schedulers, (None,))
    for place, scheduler in enumerate(plans):
        if not isinstance(scheduler, (Scheduler, Mapping, type(None))):
            raise ConfigError(f"schedulers[{place}]", f"must be a scheduler or its fields, is {scheduler!r}")
    made: list[Made] = []
    misfits: list[Misfit] = []
    for card, size, scheduler, cache in product(
        [Gpu.of(one) for one in cards], sizes, plans, _axis("caches", caches, (None,))
    ):
        labels = {
            "gpu": card.name,
            "tensor_parallel": str(size),
            "scheduler": "default" if scheduler is None else _spelt(scheduler),
            "cache": "default" if cache is None else str(cache),
        }
        try:
            engine = Engine.on(
                shape, card, tensor_parallel=size, scheduler=scheduler, prefix_cache=cache, **options
            )
        except ConfigError as error:
            misfits.append(Misfit(labels, str(error)))
            continue
        except TypeError as error:
            raise ConfigError("engine_options", str(error)) from None
        made.append((labels, engine, card.name, size))
    return made, misfits, notes


def _spelt(scheduler: Scheduler | Mapping[str, Any]) -> str:
    if isinstance(scheduler, Mapping):
        return ", ".join(f"{name}={value}" for name, value in scheduler.items())
    return repr(scheduler)


def _link(link: Any, model: Any) -> tuple[Link, str]:
    """The way between pools that are apart."""
    if link is not None:
        if not isinstance(link, Link):
            raise ConfigError("link", f"must be Link(…), is {link!r}")
        return link, f"link: {link!r}, as given"
    if model is None:
        raise ConfigError("link", "how do requests get from one pool to the other? Give a Link")
    made = Link(0.0, NETWORK_BYTES_PER_S, ModelShape.of(model).kv_bytes_per_token())
    return made, f"link: {made!r}, 400 Gb/s for each request"
