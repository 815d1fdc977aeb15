"""Cluster: replicas behind one router."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from inferq.description import Description, plain, read_fields
from inferq.errors import ConfigError
from inferq.systems.autoscaler import Autoscaler
from inferq.systems.engine import Engine
from inferq.systems.failures import COMMANDS, Failures
from inferq.systems.routers import ROUTERS, RoundRobin, Router

MOST_REPLICAS = 65_536
"""Maximum replicas of an engine, so that a typing error does not exhaust memory."""


@dataclass(frozen=True, slots=True)
class Cluster(Description):
    """Replicas behind a router that assigns each request on arrival.

    Replicas share no state: each has its own queue, KV cache and iterations. A scheduler written in Python is
    copied (`copy.deepcopy`) for every replica. Replicas are numbered from 0 in the given order.

    Source: the engines in parallel of li2025 §4.1; the fleets of nie2026 §5.

    Args:
        engines: one engine for all replicas, or a list with an engine for each replica.
        replicas: number of replicas, 1 or above; for a list, its length. Default: 1.
        router: selects the replica of a request, see `inferq.systems.routers`; or an object of your own
            class, see `inferq.Router`.
        autoscaler: changes the number of replicas over time, starting with `replicas`, by default its `min`.
            None: the number is constant.
        failures: failures, drains and starts of replicas. None: none.

    Raises:
        ConfigError: no engine, no replica, a part of the wrong type; `replicas` outside the limits of the
            autoscaler, an autoscaler with a list of engines, a failure of a replica that does not exist; it
            names the field.

    Example:
        Two replicas serve two requests concurrently; one replica with `max_seqs=1` serves them in sequence:

        >>> import inferq as iq
        >>> sequential = iq.Sarathi(max_seqs=1)
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=sequential, kv=iq.KvCache.unlimited())
        >>> workload = {"arrival_s": [0.0, 0.0], "prompt_tokens": [10, 10], "output_tokens": [3, 3]}
        >>> iq.simulate(workload, engine).requests["finish_s"].to_list()
        [3.0, 6.0]
        >>> pair = iq.Cluster(engine, replicas=2, router=iq.LeastRequests())
        >>> iq.simulate(workload, pair).requests.select("replica", "finish_s").rows()
        [(0, 3.0), (1, 3.0)]
    """

    name_of_kind: ClassVar[str] = "cluster"
    parts: ClassVar[Mapping[str, tuple[type[Any], ...]]] = {"router": (*ROUTERS, Router)}

    engines: Engine | Sequence[Engine]
    replicas: int | None = field(default=None, kw_only=True)
    router: Router = field(default=RoundRobin(), kw_only=True)
    autoscaler: Autoscaler | None = field(default=None, kw_only=True)
    failures: Failures | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the parts and set the number of replicas."""
        engines, replicas = self.engines, plain("replicas", self.replicas, (int, type(None)))
        autoscaler = plain("autoscaler", self.autoscaler, (Autoscaler, type(None)))
        if isinstance(engines, Engine):
            if replicas is None:
                replicas = autoscaler.min if isinstance(autoscaler, Autoscaler) else 1
            if not 1 <= replicas <= MOST_REPLICAS:  # type: ignore[operator]  # a whole number
                raise ConfigError("replicas", f"must be from 1 to {MOST_REPLICAS}, got {replicas}")
        else:
            if not isinstance(engines, (list, tuple)):
                raise ConfigError("engines", f"must be Engine(…) or a list of engines, got {engines!r}")
            if not engines:
                raise ConfigError("engines", "must not be empty: a cluster has at least one replica")
            for place, engine in enumerate(engines):
                plain(f"engines[{place}]", engine, (Engine,))
            if replicas is not None and replicas != len(engines):
                raise ConfigError(
                    "replicas", f"must be {len(engines)}, the number of engines, got {replicas}"
                )
            engines, replicas = tuple(engines), len(engines)
        object.__setattr__(self, "engines", engines)
        object.__setattr__(self, "replicas", replicas)
        plain("router", self.router, (Router,))
        self.router.to_json()
        plain("failures", self.failures, (Failures, type(None)))
        self._check_scaling()

    @property
    def places(self) -> int:
        """Maximum number of concurrent replicas."""
        assert self.replicas is not None
        return self.replicas if self.autoscaler is None else self.autoscaler.max

    def _check_scaling(self) -> None:
        """Check the autoscaler and the failures against the replicas."""
        scaler, replicas = self.autoscaler, self.replicas
        assert replicas is not None
        if scaler is not None and not isinstance(self.engines, Engine):
            raise ConfigError("autoscaler", "requires one engine for all replicas, got a list of engines")
        if scaler is not None and not scaler.min <= replicas <= scaler.max:
            raise ConfigError(
                "replicas",
                f"must be from {scaler.min} to {scaler.max}, the limits of the autoscaler, got {replicas}",
            )
        for name in () if self.failures is None else COMMANDS.values():
            for place, (_, replica) in enumerate(getattr(self.failures, name)):
                if replica >= self.places:
                    raise ConfigError(
                        f"failures.{name}[{place}]",
                        f"replica {replica} does not exist: replicas are 0 to {self.places - 1}",
                    )

    def to_json(self) -> dict[str, Any]:
        """Return the cluster as JSON-ready values, with its `kind`; the inverse of `from_json`.

        A router of your own is written as the name of its class and cannot be read back.
        """
        engines = self.engines
        return {
            "kind": "Cluster",
            "engines": engines.to_json()
            if isinstance(engines, Engine)
            else [engine.to_json() for engine in engines],
            "replicas": self.replicas,
            "router": self.router.to_json(),
            **({} if self.autoscaler is None else {"autoscaler": self.autoscaler.to_json()}),
            **({} if self.failures is None else {"failures": self.failures.to_json()}),
        }

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> Cluster:
        """Read the cluster from a table of JSON or TOML.

        Args:
            description: `engines`, a table for `Engine.from_json` or a list of such tables; optionally
                `replicas`, `router` (a table with its `kind`, or its name), `autoscaler` and `failures`.

        Raises:
            ConfigError: an unknown, missing or wrong field, named by its path; a scheduler or a router
                written in Python.

        Example:
            >>> import inferq as iq
            >>> kv = iq.KvCache(tokens=100_000)
            >>> engine = iq.Engine(timing=iq.Constant(0.02), scheduler=iq.Sarathi(), kv=kv)
            >>> pair = iq.Cluster(engine, replicas=2, router=iq.PowerOfTwo())
            >>> iq.Cluster.from_json(pair.to_json()) == pair
            True
        """
        return read_fields("cluster", description, cls)
