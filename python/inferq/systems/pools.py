"""Pools: the groups of replicas that the core runs.

An engine, a cluster, both sides of a disaggregated system and every engine of a network are pools: replicas
behind one router. A request enters a pool; a pool may hand its requests over to another pool after prefill.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from inferq._lazy import NDArray, np, pl
from inferq.description import nested
from inferq.errors import ConfigError
from inferq.scheduler.by_key import ByKey, queue_keys
from inferq.scheduler.slot_greedy import SlotGreedy
from inferq.systems.autoscaler import Autoscaler, ScalingPolicy
from inferq.systems.cluster import Cluster
from inferq.systems.disaggregated import Disaggregated, Link
from inferq.systems.engine import Engine
from inferq.systems.failures import RETRIES, Failures
from inferq.systems.gate_and_route import GateAndRoute
from inferq.systems.network import Network
from inferq.systems.routers import Router
from inferq.systems.system import System


@dataclass(frozen=True, slots=True)
class Pool:
    """Replicas behind one router."""

    engines: tuple[Engine, ...]
    counts: tuple[int, ...]
    """The number of replicas of each of `engines`."""
    paths: tuple[str, ...]
    """The path of each of `engines` in errors."""
    router: Router | None = None
    hands_to: tuple[int, Link] | None = None
    """The index of the pool that decodes the requests of this pool, and the link to it."""
    open: int = 0
    """The initial number of replicas, with autoscaling or failures."""
    autoscaler: Autoscaler | None = None
    failures: Failures | None = None
    takes_commands: bool = False
    """Whether a live run can send commands to its replicas: fail, drain, start."""

    @property
    def is_static(self) -> bool:
        """Whether all replicas serve all the time."""
        return self.autoscaler is None and self.failures is None and not self.takes_commands

    def to_json(self) -> dict[str, Any]:
        """Return the pool in the core's form."""
        to = None if self.hands_to is None else {"pool": self.hands_to[0], "link": self.hands_to[1].to_json()}
        return {
            "engines": [engine.core_form() for engine in self.engines],
            "counts": list(self.counts),
            "paths": list(self.paths),
            "router": None if self.router is None else self.router.to_json(),
            "hands_to": to,
            **({} if self.is_static else {"capacity": self._capacity()}),
        }

    def _capacity(self) -> dict[str, Any]:
        failures = self.failures and self.failures.to_json()
        return {
            "open": self.open,
            "autoscaler": self.autoscaler and self.autoscaler.to_json(),
            "failures": {"retries": RETRIES} if failures is None and self.takes_commands else failures,
        }


def recorded(system: System) -> dict[str, Any]:
    """The record of a system: its description and its number of GPUs by name."""
    cards = gpus_of(system)
    return {system.name_of_kind: system.to_json(), **({"gpus": cards} if cards else {})}


def gpus_of(system: System) -> dict[str, int]:
    """The total number of GPUs by name; empty if an engine has no GPU name."""
    cards: dict[str, int] = {}
    for pool in pools_of(system):
        for engine, count in zip(pool.engines, pool.counts, strict=True):
            if "gpu" not in engine.on_card:
                return {}
            card = str(engine.on_card["gpu"])
            cards[card] = cards.get(card, 0) + count * int(engine.on_card["tensor_parallel"])
    return cards


def pools_of(system: System) -> tuple[Pool, ...]:
    """The pools of a system, as the core runs them.

    An engine is one replica. Consecutive identical engine objects of a cluster are replicas of one engine.
    The first pool of a `Disaggregated` hands over to the second. A `GateAndRoute` has one pool behind its
    control. The pools of a network are in the order of its table.
    """
    if isinstance(system, Engine):
        return (Pool((system,), (1,), ("",)),)
    if isinstance(system, Cluster):
        return (_of_cluster(system),)
    if isinstance(system, Disaggregated):
        (prefill, n), (decode, m) = system.prefill, system.decode
        return (
            Pool((prefill,), (n,), ("prefill",), system.prefill_router, (1, system.link)),
            Pool((decode,), (m,), ("decode",), system.decode_router),
        )
    if isinstance(system, GateAndRoute):
        scheduler = SlotGreedy(chunk=system.chunk)
        engine = Engine(timing=system.timing, scheduler=scheduler, kv=system.kv, first_token="decode")
        return (Pool((engine,), (system.replicas,), ("gate_and_route",)),)
    pools: list[Pool] = []
    for name, part in system.engines.items():
        pools += _moved(pools_of(part), len(pools), f"engines.{name}")
    return tuple(pools)


def entries(network: Network) -> list[int]:
    """The index in `pools_of` of the entry pool of each engine of a network."""
    sizes = [len(pools_of(part)) for part in network.engines.values()]
    return [sum(sizes[:place]) for place in range(len(sizes))]


def _of_cluster(cluster: Cluster) -> Pool:
    if isinstance(cluster.engines, Engine):
        assert cluster.replicas is not None
        return Pool(
            (cluster.engines,),
            (cluster.places,),
            ("engines",),
            cluster.router,
            open=cluster.replicas,
            autoscaler=cluster.autoscaler,
            failures=cluster.failures,
        )
    kinds: list[Engine] = []
    counts: list[int] = []
    paths: list[str] = []
    for place, engine in enumerate(cluster.engines):
        if kinds and kinds[-1] is engine:
            counts[-1] += 1
        else:
            kinds.append(engine)
            counts.append(1)
            paths.append(f"engines[{place}]")
    return Pool(
        tuple(kinds),
        tuple(counts),
        tuple(paths),
        cluster.router,
        open=len(cluster.engines),
        failures=cluster.failures,
    )


def _moved(pools: Sequence[Pool], by: int, path: str) -> list[Pool]:
    """The pools of a part of a larger system, with indices shifted by `by` and paths below `path`."""
    return [
        replace(
            pool,
            paths=tuple(f"{path}.{inner}" if inner else path for inner in pool.paths),
            hands_to=pool.hands_to and (pool.hands_to[0] + by, pool.hands_to[1]),
        )
        for pool in pools
    ]


def user_defined(pools: Sequence[Pool], alone: bool) -> dict[str, list[Any]]:
    """The user-defined schedulers, routers and autoscaling policies of pools, with their indices.

    Every replica has a copy of its scheduler, because replicas must not share state; a single engine
    (`alone`) uses the object itself.
    """
    schedulers: list[tuple[int, int, list[Any]]] = []
    routers: list[tuple[int, Router]] = []
    scalers: list[tuple[int, ScalingPolicy]] = []
    for place, pool in enumerate(pools):
        for which, (engine, count) in enumerate(zip(pool.engines, pool.counts, strict=True)):
            if engine.scheduler.is_user_defined():
                scheduler = engine.scheduler
                objects = [scheduler] if alone else [copy.deepcopy(scheduler) for _ in range(count)]
                schedulers.append((place, which, objects))
        if pool.router is not None and pool.router.is_user_defined():
            routers.append((place, pool.router))
        if pool.autoscaler is not None and pool.autoscaler.policy.is_user_defined():
            scalers.append((place, pool.autoscaler.policy))
    return {"schedulers": schedulers, "routers": routers, "scalers": scalers}


def keys(
    pools: Sequence[Pool], frame: pl.DataFrame, entered: NDArray[np.uint32] | None, first: int = 0
) -> NDArray[np.float64] | None:
    """The key of every request under the `ByKey` of its entry pool; None if no pool has one.

    Args:
        pools: all pools.
        frame: the requests.
        entered: the entry pool of each request. None: the first pool.
        first: the id of the first request.
    """
    orders = [_order(pools, place) for place in range(len(pools))]
    if entered is None:
        ids = range(first, first + frame.height)
        return None if orders[0] is None else queue_keys(orders[0], frame, ids)
    if not any(orders):
        return None
    values = np.zeros(frame.height)
    for place, order in enumerate(orders):
        if order is not None:
            rows = np.flatnonzero(entered == place)
            values[rows] = queue_keys(order, frame[rows], rows.tolist())
    return values


def _order(pools: Sequence[Pool], entry: int) -> ByKey | None:
    """The `ByKey` that applies to the requests of an entry pool, or None.

    A request has one key, so that all engines on its path must agree.
    """
    first: tuple[str, ByKey] | None = None
    place: int | None = entry
    while place is not None:
        pool = pools[place]
        for path, engine in zip(pool.paths, pool.engines, strict=True):
            for order in () if engine.scheduler.is_user_defined() else nested(engine, ByKey):
                if first is not None and first[1] != order:
                    raise ConfigError(
                        path,
                        f"orders its queue by a function that differs from {first[0]}; "
                        "a request has one key: use the same ByKey",
                    )
                first = first or (path, order)
        place = pool.hands_to and pool.hands_to[0]
    return first[1] if first else None
