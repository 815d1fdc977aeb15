"""Candidates of a plan: one choice on every axis, without the number of replicas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

from inferq.errors import ConfigError
from inferq.experiments.plans.engines import EngineChoice
from inferq.results.costs import nodes_of
from inferq.systems.cluster import Cluster
from inferq.systems.disaggregated import Disaggregated, Link
from inferq.systems.engine import Engine
from inferq.systems.routers import Router


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One choice on every axis.

    A *unit* is one replica. With prefill/decode disaggregation a unit is a group of `ratio` replicas.
    """

    place: int
    """Index in the grid."""
    choice: EngineChoice
    pools: str
    """`"together"`, or the ratio of a disaggregated fleet, such as `"1:2"`."""
    router: Router
    ratio: tuple[int, int] | None = None
    """Prefill and decode replicas of a unit. None if every replica does both."""
    link: Link | None = None

    @property
    def engine(self) -> Engine:
        """The engine of each replica.

        Raises:
            ConfigError: the choices do not make an engine.
        """
        return self.choice.engine

    @property
    def labels(self) -> Mapping[str, str]:
        """The choice on each axis: `gpu`, `tensor_parallel`, `scheduler`, `cache`, `pools`, `router`."""
        return {**self.choice.labels, "pools": self.pools, "router": repr(self.router)}

    @property
    def gpu(self) -> str:
        """The name of the GPU in `Prices`."""
        return self.choice.family.gpu

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.choice.family.gpus

    @property
    def replicas_of_unit(self) -> int:
        """Replicas of one unit."""
        return 1 if self.ratio is None else sum(self.ratio)

    @property
    def has_monotone_timing(self) -> bool:
        """Whether an iteration of more tokens is surely not shorter."""
        return self.engine.timing.cost() is not None

    def system(self, units: int, engine: Engine | None = None) -> Cluster | Disaggregated:
        """The fleet with this number of units. `engine` replaces that of the candidate."""
        engine = self.engine if engine is None else engine
        if self.ratio is None:
            return Cluster(engine, replicas=units, router=self.router)
        prefill, decode = self.ratio
        assert self.link is not None
        link = self.link
        if link.concurrent is None:  # the network grows with the fleet: each prefill replica has an adapter
            link = replace(link, concurrent=prefill * units)
        return Disaggregated(
            prefill=(engine, prefill * units),
            decode=(engine, decode * units),
            link=link,
            prefill_router=self.router,
            decode_router=self.router,
        )

    def gpus_of(self, units: int) -> int:
        """GPUs of a fleet with this number of units."""
        return units * self.replicas_of_unit * self.gpus

    def nodes_of(self, units: int) -> int:
        """Nodes of a fleet. A replica uses several nodes only if it is larger than one node."""
        return nodes_of(units * self.replicas_of_unit, self.gpus)

    def size(self, units: int) -> str:
        """The size of a fleet as text, such as `4 × 2 h200`."""
        if self.ratio is None:
            replicas = f"{units}"
        else:
            prefill, decode = self.ratio
            replicas = f"({prefill * units} + {decode * units})"
        return f"{replicas} × {self.gpu}" if self.gpus == 1 else f"{replicas} × {self.gpus} {self.gpu}"

    @property
    def is_serializable(self) -> bool:
        """Whether JSON describes it completely. Policies written in Python have only a name in JSON."""
        system = self.system(1)
        try:
            type(system).from_json(system.to_json())
        except ConfigError:
            return False
        return True

    def key(self, units: int) -> str:
        """A key of 16 hexadecimal digits, equal for equal descriptions."""
        described = json.dumps(self.system(units).to_json(), sort_keys=True)
        return sha256(described.encode()).hexdigest()[:16]
