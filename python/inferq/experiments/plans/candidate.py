"""A candidate: everything that a fleet is, but for how many replicas it has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from inferq.errors import ConfigError
from inferq.experiments.plans.engines import Engines
from inferq.results.costs import nodes_of
from inferq.systems.cluster import Cluster
from inferq.systems.disaggregated import Disaggregated, Link
from inferq.systems.engine import Engine
from inferq.systems.routers import Router


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One choice on every axis. A *unit* of it is a replica, or of a pair `ratio` replicas of each side."""

    place: int
    """In the order of the grid."""
    engines: Engines
    number: int
    """Of its engine among these."""
    way: str
    """How the fleet is divided, in words."""
    router: Router
    ratio: tuple[int, int] | None = None
    """Replicas that prefill and that decode; None where every replica does both."""
    link: Link | None = None

    @property
    def engine(self) -> Engine:
        """Of each replica.

        Raises:
            ConfigError: the choices do not go together.
        """
        return self.engines[self.number]

    @property
    def labels(self) -> Mapping[str, str]:
        """What was chosen on each axis: `gpu`, `tensor_parallel`, `scheduler`, `cache`, `pools`, `router`."""
        return {**self.engines.labels(self.number), "pools": self.way, "router": repr(self.router)}

    @property
    def card(self) -> str:
        """The name under which a GPU has its price."""
        return self.engines.of(self.number).card

    @property
    def gpus(self) -> int:
        """Of one replica."""
        return self.engines.of(self.number).gpus

    @property
    def replicas_of_unit(self) -> int:
        """Replicas that come and go together."""
        return 1 if self.ratio is None else sum(self.ratio)

    def system(self, units: int) -> Cluster | Disaggregated:
        """The fleet of so many units."""
        if self.ratio is None:
            return Cluster(self.engine, replicas=units, router=self.router)
        prefill, decode = self.ratio
        assert self.link is not None
        return Disaggregated(
            prefill=(self.engine, prefill * units),
            decode=(self.engine, decode * units),
            link=self.link,
            prefill_router=self.router,
            decode_router=self.router,
        )

    def gpus_of(self, units: int) -> int:
        """GPUs of a fleet of so many units."""
        return units * self.replicas_of_unit * self.gpus

    def nodes_of(self, units: int) -> int:
        """Machines that it fills, where no replica lies on two unless it is larger than one."""
        return nodes_of(units * self.replicas_of_unit, self.gpus)

    def size(self, units: int) -> str:
        """How many replicas there are of what, in words."""
        if self.ratio is None:
            many = f"{units}"
        else:
            prefill, decode = self.ratio
            many = f"({prefill * units} + {decode * units})"
        return f"{many} × {self.card}" if self.gpus == 1 else f"{many} × {self.gpus} {self.card}"

    @property
    def is_described(self) -> bool:
        """Whether its description says all of it: what is written in Python has no more than a name there."""
        system = self.system(1)
        try:
            type(system).from_json(system.to_json())
        except ConfigError:
            return False
        return True

    def key(self, units: int) -> str:
        """The fleet, as one text of 16 digits; equal for equal fleets of descriptions."""
        described = json.dumps(self.system(units).to_json(), sort_keys=True)
        return sha256(described.encode()).hexdigest()[:16]
