"""The axes of a plan, and the candidates that are their product."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from inferq._lazy import NDArray, np
from inferq.checks import whole
from inferq.errors import ConfigError
from inferq.experiments.plans.candidate import Candidate
from inferq.experiments.plans.engines import Engines, Family, given, on_cards
from inferq.scheduler import Scheduler
from inferq.systems.cluster import MOST_REPLICAS
from inferq.systems.disaggregated import Link
from inferq.systems.routers import LeastRequests, Router
from inferq.timing.hardware.catalog import entries
from inferq.timing.hardware.gpu import Gpu
from inferq.timing.hardware.model_shape import ModelShape
from inferq.timing.tables.shipped import files

TENSOR_PARALLEL = (1, 2, 4, 8)
TOGETHER = "together"
NETWORK_BYTES_PER_S = 50e9
"""A 400 Gb/s network port for each GPU, as NVIDIA's datasheet of the DGX H100 has it."""

_SET_BY_AXES = ("model", "gpu", "tensor_parallel", "scheduler", "prefix_cache")


@dataclass(frozen=True, eq=False)
class Choices(Sequence[Candidate]):
    """What there is to choose from: the candidates, each made where it is looked at.

    Those of one *kind* have their family of engines and their way to divide a fleet in common, and with them
    what theory says and what a unit costs. A candidate's place is that of the product of the axes.
    """

    engines: Engines
    ways: tuple[tuple[str, tuple[int, int] | None], ...]
    """How a fleet is divided: what it is called, and replicas that prefill and that decode."""
    routers: tuple[Router, ...]
    link: Link | None
    units: tuple[int, ...]
    """How many units a fleet may have, in order."""
    notes: tuple[str, ...]
    """What was assumed where nothing was said."""

    def __len__(self) -> int:
        """How many candidates."""
        return len(self.engines) * len(self.ways) * len(self.routers)

    def __getitem__(self, place: Any) -> Any:
        """One of them."""
        if not 0 <= place < len(self):
            raise IndexError(place)
        rest, router = divmod(int(place), len(self.routers))
        number, way = divmod(rest, len(self.ways))
        ratio = self.ways[way][1]
        return Candidate(
            place=int(place),
            engines=self.engines,
            number=number,
            way=self.ways[way][0],
            router=self.routers[router],
            ratio=ratio,
            link=None if ratio is None else self.link,
        )

    @property
    def kinds(self) -> Sequence[tuple[Family, tuple[int, int] | None]]:
        """Each kind."""
        return [(family, ratio) for family in self.engines.families for _, ratio in self.ways]

    def kind_of(self) -> NDArray[Any]:
        """For each candidate the place of its kind."""
        of_engine = self.engines.family_of[:, None] * len(self.ways) + np.arange(
            len(self.ways), dtype=np.int32
        )
        return np.repeat(of_engine.ravel(), len(self.routers))

    @property
    def is_described(self) -> bool:
        """Whether descriptions say all of each: what is written in Python has no more than a name there."""
        ways, routers = len(self.ways), len(self.routers)
        of_routers = (self[place].is_described for place in range(ways * routers))
        firsts = (np.argmax(self.engines.family_of == place) for place in range(len(self.engines.families)))
        return all(of_routers) and all(self[int(first) * ways * routers].is_described for first in firsts)

    def axis(self, name: str) -> tuple[Sequence[str], NDArray[Any]]:
        """What there is to choose from on an axis, and for each candidate which of it was chosen."""
        routers, ways = len(self.routers), len(self.ways)
        if name == "router":
            return [repr(one) for one in self.routers], np.arange(len(self)) % routers
        if name == "pools":
            return [way for way, _ in self.ways], np.arange(len(self)) // routers % ways
        words, chosen = self.engines.axes[name]
        return words, np.repeat(chosen, routers * ways)

    @property
    def axes(self) -> tuple[str, ...]:
        """What choices are about."""
        return (*self.engines.axes, "pools", "router")

    @cached_property
    def varied(self) -> tuple[str, ...]:
        """The axes on which candidates differ."""
        of_engine = [axis for axis, (_, chosen) in self.engines.axes.items() if len(np.unique(chosen)) > 1]
        beside = {"pools": self.ways, "router": self.routers}
        return (*of_engine, *(axis for axis, choices in beside.items() if len(choices) > 1))


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
    notes: list[str] = []
    ways = [_split(place, one) for place, one in enumerate(_axis("pools", pools, (TOGETHER,)))]
    sent = _axis("routers", routers, (LeastRequests(),))
    for place, router in enumerate(sent):
        if not isinstance(router, Router):
            raise ConfigError(f"routers[{place}]", f"must be a router such as LeastRequests(), is {router!r}")
    if engines is not None:
        for name, told in (
            *(("model", model), ("gpus", gpus), ("tensor_parallel", tensor_parallel)),
            *(("schedulers", schedulers), ("caches", caches), ("engine_options", engine_options or None)),
        ):
            if told is not None:
                raise ConfigError(name, "engines are given, which say it themselves")
        made = given(engines)
    elif model is None:
        raise ConfigError("model", "what is to be served? Give a model, or engines")
    else:
        made, notes = _on_cards(model, gpus, tensor_parallel, schedulers, caches, dict(engine_options or {}))
    if not made:
        raise ConfigError(
            "gpus", f"nothing fits: {'; '.join(dict.fromkeys(one.why for one in made.misfits))}"
        )
    if any(ratio is not None for _, ratio in ways):
        link, note = _link(link, model)
        notes.append(note)
    elif link is not None:
        raise ConfigError("link", "no pools are apart; give pools such as '1:2'")
    return Choices(made, tuple(ways), sent, link, _units(replicas), tuple(notes))


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


def _on_cards(
    model: Any, gpus: Any, tensor_parallel: Any, schedulers: Any, caches: Any, options: dict[str, Any]
) -> tuple[Engines, list[str]]:
    """The engines of a model on cards, and what was assumed."""
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
    kept = _axis("caches", caches, (None,))
    return on_cards(shape, [Gpu.of(one) for one in cards], sizes, plans, kept, options), notes


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
