"""Which groups of replicas does the core run, and what does it need to know of each?

An engine, a cluster, both sides of a hand-off and every engine of a network are pools: replicas behind one
router. A request enters a pool; a pool may hand its requests to another one after their prefill.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from inferq._lazy import np, pl
from inferq.description import held
from inferq.errors import ConfigError
from inferq.scheduler.by_key import ByKey, queue_keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from inferq.systems.disaggregated import Link
    from inferq.systems.engine import Engine
    from inferq.systems.routers import Router


@dataclass(frozen=True, slots=True)
class Pool:
    """Replicas behind one router."""

    engines: tuple[Engine, ...]
    counts: tuple[int, ...]
    """How many replicas each of `engines` has."""
    paths: tuple[str, ...]
    """What an error calls each of `engines`."""
    router: Router | None = None
    hands_to: tuple[int, Link] | None = None
    """The place of the pool that decodes what this one has prefilled, and the way there."""

    def to_json(self) -> dict[str, Any]:
        """The pool in the form that the core reads."""
        to = None if self.hands_to is None else {"pool": self.hands_to[0], "link": self.hands_to[1].to_json()}
        return {
            "engines": [engine.to_json() for engine in self.engines],
            "counts": list(self.counts),
            "paths": list(self.paths),
            "router": None if self.router is None else self.router.to_json(),
            "hands_to": to,
        }


def moved(pools: Sequence[Pool], by: int, path: str) -> list[Pool]:
    """The pools of a part of a larger system: `by` places further on, named from `path` on."""
    return [
        replace(
            pool,
            paths=tuple(f"{path}.{one}" if one else path for one in pool.paths),
            hands_to=pool.hands_to and (pool.hands_to[0] + by, pool.hands_to[1]),
        )
        for pool in pools
    ]


def written(pools: Sequence[Pool], alone: bool) -> dict[str, list[Any]]:
    """The schedulers and routers of pools that are written in Python, where the core finds them.

    Replicas must not share what a scheduler remembers, so that each has a copy, but for an engine `alone`.
    """
    schedulers: list[tuple[int, int, list[Any]]] = []
    routers: list[tuple[int, Router]] = []
    for place, pool in enumerate(pools):
        for which, (engine, count) in enumerate(zip(pool.engines, pool.counts, strict=True)):
            if engine.scheduler.is_written():
                one = engine.scheduler
                objects = [one] if alone else [copy.deepcopy(one) for _ in range(count)]
                schedulers.append((place, which, objects))
        if pool.router is not None and pool.router.is_written():
            routers.append((place, pool.router))
    return {"schedulers": schedulers, "routers": routers}


def keys(
    pools: Sequence[Pool], frame: pl.DataFrame, entered: NDArray[np.uint32] | None, first: int = 0
) -> NDArray[np.float64] | None:
    """The key of every request under the `ByKey` of the pool that it enters; None where no pool has one.

    Args:
        pools: all of them.
        frame: the requests.
        entered: the pool of each request; None where all enter the first.
        first: the number of the first of them.
    """
    orders = [_order(pools, place) for place in range(len(pools))]
    if entered is None:
        ids = range(first, first + frame.height)
        return None if orders[0] is None else queue_keys(orders[0], frame, ids)
    if not any(orders):
        return None
    found = np.zeros(frame.height)
    for place, order in enumerate(orders):
        if order is not None:
            rows = np.flatnonzero(entered == place)
            found[rows] = queue_keys(order, frame[rows], rows.tolist())
    return found


def _order(pools: Sequence[Pool], entry: int) -> ByKey | None:
    """The one `ByKey` that the requests which enter a pool meet on their way, or None.

    A request has one key, so that all engines on its way must agree.
    """
    found: tuple[str, ByKey] | None = None
    place: int | None = entry
    while place is not None:
        pool = pools[place]
        for path, engine in zip(pool.paths, pool.engines, strict=True):
            for order in () if engine.scheduler.is_written() else held(engine, ByKey):
                if found is not None and found[1] != order:
                    raise ConfigError(
                        f"{path}: orders its queue by another function than {found[0]}; "
                        "a request has one key, so give both the same ByKey"
                    )
                found = found or (path, order)
        place = pool.hands_to and pool.hands_to[0]
    return found[1] if found else None
