"""Which replica serves a request that has just arrived?

A router is asked once for each request, at the instant of its arrival, and sees everything that happened
before it: iterations that end, hand-offs and patience that runs out at that instant, and the arrivals with
lower ids. Ties go to the lowest replica.

Example:
    A router of one's own that sends long prompts to the last replica, and all others to the emptiest of the
    rest:

    >>> import inferq as iq
    >>> class LongApart(iq.Router):
    ...     def route(self, request: iq.Arrival, fleet: iq.Fleet) -> int:
    ...         if request.prompt_tokens > 1000:
    ...             return len(fleet) - 1
    ...         return int(fleet.requests[:-1].argmin())
    >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    >>> workload = {"arrival_s": [0.0] * 3, "prompt_tokens": [10, 5000, 10], "output_tokens": [1] * 3}
    >>> three = iq.Cluster(engine, replicas=3, router=LongApart())
    >>> iq.simulate(workload, three).requests["replica"].to_list()
    [0, 2, 1]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from inferq.description import Description, nearest, read
from inferq.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "ROUTERS",
    "Arrival",
    "BySession",
    "Fleet",
    "LeastKv",
    "LeastRequests",
    "LeastTokens",
    "PowerOfTwo",
    "Random",
    "RoundRobin",
    "Router",
]

UNREADABLE = "a router written in Python cannot be read back from a description; build the cluster in Python"
"""Why such a description is refused."""


class Arrival(Protocol):
    """What a router of one's own is told about the request that it routes.

    Its output length is not among it: a server does not know it.
    """

    @property
    def id(self) -> int:
        """Its row in `Result.requests`."""

    @property
    def arrival_s(self) -> float:
        """This instant, in seconds."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of its prompt."""

    @property
    def class_name(self) -> str:
        """Its class; `"default"` where the workload names none."""

    @property
    def session(self) -> int | None:
        """Its session, numbered from 0 in the order in which the workload names them; None for none."""


class Fleet(Protocol):
    """What a router of one's own sees of its replicas: one number of each, made when asked for.

    It is valid during the call.
    """

    def __len__(self) -> int:
        """How many replicas there are to choose from."""

    @property
    def replicas(self) -> NDArray[np.int64]:
        """Their numbers in `Result.requests`."""

    @property
    def requests(self) -> NDArray[np.int64]:
        """Requests that are there, waiting and running."""

    @property
    def running(self) -> NDArray[np.int64]:
        """Requests that were admitted."""

    @property
    def waiting(self) -> NDArray[np.int64]:
        """Requests that wait for admission."""

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Tokens of prompts not computed yet and of outputs not emitted yet."""

    @property
    def used_blocks(self) -> NDArray[np.int64]:
        """KV blocks taken."""

    @property
    def free_blocks(self) -> NDArray[np.int64]:
        """KV blocks free."""


class Router(Description):
    """A rule that sends each request to a replica: a class of `inferq.router`, or one derived from this.

    A class of your own has a method `route(request, fleet)`. It is called once for each request, in the order
    of their arrival, with an `Arrival` and a `Fleet`, and returns the place of a replica: a whole number from
    0 to `len(fleet) - 1`. What it raises passes through `simulate` untouched. An object that remembers
    something still does in its next run.

    Raises:
        ConfigError: used in a `Cluster`, a class without `route`.
        SimulationError: in `simulate`, a result that is no such number; it names the rule and the request.

    Example:
        See `inferq.router` and `docs/run-a-fleet.md`.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        """The fields of a router of one's own are its own affair; those of inferq have none."""

    def is_written(self) -> bool:
        """Whether this is an object of a class that is no router of inferq itself."""
        return type(self) not in ROUTERS

    def describe(self) -> dict[str, Any]:
        """The router as JSON-ready values, with its `kind`: `"Python"` for one of your own."""
        if not self.is_written():
            return Description.describe(self)
        kind = type(self)
        if not callable(getattr(self, "route", None)):
            raise ConfigError(
                f"router: {kind.__name__} has no route(request, fleet), and is no router of inferq"
            )
        return {"kind": "Python", "name": f"{kind.__module__}.{kind.__qualname__}"}


@dataclass(frozen=True, slots=True)
class RoundRobin(Router):
    """Replica 0, 1, 2, … and again from 0, in the order of arrival, whatever they are doing.

    Replicas then do not see each other: n replicas are n separate runs, on several threads where there are.

    Source: the default of most load balancers; the equal split that lets the one-engine results of li2025 and
        nie2026 speak of n engines.

    Example:
        >>> import inferq as iq
        >>> iq.RoundRobin().describe()
        {'kind': 'RoundRobin'}
    """


@dataclass(frozen=True, slots=True)
class Random(Router):
    """A replica drawn at random, each equally likely, from the seed of the run and the request's id.

    Poisson arrivals split so are independent Poisson arrivals at every replica.

    Source: the thinning of a Poisson process.

    Example:
        >>> import inferq as iq
        >>> iq.Random().describe()
        {'kind': 'Random'}
    """


@dataclass(frozen=True, slots=True)
class LeastRequests(Router):
    """The replica with the fewest requests, waiting and running together.

    Source: join the shortest queue; the router of vLLM's data-parallel front end counts so.

    Example:
        >>> import inferq as iq
        >>> iq.LeastRequests().describe()
        {'kind': 'LeastRequests'}
    """


@dataclass(frozen=True, slots=True)
class LeastTokens(Router):
    """The replica with the least work left: tokens of prompts not computed plus outputs not emitted.

    It knows output lengths, which no server does: a bound on what a predictor of lengths can gain.

    Source: join the least workload.

    Example:
        >>> import inferq as iq
        >>> iq.LeastTokens().describe()
        {'kind': 'LeastTokens'}
    """


@dataclass(frozen=True, slots=True)
class PowerOfTwo(Router):
    """Two different replicas drawn at random, then the one of them with fewer requests.

    The draws belong to the seed of the run and the request's id.

    Source: Mitzenmacher, The power of two choices in randomized load balancing (2001).

    Example:
        >>> import inferq as iq
        >>> iq.PowerOfTwo().describe()
        {'kind': 'PowerOfTwo'}
    """


@dataclass(frozen=True, slots=True)
class LeastKv(Router):
    """The replica with the fewest KV blocks spoken for: those used, and those that waiting prompts will need.

    Source: routers that watch the KV cache, such as that of NVIDIA Dynamo, without their prefix overlap.

    Example:
        >>> import inferq as iq
        >>> iq.LeastKv().describe()
        {'kind': 'LeastKv'}
    """


@dataclass(frozen=True, slots=True)
class BySession(Router):
    """All requests of one session on one replica, sessions one after the other as `RoundRobin` would.

    It needs the workload's `session_id`. A request without a session counts as a session of its own. In a
    `Network` the requests of one job are a session where the workload names none.

    Source: sticky sessions, which keep the prefix of a conversation in one cache.

    Example:
        >>> import inferq as iq
        >>> iq.BySession().describe()
        {'kind': 'BySession'}
    """


ROUTERS = (RoundRobin, Random, LeastRequests, LeastTokens, PowerOfTwo, LeastKv, BySession)
"""Every router that a cluster may be described with."""


def read_router(path: str, described: object) -> Router:
    """The router that a table with a `kind`, or its name alone, describes."""
    named = described.get("kind") if isinstance(described, Mapping) else described
    if named == "Python":
        raise ConfigError(f"{path}: {UNREADABLE}")
    if not isinstance(described, str):
        return read(path, described, ROUTERS)
    for kind in ROUTERS:
        if kind.__name__ == described:
            return kind()
    raise ConfigError(
        f"{path}: unknown router {described!r}{nearest(described, (k.__name__ for k in ROUTERS))}"
    )
