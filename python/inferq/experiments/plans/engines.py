"""The engines of a plan: as many as its axes have combinations, made where they are looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any, NamedTuple

from inferq._lazy import NDArray, np
from inferq.errors import ConfigError
from inferq.scheduler import Scheduler
from inferq.systems.engine import Engine
from inferq.timing.hardware.gpu import Gpu

_BOUNDS = ("token_budget", "max_seqs")
"""What a batch may hold: an engine with larger bounds may do all that one with smaller ones may."""
_HELD = 4096
"""So many engines are kept, of those that were looked at."""
_LOOKED_AT = 64
"""A family of no more is made whole where one of it makes no engine."""


class Misfit(NamedTuple):
    """A choice that makes no engine, and why."""

    labels: Mapping[str, str]
    why: str


@dataclass(frozen=True, slots=True)
class Family:
    """Engines on one card that differ only in how much a batch may hold."""

    card: str
    """The name under which a GPU has its price."""
    gpus: int
    """Of one replica."""
    roomiest: Engine | None
    """It may form every batch that one of them may; None where none is known that does."""
    members: int
    told: str
    """The bounds of its batches, in words; empty where it is alone."""


@dataclass(frozen=True, slots=True, eq=False)
class Engines:
    """All engines to choose from, by number."""

    families: tuple[Family, ...]
    family_of: NDArray[Any]
    """For each number the place of its family."""
    misfits: tuple[Misfit, ...]
    axes: Mapping[str, tuple[Sequence[str], NDArray[Any]]]
    """By name what there is to choose from, as labels name it, and for each number which of it was chosen."""
    make: Callable[[int], Engine]
    kept: Callable[[int], Engine] = field(init=False)

    def __post_init__(self) -> None:
        """Keep some of what was made."""
        object.__setattr__(self, "kept", lru_cache(_HELD)(self.make))

    def __len__(self) -> int:
        """How many."""
        return len(self.family_of)

    def __getitem__(self, number: int) -> Engine:
        """One of them.

        Raises:
            ConfigError: the choices do not go together.
        """
        return self.kept(number)

    def labels(self, number: int) -> dict[str, str]:
        """What was chosen on each axis."""
        return {name: words[chosen[number]] for name, (words, chosen) in self.axes.items()}

    def of(self, number: int) -> Family:
        """Those that differ from it in the bounds of their batches alone."""
        return self.families[int(self.family_of[number])]


def given(engines: Any) -> Engines:
    """Engines that a user has made, each a family of its own."""
    named = engines if isinstance(engines, Mapping) else {"engine": engines}
    if not named:
        raise ConfigError("engines", "there is nothing to choose from")
    families = []
    for name, engine in named.items():
        if not isinstance(engine, Engine):
            raise ConfigError(f"engines.{name}", f"must be Engine(…), is {engine!r}")
        card, gpus = engine.on_card.get("gpu", str(name)), int(engine.on_card.get("tensor_parallel", 1))
        families.append(Family(card, gpus, engine, 1, ""))
    names, made = [str(name) for name in named], list(named.values())
    return Engines(
        tuple(families),
        np.arange(len(made), dtype=np.int32),
        (),
        {"engine": (names, np.arange(len(made)))},
        made.__getitem__,
    )


def on_cards(
    model: Any,
    cards: Sequence[Gpu],
    sizes: Sequence[int],
    schedulers: Sequence[Any],
    caches: Sequence[Any],
    options: Mapping[str, Any],
) -> Engines:
    """The engines of a model on cards, in the order of the axes; those that cannot be are misfits.

    Of each family one engine is made, the one whose batches may hold the most, and one that may hold the
    least, which leaves the most memory to the cache: what both can be, all between them can.
    """
    shape = (len(cards), len(sizes), len(schedulers), len(caches))
    alike = _alike(schedulers)
    families: list[Family] = []
    misfits: dict[tuple[int, ...], Misfit] = {}
    family_of = np.full(shape, -1, dtype=np.int32)

    def made(card: Gpu, size: int, cache: Any, scheduler: Any) -> Engine:
        try:
            return Engine.on(
                model, card, tensor_parallel=size, scheduler=scheduler, prefix_cache=cache, **options
            )
        except TypeError as error:
            raise ConfigError("engine_options", str(error)) from None

    def at(place: int) -> Engine:
        c, s, p, k = map(int, np.unravel_index(place, shape))
        return made(cards[c], sizes[s], caches[k], schedulers[p])

    words: dict[str, list[str]] = {
        "gpu": [one.name for one in cards],
        "tensor_parallel": [str(one) for one in sizes],
        "scheduler": ["default" if one is None else _spelt(one) for one in schedulers],
        "cache": ["default" if one is None else str(one) for one in caches],
    }
    for c, s, k in product(range(len(cards)), range(len(sizes)), range(len(caches))):
        for places in alike:
            make = partial(made, cards[c], sizes[s], caches[k])
            chosen, unfit = _fitting([schedulers[p] for p in places], make)
            for p, why in zip(places, unfit, strict=True):
                if why is not None:
                    told = {axis: words[axis][n] for axis, n in zip(words, (c, s, p, k), strict=True)}
                    misfits[c, s, p, k] = Misfit(told, why)
            fit = [p for p, why in zip(places, unfit, strict=True) if why is None]
            if fit:
                most = "" if len(fit) == 1 or chosen is None else _bounds(chosen.scheduler)
                families.append(Family(cards[c].name, sizes[s], chosen, len(fit), most))
                family_of[c, s, fit, k] = len(families) - 1
    numbers = np.flatnonzero(family_of.ravel() >= 0)
    return Engines(
        tuple(families),
        family_of.ravel()[numbers],
        tuple(misfits[place] for place in sorted(misfits)),
        {
            axis: (words[axis], chosen)
            for axis, chosen in zip(words, np.unravel_index(numbers, shape), strict=True)
        },
        lambda number: at(numbers[number]),
    )


def _alike(schedulers: Sequence[Any]) -> list[list[int]]:
    """The places of schedulers that differ only in how much a batch may hold."""
    found: dict[object, list[int]] = {}
    for place, one in enumerate(schedulers):
        found.setdefault(_but_bounds(one), []).append(place)
    return list(found.values())


def _but_bounds(scheduler: Any) -> object:
    """What a scheduler is beside its bounds; what is written in Python is only itself."""
    if isinstance(scheduler, Scheduler) and not scheduler.is_user_defined():
        told = {one.name: getattr(scheduler, one.name) for one in fields(scheduler)}  # type: ignore[arg-type]
    elif isinstance(scheduler, Mapping):
        told = dict(sorted(scheduler.items()))
    else:
        return id(scheduler)
    simple = (int, float, str, type(None))
    return type(scheduler), tuple(
        (name, name in _of(told) or (one if isinstance(one, simple) else id(one)))
        for name, one in told.items()
    )


def _of(told: Mapping[str, Any]) -> list[str]:
    """The bounds that are told as numbers."""
    return [name for name in _BOUNDS if isinstance(told.get(name), int)]


def _extreme(schedulers: Sequence[Any], which: Callable[..., int]) -> Any:
    """One of a family with the largest, or the least, of each bound."""
    first = schedulers[0]
    if isinstance(first, Mapping):
        return {**first, **{name: which(one[name] for one in schedulers) for name in _of(first)}}
    told = {name: getattr(first, name, None) for name in _BOUNDS}
    return replace(first, **{name: which(getattr(one, name) for one in schedulers) for name in _of(told)})


def _fitting(
    schedulers: Sequence[Any], made: Callable[[Any], Engine]
) -> tuple[Engine | None, list[str | None]]:
    """Of a family the engine that may do all that one of them may, and why each of them cannot be."""
    if len(schedulers) == 1:
        try:
            return made(schedulers[0]), [None]
        except ConfigError as error:
            return None, [str(error)]
    why: list[str] = []
    ends: list[Engine] = []
    for which in (max, min):
        try:
            ends.append(made(_extreme(schedulers, which)))
        except (ConfigError, TypeError) as error:
            why.append(str(error))
    if not why:
        most, least = ends
        roomier = least.kv.tokens is None or (most.kv.tokens or 0) < least.kv.tokens
        return (replace(most, kv=least.kv) if roomier else most), [None] * len(schedulers)
    if len(schedulers) <= _LOOKED_AT:
        unfit = [_fitting([one], made)[1][0] for one in schedulers]
        fit = [one for one, reason in zip(schedulers, unfit, strict=True) if reason is None]
        whole = 0 < len(fit) < len(schedulers)
        return (_fitting(fit, made)[0] if whole else None), unfit
    return None, [why[-1] if len(why) == 2 else None] * len(schedulers)


def _spelt(scheduler: Scheduler | Mapping[str, Any]) -> str:
    if isinstance(scheduler, Mapping):
        return ", ".join(f"{name}={value}" for name, value in scheduler.items())
    return repr(scheduler)


def _bounds(scheduler: Scheduler) -> str:
    told = {name: getattr(scheduler, name, None) for name in _BOUNDS}
    return ", ".join(f"{name}={value:,}" for name, value in told.items() if isinstance(value, int))
