"""How many replicas should there be?

An `Autoscaler` of a `Cluster` looks at its replicas every so many seconds and asks its policy how many it
wants. What is missing is started, what is too much drains: it takes no new requests and ends when it has
finished those that it has.

Example:
    A policy of one's own that wants a replica more whenever a request waits:

    >>> import inferq as iq
    >>> class OneMore(iq.ScalingPolicy):
    ...     def wanted(self, fleet: iq.FleetFigures) -> int:
    ...         return fleet.open + fleet.starting + (fleet.waiting > 0)
    >>> one_seat = iq.Sarathi(max_seqs=1)
    >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=one_seat, kv=iq.KvCache.unlimited())
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
"""The most replicas that an autoscaler may start."""


class FleetFigures(Protocol):
    """What a policy of one's own sees at a look.

    Everything before this instant has happened, and of what happens at it the ends of iterations and the
    deaths of replicas; requests that arrive at it have not.
    """

    @property
    def now_s(self) -> float:
        """This instant, in seconds."""

    @property
    def open(self) -> int:
        """Replicas that take requests."""

    @property
    def starting(self) -> int:
        """Replicas that come, those under repair among them."""

    @property
    def draining(self) -> int:
        """Replicas that finish the requests that they have."""

    @property
    def waiting(self) -> int:
        """Requests in the queues of open replicas, and those that have no replica."""

    @property
    def running(self) -> int:
        """Requests admitted at open replicas."""

    @property
    def seats(self) -> int:
        """Requests that the open replicas admit at most."""

    @property
    def used_blocks(self) -> int:
        """KV blocks that requests hold at open replicas."""

    @property
    def blocks(self) -> int:
        """All KV blocks of open replicas."""

    @property
    def arrived(self) -> int:
        """Requests that have come since the run began."""


class ScalingPolicy(Description):
    """How many replicas an autoscaler wants: a class of this module, or one derived from this.

    A class of your own has a method `wanted(fleet)`. It is called at every look with a `FleetFigures` and
    returns a whole number, 0 or above, of replicas that should be open or starting; the autoscaler brings it
    within its limits. What it raises passes through `simulate` untouched. An object that remembers something
    still does in its next run.

    Raises:
        ConfigError: used in an `Autoscaler`, a class without `wanted`.
        SimulationError: in `simulate`, an answer that is no such number; it names the instant.

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
        """The fields of a policy of one's own are its own affair."""
        if not self.is_user_defined():
            Description.__post_init__(self)

    def is_user_defined(self) -> bool:
        """Whether this is an object of a class that is no policy of inferq itself."""
        return type(self) not in SCALING_POLICIES

    def to_json(self) -> dict[str, Any]:
        """The policy as JSON-ready values, with its `kind`: `"Python"` for one of your own."""
        if not self.is_user_defined():
            return Description.to_json(self)
        kind = type(self)
        if not callable(getattr(self, "wanted", None)):
            raise ConfigError("policy", f"{kind.__name__} has no wanted(fleet), and is no policy of inferq")
        return {"kind": "Python", "name": f"{kind.__module__}.{kind.__qualname__}"}


@dataclass(frozen=True, slots=True)
class ByQueue(ScalingPolicy):
    """⌈(waiting + running) / requests⌉ replicas: so many requests for each.

    Counted are the requests at open replicas and those that have none.

    Source: the concurrency target of Knative's autoscaler (knative.dev, "Configuring concurrency").

    Args:
        requests: that each replica should have, waiting and running; above 0.

    Raises:
        ConfigError: a number that is not above 0.

    Example:
        >>> import inferq as iq
        >>> iq.ByQueue(16).to_json()
        {'kind': 'ByQueue', 'requests': 16}
    """

    requests: float


@dataclass(frozen=True, slots=True)
class ByUtilization(ScalingPolicy):
    """⌈open · share / target⌉ replicas, where a share of the open ones is in use.

    Nothing changes while share / target is within `tolerance` of 1, or while no replica is open.

    Source: the algorithm of Kubernetes' horizontal pod autoscaler (kubernetes.io, "Horizontal Pod
        Autoscaling"), with its tolerance of 0.1.

    Args:
        target: the share that should be in use, above 0, at most 1.
        of: `"seats"`, requests admitted of those that may be (`max_seqs`), or `"kv"`, blocks that requests
            hold of all.
        tolerance: 0 or above, below 1.

    Raises:
        ConfigError: a number outside these ranges; in `simulate`, seats or a cache without limit.

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
    """As many replicas as the arrivals need that a line through the last two windows foretells.

    With c₁ arrivals in the window before the look and c₀ in the one before that, it expects
    (c₁ + (c₁ − c₀) · ahead_s / window_s) / window_s requests a second, and wants as many replicas as serve
    them, rounded up. What had come by an instant is what had come at the last look up to it.

    Source: a linear trend, the simplest forecast of NVIDIA Dynamo's planner and of predictive autoscalers.

    Args:
        requests_per_s: that one replica serves, above 0; `capacity` finds it.
        window_s: seconds over which arrivals are counted, above 0; best a multiple of the look's `every_s`.
        ahead_s: how many seconds the forecast lies ahead, 0 or above; best the `startup_s`.

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
    """A fixed number of replicas from one time on to the next.

    Args:
        steps: pairs of seconds and replicas, in order of time: so many are wanted from then on. Before the
            first step as many as there are, or with a period those of its last step.
        period_s: seconds after which the schedule begins anew, later than its last step: 86,400 for a day.
            None: the last step stays.

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
        """Turn the steps into pairs of a time and a whole number."""
        object.__setattr__(self, "steps", pairs("steps", self.steps, "(seconds, replicas)"))
        ScalingPolicy.__post_init__(self)

    def to_json(self) -> dict[str, Any]:
        """The policy as JSON-ready values, with its `kind`."""
        steps = [list(step) for step in self.steps]
        return {"kind": "BySchedule", "steps": steps, "period_s": self.period_s}


SCALING_POLICIES: tuple[type[ScalingPolicy], ...] = (ByQueue, ByUtilization, ByForecast, BySchedule)
"""Every policy that an autoscaler may be described with."""


@dataclass(frozen=True, slots=True)
class Autoscaler(Description):
    """What says how many replicas of a cluster serve, as time goes by.

    Every `every_s` seconds, first after so many, it asks its policy how many replicas should be open or
    starting. Missing ones are asked for, the lowest first: each is open `startup_s` later, with an empty
    cache. Of those that are too many the ones that only start are given up, then the highest open ones drain:
    they take no new request, finish theirs and are gone. Replicas that drain keep their places, so that there
    are never more than `max` at once. `cooldown_s` after a change none is taken away; one more is asked for
    at any look.

    A request that comes when no replica is open waits for one; see `Failures`. Routers see open replicas
    only. What is paid for is a replica from the asking to its end: `Result.replica_s`.

    Args:
        policy: how many it wants: `ByQueue`, `ByUtilization`, `ByForecast`, `BySchedule`, or an object of a
            class of your own, see `ScalingPolicy`.
        max: the most replicas, not below `min`.
        min: the fewest, 1 or above.
        startup_s: seconds from the asking for a replica to its first request, 0 or above: to get a machine,
            to load the weights, to warm up.
        every_s: seconds between two looks, above 0.
        cooldown_s: seconds after a change in which no replica is taken away, 0 or above.

    Raises:
        ConfigError: a number outside these ranges, or no policy; it names the field.

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
            raise ConfigError("min", f"must be 1 or above, is {self.min}: a request needs a replica to go to")
        if not self.min <= self.max <= MOST_PLACES:
            raise ConfigError("max", f"must be from min, {self.min}, to {MOST_PLACES}, is {self.max}")
        positive("every_s", self.every_s)
        for name in ("startup_s", "cooldown_s"):
            not_negative(name, getattr(self, name))
        self.policy.to_json()

    def to_json(self) -> dict[str, Any]:
        """The autoscaler as JSON-ready values; the inverse of `from_json`."""
        others = ("max", "min", "startup_s", "every_s", "cooldown_s")
        return {"policy": self.policy.to_json(), **{name: getattr(self, name) for name in others}}

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> Autoscaler:
        """The autoscaler that a table describes, as read from JSON or TOML.

        Raises:
            ConfigError: an unknown, missing or wrong field, named by its path.
        """
        return read_fields("autoscaler", description, cls)


def pairs(name: str, value: object, what: str) -> tuple[tuple[float, int], ...]:
    """Pairs of seconds and a whole number; an error names the first that is none."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ConfigError(name, f"must be a list of pairs {what}, is {value!r}")
    found = []
    for place, pair in enumerate(value):
        here = f"{name}[{place}]"
        if isinstance(pair, (str, bytes)) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise ConfigError(here, f"must be a pair {what}, is {pair!r}")
        seconds, number = plain(f"{here}[0]", pair[0], (float,)), plain(f"{here}[1]", pair[1], (int,))
        assert isinstance(seconds, (int, float)) and isinstance(number, int)
        found.append((seconds, number))
    return tuple(found)
