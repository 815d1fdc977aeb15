"""The grid of a plan: the product of its axes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from inferq.checks import shown, whole
from inferq.errors import ConfigError
from inferq.experiments.plans.candidate import Candidate
from inferq.experiments.plans.engines import Engines, Misfit, given, on_gpus
from inferq.scheduler import Scheduler
from inferq.systems.cluster import MOST_REPLICAS
from inferq.systems.disaggregated import Link
from inferq.systems.routers import LeastRequests, Router
from inferq.timing.hardware.catalog import entries
from inferq.timing.hardware.gpu import Gpu
from inferq.timing.hardware.model_shape import ModelShape
from inferq.timing.tables.shipped import tables_of

MOST_CANDIDATES = 10_000
TENSOR_PARALLEL = (1, 2, 4, 8)
TOGETHER = "together"
NETWORK_BYTES_PER_S = 50e9
"""A 400 Gb/s network port per GPU (source: NVIDIA DGX H100 datasheet)."""

_SET_BY_AXES = ("model", "gpu", "tensor_parallel", "scheduler", "prefix_cache")


@dataclass(frozen=True, eq=False)
class CandidateGrid:
    """All candidates of a plan, in the order of the axes."""

    candidates: tuple[Candidate, ...]
    engines: Engines
    ratios: tuple[tuple[int, int] | None, ...]
    """The ratio of each choice of pools."""
    routers: tuple[Router, ...]
    link: Link | None
    units: tuple[int, ...]
    """Possible numbers of units, ascending."""
    notes: tuple[str, ...]
    """Assumed values of unset arguments."""

    def __len__(self) -> int:
        """The number of candidates."""
        return len(self.candidates)

    @property
    def misfits(self) -> tuple[Misfit, ...]:
        """Combinations that make no engine."""
        return self.engines.misfits

    @property
    def is_serializable(self) -> bool:
        """Whether JSON describes every candidate completely."""
        checked: dict[object, Candidate] = {}
        for candidate in self.candidates:
            if candidate.choice is self.engines.choices[0]:
                checked[candidate.place] = candidate
            checked.setdefault(id(candidate.choice.family), candidate)
        return all(candidate.is_serializable for candidate in checked.values())

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes."""
        return (*self.engines.axes, "pools", "router")

    @cached_property
    def varied(self) -> tuple[str, ...]:
        """The axes on which candidates differ."""
        of_engine = [
            axis
            for axis in self.engines.axes
            if len({choice.labels[axis] for choice in self.engines.choices}) > 1
        ]
        counts = {"pools": len(self.ratios), "router": len(self.routers)}
        return (*of_engine, *(axis for axis, count in counts.items() if count > 1))


def grid_of(
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
) -> CandidateGrid:
    """The candidates of a plan, in the order of the axes. The arguments are those of `inferq.plan`.

    Raises:
        ConfigError: an axis is empty or has a wrong value, arguments conflict, no combination makes an
            engine, or the grid has more than 10,000 candidates. It names the axis.
    """
    notes: list[str] = []
    divisions = [_division(place, text) for place, text in enumerate(_axis("pools", pools, (TOGETHER,)))]
    router_axis = _axis("routers", routers, (LeastRequests(),))
    for place, router in enumerate(router_axis):
        if not isinstance(router, Router):
            raise ConfigError(
                f"routers[{place}]", f"must be a router such as LeastRequests(), got {router!r}"
            )
    if engines is not None:
        for name, value in (
            *(("model", model), ("gpus", gpus), ("tensor_parallel", tensor_parallel)),
            *(("schedulers", schedulers), ("caches", caches), ("engine_options", engine_options or None)),
        ):
            if value is not None:
                raise ConfigError(name, "cannot be combined with engines, which already set it")
        made = given(engines)
    elif model is None:
        raise ConfigError("model", "missing; set model or engines")
    else:
        axes = (gpus, tensor_parallel, schedulers, caches)
        fleets_of_engine = len(divisions) * len(router_axis)
        made, notes = _on_gpus(model, *axes, dict(engine_options or {}), fleets_of_engine)
    if not made.choices:
        reasons = dict.fromkeys(misfit.reason for misfit in made.misfits)
        raise ConfigError("gpus", f"the model fits on no combination of choices: {'; '.join(reasons)}")
    _check_size(len(made.choices) * len(divisions) * len(router_axis))
    if any(ratio is not None for _, ratio in divisions):
        link, note = _link(link, model)
        notes.append(note)
    elif link is not None:
        raise ConfigError("link", "requires disaggregated pools such as '1:2'")
    candidates = tuple(
        Candidate(place, choice, pool, router, ratio, None if ratio is None else link)
        for place, (choice, (pool, ratio), router) in enumerate(product(made.choices, divisions, router_axis))
    )
    ratios = tuple(ratio for _, ratio in divisions)
    return CandidateGrid(candidates, made, ratios, router_axis, link, _units(replicas), tuple(notes))


def _check_size(candidates: int) -> None:
    if candidates > MOST_CANDIDATES:
        raise ConfigError(
            "candidates",
            f"the axes make {candidates:,} combinations, at most {MOST_CANDIDATES:,} are supported: remove "
            "choices, such as values of schedulers or tensor_parallel",
        )


def _axis(name: str, given: Any, default: tuple[Any, ...]) -> tuple[Any, ...]:
    """The choices on an axis. A single value is one choice."""
    if given is None:
        return default
    is_single = isinstance(given, (str, Path, Mapping)) or not isinstance(given, Iterable)
    choices = (given,) if is_single else tuple(given)
    if not choices:
        raise ConfigError(name, "must contain at least one choice")
    if any(choice == other for place, choice in enumerate(choices[:1000]) for other in choices[:place]):
        raise ConfigError(name, "contains the same choice twice")
    return choices


def _division(place: int, text: object) -> tuple[str, tuple[int, int] | None]:
    """The name and the ratio of one choice of pools."""
    if text == TOGETHER:
        return TOGETHER, None
    match = re.fullmatch(r"\s*(\d{1,5})\s*:\s*(\d{1,5})\s*", text) if isinstance(text, str) else None
    if match is None or "0" in (match[1].lstrip("0") or "0", match[2].lstrip("0") or "0"):
        raise ConfigError(
            f"pools[{place}]",
            f"must be 'together' or prefill and decode replicas such as '1:2', got {text!r}",
        )
    return f"{int(match[1])}:{int(match[2])}", (int(match[1]), int(match[2]))


def _units(replicas: Any) -> tuple[int, ...]:
    """The possible sizes of a fleet."""
    if replicas is None:
        return tuple(range(1, 1025))
    try:
        sizes = (replicas,) if isinstance(replicas, (int, float, str)) else tuple(replicas)
    except TypeError:
        raise ConfigError("replicas", f"must be a number or several, got {shown(replicas)}") from None
    if not sizes:
        raise ConfigError("replicas", "must contain at least one choice")
    return tuple(sorted({whole("replicas", size, 1, MOST_REPLICAS) for size in sizes}))


def _on_gpus(
    model: Any,
    gpus: Any,
    tensor_parallel: Any,
    schedulers: Any,
    caches: Any,
    options: dict[str, Any],
    fleets_of_engine: int,
) -> tuple[Engines, list[str]]:
    """The engines of a model on GPUs, and the assumed values."""
    for name in options:
        if name in _SET_BY_AXES:
            raise ConfigError(f"engine_options.{name}", "is an axis of the plan")
    shape, notes = ModelShape.of(model), []
    if gpus is None:
        measured = {key.gpu for key in tables_of(shape)}
        names: tuple[Any, ...] = tuple(name for name in entries("gpus") if name in measured)
        names = names or tuple(entries("gpus"))
        notes.append(
            f"GPUs considered: {', '.join(names)} "
            f"({'those with a measured table of the model' if measured else 'all known'})"
        )
    else:
        names = _axis("gpus", gpus, ())
    sizes = tuple(
        whole("tensor_parallel", size, 1, 1024)
        for size in _axis("tensor_parallel", tensor_parallel, TENSOR_PARALLEL)
    )
    policies = _axis("schedulers", schedulers, (None,))
    for place, scheduler in enumerate(policies):
        if not isinstance(scheduler, (Scheduler, Mapping, type(None))):
            raise ConfigError(
                f"schedulers[{place}]", f"must be a scheduler or a table of its fields, got {scheduler!r}"
            )
    prefix_caches = _axis("caches", caches, (None,))
    _check_size(math.prod(map(len, (names, sizes, policies, prefix_caches))) * fleets_of_engine)
    return on_gpus(shape, [Gpu.of(name) for name in names], sizes, policies, prefix_caches, options), notes


def _link(link: Any, model: Any) -> tuple[Link, str]:
    """The link between prefill and decode pools, and a note about it."""
    if link is not None:
        if not isinstance(link, Link):
            raise ConfigError("link", f"must be a Link, got {link!r}")
        return link, f"link: {link!r}, as given"
    if model is None:
        raise ConfigError("link", "missing; disaggregated pools of given engines need a Link")
    shape = ModelShape.of(model)
    token_bytes = shape.kv_bytes_per_token(None) + shape.index_bytes_per_token
    made = Link(0.0, NETWORK_BYTES_PER_S, token_bytes, concurrent=None)
    return made, f"link: {made!r}, 400 Gb/s for each prefill replica, one transfer at a time"
