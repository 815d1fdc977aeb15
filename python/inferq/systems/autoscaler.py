"""Autoscaler: the number of replicas of a cluster over time.

An `Autoscaler` of a `Cluster` evaluates its policy at a fixed period. Missing replicas start. Surplus
replicas
drain: they accept no new requests and stop after their last one.

Example:
    A user-defined policy that adds a replica whenever a request waits:

    >>> import inferq as iq
    >>> class OneMore(iq.ScalingPolicy):
    ...     def wanted(self, fleet: iq.FleetFigures) -> int:
    ...         return fleet.open + fleet.starting + (fleet.waiting > 0)
    >>> sequential = iq.Sarathi(max_seqs=1)
    >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=sequential, kv=iq.KvCache.unlimited())
    >>> scaler = iq.Autoscaler(OneMore(), max=2, every_s=0.5, startup_s=1.0)
    >>> cluster = iq.Cluster(engine, replicas=1, router=iq.LeastRequests(), autoscaler=scaler)
    >>> workload = {"arrival_s": [0.0, 0.1, 2.0], "prompt_tokens": [10] * 3, "output_tokens": [3] * 3}
    >>> result = iq.simulate(workload, cluster)
    >>> result.requests["replica"].to_list()
    [0, 0, 1]
    >>> result.fleet_events.select("at_s", "replica", "event").rows()
    [(0.0, 0, 'ready'), (0.5, 1, 'asked'), (1.5, 1, 'ready')]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from inferq.checks import not_negative, positive
from inferq.description import Description, plain, read_fields
from inferq.errors import ConfigError

MOST_PLACES = 65_536
"""Maximum of `Autoscaler.max`."""


class FleetFigures(Protocol):
    """The state of the fleet that a user-defined policy receives.

    It includes all earlier events, and of events at this time the ends of iterations and failures of
    replicas, not arrivals.
    """

    @property
    def now_s(self) -> float:
        """The current time, in seconds."""

    @property
    def open(self) -> int:
        """Replicas that accept requests."""

    @property
    def starting(self) -> int:
        """Starting replicas, including those under repair."""

    @property
    def draining(self) -> int:
        """Replicas that finish their last requests."""

    @property
    def waiting(self) -> int:
        """Requests in the queues of open replicas, and requests without a replica."""

    @property
    def running(self) -> int:
        """Running requests of open replicas."""

    @property
    def seats(self) -> int:
        """Sequence slots of open replicas: the sum of their `max_seqs`."""

    @property
    def used_blocks(self) -> int:
        """Used KV blocks of open replicas."""

    @property
    def blocks(self) -> int:
        """All KV blocks of open replicas."""

    @property
    def arrived(self) -> int:
        """Requests that arrived since the run began."""


class ScalingPolicy(Description):
    """A policy for the number of replicas: a class of this module, or your own class derived from this one.

    Your own class has a method `wanted(fleet)`. It is called with a `FleetFigures` at every evaluation and
    returns the number of replicas that should be open or starting, an integer of 0 or above, which the
    autoscaler limits to its range. An exception that it raises passes through `simulate` unchanged. An object
    keeps its state between runs.

    Raises:
        ConfigError: used in an `Autoscaler`, the class has no `wanted`.
        SimulationError: in `simulate`, a result that is not such a number, with the time.

    Example:
        See `inferq.systems.autoscaler` and `docs/guides/autoscaling-and-failures.md`.
    """

    __slots__ = ()
    part = "scaling policy"
    unreadable = (
        "Python",
        "a policy written in Python cannot be read back from a description; build the cluster in Python",
    )

    def __post_init__(self) -> None:
        """Check the fields of a built-in policy; user-defined policies check their own."""
        if not self.is_user_defined():
            Description.__post_init__(self)

    def is_user_defined(self) -> bool:
        """Whether the class is not a built-in policy."""
        return type(self) not in SCALING_POLICIES

    def to_json(self) -> dict[str, Any]:
        """Return the policy as JSON-ready values, with its `kind`, `"Python"` for your own class."""
        if not self.is_user_defined():
            return Description.to_json(self)
        kind = type(self)
        if not callable(getattr(self, "wanted", None)):
            raise ConfigError("policy", f"{kind.__name__} has no wanted(fleet) and is not a built-in policy")
        return {"kind": "Python", "name": f"{kind.__module__}.{kind.__qualname__}"}


@dataclass(frozen=True, slots=True)
class ByQueue(ScalingPolicy):
    """⌈(waiting + running) / requests⌉ replicas: a target number of requests per replica.

    Requests at open replicas and requests without a replica count.

    Source: the concurrency target of Knative's autoscaler (knative.dev, "Configuring concurrency").

    Args:
        requests: target of waiting and running requests per replica, above 0.

    Raises:
        ConfigError: a number that is not positive.

    Example:
        >>> import inferq as iq
        >>> iq.ByQueue(16).to_json()
        {'kind': 'ByQueue', 'requests': 16}
    """

    requests: float


@dataclass(frozen=True, slots=True)
class ByUtilization(ScalingPolicy):
    """⌈open · utilization / target⌉ replicas.

    The number does not change while utilization / target is within `tolerance` of 1, or while no replica is
    open.

    Source: the algorithm of Kubernetes' horizontal pod autoscaler (kubernetes.io, "Horizontal Pod
        Autoscaling"), with its tolerance of 0.1.

    Args:
        target: target utilization, above 0, at most 1.
        of: `"seats"`, running requests divided by `max_seqs`, or `"kv"`, used KV blocks divided by all.
        tolerance: relative deviation without a change, 0 or above, below 1.

    Raises:
        ConfigError: a number outside these ranges; in `simulate`, no limit on sequences or on the cache.

    Example:
        >>> import inferq as iq
        >>> iq.ByUtilization(0.7, of="kv").to_json()
        {'kind': 'ByUtilization', 'target': 0.7, 'of': 'kv', 'tolerance': 0.1}
    """

    target: float
    of: Literal["seats", "kv"] = "seats"
    tolerance: float = 0.1


@dataclass(frozen=True, slots=True)
class ByForecast(ScalingPolicy):
    """The replicas for a linear forecast of the arrival rate from the last two windows.

    With c₁ arrivals in the last window and c₀ in the window before, the forecast is
    (c₁ + (c₁ − c₀) · ahead_s / window_s) / window_s requests per second, divided by `requests_per_s` and
    rounded up. Arrivals are counted at evaluations.

    Source: a linear trend, the simplest forecast of NVIDIA Dynamo's planner and of predictive autoscalers.

    Args:
        requests_per_s: capacity of one replica, above 0; `capacity` determines it.
        window_s: window in seconds, above 0, preferably a multiple of `every_s`.
        ahead_s: forecast horizon in seconds, 0 or above, preferably `startup_s`.

    Raises:
        ConfigError: a number outside these ranges.

    Example:
        >>> import inferq as iq
        >>> iq.ByForecast(2.5, window_s=60, ahead_s=120).to_json()
        {'kind': 'ByForecast', 'requests_per_s': 2.5, 'window_s': 60, 'ahead_s': 120}
    """

    requests_per_s: float
    window_s: float
    ahead_s: float = 0


@dataclass(frozen=True, slots=True)
class BySchedule(ScalingPolicy):
    """A schedule of the number of replicas.

    Args:
        steps: pairs of seconds and the number of replicas from then on, in order of time. Before the first
            step, the number does not change, or with a period it is that of the last step.
        period_s: period of the schedule in seconds, beyond its last step: 86,400 for a day. None: the last
            step remains.

    Raises:
        ConfigError: no step, steps out of order or beyond the period, a step of no replica.

    Example:
        >>> import inferq as iq
        >>> iq.BySchedule([(0, 2), (28_800, 6)], period_s=86_400).to_json()
        {'kind': 'BySchedule', 'steps': [[0, 2], [28800, 6]], 'period_s': 86400}
    """

    steps: Sequence[Sequence[float]]
    period_s: float | None = None

    def __post_init__(self) -> None:
        """Convert the steps to pairs of a time and an integer."""
        object.__setattr__(self, "steps", pairs("steps", self.steps, "(seconds, replicas)"))
        ScalingPolicy.__post_init__(self)

    def to_json(self) -> dict[str, Any]:
        """Return the policy as JSON-ready values, with its `kind`."""
        steps = [list(step) for step in self.steps]
        return {"kind": "BySchedule", "steps": steps, "period_s": self.period_s}


SCALING_POLICIES: tuple[type[ScalingPolicy], ...] = (ByQueue, ByUtilization, ByForecast, BySchedule)
"""All built-in policies."""


@dataclass(frozen=True, slots=True)
class Autoscaler(Description):
    """The number of replicas of a cluster over time.

    Every `every_s` seconds, first after that time, its policy determines the number of replicas that should
    be open or starting. Missing replicas are requested, lowest number first: each opens `startup_s` later,
    with an empty cache. Surplus replicas that are starting are canceled, then the highest open ones drain:
    they accept no new requests and stop after their last one. Draining replicas count towards `max`. No
    replica is removed within `cooldown_s` after a change; replicas can be added at any evaluation.

    A request that arrives when no replica is open waits for one; see `Failures`. Routers select among open
    replicas. A replica costs money from its request to its end: `Result.replica_s`.

    Args:
        policy: `ByQueue`, `ByUtilization`, `ByForecast`, `BySchedule`, or an object of your own class, see
            `ScalingPolicy`.
        max: maximum replicas, not below `min`.
        min: minimum replicas, 1 or above.
        startup_s: seconds from the request for a replica to its first request, 0 or above: machine
            allocation, loading of weights, warm-up.
        every_s: seconds between two evaluations, above 0.
        cooldown_s: seconds after a change without removal of replicas, 0 or above.

    Raises:
        ConfigError: a number outside these ranges, or not a policy; it names the field.

    Source: the loop of Kubernetes' horizontal autoscaler, every 15 seconds; the drain of its pods.

    Example:
        >>> import inferq as iq
        >>> iq.Autoscaler(iq.ByQueue(16), min=2, max=8, startup_s=90).policy
        ByQueue(requests=16)
    """

    parts: ClassVar[Mapping[str, tuple[type[Any], ...]]] = {"policy": (*SCALING_POLICIES, ScalingPolicy)}

    policy: ScalingPolicy
    max: int
    min: int = field(default=1, kw_only=True)
    startup_s: float = field(default=0, kw_only=True)
    every_s: float = field(default=15, kw_only=True)
    cooldown_s: float = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        """Check the numbers."""
        Description.__post_init__(self)
        if self.min < 1:
            raise ConfigError("min", f"must be at least 1, got {self.min}: requests need a replica")
        if not self.min <= self.max <= MOST_PLACES:
            raise ConfigError("max", f"must be from min, {self.min}, to {MOST_PLACES}, got {self.max}")
        positive("every_s", self.every_s)
        for name in ("startup_s", "cooldown_s"):
            not_negative(name, getattr(self, name))
        self.policy.to_json()

    def to_json(self) -> dict[str, Any]:
        """Return the autoscaler as JSON-ready values; the inverse of `from_json`."""
        others = ("max", "min", "startup_s", "every_s", "cooldown_s")
        return {"policy": self.policy.to_json(), **{name: getattr(self, name) for name in others}}

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> Autoscaler:
        """Read the autoscaler from a table of JSON or TOML.

        Raises:
            ConfigError: an unknown, missing or wrong field, with its path.
        """
        return read_fields("autoscaler", description, cls)


def pairs(name: str, value: object, what: str) -> tuple[tuple[float, int], ...]:
    """Convert pairs of seconds and an integer; an error names the first invalid pair."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ConfigError(name, f"must be a list of pairs {what}, got {value!r}")
    converted = []
    for place, pair in enumerate(value):
        here = f"{name}[{place}]"
        if isinstance(pair, (str, bytes)) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise ConfigError(here, f"must be a pair {what}, got {pair!r}")
        seconds, number = plain(f"{here}[0]", pair[0], (float,)), plain(f"{here}[1]", pair[1], (int,))
        assert isinstance(seconds, (int, float)) and isinstance(number, int)
        converted.append((seconds, number))
    return tuple(converted)
